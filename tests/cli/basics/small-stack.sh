# A stack that is too small for any command gives a message instead of a crash.
(ulimit -s 64; "$KVTOOL" targets) || echo "exit $?"
(ulimit -s 64; "$KVTOOL" inspect "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" -q) || echo "exit $?"
(ulimit -s 1024; "$KVTOOL" inspect "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" -q) && echo enough
