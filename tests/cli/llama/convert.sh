"$KVTOOL" convert --kv-heads 4 "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --to mnn-dump -o dump 
"$KVTOOL" inspect dump | sed -n 2,4p
