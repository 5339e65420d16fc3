# What numpy saves is read; what is written numpy loads: equal, bit for bit, in every direction.
"$PYTHON" - <<'PY'
import numpy as np
r = np.random.default_rng(1)
cache = {}
for layer in range(3):
    for part in ("key", "value"):
        cache[f"{part}_cache.{layer}"] = r.integers(0, 1 << 16, (1, 4, 37, 16)).astype("u2").view("f2")
np.savez("stored.npz", **cache)
np.savez_compressed("deflated.npz", **cache)
np.savez("swapped.npz", **{name: np.asfortranarray(a.astype(">f2")) for name, a in cache.items()})
PY
for name in stored deflated swapped; do
  "$KVTOOL" convert $name.npz --to npz -o $name.out.npz -q
  "$KVTOOL" convert $name.npz --to npy -o $name.npy -q
  "$KVTOOL" convert $name.npy --to safetensors -o $name.safetensors -q
  "$KVTOOL" convert $name.safetensors --to npz -o $name.back.npz -q
done
"$KVTOOL" inspect stored.npz --json | $VALIDATE
"$PYTHON" - <<'PY'
import json, struct
import numpy as np

def safetensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    assert n % 8 == 0
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__")["kvtool.layout"] == "token,head,dim"
    return {name: np.frombuffer(data[8 + n:][slice(*t["data_offsets"])], "<f2").reshape(t["shape"])
            for name, t in header.items()}

source = np.load("stored.npz")
for name in ("stored", "deflated", "swapped"):
    found = [np.load(f"{name}.out.npz"), np.load(f"{name}.back.npz"), safetensors(f"{name}.safetensors"),
             {f"{x}_{i}": np.load(f"{name}.npy/{x}_{i}.npy") for x in "kv" for i in range(3)}]
    for arrays in found:
        for i in range(3):
            for x, part in (("k", "key"), ("v", "value")):
                a, b = arrays[f"{x}_{i}"], source[f"{part}_cache.{i}"][0].transpose(1, 0, 2)
                assert a.dtype == b.dtype and a.shape == b.shape, (name, a.dtype, a.shape)
                assert (a.view("u2") == np.ascontiguousarray(b).view("u2")).all(), (name, x, i)
metadata = json.loads(np.load("stored.out.npz")["__metadata__"].tobytes())
print(metadata["kvtool.layout"], len(found), "containers equal")
PY
