# Real torch loads what --to torch writes, with equal values, and what torch itself pickles is read;
# skipped where torch is not installed.
"$PYTHON" -c 'import torch' 2> /dev/null || { echo "skipped: $PYTHON has no torch"; exit 0; }
source="$TESTDATA/golden/blend/pt/dynamic_cache_4x.zip.pt"
"$KVTOOL" convert -q "$source" --to torch -o tuple.pt
"$KVTOOL" convert -q "$source" --to safetensors -o cache.safetensors
cat > arrays.py <<'PYTHON_END'
import json, struct
def arrays(path):
    data = open(path, "rb").read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["shape"], data[8 + size:][slice(*entry["data_offsets"])]) for name, entry in header.items()}
PYTHON_END
"$PYTHON" - <<'PYTHON_END'
import pickle, torch
from arrays import arrays
layers = torch.load("tuple.pt")
expected = arrays("cache.safetensors")
for i, pair in enumerate(layers):
    for name, tensor in zip("kv", pair):
        rows = tensor[0].transpose(0, 1).contiguous()
        assert rows.dtype == torch.float16 and (list(rows.shape), rows.numpy().tobytes()) == expected[f"{name}_{i}"]
print(type(layers).__name__, "of", len(layers), "layers, equal in torch", torch.__version__)
for protocol in (2, 4):
    with open(f"pickled{protocol}.pkl", "wb") as file:
        pickle.dump(layers, file, protocol=protocol)
PYTHON_END
for protocol in 2 4; do
  "$KVTOOL" convert -q pickled$protocol.pkl --to safetensors -o pickled$protocol.safetensors
  "$PYTHON" -c "from arrays import arrays; assert arrays('pickled$protocol.safetensors') == arrays('cache.safetensors')"
done
