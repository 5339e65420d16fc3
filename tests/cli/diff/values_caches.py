# SPDX-License-Identifier: Apache-2.0
"""Writes a cache and copies of it in which one value, one zero's sign, a NaN, the dtype or the length is
changed."""
import numpy as np

k = (np.arange(4 * 2 * 8, dtype=np.float32) / 8).reshape(4, 2, 8).astype(np.float16)
def save(name, k0, v0=k):
    np.savez(name, k_0=k0, v_0=v0)
save("a.npz", k)
one = k.copy(); one[2, 1, 3] += np.float16(0.25); save("one.npz", one)
zero = k.copy(); zero[0, 0, 0] = -0.0; save("zero.npz", zero)
nan = k.copy(); nan.view(np.uint16)[1, 0, 0] = 0x7e01; save("nan.npz", nan, nan)
save("wide.npz", k.astype(np.float32), k.astype(np.float32))
save("short.npz", k[:3], k[:3])
