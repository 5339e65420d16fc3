# The engine's own figure beside the true one, on a real cache. On a budget the ratio reached is the
# one asked for; where it is applied again and again, one line says where it ends.
replay() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 \
    --block-tokens 8 --sink 4 --recent 16 --trigger-min 64 --layer-start 1 --target-ratio 2-3+1 "$@"
}
replay --engine exact
replay --engine exact --schedule mnn
replay --engine mnn
replay --engine mnn-r6
