# SPDX-License-Identifier: Apache-2.0
"""Makes a small corpus of synthetic caches: corpus_files.py FOLDER. It has two safetensors files, a folder with one
file per layer, a folder of two numpy arrays, and files that are not caches."""
import pathlib
import sys

import numpy

import safetensors_file


def cache(seed, layers, tokens=64):
    random = numpy.random.default_rng(seed)
    return {f"{kind}_cache.{layer}": random.standard_normal((1, 2, tokens, 16)).astype(numpy.float16)
            for layer in layers for kind in ("key", "value")}


def write(folder):
    root = pathlib.Path(folder)
    for name in ("pair", "layers", "arrays", "other"):
        (root / name).mkdir(parents=True)
    safetensors_file.write(root / "pair" / "a.safetensors", {}, cache(1, [0, 1]))
    safetensors_file.write(root / "pair" / "b c.safetensors", {}, cache(2, [0, 1]))
    safetensors_file.write(root / "layers" / "l0.safetensors", {}, cache(3, [0]))
    safetensors_file.write(root / "layers" / "l1.safetensors", {}, cache(3, [1]))
    for name in "kv":
        values = numpy.random.default_rng(4).standard_normal((1, 2, 64, 16)).astype(numpy.float16)
        numpy.save(root / "arrays" / f"{name}.npy", values)
    (root / "other" / "README").write_text("no cache\n")
    safetensors_file.write(root / "other" / "model.safetensors", {}, {f"model.layers.{i}.mlp.weight": numpy.zeros((4, 4), numpy.float32) for i in range(2)})


if __name__ == "__main__":
    write(sys.argv[1])
