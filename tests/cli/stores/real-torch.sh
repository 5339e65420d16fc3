# Real torch loads what --to torch writes, with equal values; skipped where torch is not installed.
"$PYTHON" -c 'import torch' 2> /dev/null || { echo "skipped: $PYTHON has no torch"; exit 0; }
source="$TESTDATA/golden/blend/pt/dynamic_cache_4x.zip.pt"
"$KVTOOL" convert -q "$source" --to torch -o tuple.pt
"$KVTOOL" convert -q "$source" --to safetensors -o cache.safetensors
"$PYTHON" - <<'PYTHON_END'
import json, struct, torch
layers = torch.load("tuple.pt")
data = open("cache.safetensors", "rb").read()
size, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + size])
for i, pair in enumerate(layers):
    for name, tensor in zip("kv", pair):
        entry = header[f"{name}_{i}"]
        begin, end = entry["data_offsets"]
        rows = tensor[0].transpose(0, 1).contiguous()
        assert list(rows.shape) == entry["shape"] and rows.dtype == torch.float16
        assert bytes(rows.numpy().tobytes()) == data[8 + size + begin:8 + size + end]
print(type(layers).__name__, "of", len(layers), "layers, equal in torch", torch.__version__)
# And what torch itself dumps is read: a pickle of tensors, which have their storages inside.
import pickle
with open("dumped.pkl", "wb") as file:
    pickle.dump(layers, file)
PYTHON_END
"$KVTOOL" convert -q dumped.pkl --to safetensors -o dumped.safetensors
"$KVTOOL" inspect dumped.pkl | grep layers
"$KVTOOL" inspect dumped.safetensors | grep layers
