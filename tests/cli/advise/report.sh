# Checks the printed text and the contents of the documents.
trace=$TESTDATA/trace/s260k
advise() { "$KVTOOL" advise --no-progress "$trace.seq0.bin" --trace "$trace" --prompt-tokens 64 "$@"; }
advise --policies streaming,h2o --budgets 0.5,0.25 --min-ratio 2 --context 2048 --html-out page.html 2> warnings.txt
grep -c "far more than these\|from one prompt" warnings.txt
head -1 page.html
grep -c "<svg" page.html
grep -o "<h2>How well plans hold on other data\|<h2>One candidate for all layers" page.html
# The documents do not depend on the number of threads.
advise --max-error 12% -T 1 --json -q > one.json
advise --max-error 12% -T 4 --json -q > four.json
cmp one.json four.json && echo "the same"
$VALIDATE < one.json
# The best plan is never worse than the best single candidate; limits hold; losses fall along the frontier.
jq -c '.results[0] | .best.ratio >= .best_uniform.ratio, .best.expected_loss <= .params.max_loss, .params.max_loss' one.json
jq -c '.results[0] | [.frontier[].ratio] == ([.frontier[].ratio] | sort), [.frontier[].loss.mean] == ([.frontier[].loss.mean] | sort)' one.json
jq -c '.results[0] | .loss, .check.left_out, (.check.folds | length), .at_context' one.json
# MNN's settings are listed with the loss of the tokens that its code keeps; a note says that its target applies at each
# trigger.
jq -c '.results[0] | [.engines[].engine], (.engines[0] | .parameters.kv_h2o_enable, .loss <= 0.12, (.note | test("at each trigger")))' one.json
# For a sample of rows the report says how large its error may be.
advise --max-error 12% --rows 40 --json -q | jq -c '.results[0] | .runs[0].rows_measured, .runs[0].rows, (.best.loss.standard_errors[0] > 0)'
# A plan without the first token (policy window keeps no sinks) has a count and a warning.
advise --policies window --budgets 0.5 --min-ratio 1.9 --json 2> /dev/null | jq -r '.results[0] | .best.parts_without_first_token, .warnings[0]'
# With several prompts, the plan is tested on each prompt while the others are used to choose it.
"$KVTOOL" advise "$trace.seq0.bin" "$trace.seq0.bin" --trace "$trace" --trace "$trace" --prompt-tokens 64 --max-error 5% --json -q > two.json
$VALIDATE < two.json
jq -c '.results[0] | (.runs | length), .check.left_out, [.check.folds[] | .holds, .promised_loss == .loss]' two.json
# A limit that cannot be met is a verdict.
advise --max-error 0.1% --min-ratio 3 --json -q > none.json || echo $?
$VALIDATE < none.json
jq -c '.results[0] | .best, .check.folds[0].found' none.json
