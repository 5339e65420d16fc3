# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Checks that scripts/bench/frames.py measures what it documents; nothing here depends on times."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

STATE = "llamacpp/states/s260k-v050-f16.seq0.bin"
SIZES = [8192, 65536, 1 << 20]


def bench(root, data, *options):
    return subprocess.run([sys.executable, str(root / "scripts" / "bench" / "frames.py"), str(data / STATE), *options],
                          capture_output=True, text=True, timeout=300)


@pytest.fixture
def program():
    """The C half needs a build with benchmarks."""
    found = pathlib.Path(os.environ.get("KVTOOL_BUILD", "nowhere")) / "bin" / "kvt_bench_frames"
    return found if found.exists() else None


@pytest.mark.parametrize("order", [[], ["--shuffle"]])
def test_tables(root, data, tmp_path, program, order):
    figures = tmp_path / "figures.json"
    ran = bench(root, data, "--sizes", "8KiB,1MiB,64KiB", "--threads", "1,2", "--levels", "fast,default", "--rounds", "2",
                "--pass", "1MiB", "--json-out", str(figures), "--c", str(program or tmp_path / "none"), "--beside", "zlib -1", *order)
    assert ran.returncode == 0, ran.stderr
    assert ("nothing is measured from C" in ran.stderr) == (program is None)
    for heading in ("Ratio,", "MB/s, one thread", "in one batch", "by the speed of zlib -1", "at 64 KiB by", "Python's own", "beats raw files"):
        assert heading in ran.stdout
    rows = [line for line in ran.stdout.splitlines() if line.startswith("| kvtool default")]
    assert all(line.count("|") == 5 for line in rows[:2])  # a ratio and a speed for each size
    document = json.loads(figures.read_text())
    kinds = {"python", "c"} if program else {"python"}
    stored = {}
    for record in document["contestants"]:
        if record["kind"] in kinds:
            stored.setdefault((record["name"], record["object_bytes"]), set()).add(record["stored_bytes"])
        assert record["raw_bytes"] == 1 << 20 == record["objects"] * record["object_bytes"]
        assert record["encode_fastest_mb_per_s"] >= record["encode_median_mb_per_s"] > 0
    # One thread or two, from Python or from C, give the same frames.
    assert sorted(stored) == sorted((f"kvtool {level}", size) for level in ("fast", "default") for size in SIZES)
    assert all(len(sizes) == 1 for sizes in stored.values())
    assert {"memcpy", "zlib -1", "zlib -6"} <= {record["name"] for record in document["contestants"]}


def test_processor_time(root, data, tmp_path, program):
    ran = bench(root, data, "--sizes", "64KiB", "--threads", "1", "--levels", "fast", "--rounds", "2", "--pass", "256KiB",
                "--cpu", "--beside", "memcpy", "--c", str(program or tmp_path / "none"))
    assert ran.returncode == 0, ran.stderr
    assert "by the speed of memcpy" in ran.stdout and "Python's own" not in ran.stdout
    refused = bench(root, data, "--cpu", "--threads", "1,2")
    assert (refused.returncode, "--threads 1" in refused.stderr) == (2, True)


def test_sizes_that_are_no_whole_tokens(root, data):
    ran = bench(root, data, "--sizes", "5000")
    assert ran.returncode == 2
    assert "whole tokens" in ran.stderr


def test_c_program_refuses_what_it_cannot_serve(program, tmp_path):
    if program is None:
        pytest.skip("no build with benchmarks")
    (tmp_path / "objects").write_bytes(bytes(5000))
    for request in ("4096 2 1 objects", "5000 9 1 objects", "5000 2 0 objects", "5000 2 1 missing", "words"):
        ran = subprocess.run([program], input=request + "\n", cwd=tmp_path, capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert request in ran.stderr
