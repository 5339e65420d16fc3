#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the program and libkvtool read each other's archives.

  archive_program.py KVTOOL API_TESTS
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

TOKENS, HEADS, DIM, LAYERS = 700, 2, 64, 3


def source_bytes():
    """A safetensors file of [token, head, dim] tensors, as `convert` writes them."""
    generator = random.Random(1)
    header = {"__metadata__": {"kvtool.layout": "[token][head][dim]"}}
    data = b""
    for layer in range(LAYERS):
        for name in ("k", "v"):
            values = [generator.gauss(0, 1) for _ in range(HEADS * DIM)]
            rows = b"".join(struct.pack(f"<{HEADS * DIM}e", *(value + generator.gauss(0, 0.1) for value in values))
                            for _ in range(TOKENS))
            header[f"{name}_{layer}"] = {"dtype": "F16", "shape": [TOKENS, HEADS, DIM],
                                         "data_offsets": [len(data), len(data) + len(rows)]}
            data += rows
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data, data


def main():
    program, tests = sys.argv[1:3]

    def kvtool(*words):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"kvtool {words} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        whole, data = source_bytes()
        (folder / "source.bin").write_bytes(whole)
        kvtool("compress", folder / "source.bin", "--layout", "thd", "-o", folder / "program.kvz")
        subprocess.run([tests, "archive program"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "KVTOOL_TEST_FOLDER": name})
        assert (folder / "parts.bin").read_bytes() == data, "the library read other values"

        kvtool("verify", folder / "library.kvz")
        kvtool("decompress", folder / "library.kvz", "-o", folder / "library.safetensors")
        archived, restored = (json.loads(kvtool("inspect", folder / file, "--json"))["results"][0]
                              for file in ("library.kvz", "library.safetensors"))
        for document in (archived, restored):
            layers = document["layers"]
            assert [layer["layer"] for layer in layers] == [7, 8], layers
            assert all(layer["k"]["tokens"] == 1500 and layer["k"]["kv_heads"] == 2 for layer in layers), layers
        kvtool("diff", folder / "library.kvz", folder / "library.safetensors")
    print("archives go both ways")


if __name__ == "__main__":
    main()
