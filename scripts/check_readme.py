#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every `$ command` of README.md's console blocks and compares what it prints with what is shown.

Usage: check_readme.py KVTOOL [--update]
All blocks share one scratch folder that starts with the files below. Measured times and rates (12.3 MB/s,
4.5 ms) and the program's version may differ; everything else must match to the letter.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# name in the scratch folder -> where it comes from
FILES = {
    "slot0.bin": "testdata/llamacpp/states/s260k-v050-f16.seq0.bin",
    "trace": "testdata/trace",
    "gate": "testdata/gate",
    "blend": "testdata/golden/blend/replay",
    "walk.f16": "testdata/golden/mnn/codec/f16_smooth_walk_8192.in.bin",
    "engine.gear": "testdata/golden/mnn/codec/f16_smooth_walk_8192.zstd.frame.bin",
    "compressor.bin": "testdata/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin",
    "dump_kv": "testdata/golden/infinilm/dump_kv",
}
MEASURED = [
    (re.compile(r"\d+(\.\d+)? (MB/s|ms|us|ns|s)\b"), "# \\2"),
    (re.compile(r"kvtool \d\S* \([0-9a-f]+\), SIMD \w+"), "kvtool VERSION"),
]


def masked(text):
    for pattern, mask in MEASURED:
        text = pattern.sub(mask, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def run(command, folder, kvtool):
    env = dict(os.environ, PATH=f"{os.path.dirname(kvtool)}:{os.environ['PATH']}", NO_COLOR="1", LC_ALL="C.UTF-8")
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.stdout


def main():
    kvtool = os.path.abspath(sys.argv[1])
    if "zstd 1.5.4" not in subprocess.check_output([kvtool, "targets"], text=True):
        print("skipped: sizes in the README are those of zstd 1.5.4")
        return 0
    update = "--update" in sys.argv
    readme = ROOT / "README.md"
    lines, out, failed, count = readme.read_text().splitlines(), [], False, 0
    with tempfile.TemporaryDirectory(prefix="kvtool-readme-") as folder:
        for name, source in FILES.items():
            target = pathlib.Path(folder) / name
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target)
            else:
                shutil.copy(ROOT / source, target)
        inside, i = False, 0
        while i < len(lines):
            line = lines[i]
            i += 1
            out.append(line)
            if line.startswith("```"):
                inside = line == "```console"
                continue
            if not inside or not line.startswith("$ "):
                continue
            shown = []
            while i < len(lines) and not lines[i].startswith(("```", "$ ")):
                shown.append(lines[i])
                i += 1
            printed = run(line[2:], folder, kvtool)
            count += 1
            if update:
                out += printed.rstrip().splitlines()
                if lines[i].startswith("$ "):
                    out.append("")
            else:
                out += shown
                if masked(printed) != masked("\n".join(shown)):
                    failed = True
                    print(f"README shows something else than `{line[2:]}` prints:\n{printed}")
    if update:
        readme.write_text("\n".join(out) + "\n")
    print(f"{count} commands of README.md ran")
    return 1 if failed or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
