cd "$TESTDATA/llamacpp/states"
"$KVTOOL" inspect --from llama-seq-blob s260k-v050-raw-seqdata.bin | sed -n 2p
"$KVTOOL" inspect --from llama-ctx-blob s260k-v050-raw-ctxdata.bin | sed -n 2,4p
"$KVTOOL" inspect s260k-v050-raw-seqdata.bin
