#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes inputs from the vectors of blend/replay: make.py GOLDEN_REPLAY_FOLDER.

q.npz: the trace of the full run. bos1.npz ...: the chunks as an engine runs them, with a token in front (which shifts
every key by one position). full.npz, a.npz: the full run and its chunks with positions, f16.
"""
import pathlib
import sys

import numpy as np
import safetensors_file


def turned(keys, positions, theta=10000.0):
    half = keys.shape[-1] // 2
    angles = positions[:, None, None] * theta**(-np.arange(half) / half)
    x, y = keys[..., :half].astype(float), keys[..., half:].astype(float)
    return np.concatenate([x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles)], -1)


def cache(source, layers, dtype, with_bos=False):
    arrays = {}
    for layer in range(layers):
        k, v = source[f"layer.{layer}.k"], source[f"layer.{layer}.v"]
        if with_bos:
            k = np.concatenate([np.full_like(k[:1], 7), turned(k, np.ones(len(k)))])
            v = np.concatenate([np.full_like(v[:1], 7), v])
        arrays[f"k_{layer}"], arrays[f"v_{layer}"] = k.astype(dtype), v.astype(dtype)
    arrays["positions"] = np.arange(len(arrays["k_0"]), dtype=np.int64)
    return arrays


folder = pathlib.Path(sys.argv[1])
_, full = safetensors_file.read(folder / "full.safetensors")
layers = len([name for name in full if name.endswith(".q")])
np.savez("q.npz", **{f"q.{layer}": full[f"layer.{layer}.q"] for layer in range(layers)})
np.savez("full.npz", **cache(full, layers, np.float16))
for index in range(5):
    _, chunk = safetensors_file.read(folder / f"chunk{index}.safetensors")
    np.savez(f"chunk{index}.npz", **cache(chunk, layers, np.float16))
    np.savez(f"bos{index}.npz", **cache(chunk, layers, np.float32, with_bos=index > 0))
