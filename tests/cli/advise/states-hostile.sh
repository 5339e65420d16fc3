# A folder that somebody else filled: nothing in it breaks the advice, and all that is left out is named.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir -p slots/deep/er slots/run slots/empty
cp "$state" slots/good && cp "$state" slots/deep/er/good
cp "$state" "slots/two
lines"
ln -s /etc slots/out && ln -s loop slots/loop && ln -s good slots/link
mkfifo slots/pipe
echo "no cache" > slots/notes.txt
: > slots/nothing
head -c 5000 "$state" > slots/cut
touch slots/run/run.json
mkdir slots/faked && cp "$state" slots/faked/inside && ln -s /dev/null slots/faked/kvtool-store
"$KVTOOL" compress -q slots/good -o slots/good.kvz
"$KVTOOL" store add -q slots/store slots/good
"$KVTOOL" advise slots --json -q > out.json
$VALIDATE < out.json
jq -c '.results[0] | [.states[] | [.name, .kinship]], [.left_out[] | .name]' out.json
jq -c '.results[0].left_out[] | select(.name == "pipe" or .name == "out" or .name == "run" or .name == "store") | .why' out.json
"$KVTOOL" advise slots | grep -c '^left out 10 files: '
# Two files of one name would be versions of one state: no command makes them that.
jq -c '.results[0].recommendation | .kind, .command' out.json
"$KVTOOL" advise slots | tail -1 | sed 's/; .* free there//'
# A name with a line break is one line of a command that works.
"$KVTOOL" advise slots/two* "$TESTDATA/trace/kjv3m.seq0.bin" --json -q | jq -r '.results[0].recommendation.command' > command
cut -d' ' -f1,2,4 command && eval "\"$KVTOOL\" $(cut -d' ' -f2,4 command) -q" && ls slots | grep -c 'lines.kvz'
# Links that are inputs themselves are followed; nothing at all is an error, and so is no folder.
"$KVTOOL" advise slots/link slots/good --json -q | jq -c '[.results[0].states[].kinship]'
"$KVTOOL" advise slots/empty || echo $?
"$KVTOOL" advise slots/good nosuch || echo $?
# An archive alone is kept, for there is nothing to gain.
mkdir kept && cp slots/good.kvz kept/a.kvz && cp slots/good.kvz kept/b.kvz
"$KVTOOL" advise kept --json -q | jq -c '.results[0] | (.recommendation | del(.free_bytes)), .levels'
