#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no level makes a chunk of real caches more than 0.1 % larger than level compat.

  levels.py KVTOOL CACHE... [--chunks 1MiB,64KiB,32KiB,16KiB] [--levels default,high,max] [--kv-heads N]

CACHE is any snapshot; those that kvtool refuses are named and skipped. Chunks are cut as `kvtool bench --chunk` does,
from all of K and V. Prints the number of chunks, and each cache, size, level and part (K or V) whose worst chunk breaks
the rule, with bytes / bytes at compat. Exit status: 0 all chunks obey, 1 some do not.
"""
import argparse
import json
import pathlib
import subprocess
import sys

LIMIT = 1.001


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool", type=pathlib.Path)
    parser.add_argument("caches", nargs="+", type=pathlib.Path)
    parser.add_argument("--chunks", default="1MiB,64KiB,32KiB,16KiB")
    parser.add_argument("--levels", default="default,high,max")
    parser.add_argument("--kv-heads")
    arguments = parser.parse_args()
    heads = ["--kv-heads", arguments.kv_heads] if arguments.kv_heads else []
    looked = broken = 0
    for cache in arguments.caches:
        for size in arguments.chunks.split(","):
            command = [arguments.kvtool, "bench", cache, "--json", "--deterministic", "--rounds", "1", "--sample-bytes", "64GiB",
                       "--chunk", size, "--levels", "compat," + arguments.levels, *heads]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode != 0:
                print(f"{cache.name}: left out: {ran.stderr.strip().splitlines()[0]}", file=sys.stderr)
                break
            report = json.loads(ran.stdout)["results"][0]
            for level in report["contestants"][1:]:
                looked += report["chunks"]
                for part in "kv":
                    worst = level[part].get("worst_chunk_to_compat", 0)
                    if worst > LIMIT:
                        broken += 1
                        print(f"{cache.name}, chunks of {size}, {level['name']}, {part.upper()}: {worst:.4f} of compat")
    print(f"{looked} chunks, {broken} parts with one that is larger than at compat by more than 0.1 %")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
