# Every rule agrees plan by plan with the independent numpy replay, on random traces.
mnn="--block-tokens 8 --sink 6 --recent 20 --trigger-min 70 --target-ratio 2 --layer-start 1"
params="$mnn --schedule mnn"
replay() {  # FOLDER TRACE flags...
  local folder=$1 trace=$2; shift 2
  "$KVTOOL" replay-h2o "$folder/snapshot.npz" --prompt-tokens "$(jq .prompt "$folder/shape.json")" --trace "$folder/$trace.npz" --no-quality \
    --plan-out plan.json -f -q "$@" > /dev/null
  $PYTHON "$SCRIPTS/check/h2o_oracle.py" compare "$folder" plan.json "$@"
}
for seed in 1 2; do
  $PYTHON "$SCRIPTS/check/h2o_oracle.py" make --seed $seed --out random
  for trace in trace probabilities; do
    for scores in exact flash; do
      replay random $trace $params --engine exact --scores $scores
      replay random $trace $mnn --engine mnn --scores $scores --update-interval 5
      replay random $trace $mnn --engine mnn-r6 --scores $scores --layer-start 0
      replay random $trace $mnn --engine design --scores $scores --update-interval 5
      replay random $trace $mnn --engine design --scores $scores --target-ratio 6  # the floor decides
    done
    replay random $trace $params --granularity kv-head
    for policy in h2o tova snapkv knorm keydiff oracle-mass window streaming; do
      replay random $trace $params --policy $policy
    done
  done
done
# With a budget, every step is compared, from the end of the prompt or from a later trigger on.
blocks="--block-tokens 4 --sink 4 --recent 8 --layer-start 0 --trigger-min 1"
all="h2o tova snapkv pyramid knorm keydiff oracle-mass window streaming"
for policy in $all; do
  for trace in trace probabilities; do
    replay random $trace --layer-start 0 --trigger-min 1 --budget 0.4 --snapkv-window 6 --policy $policy
  done
  replay random trace --layer-start 1 --trigger-min 80 --budget 70t --snapkv-window 3 --snapkv-kernel 7 \
    --pyramid-beta 5 --sinks 9 --h2o-heavy 0.3 --policy $policy
done
for policy in snapkv pyramid; do  # by default the budgets of both policies grow after the prompt
  replay random trace --layer-start 0 --trigger-min 1 --budget 0.4 --snapkv-window 6 --after-prompt hold --policy $policy
  replay random trace --layer-start 1 --trigger-min 80 --budget 70t --snapkv-window 3 --after-prompt hold --policy $policy
done
for trace in trace probabilities; do
  replay random $trace $blocks --target-ratio 3
  replay random $trace $blocks --budget 0.3 --granularity kv-head
  replay random $trace $blocks --budget 50t --scores flash
done
replay random trace $blocks --budget 50t --scores flash --policy h2o
$PYTHON "$SCRIPTS/check/h2o_oracle.py" make --seed 3 --layers 2 --heads 6 --kv-heads 3 --dim 24 --tokens 330 --prompt 200 --out long
replay long trace --schedule mnn --block-tokens 16 --sink 16 --recent 64 --trigger-min 210 --target-ratio 1.6 --policy snapkv --layer-start 0
replay long trace --schedule mnn --block-tokens 16 --sink 16 --recent 64 --trigger-min 210 --target-ratio 1.6 --layer-start 0
for policy in $all; do
  replay long trace --layer-start 0 --trigger-min 1 --budget 0.6 --snapkv-window 16 --policy $policy
done
# The caches are real; the trace of one has two of its four layers.
for model in s260k:4:64 kjv3m:2:40; do
  IFS=: read -r name heads prompt <<< "$model"
  "$KVTOOL" convert "$TESTDATA/trace/$name.seq0.bin" --kv-heads "$heads" --to npz -o "$name.npz" -q
  $PYTHON "$SCRIPTS/check/h2o_oracle.py" real "$name.npz" "$TESTDATA/trace/$name" --prompt "$prompt" --out "$name"
  for flags in "--target-ratio 1.5" "--target-ratio 2 --scores exact" "--block-tokens 16 --recent 40" "--update-interval 3 --ema-alpha 0.5"; do
    replay "$name" trace --engine design --block-tokens 8 --sink 4 --recent 16 --trigger-min 48 --layer-start 0 --scores flash $flags
  done
  replay "$name" trace --engine mnn --scores flash --block-tokens 8 --sink 4 --recent 16 --trigger-min 48 --layer-start 0 --target-ratio 2
done
echo "every plan agrees"
