# SPDX-License-Identifier: Apache-2.0
"""Copies a recorded run, with its cache as arrays, and changes one thing: damage_run.py KVTOOL RUN COPY
WHAT."""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np


def main(kvtool, run, copy, what):
    shutil.copytree(run, copy)
    cache = pathlib.Path(copy, "cache.npz")
    subprocess.run([kvtool, "convert", run, "--to", "npz", "-o", cache, "-q"], check=True)
    document = json.loads(pathlib.Path(run, "run.json").read_text())
    document["files"]["snapshot"] = "cache.npz"
    pathlib.Path(copy, "run.json").write_text(json.dumps(document))
    with np.load(cache) as file:
        arrays = dict(file)
    random = np.random.default_rng(1)
    for name, array in arrays.items():
        last = "4" in name and array.ndim >= 3
        if what == "nan" and last:
            array[(5,) + (0,) * (array.ndim - 1)] = np.nan
        if what == "zero" and last:
            array[...] = 0
        if what == "again" and array.ndim >= 3:  # relative noise of 1/2000, as from one more rounding
            array[...] = array * (1 + random.standard_normal(array.shape) / 2000)
        if what == "worse" and array.ndim >= 3:  # random factors per token shift the weights to other tokens
            array[...] = array * random.lognormal(0, 1, array.shape[:1] + (1,) * (array.ndim - 1))
    if what == "short":
        cache.write_bytes(cache.read_bytes()[:5000])
        return
    np.savez(cache, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
