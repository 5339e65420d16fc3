# SPDX-License-Identifier: Apache-2.0
"""Loads tuple.pt in real torch, compares it with cache.safetensors and pickles it."""
import pickle

import safetensors_file
import torch

layers = torch.load("tuple.pt")
_, expected = safetensors_file.read("cache.safetensors")
for i, pair in enumerate(layers):
    for name, tensor in zip("kv", pair):
        rows, array = tensor[0].transpose(0, 1).contiguous(), expected[f"{name}_{i}"]
        assert rows.dtype == torch.float16 and tuple(rows.shape) == array.shape
        assert rows.numpy().tobytes() == array.tobytes()
print(type(layers).__name__, "of", len(layers), "layers, equal in torch", torch.__version__)
for protocol in (2, 4):
    with open(f"pickled{protocol}.pkl", "wb") as file:
        pickle.dump(layers, file, protocol=protocol)
