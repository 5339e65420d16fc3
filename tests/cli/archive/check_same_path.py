# SPDX-License-Identifier: Apache-2.0
"""Prints the sizes that compress, bench and analyze report for the same K and V at a level, and checks that they
agree.

  check_same_path.py KVTOOL CACHE...     caches whose tensors fit one chunk
"""
import json
import subprocess
import sys


def document(*arguments):
    return json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)["results"][0]


kvtool, *caches = sys.argv[1:]
for cache in caches:
    for level in ("default", "high", "max"):
        packed = document(kvtool, "compress", cache, "-o", "same.kvz", "--force", "--json", "--level", level, "--joined-layers", "1")
        (bench,) = document(kvtool, "bench", cache, "--json", "--levels", level, "--rounds", "1")["contestants"]
        study = document(kvtool, "analyze", cache, "--json", "--level", level)["summary"]
        for part in "kv":
            stored = packed[part]["stored_bytes"]
            assert stored == bench[part]["stored_bytes"] == study[part]["own_bytes"], (cache, level, part, packed, bench, study)
        print(f"{cache} {level}: the same bytes, {packed['ordered_chunks']} chunks by cells")
