#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a long random cache and queries on it, to measure the time of a replay of that length.

    scripts/make/long_trace.py --tokens 32768 --out long
    kvtool replay-h2o long/snapshot.npz --trace long/trace.npz --policy all

Keys drift slowly along the sequence and queries resemble late keys, so that attention is neither flat nor on a single
key.
"""
import argparse
import json
import pathlib

import numpy as np


def rows(random, tokens, heads, dim):
    """Returns rows with a slowly changing common part: [tokens, heads, dim], f16."""
    steps = random.standard_normal((tokens // 64 + 2, heads, dim)).astype(np.float32)
    at = np.arange(tokens) / 64
    low = at.astype(np.int64)
    share = (at - low)[:, None, None].astype(np.float32)
    drift = steps[low] * (1 - share) + steps[low + 1] * share
    return (drift + 0.5 * random.standard_normal((tokens, heads, dim)).astype(np.float32)).astype(np.float16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--prompt", type=int, help="first decode position (default: half of the tokens)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="folder for snapshot.npz and trace.npz")
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    prompt = options.tokens // 2 if options.prompt is None else options.prompt
    snapshot = {"positions": np.arange(options.tokens)}
    trace = {}
    for layer in range(options.layers):
        keys = rows(random, options.tokens, options.kv_heads, options.dim)
        snapshot[f"k_{layer}"] = keys
        snapshot[f"v_{layer}"] = rows(random, options.tokens, options.kv_heads, options.dim)
        noise = random.standard_normal((options.tokens, options.heads, options.dim)).astype(np.float32)
        trace[f"q.{layer}"] = (1.2 * np.repeat(keys, options.heads // options.kv_heads, axis=1) + noise).astype(np.float16)
    metadata = json.dumps({"kvtool.trace": "1", "prompt_tokens": str(prompt), "kv_heads": str(options.kv_heads)})
    trace["__metadata__"] = np.frombuffer(metadata.encode(), np.uint8)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "snapshot.npz", **snapshot)
    np.savez(out / "trace.npz", **trace)


if __name__ == "__main__":
    main()
