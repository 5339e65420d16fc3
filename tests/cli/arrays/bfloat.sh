# numpy has no type for bf16: arrays of ml_dtypes are saved as V2, and --as says what they are.
"$PYTHON" - <<'PY'
import numpy as np
bits = np.random.default_rng(2).integers(0, 1 << 16, (1, 2, 9, 8)).astype("u2")
np.savez("v2.npz", key_cache=bits.view("V2"), value_cache=bits.view("V2"))
np.savez("u2.npz", key_cache=bits, value_cache=bits)
PY
"$KVTOOL" inspect v2.npz || echo "exit $?"
for name in v2 u2; do
  "$KVTOOL" convert $name.npz --as bf16 --to safetensors -o $name.safetensors -q
  "$KVTOOL" convert $name.safetensors --to npz -o $name.back.npz -q
  "$KVTOOL" inspect $name.back.npz | grep layer
done
cmp v2.safetensors u2.safetensors
cmp v2.back.npz u2.back.npz
"$PYTHON" - <<'PY'
import numpy as np
a, b = np.load("v2.npz")["key_cache"], np.load("v2.back.npz")["k_0"]
assert b.dtype == np.dtype("V2"), b.dtype
print((a.view("u2")[0].transpose(1, 0, 2) == b.view("u2")).all())
PY
