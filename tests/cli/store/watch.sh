# An engine's saves are added once they are complete.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots
cp "$state" slots/chat
head -c 1000 "$state" >slots/cut
"$KVTOOL" store watch --slots slots --store store --settle-ms 50 --once -q || echo "exit $?"
"$KVTOOL" store list store --json | jq -c '[.results[0].states[].name]'
# A file that is being written is left alone until it is closed.
"$KVTOOL" store watch --slots slots --store store --settle-ms 50 2>log &
watch=$!
exec 9>slots/late
head -c 200000 "$state" >&9
sleep 0.5
"$KVTOOL" store list store late >/dev/null 2>&1 && echo "too early"
tail -c +200001 "$state" >&9
exec 9>&-
for _ in $(seq 300); do "$KVTOOL" store list store late >/dev/null 2>&1 && break; sleep 0.1; done
"$KVTOOL" store get -q store late -c | cmp - "$state"
kill $watch
