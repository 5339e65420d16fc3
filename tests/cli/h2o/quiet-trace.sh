# If nothing is evicted, the run says so and names the parameter.
"$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --prompt-tokens 48 --schedule mnn
