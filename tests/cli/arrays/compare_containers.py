# SPDX-License-Identifier: Apache-2.0
"""Checks that every container made from the cache holds its values as [token, head, dim]."""
import json

import numpy as np
import safetensors_file

source = np.load("stored.npz")
for name in ("stored", "deflated", "swapped"):
    metadata, tensors = safetensors_file.read(f"{name}.safetensors")
    assert safetensors_file.header_bytes(f"{name}.safetensors") % 8 == 0
    assert metadata["kvtool.layout"] == "token,head,dim"
    found = [np.load(f"{name}.out.npz"), np.load(f"{name}.back.npz"), tensors,
             {f"{x}_{i}": np.load(f"{name}.npy/{x}_{i}.npy") for x in "kv" for i in range(3)}]
    for arrays in found:
        for i in range(3):
            for x, part in (("k", "key"), ("v", "value")):
                a, b = arrays[f"{x}_{i}"], source[f"{part}_cache.{i}"][0].transpose(1, 0, 2)
                assert a.dtype == b.dtype and a.shape == b.shape, (name, a.dtype, a.shape)
                assert (a.view("u2") == np.ascontiguousarray(b).view("u2")).all(), (name, x, i)
metadata = json.loads(np.load("stored.out.npz")["__metadata__"].tobytes())
print(metadata["kvtool.layout"], len(found), "containers equal")
