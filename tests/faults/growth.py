#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the work of a command grows no faster than its input: growth.py KVTOOL INJECT.

INJECT is the library built from inject.cc. Work is counted in allocations, which do not depend on the load of the
machine: for four times the input about four times as many are accepted; a quadratic command needs sixteen times as
many.
"""
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile

from scenarios import plain_environment

KVTOOL, INJECT = map(os.path.abspath, sys.argv[1:3])


def list_missing_names(folder, count):
    """Makes a list of missing names, in a folder of as many files; each name may also mean
    DIR/STEM of a dump."""
    (folder / "d").mkdir()
    for i in range(count):
        (folder / f"d/there-{i}").touch()
    (folder / "list").write_text("".join(f"d/missing-{i}\n" for i in range(count)))
    return ["inspect", "--files-from", "list", "--keep-going", "-qq"]


def list_one_stem(folder, count):
    """Makes a list that repeats one stem, which stands for all files of the folder."""
    (folder / "d").mkdir()
    for i in range(count):
        (folder / f"d/there-{i}").touch()
    (folder / "list").write_text("d/the\nd/ther\n" * (count // 2))
    return ["inspect", "--files-from", "list", "--keep-going", "-qq"]


def run_counted(folder, command, status):
    env = plain_environment()
    env.update(LD_PRELOAD=INJECT, FAULT_COUNTS=str(folder / "counts"))
    done = subprocess.run([KVTOOL, *command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == status, (done.returncode, done.stderr[-500:])
    return int(dict(line.split() for line in (folder / "counts").read_text().splitlines())["malloc"])


def count_allocations(make, count):
    with tempfile.TemporaryDirectory(prefix="kvtool-growth-") as place:
        folder = pathlib.Path(place)
        return run_counted(folder, make(folder, count), 4)  # exit status 4: none of the inputs can be opened


def count_added_state(states):
    """Returns the allocations per additional state in a store of this size: (those of eight states - those of two) /
    6.

    The names are too long for a string's own buffer, so that every copy is an allocation.
    """
    with tempfile.TemporaryDirectory(prefix="kvtool-growth-") as place:
        folder = pathlib.Path(place)
        names = [f"f{i}" for i in range(11)]
        for name in names:
            (folder / name).write_text(name * 100)
        add = ["store", "add", "store", "--from", "opaque", "-qq"]
        run_counted(folder, [*add, names[0]], 0)
        with sqlite3.connect(folder / "store/index.sqlite") as index:
            columns = [row[1] for row in index.execute("PRAGMA table_info(states)")][2:]
            for number in range(2, states + 2):
                index.execute(f"INSERT INTO states SELECT ?, ?, {', '.join(columns)} FROM states WHERE state = 1",
                              (number, f"a state of a long name {number}"))
                (folder / f"store/states/a file of a long name {number}").touch()
            index.execute("UPDATE numbers SET next = ?", (states + 2,))
        index.close()
        few = run_counted(folder, [*add, *names[1:3]], 0)
        return (run_counted(folder, [*add, *names[3:]], 0) - few) / 6


def main():
    for make in (list_missing_names, list_one_stem):
        none, some, many = (count_allocations(make, count) for count in (2, 200, 800))
        growth = (many - none) / (some - none)
        print(f"{make.__name__}: {some} allocations for 200, {many} for 800: {growth:.1f} times as many")
        if growth > 6:
            sys.exit(f"{make.__name__}: four times the input costs {growth:.1f} times the work")
    few, many = count_added_state(10), count_added_state(3000)
    print(f"a state added: {few:.0f} allocations in a store of 10, {many:.0f} in one of 3000")
    if many > 1.5 * few:
        sys.exit(f"store add: in a store of 3000 states one more costs {many / few:.1f} times as much as in one of 10")


if __name__ == "__main__":
    main()
