# A stream of block scores repeats a recorded scenario of MNN, line by line.
golden="$TESTDATA/golden/mnn/h2o/scenarios.json"
pick='.[] | select(.name == "static_keep_zero" or .name == "block1")'
for name in $(jq -r "$pick | .name" "$golden"); do
  jq -c ".[] | select(.name == \"$name\") | (del(.events) + {\"kvtool.trace\": \"1\"}), .events[]" "$golden" > "$name.jsonl"
  tokens=$(jq ".[] | select(.name == \"$name\") | .params.prompt_tokens + .params.decode_steps" "$golden")
  $PYTHON - "$tokens" "$name.npz" << 'PY'
import sys
import numpy as np
tokens = int(sys.argv[1])
np.savez(sys.argv[2], k_0=np.zeros((tokens, 4, 64), np.float16), v_0=np.zeros((tokens, 4, 64), np.float16), positions=np.arange(tokens))
PY
  "$KVTOOL" replay-h2o "$name.npz" --trace "$name.jsonl" --engine mnn --plan-out "$name.plan.json"
  jq -c '[.events[] | .kept]' "$name.plan.json"
done
"$KVTOOL" trace inspect block1.jsonl
status=0
"$KVTOOL" replay-h2o block1.npz --trace block1.jsonl --engine mnn --block-tokens 2 || status=$?
echo "another block size: $status"
"$KVTOOL" replay-h2o block1.npz --trace block1.jsonl || status=$?
echo "exact engine: $status"
