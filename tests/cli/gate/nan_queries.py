# SPDX-License-Identifier: Apache-2.0
"""Writes traces of the cache s260k whose queries are NaN: all of them, or only those of the last token.

Usage: nan_queries.py TESTDATA
"""
import pathlib
import shutil
import sys

import numpy

for name, first in {"all": 0, "last": -1}.items():
    folder = pathlib.Path(name)
    folder.mkdir()
    for file in sorted((pathlib.Path(sys.argv[1]) / "trace").glob("s260k-*.npy")):
        if file.stem.endswith("-Q"):
            queries = numpy.load(file).copy()
            tokens = queries.shape.index(192)
            queries[(slice(None),) * tokens + (slice(first, None),)] = numpy.nan
            numpy.save(folder / file.name, queries)
        elif file.stem.endswith("-tokens"):
            shutil.copy(file, folder)
