# Workflow commands on standard error name the failed rules with the place of their case, and hints of failures; a gate
# that passes prints none.
mkdir ci
jq --arg t "$TESTDATA" '.defaults.snapshot = "\($t)/trace/kjv3m.seq0.bin" | .defaults.trace = "\($t)/trace/kjv3m" | .cases |= map(select(.name == "too_lossy"))' \
  <(sed -E 's|^ *//.*||' "$TESTDATA/gate/fail.json") > ci/gate.json
gate() { status=0; "$KVTOOL" gate "$@" --deterministic -q --annotations github 2> err.txt > out.txt || status=$?; echo "exit $status"; grep '^::' err.txt || echo "no command"; }
gate ci/gate.json
line=$(grep -o 'line=[0-9]*' err.txt | sed -n 1p | cut -d= -f2)
sed -n "${line}p" ci/gate.json
gate ci/gate.json --json
jq -r .results[0].verdict out.txt
gate ci/missing.json
gate ci/gate.json --case 'no%such,case'
gate "$TESTDATA/gate/pass.json" --case runtime_full
"$KVTOOL" gate ci/gate.json --annotations gitlab || echo "exit $?"
