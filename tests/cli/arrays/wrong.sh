# Arrays that cannot be a cache, or could be two: one line each, and what to do.
"$PYTHON" - <<'PY'
import numpy as np
k = np.zeros((2, 3, 4, 5), "f2")
np.savez("none.npz", weight=k, bias=k)
np.savez("two.npz", k_0=k[:1], v_0=k[:1], **{"key_cache.0": k[:1], "value_cache.0": k[:1]})
np.savez("half.npz", k_0=k[:1], v_0=k[:1], k_1=k[:1])
np.savez("batch.npz", k_0=k, v_0=k)
np.savez("object.npz", k_0=k[:1], o=np.array([None]))
np.savez("damaged.npz", k_0=k[:1], v_0=k[:1])
data = bytearray(open("damaged.npz", "rb").read())
data[300] ^= 1
open("damaged.npz", "wb").write(data)
PY
for name in none two half batch object; do
  "$KVTOOL" inspect $name.npz || echo "$name: exit $?"
done
"$KVTOOL" inspect batch.npz --batch 1 | grep layer
"$KVTOOL" inspect batch.npz --batch 2 || echo "exit $?"
"$KVTOOL" inspect batch.npz --layout xyz || echo "exit $?"
"$KVTOOL" inspect damaged.npz | grep layer
"$KVTOOL" inspect damaged.npz --stats > stats.txt || echo "exit $?"
"$KVTOOL" convert damaged.npz --to npy -o out || echo "exit $?, nothing written: $(ls out 2>&1 | wc -l)"
