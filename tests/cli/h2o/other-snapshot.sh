"$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 48
