# A batch can be inspected and archived as a whole; commands that need one sequence ask for it.
"$PYTHON" - <<'PY'
import numpy as np
rng = np.random.default_rng(1)
k = rng.normal(size=(3, 2, 40, 8)).astype("f2")
np.savez("batch.npz", **{"key_cache.0": k, "value_cache.0": k + 1, "key_cache.1": k + 2, "value_cache.1": k + 3})
np.savez_compressed("packed.npz", **{"key_cache.0": k, "value_cache.0": k + 1})
PY
"$KVTOOL" inspect batch.npz
"$KVTOOL" inspect batch.npz --json > batch.json
$VALIDATE < batch.json
"$PYTHON" - <<'PY'
import json
document = json.load(open("batch.json"))["results"][0]
print(document["batch_rows"], [(row["row"], row["tokens"], row["k_bytes"]) for row in document["rows"]],
      document["layers"][0]["k"]["tokens"])
PY
"$KVTOOL" inspect batch.npz --batch 1 | grep -e layer -e row
for name in batch packed; do
  "$KVTOOL" compress $name.npz -q
  "$KVTOOL" verify $name.npz.kvz --against $name.npz -q && echo verified
  "$KVTOOL" inspect $name.npz.kvz | grep -e batch -e row -e layers
  "$KVTOOL" decompress $name.npz.kvz --to npy -o out || echo "exit $?"
  "$KVTOOL" decompress $name.npz.kvz --batch 2 --to npy -o $name-2 -q
  "$KVTOOL" convert $name.npz --batch 2 --to npy -o $name-direct -q
  "$KVTOOL" diff $name-2 $name-direct -q && echo "row 2"
done
"$KVTOOL" convert batch.npz --to safetensors -o one.safetensors || echo "exit $?"
"$KVTOOL" diff batch.npz batch.npz || echo "exit $?"
"$KVTOOL" analyze batch.npz > /dev/null || echo "exit $?"
"$KVTOOL" bench batch.npz --json > /dev/null && echo "bench: any batch"
