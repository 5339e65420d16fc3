head -c 20000 "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" > short.bin
{ cat "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"; printf '\0\0\0\0'; } > long.bin
"$KVTOOL" inspect short.bin long.bin
