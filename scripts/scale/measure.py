#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures runs over many inputs; docs/scale.md has its results.

Usage: measure.py small KVTOOL [--count N] [--work DIR] many files of 64 KiB: overhead for each, memory, one process
per file
       measure.py large   KVTOOL [--count N] [--distinct N]   1 GiB each, incompressible: throughput, memory, the disk
       measure.py scaling KVTOOL [--count N] [--rounds N]     the same work on 1, 2 and 4 cores, in turn

`large` needs little disk space: its inputs are many names of a few distinct files, which are dropped from the page
cache after use, so that each is read from the disk; each archive is removed once its result exists. Everything is
read and written. Other programs on the same cores make every figure worse, so the load average is printed, and
`scaling`, whose rounds run in turn, reports processor seconds beside wall time.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

import numpy
import small_caches

GIB = 1 << 30


class Took:
    """The cost of a run: wall seconds, processor seconds, peak memory (MiB)."""

    def __init__(self, command, cores=None):
        def pin():
            if cores:
                os.sched_setaffinity(0, cores)
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=pin)
        text = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        self.wall = time.monotonic() - begin
        self.cpu = usage.ru_utime + usage.ru_stime
        self.mib = usage.ru_maxrss / 1024
        if status != 0:
            raise SystemExit(f"{command}: status {status}: {text}")


def load():
    return "load " + ", ".join(f"{value:.0f}" for value in os.getloadavg())


def elapsed(results):
    """Returns the seconds that the inputs themselves took, by their result lines."""
    with open(results) as lines:
        next(lines)
        return sum(json.loads(line)["elapsed_us"] for line in lines) / 1e6


def small(kvtool, work, count):
    small_caches.make(work / "dumps", count)
    small_caches.make(work / "few", 100)
    for name in ("dumps", "few"):
        took = Took([kvtool, "corpus", "make", work / name, "-o", work / f"{name}.jsonl", "-q"])
        print(f"corpus make, {name}: {took.wall:.2f} s, {took.mib:.0f} MiB")
    for command in (["inspect"], ["analyze"], ["compress", "--output-dir", work / "out"]):
        for name, jobs in (("few", 1), ("dumps", 1), ("dumps", 4)):
            shutil.rmtree(work / "out", ignore_errors=True)
            results = work / "r.jsonl"
            results.unlink(missing_ok=True)
            took = Took([kvtool, *command, "--corpus", work / f"{name}.jsonl", "--results", results, "--keep-going", "--jobs",
                         str(jobs), "-T", str(jobs), "-q"])
            files = 100 if name == "few" else count
            own = elapsed(results) / jobs
            print(f"{command[0]} of {files}, {jobs} at once: {took.wall:.2f} s, {1000 * took.wall / files:.2f} ms a file, of it "
                  f"{1000 * (took.wall - own) / files:.2f} beside the work; processor {1000 * took.cpu / files:.2f} ms; "
                  f"{took.mib:.0f} MiB; {load()}", flush=True)
        merge = Took([kvtool, "merge", results, "-o", work / "merged.json", "--html-out", work / "m.html", "-f", "-q"])
        print(f"merge of them: {merge.wall:.2f} s, {merge.mib:.0f} MiB")
        files = sorted((work / "dumps").rglob("*.safetensors"))[:200]
        begin = time.monotonic()
        for i, path in enumerate(files):
            alone = command if command[0] != "compress" else ["compress", "-o", work / f"one{i}.kvz"]
            Took([kvtool, *alone, path, "-T", "1", "-q"])
        print(f"{command[0]}, a process for each file: {1000 * (time.monotonic() - begin) / len(files):.2f} ms a file; {load()}",
              flush=True)


def write_large(path, seed):
    """Writes 16 layers of 8 heads x 128 dims in f16, 16,384 tokens: random bits with exponents below 2, so that almost
    nothing compresses."""
    layers, heads, dim = 16, 8, 128
    size = GIB // (2 * layers)
    header = {f"{kind}_cache.{layer}": {"dtype": "F16", "shape": [1, heads, size // (2 * heads * dim), dim],
                                        "data_offsets": [(2 * layer + i) * size, (2 * layer + i + 1) * size]}
              for layer in range(layers) for i, kind in enumerate(("key", "value"))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(seed)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(2 * layers):
            file.write((numpy.frombuffer(random.bytes(size), numpy.uint16) & 0xBFFF).tobytes())
        os.fsync(file.fileno())


def forget(path):
    """Drops a file from the page cache, unless it is mapped."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Reaper(threading.Thread):
    """Follows a run: removes each archive whose result exists, and drops its input from the page cache."""

    def __init__(self, results, out, dumps):
        super().__init__(daemon=True)
        self.results, self.out, self.dumps, self.ends, self.bytes = results, out, dumps, False, 0

    def run(self):
        done = 0
        while True:
            last = self.ends
            names = self.results.read_text().split("\n")[1:-1] if self.results.exists() else []
            for line in names[done:]:
                name = json.loads(line)["name"]
                archive = self.out / (name + ".kvz")
                self.bytes += archive.stat().st_size
                archive.unlink()
                forget(self.dumps.parent / name)
            done = len(names)
            if last:
                return
            time.sleep(0.2)


def large(kvtool, work, count, distinct):
    dumps = work / "dumps"
    dumps.mkdir()
    begin = time.monotonic()
    for i in range(distinct):
        write_large(work / f"data{i}", i)
    print(f"{distinct} GiB made in {time.monotonic() - begin:.0f} s", flush=True)
    for i in range(count):
        os.link(work / f"data{i % distinct}", dumps / f"{i:03}.safetensors")
    for i in range(distinct):
        forget(work / f"data{i}")
    begin = time.monotonic()
    for i in range(min(4, distinct)):
        subprocess.run(["cp", work / f"data{i}", work / "copy"], check=True)
        subprocess.run(["sync", work / "copy"], check=True)
        forget(work / f"data{i}")
    took = time.monotonic() - begin
    print(f"the disk: cp of {min(4, distinct)} GiB and sync {took:.1f} s, {min(4, distinct) / took:.2f} GiB/s; {load()}", flush=True)
    (work / "copy").unlink()
    begin = time.monotonic()
    alone = min(6, count)
    for i in range(alone):
        Took([kvtool, "compress", dumps / f"{i:03}.safetensors", "-o", work / "one.kvz", "-f", "-q"])
        forget(dumps / f"{i:03}.safetensors")
    took = time.monotonic() - begin
    print(f"a process for each of {alone}: {took / alone:.2f} s a GiB; {load()}", flush=True)
    (work / "one.kvz").unlink()
    results, out = work / "r.jsonl", work / "out"
    reaper = Reaper(results, out, dumps)
    reaper.start()
    took = Took([kvtool, "compress", "-r", dumps, "--results", results, "--output-dir", out, "--keep-going", "--jobs", "2", "-q"])
    reaper.ends = True
    reaper.join()
    print(f"compress of {count} GiB, one process, 2 at once: {took.wall:.0f} s, {count / took.wall:.2f} GiB/s, processor "
          f"{took.cpu / count:.2f} s a GiB, {took.mib:.0f} MiB; {reaper.bytes / GIB:.1f} GiB written; {load()}", flush=True)


def scaling(kvtool, work, count_of_files, rounds):
    small_caches.make(work / "dumps", count_of_files, tokens=4096)
    Took([kvtool, "corpus", "make", work / "dumps", "-o", work / "corpus.jsonl", "-q"])
    cores = sorted(os.sched_getaffinity(0))
    walls, cpus = {}, {}
    for _ in range(rounds):
        for count in (1, 2, 4):
            if count > len(cores):
                continue
            results = work / "r.jsonl"
            results.unlink(missing_ok=True)
            took = Took([kvtool, "analyze", "--corpus", work / "corpus.jsonl", "--results", results, "--keep-going", "-T", str(count),
                         "-q"], cores[:count])
            walls.setdefault(count, []).append(took.wall)
            cpus.setdefault(count, []).append(took.cpu)
    one = statistics.median(walls[1])
    for count, values in walls.items():
        wall = statistics.median(values)
        print(f"{count} cores: {wall:.2f} s (least {min(values):.2f}), efficiency {one / wall / count:.3f} (of the least "
              f"{min(walls[1]) / min(values) / count:.3f}), processor {statistics.median(cpus[count]):.2f} s; {load()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["small", "large", "scaling"])
    parser.add_argument("kvtool")
    parser.add_argument("--count", type=int)
    parser.add_argument("--distinct", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work")
    options = parser.parse_args()
    kvtool = pathlib.Path(options.kvtool).resolve()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = pathlib.Path(folder).resolve()
        if options.what == "small":
            small(kvtool, work, options.count or 10_000)
        elif options.what == "large":
            large(kvtool, work, options.count or 200, options.distinct)
        else:
            scaling(kvtool, work, options.count or 160, options.rounds)


if __name__ == "__main__":
    main()
