# Prompt caches that three versions of mlx-lm saved: each class is read as it is, and in the order of the text.
cat > same_mlx.py <<'PYTHON_END'
import sys
import numpy as np
name, got, want = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
layers = wrong = 0
for key in want.files:
    case, layer, part = key.split("/")
    if case != name:
        continue
    layers += part == "k"
    mine, theirs = got[f"{part}_{layer}"], want[key]
    if name.startswith("quantised"):
        theirs = theirs.copy().view(np.float32).reshape(mine.shape)
        wrong += not np.allclose(mine, theirs, rtol=2e-7, atol=1e-7)
    else:
        wrong += mine.tobytes() != theirs.tobytes()
print(name, layers, "layers", "DIFFER" if wrong or not layers else "as the class gives them")
PYTHON_END
for version in 0.20.4 0.28.4 0.32.2; do
  echo "== $version"
  for file in "$TESTDATA/engines/mlx/$version"/*.safetensors; do
    name=$(basename "$file" .safetensors)
    cp "$file" .
    if [ $name = hybrid ]; then
      "$KVTOOL" inspect hybrid.safetensors || echo "exit $?"
      "$KVTOOL" convert -q hybrid.safetensors --k-pattern '{i}.0' --v-pattern '{i}.1' --to npz -o c.npz -f 2> note
      grep -o "state-space layers and are left out" note || true
    else
      "$KVTOOL" convert -q $name.safetensors --to npz -o c.npz -f
    fi
    "$PYTHON" same_mlx.py $name c.npz "$TESTDATA/engines/mlx/$version/expected.npz"
    case $name in ring*) "$PYTHON" -c "
import numpy as np
c = np.load('c.npz')
for key in sorted(c.files):
    if key.startswith('positions'): print(' ', key, *c[key])" ;; esac
    "$KVTOOL" compress -q $name.safetensors --from $([ $name = hybrid ] && echo opaque || echo safetensors) -o a.kvz -f
    "$KVTOOL" decompress -q a.kvz -o back -f && cmp $name.safetensors back
  done
done
"$KVTOOL" inspect ring-turned.safetensors
"$KVTOOL" inspect quantised-8.safetensors
# What cannot be is refused by its layer and class.
"$PYTHON" - <<'PYTHON_END'
import json, struct
import numpy as np
def save(name, meta, **arrays):
    header, data = {"__metadata__": meta}, b""
    for key, a in arrays.items():
        key = key[1:].replace("_", ".")
        header[key] = {"dtype": {"float16": "F16", "int32": "I32", "uint32": "U32"}[a.dtype.name], "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data)
k = np.zeros((1, 2, 4, 8), np.float16)
n = lambda x: np.array(x, np.int32)
save("offset", {"1.0": "KVCache"}, _0_0=k, _0_1=k, _0_2=n(5))
save("negative", {"1.0": "KVCache"}, _0_0=k, _0_1=k, _0_2=n(-1))
save("place", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=n(9), _0_3=n(0), _0_4=n(4), _0_5=n(5))
save("kept", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=n(9), _0_3=n(3), _0_4=n(4), _0_5=n(2))
save("unseen", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=n(3), _0_3=n(0), _0_4=n(4), _0_5=n(4))
save("text", {"0.0.0": "0", "0.0.1": "4", "0.0.2": "x", "0.0.3": "4", "2.0": "RotatingKVCache"}, _0_0=k, _0_1=k)
save("few", {"0.0.0": "0", "2.0": "RotatingKVCache"}, _0_0=k, _0_1=k)
save("empty", {"1.0": "KVCache"}, _0_0=np.zeros(0, np.float16), _0_1=np.zeros(0, np.float16), _0_2=n(0))
save("list", {"1.0": "KVCache", "1.1": "CacheList"}, _0_0=k, _0_1=k, _0_2=n(4))
save("later", {"1.0": "KVCache", "1.1": "FancyCache"}, _0_0=k, _0_1=k, _0_2=n(4))
w, s = np.zeros((1, 1, 4, 4), np.uint32), np.zeros((1, 1, 4, 1), np.float16)
q = lambda name, bits, group, w=w, s=s: save(name, {"1.0": "QuantizedKVCache"}, _0_0_0=w, _0_0_1=s, _0_0_2=s, _0_1_0=w, _0_1_1=s, _0_1_2=s, _0_2=n(4), _0_3=n(group), _0_4=n(bits))
q("bits", 7, 32)
q("group", 4, 48)
q("width", 8, 32)
PYTHON_END
for file in offset negative place kept unseen text few empty list later bits group width; do "$KVTOOL" inspect $file || echo "exit $?"; done
