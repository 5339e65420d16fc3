# An older summary adds rules: the same figures hold them, worse ones fail, and the case that went missing is named.
gate() { status=0; "$KVTOOL" gate "$TESTDATA/gate/pass.json" --deterministic "$@" || status=$?; echo "exit $status"; }
gate -o old.json > first.txt
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --deterministic --baseline old.json --json > same.json
jq -c '[.verdict, .baseline.verdict, .baseline.missing_cases, ([.cases[].rules[] | select(has("baseline"))] | length > 0)]' same.json
jq '.cases[0].name = "another"' old.json > renamed.json
gate --baseline renamed.json > /dev/null
# What was 20% better before.
jq '(.cases[] | select(.name == "runtime_full") | .true_figures.measured_ratio) *= 1.2' old.json > better.json
gate --baseline better.json --case runtime_full
# The original's own summary serves as well.
gate --baseline "$TESTDATA/golden/mnn/gate/suite/summary.json" --case runtime_full -q
