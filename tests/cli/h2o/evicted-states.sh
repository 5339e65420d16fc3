# numpy computes the same nats from gradients at recorded states, at evicted states, and from both.
for samples in "0" "1" "2" "3" "2 nan"; do
  $PYTHON "$SHARED_SUITE/predicted_kl.py" make $samples
  for policy in h2o window; do
    "$KVTOOL" replay evict snapshot.npz --trace trace.npz --plan-out plan.json -f -q --layer-start 0 --trigger-min 1 --policy $policy \
      --target-ratio 2 --json > report.json 2> warnings.txt
    $VALIDATE report.json > /dev/null
    $PYTHON "$SHARED_SUITE/predicted_kl.py" compare plan.json report.json
  done
done
jq -c '.. | .undefined_gradient_rows? // empty' report.json
# Notes name the basis, and the trace's description counts its samples.
"$KVTOOL" replay evict snapshot.npz --trace trace.npz --policy window --target-ratio 2 2> /dev/null | grep -o "expected KL is.*states"
"$KVTOOL" trace trace.npz --json | jq -c '.results[0].gradients'
# Types are predicted from the recorded state alone.
types() { "$KVTOOL" replay quant snapshot.npz --trace trace.npz --k q8_0 --v f16 "$@"; }
for samples in 0 1 3; do
  $PYTHON "$SHARED_SUITE/predicted_kl.py" make $samples
  types --json -q | jq -c '.results[0].runs[-1].predicted_kl | if . then [.basis, .samples, .calibration.median] else . end'
done
types 2>&1 | grep "evicted states"
# These marks of evicted samples do not match the gradients.
for marked in 4 -1 some; do
  $PYTHON "$SHARED_SUITE/predicted_kl.py" make $marked
  status=0; "$KVTOOL" replay evict snapshot.npz --trace trace.npz || status=$?; echo $status
done
