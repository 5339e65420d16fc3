# A recorded stream of block scores drives H2O with the parameters of the recording.
golden="$TESTDATA/golden/mnn/h2o/scenarios.json"
jq -c '.[] | select(.name == "block1") | (del(.events) + {"kvtool.trace": "1"}), .events[]' "$golden" > block1.jsonl
$PYTHON - << 'PY'
import numpy as np
noise = np.random.default_rng(1).normal(size=(44, 4, 64)).astype(np.float16)
np.savez("block1.npz", k_0=noise, v_0=noise[::-1], positions=np.arange(44))
PY
for engine in mnn design; do
  "$KVTOOL" replay-lossless block1.npz --trace block1.jsonl --mode store --engine $engine --hot-sink-tokens 2 --hot-recent-tokens 4 --block-tokens 4 \
    --store-bootstrap-tokens 4 --store-grouped-step-tokens 4 --json | jq -c '.results[0] | [.content.equal, .layers[0].held_tokens, .engine_terms.h2o_total_evict_tokens, .no_speed_reason]'
done
"$KVTOOL" replay-h2o block1.npz --trace block1.jsonl --engine mnn --json | jq -c '.results[0] | .runs[0].engine_report.h2o_total_evict_tokens'
