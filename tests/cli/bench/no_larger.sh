# No chunk of the states in testdata is larger than at compat by more than 0.1 %, with and without known heads; a
# failure names the chunk.
check="$TESTDATA/../scripts/check/levels.py"
"$PYTHON" "$check" "$KVTOOL" "$TESTDATA"/llamacpp/states/*.bin 2> left-out
"$PYTHON" "$check" "$KVTOOL" "$TESTDATA"/llamacpp/states/s260k-*.bin --kv-heads 4 --chunks 1MiB,16KiB,8KiB 2> /dev/null
sed 's/: left out.*//' left-out
"$PYTHON" "$check" "$KVTOOL" "$TESTDATA"/llamacpp/states/s260k-v050-f16.seq0.bin --levels fast --chunks 1MiB || echo "exit $?"
