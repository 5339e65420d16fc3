# A hybrid model's state: attention layers are read, the recurrent part is named and kept.
"$PYTHON" "$SHARED_SUITE/hybrid_state.py" "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" inspect hybrid.bin --kv-heads 4
"$KVTOOL" inspect hybrid.bin --kv-heads 4 --json | $VALIDATE
"$KVTOOL" diff hybrid.bin plain.bin | tail -1
for level in fast default max; do
  "$KVTOOL" compress -q hybrid.bin --level $level -o a.kvz -f && "$KVTOOL" decompress -q a.kvz -o back -f && cmp hybrid.bin back
done
"$KVTOOL" verify a.kvz --against hybrid.bin | tail -1
"$KVTOOL" convert hybrid.bin --kv-heads 4 --to npz -o c.npz > /dev/null
"$KVTOOL" convert hybrid.bin --to llama-state -o d.bin > /dev/null
"$KVTOOL" convert -q a.kvz --to llama-state -o e.bin
