#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores the same saves, one after another, in kvtool store and in backup programs, and compares bytes on disk and
seconds.

Usage: store.py KVTOOL SAVE... [--levels default,high] [--threads N]

Peers that are not on the PATH are skipped: restic, borg (Debian packages), zstd with --long over all saves in one
stream (which can neither add nor restore a single save, and needs all of them at once). RESTIC and BORG may name the
programs. Every save is restored by every program and compared. Each program runs once, in turn, after every save has
been read; times are wall time.
"""
import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else folder.stat().st_size


def digest(data):
    return hashlib.sha256(data).hexdigest()


def timed(function, *arguments):
    begin = time.monotonic()
    result = function(*arguments)
    return time.monotonic() - begin, result


def run(*command, env=None, stdin=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, env=env, stdin=stdin, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.decode()}")
    return done.stdout


class Kvtool:
    def __init__(self, program, level, threads):
        self.name, self.program, self.level, self.threads = f"kvtool store, {level}", program, level, f"-T{threads}"

    def start(self, folder):
        self.folder = folder / "store"

    def add(self, save, number):
        run(self.program, "store", "add", "-q", self.threads, self.folder, save, "--name", f"save{number}", "--level", self.level)

    def get(self, number):
        return run(self.program, "store", "get", "-q", self.threads, self.folder, f"save{number}", "-c")


class Restic:
    name = "restic, compression auto"

    def __init__(self, program):
        self.program = program

    def start(self, folder):
        self.folder, self.env = folder / "restic", {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_CACHE_DIR": str(folder / "cache")}
        run(self.program, "init", "-q", "-r", self.folder, env=self.env)

    def add(self, save, number):
        with open(save, "rb") as data:
            run(self.program, "backup", "-q", "-r", self.folder, "--stdin", "--stdin-filename", f"save{number}", env=self.env, stdin=data)

    def get(self, number):
        return run(self.program, "dump", "-q", "-r", self.folder, "--path", f"/save{number}", "latest", f"/save{number}", env=self.env)


class Borg:
    def __init__(self, program, compression):
        self.name, self.program, self.compression = f"borg, {compression}", program, compression

    def start(self, folder):
        self.folder = folder / "borg"
        self.env = {**os.environ, "BORG_BASE_DIR": str(folder / "base"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        run(self.program, "init", "-e", "none", self.folder, env=self.env)

    def add(self, save, number):
        with open(save, "rb") as data:
            run(self.program, "create", "-C", self.compression, "--stdin-name", "save", f"{self.folder}::save{number}", "-",
                env=self.env, stdin=data)

    def get(self, number):
        return run(self.program, "extract", "--stdout", f"{self.folder}::save{number}", env=self.env)


class ZstdLong:
    """zstd --long over all saves in one stream."""
    def __init__(self, window, level):
        self.name, self.window, self.level, self.saves = f"zstd -{level} --long={window}, one stream", window, level, []

    def start(self, folder):
        self.folder = folder / "all.zst"

    def add(self, save, number):
        self.saves.append(save)

    def finish(self):
        data = b"".join(pathlib.Path(save).read_bytes() for save in self.saves)
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            self.folder.write_bytes(run("zstd", "-q", "-c", "-T1", f"-{self.level}", f"--long={self.window}", stdin=file))

    def get(self, number):
        data = run("zstd", "-q", "-d", "-c", f"--long={self.window}", self.folder)
        sizes = [pathlib.Path(save).stat().st_size for save in self.saves]
        return data[sum(sizes[:number - 1]):sum(sizes[:number])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool")
    parser.add_argument("saves", nargs="+")
    parser.add_argument("--levels", default="fast,default,high")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    restic, borg = os.environ.get("RESTIC") or shutil.which("restic"), os.environ.get("BORG") or shutil.which("borg")
    programs = [Kvtool(options.kvtool, level, options.threads) for level in options.levels.split(",")]
    programs += [Restic(restic)] if restic else []
    programs += [Borg(borg, how) for how in ("lz4", "zstd,3")] if borg else []
    programs += [ZstdLong(window, level) for window, level in ((27, 3), (31, 3))] if shutil.which("zstd") else []
    digests = [digest(pathlib.Path(save).read_bytes()) for save in options.saves]
    total = sum(pathlib.Path(save).stat().st_size for save in options.saves)
    last = pathlib.Path(options.saves[-1]).stat().st_size
    print(f"{len(options.saves)} saves, {total} bytes, the last {last}; {options.threads} thread(s) of kvtool")
    print(f"{'':34} {'bytes':>12} {'of all':>7} {'add s':>8} {'last add':>8} {'get last':>8}")
    for program in programs:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program.start(folder)
            spent = [timed(program.add, save, number + 1)[0] for number, save in enumerate(options.saves)]
            if hasattr(program, "finish"):
                spent = [timed(program.finish)[0]]
            restore, data = timed(program.get, len(options.saves))
            for number, expected in enumerate(digests):
                if digest(data if number + 1 == len(digests) else program.get(number + 1)) != expected:
                    sys.exit(f"{program.name}: save {number + 1} is not what was added")
            stored = size_of(program.folder)
            print(f"{program.name:34} {stored:12} {total / stored:7.3f} {sum(spent):8.2f} {spent[-1]:8.2f} {restore:8.2f}", flush=True)


if __name__ == "__main__":
    main()
