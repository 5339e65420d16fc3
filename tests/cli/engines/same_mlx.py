# SPDX-License-Identifier: Apache-2.0
"""Compares a converted cache with what the class returns: same_mlx.py CASE GOT.npz EXPECTED.npz."""
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
