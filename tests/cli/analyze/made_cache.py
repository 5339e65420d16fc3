# SPDX-License-Identifier: Apache-2.0
"""Writes made.npz: f32 values that are exact in bf16, with a constant channel, repeated rows and
zeros."""
import numpy as np

rng = np.random.default_rng(7)
k = rng.standard_normal((64, 2, 16)).astype(np.float32)
k = ((k * 1e9).view(np.uint32) & 0xffff0000).view(np.float32)
k[:, 0, 3] = 1.5
v = rng.standard_normal((64, 2, 16)).astype(np.float32)
v[10:20] = v[0:10]
v[60:] = 0
np.savez("made.npz", k_0=k, v_0=v)
