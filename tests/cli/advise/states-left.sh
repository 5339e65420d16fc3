# Files that advise leaves out are named and excluded from its commands, and the answer says what following it
# requires.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots
for tokens in 100 200 300; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$tokens" -o "slots/turn$tokens"; done
cp "$state" slots/whole
# These files are not states; the name of one has a special meaning for 'find' and the shell.
head -c 3000 "$state" > 'slots/cut [1]* "x"'; : > slots/empty; echo notes > slots/notes.txt
# A hard link is the same file, not a second state, and takes no space.
ln slots/whole slots/again
"$KVTOOL" advise --no-progress slots > few.txt
sed -n '1p;/^left out/p' few.txt | sed 's/([^()]*\(data\|position\|token\)[^()]*)/(why)/'
# For a few states the commands name each. They make archives or a store first, verify second, and delete the
# originals last.
sed -n '/^answer/,$p' few.txt | sed 's/ about .*, which/ about SIZE, which/; s/originals; [0-9.]* [KMGTP]iB free/originals; ROOM free/'
# Speeds are those of the codec alone, in the same unit as all other speeds.
sed -n '/codec alone, 1 thread/p' few.txt | grep -o 'codec.*'
grep -c '^fast .* MiB/s .* MiB/s ' few.txt
# For more than eight states 'find' takes all files except the named ones that are not states.
for n in 1 2 3 4 5 6 7 8; do cp slots/turn100 "slots/copy$n"; done
command=$("$KVTOOL" advise slots --json -q | jq -r '.results[0].recommendation.command')
echo "$command" | grep -o "! -path [^!]*" | sed 's/ -exec.*//; s/ *$//'
eval "${command//kvtool store/\"$KVTOOL\" store}" 2> /dev/null; echo "exit $?"
"$KVTOOL" store list slots.store --csv - | tail -n +2 | cut -d, -f2 | sort
# --json names them, too.
"$KVTOOL" advise slots --json -q | jq -c '.results[0].left_out[].name'
# An archive beside its source does not count as a second state, which a store would keep, too.
mkdir beside && cp slots/turn100 beside/chat.bin && "$KVTOOL" compress -q beside/chat.bin
"$KVTOOL" advise beside --json -q | jq -c '.results[0] | [.states[].name], .left_out'
