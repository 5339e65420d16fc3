# Rows of a trace are positions, so a cache with missing positions is refused, and the message names the position.
"$PYTHON" "$SHARED_SUITE/holes_traces.py" "$TESTDATA/trace/s260k"
for command in "replay-h2o" "replay-lossless --mode store"; do
  status=0
  "$KVTOOL" $command "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --trace 40.npz || status=$?
  echo "$status"
done
# Up to the first missing position, rows and positions agree: a trace that ends there is replayed.
"$KVTOOL" replay-h2o "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --trace 16.npz --block-tokens 1 --sink 1 --recent 2 \
  --trigger-min 8 --update-interval 1 --layer-start 0 --json -q | jq -c '.results[0] | [.trace.decode_steps, .runs[0].evicting.rows > 0]'
