# The engine's own figure beside the true one, on a real cache.
for engine in exact mnn mnn-r6; do
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 \
    --block-tokens 8 --sink 4 --recent 16 --trigger-min 64 --layer-start 1 --engine $engine --target-ratio 2-3+1
done
