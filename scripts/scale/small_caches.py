#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes many small synthetic caches: small_caches.py FOLDER COUNT [--tokens N] [--seed N]. Each is a safetensors file
of 2 layers with 2 heads of 64 dims in f16, 64 KiB with the default of 64 tokens; a folder holds 1,000 of
them."""
import argparse
import json
import pathlib

import numpy

LAYERS, HEADS, DIM = 2, 2, 64


def content(seed, tokens):
    random = numpy.random.default_rng(seed)
    header, offset, arrays = {}, 0, []
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            # Neighbouring tokens are similar, as in a cache.
            values = numpy.cumsum(random.standard_normal((1, HEADS, tokens, DIM)), axis=2) * 0.1
            arrays.append(values.astype(numpy.float16).tobytes())
            header[f"{kind}_cache.{layer}"] = {"dtype": "F16", "shape": [1, HEADS, tokens, DIM],
                                               "data_offsets": [offset, offset + len(arrays[-1])]}
            offset += len(arrays[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(arrays)


def make(folder, count, tokens=64, seed=0):
    for i in range(count):
        path = pathlib.Path(folder, f"{i // 1000:03}", f"{i:06}.safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content([seed, i], tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("count", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.folder, options.count, options.tokens, options.seed)


if __name__ == "__main__":
    main()
