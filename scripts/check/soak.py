#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random operations with faults over a folder of states, and checks each outcome against plain copies.

  soak.py KVTOOL INJECT [--hours H] [--seed S] [--work DIR]

INJECT is the library of tests/faults/inject.cc. The states are those of testdata and those that the run makes from
them. Every operation may be killed, or one of its system calls may fail. Afterwards every archive, every restored state
and every state of a store must be completely the old one or the new one. Damaged copies must be reported as damaged,
and their intact parts must be restored. Ends with the counts of what was tried; exit status 1 at the first wrong
outcome, whose folder is kept.
"""
import argparse
import collections
import filecmp
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEVELS = ["compat", "fast", "default", "high", "max"]
CALLS = ["open", "write", "pwrite", "fsync", "rename", "link", "mmap", "ftruncate", "pthread_create", "malloc"]


class Wrong(Exception):
    pass


def same(a, b):
    """Returns True if two files, or two folders with everything below them, hold the same bytes."""
    if a.is_file() or b.is_file():
        return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)
    left = sorted(item.relative_to(a) for item in a.rglob("*"))
    right = sorted(item.relative_to(b) for item in b.rglob("*"))
    return left == right and all((a / name).is_dir() or filecmp.cmp(a / name, b / name, shallow=False) for name in left)


class Soak:
    def __init__(self, options, folder):
        self.kvtool, self.inject = os.path.abspath(options.kvtool), os.path.abspath(options.inject)
        self.random, self.folder, self.counts = random.Random(options.seed), folder, collections.Counter()
        self.states = folder / "states"  # plain copies, with which outcomes are compared
        self.archives = folder / "archives"
        self.archived = {}  # archive name -> state name
        self.store = folder / "store"
        self.stored = {}  # name in the store -> state name
        # Adds that were interrupted: a repair lists those that are complete on the disk, a collection removes them.
        self.unfinished = collections.defaultdict(list)  # name in the store -> state names
        # Outputs whose writer was killed, or reported that it could not remove the old file: the next writer cleans up.
        self.uncleaned = set()
        self.states.mkdir()
        self.archives.mkdir()
        for path in sorted((ROOT / "testdata/llamacpp/states").iterdir()):
            if path.is_file() and path.stat().st_size < 4 << 20:
                shutil.copy(path, self.states / path.name)
        for path in sorted((ROOT / "testdata/golden/mnn/dumps").iterdir()):
            if path.is_dir():
                shutil.copytree(path, self.states / path.name)

    def run(self, *command, faults=None):
        env = {key: value for key, value in os.environ.items() if not key.startswith("KVTOOL_")}
        if faults:
            env.update(faults, LD_PRELOAD=self.inject)
            self.counts["with " + ("kill" if "FAULT_KILL" in faults else faults["FAULT_CALL"])] += 1
        done = subprocess.run([self.kvtool, *map(str, command)], cwd=self.folder, env=env, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=300)
        self.counts[f"exit {done.returncode}"] += 1
        errors = done.stderr.decode(errors="replace")
        if "-o" in command:
            output = pathlib.Path(command[command.index("-o") + 1]).name
            said = f".{output}.kvtool-" in errors and "warning: could not be removed" in errors
            if done.returncode == -9 or said:
                self.uncleaned.add(output)
                self.counts["leftovers said"] += said
            elif done.returncode == 0:
                self.uncleaned.discard(output)
        self.last = f"{' '.join(map(str, command))} {faults or ''}: exit {done.returncode}: {errors}"
        if done.returncode not in (0, 1, 3, 4) and not (faults and done.returncode == -9):
            raise Wrong("exit status out of the contract")
        return done.returncode

    def some_fault(self):
        if self.random.random() < 0.4:
            return None
        call = self.random.choice(CALLS)
        faults = {"FAULT_CALL": call, "FAULT_AT": str(int(10 ** self.random.uniform(0, 3.5 if call == "malloc" else 1.6)))}
        if self.random.random() < 0.4 and call not in ("malloc", "pthread_create", "mmap"):
            faults["FAULT_KILL"] = "1"
        else:
            faults["FAULT_ERRNO"] = str(self.random.choice([5, 28, 122]))
        return faults

    def check_archive(self, name):
        """Checks that the archive is complete: either the old state's or the new one's."""
        if self.run("verify", "-q", self.archives / name, "--against", self.states / self.archived[name]) != 0:
            raise Wrong(f"{name} is not {self.archived[name]}")

    def compress(self):
        state = self.random.choice(sorted(item.name for item in self.states.iterdir()))
        name = f"{self.random.randrange(12)}.kvz"
        before = self.archived.get(name)
        code = self.run("compress", "-f", self.states / state, "-o", self.archives / name, "--level",
                        self.random.choice(LEVELS), f"-T{self.random.randrange(1, 4)}", faults=self.some_fault())
        self.archived[name] = state
        if code != 0:
            if before is None and not (self.archives / name).exists():
                del self.archived[name]
                return
            new = self.run("verify", "-q", self.archives / name, "--against", self.states / state) == 0
            if not new:
                self.archived[name] = before
                if before is None:
                    raise Wrong("neither absent nor complete")
        self.check_archive(name)

    def decompress(self):
        name = self.some_archive()
        out = self.folder / "restored"
        code = self.run("decompress", "-f", self.archives / name, "-o", out, faults=self.some_fault())
        truth = self.states / self.archived[name]
        if out.exists() and not same(out, truth):
            raise Wrong("what was restored is not what was archived")
        if code == 0 and not out.exists():
            raise Wrong("exit 0 and nothing restored")
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)

    def convert_and_back(self):
        state = self.random.choice(sorted(item.name for item in self.states.iterdir() if "f16" in item.name))
        middle, back = self.folder / "middle.st", self.folder / "back.bin"
        if self.run("convert", "-q", "-f", self.states / state, "--kv-heads", "4", "--to", "safetensors", "-o", middle) == 0:
            if self.run("diff", "-q", self.states / state, middle, "--kv-heads", "4") != 0:
                raise Wrong("converted is not the same")
        for path in (middle, back):
            path.unlink(missing_ok=True)

    def damage(self):
        name = self.some_archive()
        data = bytearray((self.archives / name).read_bytes())
        hurt, out = self.folder / "hurt.kvz", self.folder / "salvaged"
        if self.random.random() < 0.3:
            del data[self.random.randrange(len(data)):]
        else:
            for _ in range(self.random.randrange(1, 4)):
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        hurt.write_bytes(data)
        if bytes(data) == (self.archives / name).read_bytes():
            return
        if self.run("verify", "-q", hurt) == 0:
            raise Wrong("damage that verify does not see")
        if self.run("decompress", "-q", "-f", hurt, "-o", out) == 0 and not same(out, self.states / self.archived[name]):
            raise Wrong("a damaged archive was restored wrongly")
        self.run("decompress", "-q", "-f", "--keep-going", hurt, "-o", out)
        if out.is_file():
            truth = (self.states / self.archived[name]).read_bytes()
            found = out.read_bytes()
            if any(byte not in (0, right) for byte, right in zip(found, truth)):
                raise Wrong("a salvaged byte is neither right nor 0")
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)

    def newest(self, name, allowed):
        """Returns which of the allowed states the store restores under this name; None if it has none."""
        out = self.folder / "got"
        code = self.run("store", "get", "-q", "-f", self.store, name, "-o", out)
        found = [state for state in allowed if state is not None and out.exists() and same(out, self.states / state)]
        there = out.exists()
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        if found:
            return found[0]
        if code == 0 or there or None not in allowed:
            raise Wrong(f"the store's {name} is none of {allowed}")
        return None

    def store_add(self):
        state = self.random.choice(sorted(item.name for item in self.states.iterdir()))
        name = f"n{self.random.randrange(4)}"
        before = self.stored.get(name)
        opaque = ["--from", "opaque"] if self.random.random() < 0.2 else []
        code = self.run("store", "add", "-q", self.store, self.states / state, "--name", name, "--level",
                        self.random.choice(LEVELS[1:4]), f"-T{self.random.randrange(1, 4)}", *opaque,
                        faults=self.some_fault())
        self.stored[name] = self.newest(name, [state] if code == 0 else [before, state])
        if code != 0:
            self.unfinished[name].append(state)

    def store_get(self):
        name = self.random.choice(sorted(name for name, state in self.stored.items() if state is not None))
        out = self.folder / "restored"
        code = self.run("store", "get", "-q", "-f", self.store, name, "-o", out, faults=self.some_fault())
        if out.exists() and not same(out, self.states / self.stored[name]):
            raise Wrong("what the store gave back is not what was added")
        if code == 0 and not out.exists():
            raise Wrong("exit 0 and nothing given back")
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)

    def store_upkeep(self):
        verb = self.random.choice([["gc"], ["prune", "--keep-last", "1"], ["verify", "--repair"], ["verify"]])
        self.counts[f"store {verb[0]}"] += 1
        self.run("store", verb[0], "-q", self.store, *verb[1:], faults=self.some_fault())
        if "--repair" in verb:
            for name, states in self.unfinished.items():
                self.stored[name] = self.newest(name, [self.stored.get(name), *states])
            self.unfinished.clear()
        if self.run("store", "verify", "-q", self.store) != 0:
            raise Wrong("the store is damaged")

    def some_archive(self):
        return self.random.choice(sorted(self.archived))

    def step(self):
        choices = [self.compress] if not self.archived else [self.compress, self.compress, self.decompress,
                                                             self.convert_and_back, self.damage, self.store_add]
        if any(state is not None for state in self.stored.values()):
            choices += [self.store_add, self.store_get, self.store_upkeep]
        operation = self.random.choice(choices)
        self.counts[operation.__name__] += 1
        operation()
        hidden = [item.name for folder in (self.folder, self.archives) for item in folder.iterdir()
                  if item.name.startswith(".") and not any(item.name.startswith(f".{name}.") for name in self.uncleaned)]
        if hidden:
            raise Wrong(f"left behind: {hidden}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool")
    parser.add_argument("inject")
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtool-soak-", dir=options.work))
    soak = Soak(options, folder)
    end, steps = time.monotonic() + 3600 * options.hours, 0
    try:
        while time.monotonic() < end:
            soak.step()
            steps += 1
    except (Wrong, subprocess.TimeoutExpired) as wrong:
        print(f"step {steps}: {wrong}\n{soak.last}\nkept: {folder}")
        return 1
    finally:
        print(f"{steps} steps: " + ", ".join(f"{name} {count}" for name, count in sorted(soak.counts.items())))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
