cd "$TESTDATA/llamacpp/states"
"$KVTOOL" inspect synthetic-mamba-recurrent-v050.session.bin
