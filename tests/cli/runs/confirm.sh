# `advise --confirm` runs kvtool.closed_loop in Python on the answer and its neighbours; a stub stands for it here.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" run
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$PYTHON" "$SHARED_SUITE/closed_loop_stub.py" > loop
chmod +x loop
advise() { "$KVTOOL" advise run --policies h2o,streaming --budgets 0.5,0.25 --sinks 4 --recent 0.5 --progress never "$@"; }
confirm() { advise --max-kl 0.0002 --confirm --model tiny.gguf --python ./loop "$@"; }
export LOSSES="0.00018 0.00021 0.00031"
mkdir kept
KEEP=$PWD/kept confirm --json-out found.json --html-out page.html --chosen-plan-out plan.json --quant-plan-out types.json 2> told | sed -n '/^plan .*corrected loss/p; /^(eviction)/p; /^what .*corrected loss/p; /(answer)/p; /^confirmed/,$p'
grep -v warning told
$VALIDATE < found.json
grep -c "Confirmed in the model" page.html
jq -c '.results[0] | (.confirmation | walk(if type == "number" then (. * 1e6 | round / 1e6) else . end)), ([.savings.rows[], .frontier[]] | all(.corrected_loss != null))' found.json
# The model gets the plan of the answer; its neighbours differ by a tenth of the bytes.
cmp <(jq -c .events kept/plan.json) <(jq -c .events plan.json) && cmp <(jq -c .layers kept/types.json) <(jq -c .layers types.json) && echo "the same plan"
jq -c '.results[0].confirmation.plans | map(.bytes_per_token) | .[0] >= 1.1 * .[1], .[1] >= 1.1 * .[2]' found.json
# The scale is the median factor. The limit to search with leads to a plan whose corrected loss is within the limit.
jq -c '.results[0] | .confirmation as $c | ([$c.plans[].factor] | sort[1] == $c.scale),
  ($c.expected_loss / .answer.expected_loss / $c.scale - 1 | fabs < 1e-9), ($c.search_limit * $c.scale / 0.0002 - 1 | fabs < 1e-9),
  $c.within_limits, $c.changed.expected_loss <= 0.0002' found.json
limit=$(jq '.results[0].confirmation.search_limit' found.json)
advise --max-kl "$limit" --json -q | jq -c --argjson found "$(jq -c '.results[0]' found.json)" '.results[0].answer |
  .expected_loss * $found.confirmation.scale <= 0.0002, .bytes_per_token > $found.answer.bytes_per_token'
# A common factor is the ratio of the corrected losses of all plans.
jq -c '.results[0] | .confirmation.scale as $scale | [.savings.rows[] | (.corrected_loss - .worst_loss * $scale | fabs) < 1e-12] | all' found.json
# The plan is written from eviction alone, for several runs, or to a ratio, with which the choice cannot change.
confirm --types none --csv - -q 2> told | sed -n 1p
grep -v warning told
cp -r run other
"$KVTOOL" advise run other --policies h2o --budgets 0.5,0.25 --recent 0.5 --types none --min-ratio 2 --confirm --model tiny.gguf \
  --python ./loop --progress never 2> /dev/null | sed -n '/^confirmed/,$p'
LOSSES="0 0 0" confirm -T 1 2> /dev/null | tail -1
LOSSES="0.9 0.9 0.9" confirm 2> /dev/null | tail -2
LOSSES="0.00006 0.00008 0.00015" confirm 2> /dev/null | tail -2
LOSSES="0.00012 0.00017 0.00030" confirm 2> /dev/null | tail -1
# Without the option nothing changes.
advise --max-kl 0.0002 --json -q | jq -c '.results[0] | has("confirmation"), (.savings.rows[0] | has("corrected_loss"))'
