# The shape of a rank-3 array does not say whether heads or tokens come first: a warning, unless the
# file or --layout does.
"$PYTHON" - <<'PY'
import numpy as np
k = np.arange(2 * 3 * 4, dtype="f4").reshape(2, 3, 4)
np.savez("plain.npz", k_0=k, v_0=k)
np.savez("told.npz", k_0=k, v_0=k, positions=np.arange(5, 7))
PY
for flags in "" "--layout thd" "--layout htd"; do
  "$KVTOOL" inspect plain.npz $flags | grep layer
done
"$KVTOOL" inspect told.npz | grep -e layer -e cells
