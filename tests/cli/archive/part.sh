# Extracts tensors of an archive: some layers, some tokens, K or V alone; the rest is not read.
"$PYTHON" "$SCRIPTS/make/llama_state.py" state --layers 4 --tokens 700 --kv-heads 2 --head-dim 64 --transposed > /dev/null 2>&1
"$KVTOOL" compress -q state
show() { "$PYTHON" -c '
import sys, numpy
a = numpy.load(sys.argv[1])
print(*(f"{n} {a[n].dtype}{list(a[n].shape)}" for n in sorted(a.files) if n[:2] in ("k_", "v_")))' "$1"; }
"$KVTOOL" decompress -q state.kvz --kv-heads 2 --layers 1-2 --tokens 10:522 --to npz -o both.npz
show both.npz
"$KVTOOL" decompress -q state.kvz --kv-heads 2 --layers 3 --tokens 690: --kv k --to npz -o k.npz
show k.npz
"$KVTOOL" decompress -q state.kvz --head-dim 64 --layers 0,3 --kv v --to npz -o v.npz
show v.npz
# convert reads the same values from the state itself and from the archive.
"$KVTOOL" convert -q state --kv-heads 2 --layers 1-2 --tokens 10:522 --to npz -o direct.npz
"$KVTOOL" convert -q state.kvz --kv-heads 2 --layers 1-2 --tokens 10:522 --to npz -o through.npz
"$PYTHON" -c '
import numpy
a, b, c = (numpy.load(n + ".npz") for n in ("both", "direct", "through"))
print(all((a[n] == b[n]).all() and (a[n] == c[n]).all() for n in a.files if n[:2] in ("k_", "v_")))'
"$KVTOOL" decompress state.kvz --to npz -o x.npz || echo "exit $?"
"$KVTOOL" decompress state.kvz --layers 1 || echo "exit $?"
"$KVTOOL" decompress state.kvz --kv-heads 2 --layers 9 --to npz -o x.npz || echo "exit $?"
