#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the work of a command to what its input asks for: growth.py KVTOOL INJECT.

INJECT is the library built from inject.cc. Work is counted in allocations, which no load of the machine changes: four times
the input may cost about four times as many, where a quadratic command needs sixteen.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from scenarios import plain_environment

KVTOOL, INJECT = map(os.path.abspath, sys.argv[1:3])


def list_missing_names(folder, count):
    """A list of names that are missing, in a folder of as many files: each may be DIR/STEM of a dump."""
    (folder / "d").mkdir()
    for i in range(count):
        (folder / f"d/there-{i}").touch()
    (folder / "list").write_text("".join(f"d/missing-{i}\n" for i in range(count)))
    return ["inspect", "--files-from", "list", "--keep-going", "-qq"]


def list_one_stem(folder, count):
    """A list that says one stem again and again, which stands for all files of the folder."""
    (folder / "d").mkdir()
    for i in range(count):
        (folder / f"d/there-{i}").touch()
    (folder / "list").write_text("d/the\nd/ther\n" * (count // 2))
    return ["inspect", "--files-from", "list", "--keep-going", "-qq"]


def count_allocations(make, count):
    with tempfile.TemporaryDirectory(prefix="kvtool-growth-") as place:
        folder = pathlib.Path(place)
        command = make(folder, count)
        env = plain_environment()
        env.update(LD_PRELOAD=INJECT, FAULT_COUNTS=str(folder / "counts"))
        done = subprocess.run([KVTOOL, *command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 4, (done.returncode, done.stderr[-500:])  # none of the names can be opened
        return int(dict(line.split() for line in (folder / "counts").read_text().splitlines())["malloc"])


def main():
    for make in (list_missing_names, list_one_stem):
        none, some, many = (count_allocations(make, count) for count in (2, 200, 800))
        growth = (many - none) / (some - none)
        print(f"{make.__name__}: {some} allocations for 200, {many} for 800: {growth:.1f} times as many")
        if growth > 6:
            sys.exit(f"{make.__name__}: four times the input costs {growth:.1f} times the work")


if __name__ == "__main__":
    main()
