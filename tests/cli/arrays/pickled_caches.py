# SPDX-License-Identifier: Apache-2.0
"""Writes one cache as cache.npz and as pickles of every protocol, also big-endian in column order, and objects.pkl."""
import pickle

import numpy as np
from made_up import any_bits, foreign

cache = any_bits(layers=2)
np.savez("cache.npz", **cache)
for protocol in range(6):
    with open(f"c{protocol}.pkl", "wb") as file:
        pickle.dump(cache, file, protocol)
    with open(f"swapped{protocol}.pkl", "wb") as file:
        pickle.dump({name: foreign(array) for name, array in cache.items()}, file, protocol)
with open("objects.pkl", "wb") as file:
    pickle.dump({"names": np.array(["a", None])}, file)
