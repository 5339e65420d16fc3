# A suite's output that lacks cases passes only if the user says which part is meant.
golden="$TESTDATA/golden/mnn/gate/suite"
mkdir suite
cp -r "$golden/runtime_store" "$golden/runtime_store.console.log" suite/
gate() {
  status=0
  "$KVTOOL" gate "$@" --engine-logs suite --deterministic --json -q > out.json 2> err.txt || status=$?
  jq -r --arg exit $status '.results[0] | "exit \($exit), \(.verdict), \(.passed_cases) of \(.total_cases) passed", (.reason | select(. != "") | split("; ")[])' out.json
}
gate
gate --strict
gate --case runtime_store
echo '{"schema": "kvtool.gate-config/1", "expected_cases": ["runtime_store"]}' > part.json
gate part.json
echo '{"schema": "kvtool.gate-config/1", "expected_cases": 1}' > one.json
gate one.json
echo '{"schema": "kvtool.gate-config/1", "expected_cases": ["runtime_store", "runtime_full"]}' > two.json
gate two.json
