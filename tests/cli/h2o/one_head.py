"""A cache of one kv head in both orders, and traces that decide the order: by metadata, or by keys as long as their
rows."""
import json

import numpy as np

TOKENS, HEADS, DIM = 8, 8, 16  # 8 tokens and 8 query heads: the sizes do not tell which axis is which
rng = np.random.default_rng(0)
k, v = (rng.standard_normal((TOKENS, 1, DIM)).astype(np.float16) for _ in range(2))
q = rng.standard_normal((TOKENS, HEADS, DIM)).astype(np.float32)
np.savez("thd.npz", k_0=k, v_0=v)
np.savez("htd.npz", k_0=k.swapaxes(0, 1), v_0=v.swapaxes(0, 1))
np.savez("keys.npz", **{"q.0": q, "k.0": k})
np.savez("turned.npz", **{"q.0": q, "k.0": k.swapaxes(0, 1)})
header = {"__metadata__": {"kvtool.trace": "1", "kv_heads": "1"},
          "q.0": {"dtype": "F32", "shape": list(q.shape), "data_offsets": [0, q.nbytes]}}
text = json.dumps(header).encode()
with open("stated.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + q.tobytes())
