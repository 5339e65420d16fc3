"""same.py CACHE.npz EXPECTED.npz NAME...: says whether the K and V of a cache, as kvtool converted it, are the bytes that the
engine's code had in memory: arrays NAME of [2 or 1, layer, token, channel, byte] or [layer, token, channel, byte], layer
after layer, tokens joined by '+' (NAME+NAME); or a pair NAME/k, NAME/v of [layer, token, byte]."""
import sys

import numpy as np

got, want = np.load(sys.argv[1]), np.load(sys.argv[2])
index = wrong = 0
for name in sys.argv[3:]:
    if name + "/k" in want:
        for layer, (k, v) in enumerate(zip(want[name + "/k"], want[name + "/v"])):
            wrong += got[f"k_{layer}"].tobytes() != k.tobytes() or got[f"v_{layer}"].tobytes() != v.tobytes()
            index += 1
        continue
    parts = [want[part] for part in name.split("+")]
    parts = [part if part.ndim == 5 else part[None] for part in parts]
    whole = np.concatenate(parts, axis=2)
    for layer in range(whole.shape[1]):
        for plane in range(whole.shape[0]):
            array = got[f"{'kv'[plane]}_{index}"]
            wrong += np.ascontiguousarray(array).tobytes() != whole[plane, layer].tobytes()
        wrong += whole.shape[0] == 1 and f"v_{index}" in got
        index += 1
print(sys.argv[3:], "exactly" if not wrong and f"k_{index}" not in got else f"{wrong} of {index} layers DIFFER")
