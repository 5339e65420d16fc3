# SPDX-License-Identifier: Apache-2.0
"""Writes npz files that are not caches, are incomplete or ambiguous, or are damaged."""
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
