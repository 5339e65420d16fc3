# numpy finds the promised error and bytes from the advised plan's file alone.
trace=$TESTDATA/trace/s260k
"$KVTOOL" advise --no-progress "$trace.seq0.bin" --trace "$trace" --prompt-tokens 64 --max-error 12% --granularity kv-head --rows 0 \
  --plan-out plan.json --json -q > advice.json
$VALIDATE < advice.json
$VALIDATE < plan.json
"$KVTOOL" convert "$trace.seq0.bin" --kv-heads 4 --to npz -o cache.npz -q
"$PYTHON" "$SHARED_SUITE/plan_error.py" advice.json plan.json cache.npz "$trace"
jq -c '.policy, (.choices | length), ([.choices[] | .layer] | unique)' plan.json
jq -c '.results[0] | .best | (.measured_again[0] - .loss.worst | fabs < 1e-6), (.expected_loss <= 0.12), (.ratio > 1.3)' advice.json
# If one candidate serves all layers, the plan equals that of replay-h2o, event for event.
"$KVTOOL" advise --no-progress "$trace.seq0.bin" --trace "$trace" --prompt-tokens 64 --policies tova --budgets 0.5 \
  --min-ratio 1.9 --plan-out tova.json -q > /dev/null
"$KVTOOL" replay-h2o "$trace.seq0.bin" --trace "$trace" --prompt-tokens 64 --policy tova --budget 0.5 --plan-out other.json -q > /dev/null
cmp <(jq -c .events tova.json) <(jq -c .events other.json) && echo "the same events"
jq -r .policy tova.json
