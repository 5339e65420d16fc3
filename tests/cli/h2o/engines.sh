# Prints MNN's figure and the true one for a real cache. With a budget the reached ratio is the requested one; if
# the target is applied repeatedly, one line says where it ends.
replay() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 \
    --block-tokens 8 --sink 4 --recent 16 --trigger-min 64 --layer-start 1 --target-ratio 2-3+1 "$@"
}
replay --engine exact
replay --engine exact --schedule mnn
replay --engine mnn
replay --engine mnn-r6
