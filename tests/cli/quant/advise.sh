# Types for each layer are chosen within a limit, written, read again, and evaluated the same.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
quant() { "$KVTOOL" replay-quant run --rows 0 "$@"; }
quant --k q8_0,q4_0 --v q8_0,q4_0 --advise --max-kl 0.0005 --plan-out plan.json --json -q > advice.json 2> /dev/null
$VALIDATE < advice.json
$VALIDATE < plan.json
jq -c '.results[0] | [.advice.best.predicted_kl.expected_nats <= 0.0005, .advice.best.ratio > 1.8, .advice.loss, .advice.flags]' advice.json
# The limit is on the expected loss, so a plan slightly above it is rejected, whatever the formula says.
quant --k q8_0,q4_0 --v q8_0,q4_0 --advise --max-kl "$(jq '.results[0].advice.best.predicted_kl.nats' advice.json)" --json -q 2> /dev/null | jq -c --slurpfile before advice.json '.results[0].advice.best.bytes > $before[0].results[0].advice.best.bytes'
# Each step of the path saves bytes.
jq -c '.results[0] | [.advice.path | [.[1:], .[:-1]] | transpose[] | .[0].bytes_per_token < .[1].bytes_per_token] | all' advice.json
quant --plan plan.json --json -q > again.json 2> /dev/null
$VALIDATE < again.json
nats='[.predicted_kl.nats, .bytes, .output_error] | map(. * 1e9 | round)'
diff <(jq -c ".results[0].advice.best | $nats" advice.json) <(jq -c ".results[0].plan | $nats" again.json) && echo "the same outcome"
quant --k q8_0,q4_0 --v q8_0,q4_0 --advise --bytes-per-token 250 -q --json 2> /dev/null | jq -c '.results[0] | [.advice.best.bytes_per_token <= 250, .advice.max_kl]'
status=0; quant --k q8_0 --v q8_0 --advise --bytes-per-token 10 --json -q > none.json 2> /dev/null || status=$?; echo $status; jq -c .results[0].advice.best none.json
quant --k fp8_e4m3,bf16 --v fp8_amax,bf16 --advise --max-kl 0.0005 | tail -n 7
# Invalid plans.
for text in '{}' '{"schema":"kvtool.quant-plan/1"}' '{"schema":"kvtool.quant-plan/1","layers":[]}' '{"schema":"kvtool.quant-plan/1","layers":[7]}' \
  '{"schema":"kvtool.quant-plan/1","layers":[{"layer":0,"k":"q9","v":"f16"}]}' '{"schema":"kvtool.quant-plan/1","layers":[{"k":"f16","v":"f16"}]}' \
  '{"schema":"kvtool.quant-plan/1","layers":[{"layer":1,"k":"f16","v":"f16"},{"layer":1,"k":"f16","v":"f16"}]}' \
  '{"schema":"kvtool.quant-plan/1","layers":[{"layer":9,"k":"f16","v":"f16"}]}'; do
  echo "$text" > wrong.json
  status=0; quant --plan wrong.json || status=$?; echo $status
done
