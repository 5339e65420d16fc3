# Inflated data is limited; nothing is inflated beyond the limit.
"$PYTHON" - <<'PY'
import numpy as np
np.savez_compressed("zeros.npz", k_0=np.zeros((1, 8, 1024, 128), "f4"))
PY
"$KVTOOL" inspect zeros.npz | grep layer
"$KVTOOL" inspect zeros.npz --max-bytes 1MiB
