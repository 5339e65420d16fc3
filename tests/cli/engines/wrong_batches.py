# SPDX-License-Identifier: Apache-2.0
"""Writes a quantised batch, and MLX prompt caches of batches whose metadata contradicts their
arrays."""
import numpy as np
import safetensors_file


def save(name, metadata, *arrays):
    safetensors_file.write(name, metadata, {f"0.{i}": array for i, array in enumerate(arrays)})


def integer(value):
    return np.array(value, np.int32)


# Numbers 0 to 15 in each word, times 2 in the first row and 3 in the second; 4 words of 8 make a group of 32.
words = np.full((2, 1, 3, 4), 0x76543211, np.uint32)
scales = np.full((2, 1, 3, 1), 2, np.float16)
scales[1] = 3
zeros = np.zeros((2, 1, 3, 1), np.float16)
parts = {f"0.{which}.{i}": array for which in range(2) for i, array in enumerate((words, scales, zeros))}
numbers = {f"0.{i + 2}": integer(value) for i, value in enumerate((2, 32, 4))}
safetensors_file.write("quantised", {"1.0": "QuantizedKVCache"}, {**parts, **numbers})

k = np.zeros((2, 2, 4, 8), np.float16)
batch, ring, chunk = {"1.0": "BatchKVCache"}, {"1.0": "BatchRotatingKVCache"}, {"1.0": "ChunkedKVCache"}
save("few", ring, k, k, integer([4, 4]), integer([0, 0]), integer(4))
save("offsets", batch, k, k, integer([4]), integer([0, 0]), integer(4))
save("padding", batch, k, k, integer([0, 4]), integer([5, 0]), integer(4))
save("ends", batch, k, k, integer([2, 4]), integer([1, 0]), integer(4))
save("index", batch, k, k, integer([5, 5]), integer([0, 0]), integer(5))
save("room", ring, k, k, integer([4, 4]), integer([0, 0]), integer(4), integer(9), integer(5), integer(1))
save("true", {"2.0": "BatchRotatingKVCache", "0.0.0": "4", "0.0.1": "9", "0.0.2": "2", "0.0.3": "Maybe"}, k, k,
     integer([9, 9]), integer([0, 0]))
save("start", chunk, k, k, integer(3), integer(4), integer(4))
save("long", chunk, k, k, integer(9), integer(4), integer(4))
save("other", {"1.0": "BatchKVCache"}, k, k, np.zeros((2, 1), np.float16), integer([0, 0]), integer(4))
save("none", {"1.0": "BatchKVCache"}, k, k)
