# K of one kv head, [token, 1, dim] or [1, token, dim], is unambiguous if the trace states the heads or has more rows
# than one.
"$PYTHON" "$SHARED_SUITE/one_head.py"
for snapshot in thd htd; do
  for trace in stated.safetensors keys.npz turned.npz; do
    "$KVTOOL" replay-h2o "$snapshot.npz" --trace "$trace" --prompt-tokens 4 --target-ratio 2 --no-quality --json -q |
      jq -c '.results[0] | [.trace.kv_heads, .trace.rows, .runs[0].ratio]'
  done
done
"$KVTOOL" inspect thd.npz || echo $?
