# A save that could not be added is tried again; the store's own folder is not watched.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots
cp "$state" slots/chat
"$KVTOOL" store add -q store "$state" --name first
# Without an index nothing can be added until the store is repaired.
mv store/index.sqlite away
"$KVTOOL" store watch --slots slots --store store --once || echo "exit $?"
mv away store/index.sqlite
"$KVTOOL" store watch --slots slots --store store --settle-ms 10 2>log &
watch=$!
for _ in $(seq 600); do "$KVTOOL" store list store chat >/dev/null 2>&1 && break; sleep 0.05; done
mv store/index.sqlite away
"$KVTOOL" convert -q "$state" --to llama-state --tokens 0:200 -o slots/later
for _ in $(seq 600); do grep -q "no index" log && break; sleep 0.05; done
sleep 0.3
mv away store/index.sqlite
for _ in $(seq 600); do "$KVTOOL" store list store later >/dev/null 2>&1 && break; sleep 0.1; done
kill $watch
"$KVTOOL" store get -q store later -c | cmp - slots/later
grep -c "no index" log
for slots in store store/ store/packs store/states ./store/../store; do
  "$KVTOOL" store watch --slots $slots --store store --once || echo "exit $?"
done
ln -s store link; "$KVTOOL" store watch --slots link --store store --once || echo "exit $?"
"$KVTOOL" store watch --slots slots --store link --once -q && mkdir new && "$KVTOOL" store watch --slots new --store new --once || echo "exit $?"
# A store inside the watched folder is ignored.
"$KVTOOL" store watch -q --slots slots --store slots/store --once --settle-ms 10 --deterministic 2>&- || true
"$KVTOOL" store list slots/store --json | jq -c '[.results[0].states[].name]'
