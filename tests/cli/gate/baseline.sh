# An older summary adds rules: equal figures pass, worse ones fail. One without figures for this run fails, too.
config="$TESTDATA/gate/pass.json"
gate() { status=0; "$KVTOOL" gate "$config" --deterministic "$@" 2> /dev/null || status=$?; echo "exit $status"; }
why() { # SUMMARY FLAGS: prints the remark on that baseline
  local old=$1
  shift
  status=0
  "$KVTOOL" gate "$config" --deterministic --baseline "$old" --json "$@" > new.json 2> /dev/null || status=$?
  jq -r --arg status $status '.results[0] | "exit \($status): \(.reason)" + ([.cases[].rules[] | select(.status == "fail") | "\n  \(.metric): \(.reason)"] | add // "")' new.json
  jq -r '.results[0] | .baseline.problems[] | "  lenient: " + .' new.json | grep -- "$(echo " $*" | grep -o lenient || echo nothing)" || true
}
gate -o old.json > first.txt
"$KVTOOL" gate "$config" --deterministic -q --baseline old.json --json > same.json
jq -c '.results[0] | [.verdict, .baseline.verdict, .baseline.missing_cases, .baseline.problems, ([.cases[].rules[] | select(has("baseline"))] | length > 0)]' same.json
$VALIDATE < same.json
edit() { jq "$1" old.json > "$2.json"; shift; why "$@.json"; why "$@.json" --baseline-lenient; }
edit '.cases[0].name = "another"' renamed
edit '.rows = [] | .cases = []' empty
edit '.verdict = "fail"' failed
edit '.cases[0].status = "fail"' inside
edit '.inputs[0].xxh3 = "0123456789abcdef"' snapshot
edit '.cases[0].snapshot_xxh3 = "0123456789abcdef"' case
# The figure is no longer measured, because attention needs a trace.
jq 'del(.defaults.trace)' <(sed -E 's|^ *//.*||' "$TESTDATA/gate/pass.json") |
  sed "s|\"../trace|\"$TESTDATA/trace|; s|\"snapshot\": *\"|&|" > traceless.json
config=traceless.json
sed -i 's|"params": {|"kv_heads": 4, "params": {|' traceless.json
why old.json --case design_store
why old.json --case design_store --baseline-lenient
config="$TESTDATA/gate/pass.json"
# This baseline's figures are 20 % better.
jq '(.cases[] | select(.name == "runtime_full") | .true_figures.measured_ratio) *= 1.2' old.json > better.json
gate --baseline better.json --case runtime_full
# The summary of MNN's own suite can be a baseline; this one failed.
why "$TESTDATA/golden/mnn/gate/suite/summary.json" --case runtime_full
why "$TESTDATA/golden/mnn/gate/suite/summary.json" --case runtime_full --baseline-lenient
"$KVTOOL" gate "$config" --baseline-lenient || echo "exit $?"
