#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the example archive_tool, built with the public headers alone, writes the same bytes as the program.

  archive_tool.py KVTOOL EXAMPLE SNAPSHOT
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def main():
    program, example, snapshot = sys.argv[1:4]

    def run(*words, status=0):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)
        if done.returncode != status:
            sys.exit(f"{words} ended with {done.returncode}: {done.stderr}")
        return done.stdout + done.stderr

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base, other = folder / "base.bin", folder / "elsewhere" / "other.kvz"
        other.parent.mkdir()
        run(program, "convert", snapshot, "--to", "llama-state", "--kv-heads", "2", "--tokens", "0:60", "-o", base)
        for beside in ([], [base]):
            by_program, by_example, back = folder / "program.kvz", folder / "example.kvz", folder / "back.bin"
            options = [word for path in beside for word in ("--base", path)]
            run(program, "compress", snapshot, "-f", "-o", by_program, *options)
            run(example, "compress", snapshot, by_example, *beside)
            assert by_example.read_bytes() == by_program.read_bytes(), f"other bytes, beside {beside}"
            run(example, "decompress", by_program, back, *beside)
            assert back.read_bytes() == pathlib.Path(snapshot).read_bytes()
            assert "identical" in run(example, "verify", by_program, snapshot, *beside)
            assert "[KV" not in run(example, "verify", by_program, base, *beside, status=1)

            said = run(example, "inspect", by_program).splitlines()
            layers = json.loads(run(program, "inspect", by_program, "--json"))["results"][0]["layers"]
            tensors = [layer[kind] for layer in layers for kind in ("k", "v")]
            assert [line.split()[1:2] for line in said[:8]] == [[str(tensor["tokens"])] for tensor in tensors], said
            assert [line for line in said if "needs" in line] == (
                [f"needs base.bin, llama-state, {base.stat().st_size} bytes"] if beside else []), said

            damaged = bytearray(by_program.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            other.write_bytes(damaged)
            assert "[KV1103]" in run(example, "verify", other, snapshot, *beside, status=1)
        assert "[KV1107]" in run(example, "decompress", by_program, back, status=1)
    print("the same bytes, both ways")


if __name__ == "__main__":
    main()
