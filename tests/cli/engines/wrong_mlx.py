# SPDX-License-Identifier: Apache-2.0
"""Writes MLX prompt caches whose metadata contradicts their arrays or names unknown classes."""
import numpy as np
import safetensors_file

def save(name, metadata, **arrays):
    """Arrays are given as _0_1 for the name 0.1."""
    safetensors_file.write(name, metadata, {key[1:].replace("_", "."): array for key, array in arrays.items()})


def integer(value):
    return np.array(value, np.int32)


def quantised(name, bits, group, w=np.zeros((1, 1, 4, 4), np.uint32), s=np.zeros((1, 1, 4, 1), np.float16)):
    save(name, {"1.0": "QuantizedKVCache"}, _0_0_0=w, _0_0_1=s, _0_0_2=s, _0_1_0=w, _0_1_1=s, _0_1_2=s,
         _0_2=integer(4), _0_3=integer(group), _0_4=integer(bits))


k = np.zeros((1, 2, 4, 8), np.float16)
save("offset", {"1.0": "KVCache"}, _0_0=k, _0_1=k, _0_2=integer(5))
save("negative", {"1.0": "KVCache"}, _0_0=k, _0_1=k, _0_2=integer(-1))
save("place", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=integer(9), _0_3=integer(0), _0_4=integer(4), _0_5=integer(5))
save("kept", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=integer(9), _0_3=integer(3), _0_4=integer(4), _0_5=integer(2))
save("unseen", {"1.0": "RotatingKVCache"}, _0_0=k, _0_1=k, _0_2=integer(3), _0_3=integer(0), _0_4=integer(4), _0_5=integer(4))
save("text", {"0.0.0": "0", "0.0.1": "4", "0.0.2": "x", "0.0.3": "4", "2.0": "RotatingKVCache"}, _0_0=k, _0_1=k)
save("few", {"0.0.0": "0", "2.0": "RotatingKVCache"}, _0_0=k, _0_1=k)
save("empty", {"1.0": "KVCache"}, _0_0=np.zeros(0, np.float16), _0_1=np.zeros(0, np.float16), _0_2=integer(0))
save("list", {"1.0": "KVCache", "1.1": "CacheList"}, _0_0=k, _0_1=k, _0_2=integer(4))
save("later", {"1.0": "KVCache", "1.1": "FancyCache"}, _0_0=k, _0_1=k, _0_2=integer(4))
save("first", {"1.0": "FancyCache", "1.1": "KVCache"}, _0_0=k, _0_1=k, _1_0=k, _1_1=k, _1_2=integer(2))
quantised("bits", 7, 32)
quantised("group", 4, 48)
quantised("width", 8, 32)
