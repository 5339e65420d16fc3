# Queries of NaN give no figure: it is null, and a rule on it fails, next to rules that pass. If only some queries are
# NaN, the figure is uncertain.
$PYTHON "$SHARED_SUITE/nan_queries.py" "$TESTDATA"
params='"h2o_layer_start": 1, "h2o_block_tokens": 8, "h2o_sink_tokens": 4, "h2o_recent_tokens": 16, "h2o_trigger_min_tokens": 64'
gate() { # trace, rule, flags
  cat > gate.json << JSON
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "nan", "mode": "full", "snapshot": "$TESTDATA/trace/s260k.seq0.bin", "trace": "$1", "prompt_tokens": 64,
   "params": {$params}, $3
   "rules": [{"metric": "$2", "op": "<=", "limit": 0.5}, {"metric": "lossy_best", "op": ">=", "limit": 1}]}]}
JSON
  shift 3
  status=0
  "$KVTOOL" gate gate.json --deterministic --json -q "$@" > out.json 2> err.txt || status=$?
  jq -r --arg exit $status '.results[0] | "exit \($exit), \(.verdict): " + (.cases[0].rules[0] | "\(.metric) \(.value | if . then . * 1e6 | round / 1e6 else . end) \(.status): \(.reason)")' out.json
}
for metric in mean p95 worst evicting_mean evicting_p95; do gate all/s260k attention_error.$metric ""; done
$VALIDATE < out.json
jq -c '.results[0].cases[0] | .true_figures.attention_error, .rows[0].attention_error_mean, [.layers[].attention_error]' out.json
gate all/s260k attention_error.mean "" --strict
"$KVTOOL" gate gate.json --deterministic 2> /dev/null || echo "exit $?"
for metric in mean evicting_p95; do gate last/s260k attention_error.$metric ""; done
sed 's/"limit": 0.5/"limit": 0.001/' gate.json > tight.json
"$KVTOOL" gate tight.json --deterministic --json -q 2> /dev/null | jq -r '.results[0].cases[0].rules[0] | "\(.metric) > \(.limit): \(.status)"' || true
# Rules on quantised types also fail if all queries are NaN, and are inconclusive if only some are.
quant='"quant": {"k": "q8_0", "v": "q8_0"},'
for trace in all last; do gate $trace/s260k quant.output_error "$quant"; done
