# Every rule agrees plan by plan with the independent numpy replay, on random traces.
params="--block-tokens 8 --sink 6 --recent 20 --trigger-min 70 --target-ratio 2 --layer-start 1"
replay() {  # FOLDER TRACE flags...
  local folder=$1 trace=$2; shift 2
  "$KVTOOL" replay-h2o "$folder/snapshot.npz" --prompt-tokens "$(jq .prompt "$folder/shape.json")" --trace "$folder/$trace.npz" --no-quality \
    --plan-out plan.json -f -q "$@" > /dev/null
  $PYTHON "$SCRIPTS/h2o_oracle.py" compare "$folder" plan.json "$@"
}
for seed in 1 2; do
  $PYTHON "$SCRIPTS/h2o_oracle.py" make --seed $seed --out random
  for trace in trace probabilities; do
    for scores in exact flash; do
      replay random $trace $params --engine exact --scores $scores
      replay random $trace $params --engine mnn --scores $scores --update-interval 5
      replay random $trace $params --engine mnn-r6 --scores $scores --layer-start 0
    done
    replay random $trace $params --granularity kv-head
    for policy in h2o tova snapkv knorm keydiff oracle-mass window streaming; do
      replay random $trace $params --policy $policy
    done
  done
done
$PYTHON "$SCRIPTS/h2o_oracle.py" make --seed 3 --layers 2 --heads 6 --kv-heads 3 --dim 24 --tokens 330 --prompt 200 --out long
replay long trace --block-tokens 16 --sink 16 --recent 64 --trigger-min 210 --target-ratio 1.6 --policy snapkv --layer-start 0
replay long trace --block-tokens 16 --sink 16 --recent 64 --trigger-min 210 --target-ratio 1.6 --layer-start 0
