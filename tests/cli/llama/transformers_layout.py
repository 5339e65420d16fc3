# SPDX-License-Identifier: Apache-2.0
"""Rewrites engine.npz in the layout of transformers, hf.npz, and renames a GGUF's architecture:
transformers_layout.py GGUF."""
import sys

import numpy as np

engine, made = np.load("engine.npz"), {}
for name in ("tokens", "positions"):
    made[name] = engine[name]
for layer in range(5):
    k = engine[f"k_{layer}"].reshape(512, 4, 4, 2).swapaxes(2, 3).reshape(512, 4, 8)
    made[f"past_key_values.{layer}.key"] = k.swapaxes(0, 1)[None]
    made[f"past_key_values.{layer}.value"] = engine[f"v_{layer}"].swapaxes(0, 1)[None]
np.savez("hf.npz", **made)
header = open(sys.argv[1], "rb").read()
for name in ("qwen2", "other"):
    open(name + ".gguf", "wb").write(header.replace(b"llama", name.encode()))
