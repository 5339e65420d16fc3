# Compares MNN's runtime with its design on a real cache: what each reports, what is resident, and that nothing is lost.
replay() {
  "$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 96 \
    --scope front_n_and_h2o_kept --front-n 2 --hot-sink-tokens 4 --hot-recent-tokens 16 --block-tokens 32 \
    --store-bootstrap-tokens 16 --store-grouped-step-tokens 32 --h2o-trigger-min-tokens 32 --deterministic "$@"
}
for mode in probe full store; do
  replay --mode $mode
done
replay --mode store --engine design --cache-size 0
replay --mode store --engine design --h2o-enable 1 --h2o-block-tokens 8 --h2o-sink-tokens 4 --h2o-recent-tokens 16 --h2o-trigger-min-tokens 64
