# A copy of a store in use, or an index from a backup, lacks states: they are named and kept until a repair lists
# them.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
for n in 1 2 3; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$((100 * n))" -o "save$n"; done
"$KVTOOL" store add -q s save1 --name chat
cp s/index.sqlite backup
"$KVTOOL" store add -q s save2 --name chat
"$KVTOOL" store add -q s save3 --name chat
cp backup s/index.sqlite
"$KVTOOL" store verify s
"$KVTOOL" store verify -q s --json | tee report.json | $VALIDATE
jq -c '.results[0] | [.verdict, .leftover_files, .unlisted]' report.json
# store gc keeps the backups and reports them.
"$KVTOOL" store gc s --json | tee report.json | $VALIDATE
jq -c '.results[0] | [.leftover_files, .unlisted]' report.json
"$KVTOOL" store prune -q s --keep-last 1 --json | tee report.json | $VALIDATE
jq -c '.results[0].unlisted' report.json
ls s/packs s/states
# An addition in the meantime gets a number that no file has.
cp -r s grown
"$KVTOOL" store add grown "$state" --name new 2>&1 | sed 's/: .*//'
"$KVTOOL" store get -q grown new -c | cmp - "$state"
"$KVTOOL" store verify -q grown --repair 2>&1
for n in 1 2 3; do "$KVTOOL" store get -q grown "@$n" -c | cmp - "save$n"; done
"$KVTOOL" store get -q grown new -c | cmp - "$state"
"$KVTOOL" store gc -q grown && "$KVTOOL" store verify grown
"$KVTOOL" store verify s --repair
for n in 1 2 3; do "$KVTOOL" store get -q s "@$n" -c | cmp - "save$n"; done
# An index from before a collection names packs that no longer exist, but not the pack that now holds their objects.
"$KVTOOL" store add -q t "$state" --name chat
"$KVTOOL" store add -q t save1 --name other
cp t/index.sqlite backup
cp -r t/packs old-packs
"$PYTHON" -c 'import sqlite3
with sqlite3.connect("t/index.sqlite") as index: index.execute("UPDATE packs SET bytes = 2 * bytes WHERE pack = 1")'
truncate -s "$((2 * $(stat -c %s t/packs/00000001.pack)))" t/packs/00000001.pack
"$KVTOOL" store gc -q t
[ ! -e t/packs/00000001.pack ]
cp backup t/index.sqlite
"$KVTOOL" store gc t || echo "exit $?"
"$KVTOOL" store verify -q t --repair
"$KVTOOL" store get -q t chat -c | cmp - "$state" && "$KVTOOL" store get -q t other -c | cmp - save1
"$KVTOOL" store gc -q t && "$KVTOOL" store verify -q t
# A record that cannot be read is not a state, and is removed.
head -c 100 s/states/00000003.kvs >s/states/00000044.kvs
"$KVTOOL" store verify s
"$KVTOOL" store gc -q s && ls s/states
# The copy follows docs/store.md while states are added.
for n in 1 2 3; do "$KVTOOL" store add -q s "save$n" --name "copied$n" & done
flock s/kvtool-store cp -a s copy
wait
"$KVTOOL" store verify -q copy
"$KVTOOL" store list copy --json | jq -c '[.results[0].states[].name] - ["copied1", "copied2", "copied3"]'
