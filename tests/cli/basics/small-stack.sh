# A stack that is too small for any command is said, not found by dying of it.
(ulimit -s 64; "$KVTOOL" targets) || echo "exit $?"
(ulimit -s 64; "$KVTOOL" inspect "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" -q) || echo "exit $?"
(ulimit -s 1024; "$KVTOOL" inspect "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" -q) && echo enough
