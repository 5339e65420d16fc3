cp "$TESTDATA/fuzz/llama_state/seq-ambiguous" two.bin
"$KVTOOL" inspect --layout E two.bin | sed -n 4p
"$KVTOOL" inspect --layout E-k,k two.bin | sed -n 4,5p
"$KVTOOL" inspect two.bin
