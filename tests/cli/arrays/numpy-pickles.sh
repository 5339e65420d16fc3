# What numpy leaves in pickles of any protocol and order of bytes or axes is what npz gives.
"$PYTHON" - <<'PY'
import pickle
import numpy as np
r = np.random.default_rng(1)
cache = {}
for layer in range(2):
    for part in ("key", "value"):
        cache[f"{part}_cache.{layer}"] = r.integers(0, 1 << 16, (1, 4, 37, 16)).astype("u2").view("f2")
np.savez("cache.npz", **cache)
for protocol in range(6):
    pickle.dump(cache, open(f"c{protocol}.pkl", "wb"), protocol)
    pickle.dump({name: np.asfortranarray(a.astype(">f2")) for name, a in cache.items()},
                open(f"swapped{protocol}.pkl", "wb"), protocol)
pickle.dump({"names": np.array(["a", None])}, open("objects.pkl", "wb"))
PY
"$KVTOOL" convert -q cache.npz --to safetensors -o expected.safetensors
for name in c0 c1 c2 c3 c4 c5 swapped0 swapped1 swapped2 swapped3 swapped4 swapped5; do
  # Protocols 0 and 1 begin with nothing that tells them from other files.
  "$KVTOOL" convert -q "$name.pkl" --from torch --to safetensors -o "$name.safetensors"
  "$KVTOOL" diff expected.safetensors "$name.safetensors" > /dev/null && echo "$name: equal"
done
status=0; "$KVTOOL" inspect objects.pkl || status=$?; echo "exit $status"
