# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Runs for tests of the closed loop: random ones without a model, and those of tiny random models."""

import json

import numpy as np

from kvtool._run_folder import RunFolder
from kvtool._safetensors import Tensor

LAYERS, QUERY_HEADS, KV_HEADS, DIM = 3, 4, 2, 8


def floats(array):
    return "F32", memoryview(np.ascontiguousarray(array, dtype="<f4").tobytes())


def document(tokens, prompt, geometry):
    return {
        "tool": {"name": "test", "version": "0"},
        "engine": {"name": "transformers", "build": "0"},
        "model": {"name": "random", "file": None, "bytes": None, "xxh3": None, "architecture": "None"},
        "tokens": tokens,
        "prompt_tokens": prompt,
        "geometry": geometry,
        "rope": None,
        "attention": {"scale": None, "softcap": None, "window": None, "flash": False},
        "nll": None,
    }


def random_run(path, tokens=96, prompt=64, samples=2, metadata=None, seed=0):
    """A run with random values. Keys share a direction, as real ones do, so that attention is not
    uniform."""
    random = np.random.default_rng(seed)
    folder = RunFolder(path)
    for layer in range(LAYERS):
        common = random.standard_normal((1, 1, DIM)) * 2
        rows = {
            f"q.{layer}": random.standard_normal((tokens, QUERY_HEADS, DIM)) + common,
            f"k_{layer}": random.standard_normal((tokens, KV_HEADS, DIM)) + common * random.random((tokens, 1, 1)),
            f"v_{layer}": random.standard_normal((tokens, KV_HEADS, DIM)) + 0.5,
        }
        for name, array in rows.items():
            dtype, data = floats(array)
            folder.append(name, dtype, array.shape[1:], data)
        for _ in range(samples):
            gradient = random.standard_normal((1, tokens - prompt, QUERY_HEADS, DIM)) * 0.1
            dtype, data = floats(gradient)
            folder.append(f"g.{layer}", dtype, gradient.shape[1:], data)
    geometry = {"layers": LAYERS, "query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": DIM}
    folder.commit(
        tokens=[int(token) for token in random.integers(0, 50, tokens)],
        prompt_tokens=prompt,
        layers=list(range(LAYERS)),
        trace_metadata={"kv_heads": str(KV_HEADS), "g_start": str(prompt), **(metadata or {})},
        snapshot_metadata={},
        logits=[Tensor("nll", "F32", (1,), b"\0\0\0\0"), Tensor("positions", "I32", (1,), b"\0\0\0\0")],
        document=document(tokens, prompt, geometry),
    )
    return path


def change(path, **keys):
    """Replaces entries of a run's run.json."""
    file = path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))
