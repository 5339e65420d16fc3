# Scopes can be given as MNN's numbers, and every parameter under MNN's name.
replay() {
  "$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 96 --deterministic --json \
    --h2o-trigger-min 32 --h2o-layer-start 1 "$@" | jq -c '.results[0] | del(.params_given, .environment)'
}
short="--front-n 5 --hot-sink 4 --hot-recent 16 --group-tokens 32 --store-grouped-step-tokens 32 --k-predictors raw"
long="--h2o-lossless-front-n 5 --h2o-lossless-hot-sink-tokens 4 --h2o-lossless-hot-recent-tokens 16 --h2o-lossless-block-tokens 32
  --h2o-lossless-store-grouped-step-tokens 32 --h2o-lossless-predictors-k raw"
cmp <(replay --mode store $short) <(replay --h2o-lossless-runtime-mode store $long) && echo "the same by either name"
for scope in 0:none 1:front_n 2:h2o_kept 3:front_n_and_h2o_kept; do
  cmp <(replay --mode full --scope "${scope%:*}" $short) <(replay --mode full --h2o-lossless-scope "${scope#*:}" $short) && echo "$scope"
done
# The design's probe compresses one layer of each scope.
for scope in 1 2 3; do
  replay --mode probe --engine design --scope $scope $short | jq -c '[.layers[] | select(.measured.encode_calls > 0) | .layer]'
done
