# A number or place removes one state, a name all of its states. --dry-run shows what would be removed, and no mistake
# empties a store.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
for n in 1 2 3; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$((100 * n))" -o "save$n"; done
for n in 1 2 3; do "$KVTOOL" store add -q s "save$n" --name chat; done
"$KVTOOL" store add -q s save1 save2
left() { "$KVTOOL" store list s --json | jq -c '[.results[0].states[] | "\(.name)@\(.state)"]'; }
says() { grep -v ' to .*; ' || true; }
"$KVTOOL" store prune s --keep-last 0 || echo "exit $?"
"$KVTOOL" store prune s --keep-last 0 --dry-run 2>&1
"$KVTOOL" store prune s --keep-last 1 --dry-run --json -q | tee prune.json | $VALIDATE
jq -c '.results[0] | [.params.dry_run, [.removed[].state], .removed_objects]' prune.json
"$KVTOOL" store prune s --keep-last 9 --dry-run
left
"$KVTOOL" store remove s chat@2 save1 --dry-run; left
"$KVTOOL" store remove s chat@2 2>&1 | says; left
"$KVTOOL" store remove s @1 nobody || echo "exit $?"; left
"$KVTOOL" store remove s chat @4 chat -q --json | tee remove.json | $VALIDATE
jq -c '.results[0] | [.params.states, [.removed[].state]]' remove.json; left
"$KVTOOL" store get -q s save2 -c | cmp - save2
"$KVTOOL" store remove s || echo "exit $?"
"$KVTOOL" store prune s --keep-last 0 -f 2>&1 | says; left
test "$(ls s/packs s/states | grep -c kv)" = 0 && echo "empty"
# A name without its extension gets the full name as a suggestion.
"$KVTOOL" store add -q s save1 --name late.bin
"$KVTOOL" store get s late || echo "exit $?"
