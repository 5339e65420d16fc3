# Hostile contents of a folder do not break the advice, and everything left out is named.
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
"$KVTOOL" advise --no-progress slots | grep -c '^left out 11 files: '
# Two files with one name would be versions of one state, so no command combines them.
jq -c '.results[0].recommendation | .kind, .command' out.json
"$KVTOOL" advise --no-progress slots | tail -1 | sed 's/; .* free there//'
# A name with a line break appears on one line of a command that works.
"$KVTOOL" advise slots/two* "$TESTDATA/trace/kjv3m.seq0.bin" --json -q | jq -r '.results[0].recommendation.command' > command
cut -d' ' -f1,2,4 command && eval "\"$KVTOOL\" $(cut -d' ' -f2,4 command) -q" && ls slots | grep -c 'lines.kvz'
# Links given as inputs are followed. An empty folder is an error, and so is a file.
"$KVTOOL" advise slots/link slots/good --json -q | jq -c '[.results[0].states[].kinship]'
"$KVTOOL" advise --no-progress slots/empty || echo $?
"$KVTOOL" advise --no-progress slots/good nosuch || echo $?
# A single archive is kept, because nothing can be gained.
mkdir kept && cp slots/good.kvz kept/a.kvz && cp slots/good.kvz kept/b.kvz
"$KVTOOL" advise kept --json -q | jq -c '.results[0] | (.recommendation | del(.free_bytes)), .levels'
