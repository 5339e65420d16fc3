# SPDX-License-Identifier: Apache-2.0
"""Writes a run as capture programs do, from a real state and its real queries, with random gradients: made_run.py
TESTDATA RUN.

Only run.json states the heads and the RoPE of the state.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np


def save(path, tensors, metadata=None):
    header, data = {"__metadata__": metadata or {}}, b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main(testdata, run):
    random = np.random.default_rng(8)
    os.makedirs(f"{run}/trace")
    shutil.copy(f"{testdata}/trace/s260k.seq0.bin", f"{run}/snapshot.bin")
    layers = range(5)
    for layer in layers:
        q = np.load(f"{testdata}/trace/s260k-L{layer}-Q.npy").astype(np.float32)
        g = (0.02 * random.standard_normal((2, len(q) - 64, *q.shape[1:]))).astype(np.float32)
        save(f"{run}/trace/q.{layer}.safetensors", {f"q.{layer}": q})
        save(f"{run}/trace/g.{layer}.safetensors", {f"g.{layer}": g})
    tokens = np.load(f"{testdata}/trace/s260k-tokens.npy").astype(np.int32)
    metadata = {"kvtool.trace": "1", "prompt_tokens": "64", "q_start": "0", "g_start": "64", "engine": "llama.cpp"}
    save(f"{run}/trace/trace.safetensors", {"tokens": tokens}, metadata)
    with open(f"{run}/sensitivity.json", "w") as file:
        weights = [{"layer": layer, "kl": 0.01 * (layer + 1)} for layer in layers]
        json.dump({"schema": "kvtool.sensitivity/1", "model": "stories260K", "noise": 0.3, "layers": weights}, file)
    document = {
        "schema": "kvtool.run/1",
        "tool": {"name": "made_run.py", "version": "1"},
        "engine": {"name": "llama.cpp", "build": "b6673"},
        "model": {"name": "stories260K", "architecture": "llama", "context_length": 2048},
        "tokens": len(q), "prompt_tokens": 64,
        "geometry": {"layers": 5, "query_heads": q.shape[1], "kv_heads": 4, "head_dim": q.shape[2]},
        "rope": {"style": "neighbour", "base": 10000.0, "dims": q.shape[2], "scaling": None},
        "nll": 1.25,
        "files": {"snapshot": "snapshot.bin", "trace": "trace", "sensitivity": "sensitivity.json"},
    }
    with open(f"{run}/run.json", "w") as file:
        json.dump(document, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
