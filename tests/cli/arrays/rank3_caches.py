# SPDX-License-Identifier: Apache-2.0
"""Writes caches of rank 3 from real and synthetic rows: rank3_caches.py TRACE_FOLDER."""
import sys

import numpy as np

real = {f"{part}_{layer}": np.load(f"{sys.argv[1]}/kjv3m-L{layer}-{part.upper()}.npy") for layer in (0, 3) for part in "kv"}
np.savez("tokens-first.npz", **real)
np.savez("heads-first.npz", **{name: np.ascontiguousarray(array.transpose(1, 0, 2)) for name, array in real.items()})
np.savez("batch.npz", **{name: np.stack([array[:48], array[48:]]) for name, array in real.items()})
np.savez("zeros.npz", k_0=np.zeros((16, 4, 8), "f2"), v_0=np.zeros((16, 4, 8), "f2"))
k = np.random.default_rng(7).normal(size=(6, 3, 4)).astype("f4")
np.savez("plain.npz", k_0=k, v_0=-k)
np.savez("told.npz", k_0=k, v_0=k, positions=np.arange(5, 11))
