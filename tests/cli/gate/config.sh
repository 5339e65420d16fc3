# Each mistake in a config is reported with its place, and gives exit status 2.
config() {
  printf '%s' "$1" > gate.json
  status=0
  "$KVTOOL" gate gate.json || status=$?
  [ $status = 2 ] || echo "exit $status"
}
case='"name": "a", "mode": "full", "snapshot": "s.bin"'
config '{"schema": "kvtool.gate-config/1", "cases": [{"name": "a", "mode": "ful"}]}'
config '{"schema": "kvtool.gate-config/1", "casse": []}'
config "{\"schema\": \"kvtool.gate-config/1\", \"cases\": [{$case, \"params\": {\"h2o_target_lossy\": 3}}]}"
config "{\"schema\": \"kvtool.gate-config/1\", \"cases\": [{$case, \"rules\": [{\"metric\": \"lossy\", \"op\": \">=\", \"limit\": 3}]}]}"
config "{\"schema\": \"kvtool.gate-config/1\", \"cases\": [{$case, \"rules\": [{\"metric\": \"lossy_best\", \"op\": \">=\", \"limit\": \"3\"}]}]}"
config '{"schema": "kvtool.gate-config/1", // comment
"cases": [}'
config '{"schema": "kvtool.gate-config/1", "cases": [{"name": "runtime_probe"}]}'
config ''
"$KVTOOL" gate || echo "exit $?"
"$KVTOOL" gate --snapshot s.bin --lossy-target 3 || echo "exit $?"
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --case runtime_ful || echo "exit $?"
"$KVTOOL" gate --engine-logs "$TESTDATA/golden/mnn/gate/suite" --return-codes runtime_full || echo "exit $?"
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --prompt-tokens 1.5 || echo "exit $?"
# The schema and the table agree on the names that rules can use.
cmp <("$KVTOOL" gate --list-metrics | awk 'NR > 1 {print $1; if ($2 != "-") print $2}' | sort) \
  <("$KVTOOL" schema gate-config | jq -r '."$defs".rule.properties.metric.enum[]' | sort) && echo "one list of metrics"
# With --snapshot, a config whose cases all name their own snapshot has nothing to judge.
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --case runtime_store --snapshot "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" 2>&1 > /dev/null |
  sed "s|$TESTDATA/||g"
