# The arrays of a trace resemble caches, but in a recorded run only the state counts as one.
mkdir -p slots/run arrays
cp "$TESTDATA"/trace/kjv3m* slots/run; cp "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" slots/a.bin
cp "$TESTDATA"/trace/kjv3m*.npy arrays
for folder in slots slots/run/; do
  "$KVTOOL" advise $folder --json -q | jq -c '.results[0] | [[.states[].name], [.left_out[].why]]'
done
"$KVTOOL" advise --no-progress arrays || echo "exit $?"
