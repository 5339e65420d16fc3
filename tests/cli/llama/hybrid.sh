# A hybrid model's state: attention layers are read, the recurrent part is named and kept.
"$PYTHON" - "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" <<'PYTHON_END'
import struct, sys
attention = open(sys.argv[1], "rb").read()
# One cell at the last position, without ids in a sequence; 3 of 8 layers: convolutions, then states.
state = struct.pack("<IiI", 1, 59, 0) + struct.pack("<II", 0, 8)
for row in (96, 96, 96, 512, 512, 512):
    state += struct.pack("<iQ", 0, row) + bytes(range(96)) * (row // 96) + bytes(row % 96)
open("hybrid.bin", "wb").write(attention + state)
open("plain.bin", "wb").write(attention)
PYTHON_END
"$KVTOOL" inspect hybrid.bin --kv-heads 4
"$KVTOOL" inspect hybrid.bin --kv-heads 4 --json | $VALIDATE
"$KVTOOL" diff hybrid.bin plain.bin | tail -1
for level in fast default max; do
  "$KVTOOL" compress -q hybrid.bin --level $level -o a.kvz -f && "$KVTOOL" decompress -q a.kvz -o back -f && cmp hybrid.bin back
done
"$KVTOOL" verify a.kvz --against hybrid.bin | tail -1
"$KVTOOL" convert -q hybrid.bin --kv-heads 4 --to npz -o c.npz
"$KVTOOL" convert hybrid.bin --to llama-state -o d.bin > /dev/null
"$KVTOOL" convert -q a.kvz --to llama-state -o e.bin
