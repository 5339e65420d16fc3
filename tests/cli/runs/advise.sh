# Advice from recorded runs uses their gradients, sensitivities and context, and its nats equal those of replay-h2o.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" run
"$KVTOOL" advise run --policies h2o,streaming --budgets 0.5,0.25 --sinks 4 --recent 0.5 --min-ratio 2 --rows 0 --json -q > advice.json
$VALIDATE < advice.json
jq -c '.results[0] | .loss, .runs[0].name, .runs[0].prompt_tokens' advice.json
"$KVTOOL" replay-h2o run --policy h2o,streaming --budget 0.5,0.25 --quality-rows 0 --json -q > replay.json
nats='[.[] | . * 1e6 | round] | sort'
diff <(jq -c ".results[0] | [.uniform[].loss.worst] | $nats" advice.json) <(jq -c "[.results[0].runs[].predicted_kl.expected_nats] | $nats" replay.json) && echo "the same nats"
# Several runs; layer weights are used if a trace has no gradients, or on request.
"$KVTOOL" advise run run --policies h2o --max-kl 1 --json -q | jq -c '.results[0] | .best != null, [.check.folds[].holds], .best.expected_loss <= 1'
"$KVTOOL" advise run --sensitivity run/sensitivity.json --policies h2o,streaming --budgets 0.5,0.25 --sinks 4 --recent 0.5 --min-ratio 2 --rows 0 --json -q > weighed.json
jq -c '.results[0] | .loss.method' weighed.json
"$KVTOOL" replay-h2o run --sensitivity run/sensitivity.json --policy h2o,streaming --budget 0.5,0.25 --quality-rows 0 --json -q > replay.json
diff <(jq -c ".results[0] | [.uniform[].loss.worst] | $nats" weighed.json) <(jq -c "[.results[0].runs[].predicted_kl.expected_nats] | $nats" replay.json) && echo "the same nats"
rm run/trace/g.*
"$KVTOOL" advise run --policies h2o --min-ratio 2 --json -q | jq -r '.results[0] | .loss.method'
