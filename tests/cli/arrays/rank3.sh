# Shape alone does not say whether heads or tokens come first. The file, the heads told or --layout
# may; else the values of real layers do, in either order; values without structure are ambiguous.
"$PYTHON" - "$TESTDATA/trace" <<'PY'
import sys
import numpy as np
real = {f"{part}_{layer}": np.load(f"{sys.argv[1]}/kjv3m-L{layer}-{part.upper()}.npy") for layer in (0, 3) for part in "kv"}
np.savez("tokens-first.npz", **real)
np.savez("heads-first.npz", **{name: np.ascontiguousarray(array.transpose(1, 0, 2)) for name, array in real.items()})
np.savez("batch.npz", **{name: np.stack([array[:48], array[48:]]) for name, array in real.items()})
np.savez("zeros.npz", k_0=np.zeros((16, 4, 8), "f2"), v_0=np.zeros((16, 4, 8), "f2"))
k = np.random.default_rng(7).normal(size=(6, 3, 4)).astype("f4")
np.savez("plain.npz", k_0=k, v_0=-k)
np.savez("told.npz", k_0=k, v_0=k, positions=np.arange(5, 11))
PY
for name in tokens-first heads-first batch; do
  "$KVTOOL" inspect $name.npz | grep -e layer -e margin
done
"$KVTOOL" inspect tokens-first.npz --layout htd | grep layer
for flags in "--layout thd" "--layout htd" "--kv-heads 3" "--kv-heads 6"; do
  "$KVTOOL" inspect plain.npz $flags | grep layer
done
"$KVTOOL" inspect told.npz | grep -e layer -e cells
for command in inspect "convert --to npz -o out.npz"; do
  for name in plain zeros; do
    "$KVTOOL" $command $name.npz || echo "exit $?"
  done
done
# Bytes can be archived without an answer; whoever wants values out of the archive gives one.
"$KVTOOL" compress plain.npz -q || echo "exit $?"
"$KVTOOL" decompress plain.npz.kvz -o again.npz -qq && cmp again.npz plain.npz && echo same
"$KVTOOL" decompress plain.npz.kvz --to npy -o none || echo "exit $?"
"$KVTOOL" decompress plain.npz.kvz --to npy -o out --layout thd -q && "$KVTOOL" inspect out | grep layer
