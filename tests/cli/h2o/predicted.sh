# numpy computes the same prediction in nats from the plan, by gradients and by the sensitivity of layers.
$PYTHON "$SHARED_SUITE/predicted_kl.py" make
replay() {
  "$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --plan-out plan.json -f -q --layer-start 0 --trigger-min 1 --json "$@" > report.json
  $VALIDATE report.json > /dev/null
  $PYTHON "$SHARED_SUITE/predicted_kl.py" compare plan.json report.json
}
for policy in h2o window tova; do replay --policy $policy --target-ratio 2; done
replay --policy h2o --budget 0.3 --granularity kv-head
replay --policy streaming --target-ratio 3 --sensitivity sensitivity.json
"$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --layer-start 0 --trigger-min 1 --policy full,window --target-ratio 2 --html-out page.html
grep -o "Expected KL against the achieved ratio" page.html | sed -n 1p
"$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --policy window --target-ratio 2 --quality-rows 20 | sed 's/  */ /g'
"$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --policy window --target-ratio 2 --no-quality | grep -c predicted || true
# Invalid sensitivity files are refused.
for text in '{}' '{"schema":"kvtool.sensitivity/1"}' '[' '{"schema":"kvtool.sensitivity/1","noise":0,"layers":[{"layer":0,"kl":1}]}' \
  '{"schema":"kvtool.sensitivity/1","noise":1,"layers":[]}' '{"schema":"kvtool.sensitivity/1","noise":1,"layers":[{"layer":0,"kl":-1}]}' \
  '{"schema":"kvtool.sensitivity/1","noise":1,"layers":[{"layer":0,"kl":1},{"layer":0,"kl":1}]}' \
  '{"schema":"kvtool.sensitivity/1","noise":1,"layers":[{"layer":7,"kl":1}]}'; do
  echo "$text" > wrong.json
  status=0; "$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --sensitivity wrong.json || status=$?; echo $status
done
# This sensitivity file lacks layers.
jq -c '.layers |= .[:2]' sensitivity.json > two.json
"$KVTOOL" replay-h2o snapshot.npz --trace trace.npz --policy window --target-ratio 2 --sensitivity two.json --json 2> /dev/null | jq -c '.results[0] | [.runs[0].predicted_kl, .warnings]'
