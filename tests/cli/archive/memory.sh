# Archives 256 MiB, plain and with a transposed V, in less than 96 MiB of memory plus four chunks of 1 MiB per thread;
# mapped pages count.
for flags in "" --transposed; do
  "$PYTHON" "$SCRIPTS/make/llama_state.py" state --size 256MiB $flags > /dev/null 2>&1
  "$PYTHON" "$SHARED_SUITE/peak.py" "$KVTOOL" compress -q -f -T2 state
  "$PYTHON" "$SHARED_SUITE/peak.py" "$KVTOOL" verify -q -T2 state.kvz --against state
  "$PYTHON" "$SHARED_SUITE/peak.py" "$KVTOOL" decompress -q -f -T2 state.kvz -o restored
  cmp state restored
done
