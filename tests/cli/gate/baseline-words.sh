# A baseline with nothing to compare fails, and a comparison with other settings is reported.
config="$TESTDATA/gate/pass.json"
"$KVTOOL" gate "$config" --deterministic -q -o old.json 2> /dev/null
gate() { # SUMMARY FLAGS: judges with that older summary as the baseline
  local old=$1
  shift
  status=0
  "$KVTOOL" gate "$config" --deterministic --baseline "$old" --json -q "$@" > new.json 2> err.txt || status=$?
  jq -r --arg exit $status '.results[0] | "exit \($exit): \(.reason)"' new.json
  jq -r '.results[0].warnings[] | select(contains("baseline")) | "  " + .' new.json
}
edit() { title=$1; jq "$2" old.json > "$title.json"; shift 2; gate "$title.json" "$@"; }
edit same '.'
edit version '.tool.version = "0.0.1"'
edit fewer 'del(.cases[1]) | del(.rows[1])'
edit fewer-strict 'del(.cases[1]) | del(.rows[1]) | .verdict = "pass"' --strict --case runtime_store
edit params '.cases[0].params.h2o_target_lossy_ratio = 3'
edit no-figures '.cases[].true_figures = {} | .cases[].engine = {} | .rows = []'
edit no-figures-strict '.cases[].true_figures = {} | .cases[].engine = {} | .rows = []' --strict
edit no-figures-lenient '.cases[].true_figures = {} | .cases[].engine = {} | .rows = []' --baseline-lenient
# A baseline rule that a config requires fails if its figure is missing everywhere.
sed 's|"schema"|"baseline_rules": [{"metric": "measured_ratio", "max_drop": 0.01}, {"metric": "quant.ratio", "max_drop": 0.01}], "schema"|; s|"\.\./|"'"$TESTDATA"'/|' "$config" > asked.json
config=asked.json
edit with-rules '.'
edit with-rules-strict '.' --strict
config="$TESTDATA/gate/pass.json"
# An engine's summary names no snapshot, so which one it measured is unknown.
jq '.rows |= map(select(.overall_pass)) | .overall_pass = true | .total_cases = (.rows | length)' "$TESTDATA/golden/mnn/gate/suite/summary.json" > engine.json
gate engine.json --case runtime_store
gate engine.json --case runtime_store --new-recordings
