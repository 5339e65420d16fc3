# A growing chat costs only its new rows; all of its saves are restored.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
for tokens in 70 200 333 460; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$tokens" -o "save$tokens"; done
cp "$state" save512
"$KVTOOL" compress -q save512 -o alone.kvz
for tokens in 70 200 333 460 512; do "$KVTOOL" store add -q states "save$tokens" --name chat; done
size() { du -sb "$1" | cut -f1; }
test $((100 * $(size states/packs))) -lt $((145 * $(size alone.kvz))) || echo "too large: $(size states/packs) against $(size alone.kvz)"
n=0
for tokens in 70 200 333 460 512; do
  n=$((n + 1))
  "$KVTOOL" store get -q states "chat@$n" -c | cmp - "save$tokens"
  "$KVTOOL" store get -q states "@$n" -f -o back && cmp back "save$tokens"
done
"$KVTOOL" store get -q states chat -o newest && cmp newest save512
# Unchanged states are not stored again; a save at another level also shares rows.
"$KVTOOL" store add states save512 --name chat 2>&1 | grep -o "there already"
before=$(size states/packs)
"$KVTOOL" store add -q states save512 --name copy --level max
test "$before" = "$(size states/packs)" && echo "a copy costs no objects"
"$KVTOOL" store list states chat | cut -c 1-20
"$KVTOOL" store verify -q states
# Pruning frees what nothing needs, and the rest can still be restored.
"$KVTOOL" store prune -q states chat --keep-last 1
"$KVTOOL" store list states --json | jq -c '[.results[0].states[] | [.state, .name]]'
"$KVTOOL" store get -q states copy -c | cmp - save512
"$KVTOOL" store get -q states chat@1 -c | cmp - save512
"$KVTOOL" store verify -q states
"$KVTOOL" store prune -q states chat copy --keep-last 0
test "$(ls states/packs states/states | grep -c kv)" = 0 && echo "empty"
