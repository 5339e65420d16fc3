# Runs are killed at any moment, several at a time: every listed state is restored, and every added one is listed.
"$PYTHON" "$SCRIPTS/check/store_kills.py" "$KVTOOL" "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" --states 14 --runs 40 2>counts
read -r runs _ killed _ <counts
test "$runs" -ge 40 && test "$killed" -ge 1
