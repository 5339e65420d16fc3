# --suite: the six cases of the suite. A cache too short for its parameters fails, and the engine's own cases are
# neither passed nor failed.
cd "$TESTDATA/trace"
status=0
"$KVTOOL" gate --suite mnn --snapshot s260k.seq0.bin --trace s260k --prompt-tokens 96 --json -q > "$OLDPWD/summary.json" || status=$?
echo "exit $status"
cd "$OLDPWD"
$VALIDATE < summary.json
jq -r '.results[0] | .cases[] | "\(.name) \(.mode) \(.status): \(.reason)"' summary.json
jq -c '.results[0] | [.rows[] | [.case, .overall_pass]]' summary.json
jq -r '.results[0] | .generated_at' summary.json | grep -cE '^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$'
# The command of a failed rule runs that case alone, with the same result.
command=$(jq -r '.results[0] | .cases[] | select(.name == "runtime_store") | .rules[] | select(.status == "fail") | .reproduce' summary.json | sed -n 1p)
echo "$command"
(cd "$TESTDATA/trace" && eval "\"$KVTOOL\" ${command#kvtool } --json -q") > again.json || status=$?
jq -c '.results[0] | [.total_cases, .cases[0].name, .cases[0].status]' again.json
# A case given by its name in the suite has the suite's settings, and no config may define it.
(cd "$TESTDATA/trace" && "$KVTOOL" gate --snapshot s260k.seq0.bin --trace s260k --prompt-tokens 96 --case runtime_full --json -q) 2> /dev/null | jq -c '.results[0].cases[0] | [.name, .status]' || true
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --suite mnn || echo "exit $?"
"$KVTOOL" gate --suite other --snapshot s.bin 2> /dev/null || echo "exit $?"
