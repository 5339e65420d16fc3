# --engine-logs restores the rows of MNN's own summary.json, key by key, and adds kvtool's verdict. With a config, its
# runtime cases are replayed; all others come from the logs.
cd "$TESTDATA/golden/mnn/gate"
out=$OLDPWD
status=0
"$KVTOOL" gate --engine-logs suite --return-codes runtime_full=1 --deterministic --json > "$out/logs.json" || status=$?
echo "exit $status"
$VALIDATE < "$out/logs.json"
cmp <(jq -S '.results[0] | .rows' "$out/logs.json") <(jq -S '.rows' suite/summary.json) && echo "the original's rows"
jq -c '.results[0] | .engine_logs | {engine_pass, absent_cases}' "$out/logs.json"
jq -c '.results[0] | .cases[] | [.name, .engine.overall_pass, .status, .reason]' "$out/logs.json"
"$KVTOOL" gate --engine-logs suite --return-codes runtime_full=1 --case llm_demo_full || echo "exit $?"
"$KVTOOL" gate --engine-logs logs --offline-lossless-online-json online_ok.json --lossy-target 3.5 || echo "exit $?"
"$KVTOOL" gate --engine-logs logs --offline-lossless-online-json online_ok.json --lossy-target 3.0 || echo "exit $?"
cd "$out"
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --engine-logs "$TESTDATA/golden/mnn/gate/suite" --deterministic --json > both.json || echo "exit $?"
jq -c '.results[0] | [.cases[] | [.name, .origin, .status]]' both.json
$VALIDATE < both.json
# A config's rules apply to a case in the logs as to any other.
cat > own.json << 'JSON'
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "llm_demo_full", "rules": [{"metric": "candidate_lossy_ratio_avg", "op": ">=", "limit": 2.8}]},
  {"name": "runtime_store", "rules": [{"metric": "lossy_best", "op": ">=", "limit": 3.15}]}]}
JSON
"$KVTOOL" gate own.json --engine-logs "$TESTDATA/golden/mnn/gate/suite"
# The same logs pass against their own summary: figures that they do not support count as not measured in both.
mkdir self
for of in "logs" "suite --case runtime_store"; do
  "$KVTOOL" gate --engine-logs "$TESTDATA/golden/mnn/gate/"$of -q -f -o self/summary.json || echo "exit $?"
  "$KVTOOL" gate --engine-logs "$TESTDATA/golden/mnn/gate/"$of --baseline self/summary.json | sed -n 1p
done
