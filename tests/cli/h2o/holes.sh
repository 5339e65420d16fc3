# Rows of a trace are positions: a cache with holes is refused by name.
$PYTHON - "$TESTDATA/trace/s260k" << 'PY'
import json, sys
import numpy as np
for rows in (16, 40):
    meta = {"kvtool.trace": "1", "prompt_tokens": "8", "kv_heads": "4"}
    np.savez(f"{rows}.npz", **{"q.0": np.load(f"{sys.argv[1]}-L0-Q.npy")[:rows],
                               "__metadata__": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
PY
for command in "replay-h2o" "replay-lossless --mode store"; do
  status=0
  "$KVTOOL" $command "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --trace 40.npz || status=$?
  echo "$status"
done
# Up to the hole rows and positions agree: a trace that ends there is replayed.
"$KVTOOL" replay-h2o "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --trace 16.npz --block-tokens 1 --sink 1 --recent 2 \
  --trigger-min 8 --update-interval 1 --layer-start 0 --json -q | jq -c '[.trace.decode_steps, .runs[0].evicting.rows > 0]'
