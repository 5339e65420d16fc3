# SPDX-License-Identifier: Apache-2.0
"""Writes one cache as stored.npz, deflated.npz and, big-endian in column order, swapped.npz."""
import numpy as np
from made_up import any_bits, foreign

cache = any_bits(layers=3)
np.savez("stored.npz", **cache)
np.savez_compressed("deflated.npz", **cache)
np.savez("swapped.npz", **{name: foreign(array) for name, array in cache.items()})
