#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures speed and ratio of frames at the sizes that engines store, compared with other packages, as tables in Markdown.

    scripts/bench/frames.py STATE... [--rounds 15] [--sizes 64KiB,1MiB] [--threads 1,2,4]

STATE: files that kvtool opens, of models of any size, with 256 tokens or more. Their channels become layers of 8 KV heads
of 128 values in bf16, as in engines.py; K and V of 256 tokens of such a layer are 1 MiB. Smaller objects are K and V of
fewer tokens of a layer, larger ones have more layers. Each layer begins at another token. Nothing is generated. zstd -3
sees more than one layer at once and finds repeated values, so its figures above 1 MiB are omitted. With --shuffle each
layer has its own order of channels; then nothing repeats, not even what the model itself repeats.

Every round runs each contestant once over the objects of each size (together --pass bytes, or one object). The first
round does not count, but its decoded bytes are compared with the source. Speeds are raw bytes by wall time, the
fastest round. Ratios of speeds, to another contestant (--beside) and of 64 KiB to 1 MiB, are also given as medians
over the rounds: other work on the machine slows both contestants of a round, so these medians stay reliable when the
speeds do not. One thread makes a call for each object; more threads process all objects in one batch. kvtool writes
into the caller's memory; the packages return new memory, as their interfaces require, and run with one thread. From
C: the program kvt_bench_frames (tests/bench/frames.c), which uses kvtool.h only.

pip install zstandard lz4 blosc2 zipnn; packages that are missing are named and skipped.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np

import kvtool
from engines import DIM, HEADS, TOKENS, planes_of
from peers import Peer, size, zipnn_peers

clock = time.perf_counter  # with --cpu, processor time, which other work on the machine does not change

TOKEN_BYTES = HEADS * DIM * 2
LAYER_BYTES = 2 * TOKENS * TOKEN_BYTES
LEVELS = {"fast": 1, "default": 2, "high": 3, "max": 4}


def layers_of(planes, count, shuffle):
    """Yields each layer as [K or V, token, channel]; see the top of this file."""
    random = np.random.default_rng(15)
    for layer in range(count):
        order = random.permutation(HEADS * DIM) if shuffle else slice(None)
        yield np.stack([np.roll(plane[:, order], -8 * layer, axis=0) for plane in planes])


def objects_of(planes, object_bytes, pass_bytes, shuffle=False):
    """Returns objects of one size: [object, token, head, dim] of K's tokens and then V's, layer after layer."""
    total = max(object_bytes, pass_bytes // object_bytes * object_bytes)
    layers = np.stack(list(layers_of(planes, -(-total // LAYER_BYTES), shuffle)))
    if object_bytes < LAYER_BYTES:
        tokens = object_bytes // (2 * TOKEN_BYTES)
        layers = layers[:, :, :TOKENS // tokens * tokens]
        layers = layers.reshape(len(layers), 2, -1, tokens, HEADS * DIM).transpose(0, 2, 1, 3, 4)
    flat = np.ascontiguousarray(layers).reshape(-1)
    count = min(total, flat.nbytes) // object_bytes
    return flat[:count * object_bytes // 2].reshape(count, -1, HEADS, DIM)


def lz4_peers(_dtype):
    import lz4.block
    return [Peer("lz4", lz4.block.compress, lz4.block.decompress)]


def zlib_peers(_dtype):
    return [Peer(f"zlib -{level}", lambda words, level=level: zlib.compress(words, level), zlib.decompress) for level in (1, 6)]


def zstd_peers(_dtype):
    import zstandard
    reader = zstandard.ZstdDecompressor()
    return [Peer(f"zstd -{level}", zstandard.ZstdCompressor(level=level).compress, reader.decompress) for level in (1, 3)]


def blosc2_peers(_dtype):
    import blosc2

    def make(shuffle, codec, level):
        options = {"codec": codec, "clevel": level, "typesize": 2, "nthreads": 1, "filters": [shuffle], "filters_meta": [0]}
        return Peer(f"blosc2 {shuffle.name.lower()} + {codec.name.lower()} -{level}",
                    lambda words: blosc2.compress2(words, **options), lambda data: blosc2.decompress2(data, nthreads=1))

    return [make(shuffle, codec, level) for codec, level in ((blosc2.Codec.LZ4, 5), (blosc2.Codec.ZSTD, 1))
            for shuffle in (blosc2.Filter.SHUFFLE, blosc2.Filter.BITSHUFFLE)]


def peers():
    """Returns the contestants, and the versions of their packages."""
    found, versions = [], {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    makers = {"lz4": lz4_peers, "zstandard": zstd_peers, "blosc2": blosc2_peers, "zipnn": zipnn_peers}
    for maker in (zlib_peers, *makers.values()):
        package = next((name for name in makers if makers[name] is maker), None)
        try:
            found += maker("BF16")
            if package:
                versions[package] = importlib.metadata.version(package)
        except ImportError:
            print(f"{package} is not installed: left out", file=sys.stderr)
    return [Package(peer) for peer in found], versions


class Contestant:
    """A contestant. turn(objects) returns (stored bytes, encode seconds, decode seconds, seconds of these outside the
    library)."""
    kind, level, threads = "peer", None, 1


class Package(Contestant):
    def __init__(self, peer):
        self.name, self._peer = peer.name, peer

    def turn(self, objects, check):
        raws = [one.reshape(-1) for one in objects.values]
        begin = clock()
        encoded = [self._peer.encode(raw) for raw in raws]
        middle = clock()
        decoded = [self._peer.decode(data) for data in encoded]
        end = clock()
        if check and any(bytes(back) != one.tobytes() for back, one in zip(decoded, objects.values)):
            raise SystemExit(f"{self.name} does not give back its input")
        return sum(map(len, encoded)), middle - begin, end - middle, None


class Memcpy(Contestant):
    name = "memcpy"

    def turn(self, objects, check):
        begin = clock()
        for one, back in zip(objects.values, objects.backs):
            np.copyto(back, one)
        took = clock() - begin
        return objects.values.nbytes, took, took, None


class Module(Contestant):
    """kvtool called from Python."""
    kind = "python"

    def __init__(self, level, threads):
        self.name, self.level, self.threads = f"kvtool {level}", level, threads
        self._context = kvtool.Context(level, threads)
        self.after = {}  # bytes of an object -> seconds of each call after an object of that size

    def _cold_call(self):
        """Returns the seconds of an almost empty call after an object has gone through the processor's caches."""
        begin = clock()
        self._context.stats()
        return clock() - begin

    def _inside(self):
        stats = self._context.stats()
        return (stats["encode_ns"] + stats["decode_ns"]) / 1e9

    def turn(self, objects, check):
        context, shape = self._context, objects.values.shape[1:]
        objects.backs[:] = 0
        inside = self._inside()
        begin = clock()
        if self.threads == 1:
            sizes = [context.encode(one, dtype="bf16", shape=shape, out=frame)
                     for one, frame in zip(objects.values, objects.frames)]
        else:
            sizes = context.encode_batch(objects.lists[0], dtype="bf16", shape=shape, outs=objects.frames).sizes
        middle = clock()
        self.after.setdefault(objects.bytes, []).append(self._cold_call())
        frames = [frame[:used] for frame, used in zip(objects.frames, sizes)]
        ready = clock()
        if self.threads == 1:
            for frame, back in zip(frames, objects.backs):
                context.decode(frame, out=back)
        else:
            status = context.decode_batch(frames, outs=objects.lists[1]).status
        end = clock()
        if self.threads > 1 and any(status) or check and not np.array_equal(objects.values, objects.backs):
            raise SystemExit(f"{self.name} does not give back its input")
        return sum(sizes), middle - begin, end - ready, (middle - begin) + (end - ready) - (self._inside() - inside)


class Program(Contestant):
    """kvtool called from C."""
    kind = "c"

    def __init__(self, process, level, threads):
        self.name, self.level, self.threads = f"kvtool {level}", level, threads
        self._process = process

    def turn(self, objects, check):
        print(objects.bytes, LEVELS[self.level], self.threads, objects.path, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if len(answer) != 3:
            raise SystemExit("the C program failed")
        return int(answer[0]), int(answer[1]) / 1e9, int(answer[2]) / 1e9, None


class Objects:
    """Objects of one size, with memory for the outputs of contestants, and a file of the objects for the C program."""

    def __init__(self, planes, object_bytes, folder, options):
        self.bytes = object_bytes
        self.values = objects_of(planes, object_bytes, options.pass_bytes, options.shuffle)
        self.backs = np.empty_like(self.values)
        self.frames = [memoryview(bytearray(kvtool.bound(object_bytes))) for _ in self.values]
        self.lists = list(self.values), list(self.backs)
        self.path = folder / f"{object_bytes}.raw"
        self.values.tofile(self.path)


class Figures:
    """The results of all rounds of one contestant at one size."""

    def __init__(self, raw, count):
        self.raw, self.count = raw, count
        self.stored, self.turns = 0, []

    def add(self, turn, counts):
        self.stored = turn[0]
        if counts:
            self.turns.append(turn[1:])

    def speed(self, way, of=min):
        return self.raw / of([turn[way] for turn in self.turns]) / 1e6

    def by(self, other, way):
        """Returns the median ratio of this speed to another contestant's in the same round."""
        own = [self.raw / turn[way] for turn in self.turns]
        return statistics.median(speed / (other.raw / turn[way]) for speed, turn in zip(own, other.turns))

    def overhead_us(self):
        """Returns the microseconds of a call that are spent outside the library; a turn has two calls per object."""
        return statistics.median(turn[2] for turn in self.turns) / self.count / 2 * 1e6

    def record(self):
        names = ("encode", "decode")
        return {"raw_bytes": self.raw, "stored_bytes": self.stored, "objects": self.count,
                **{f"{name}_{which}_mb_per_s": self.speed(way, of) for way, name in enumerate(names)
                   for which, of in (("fastest", min), ("median", statistics.median))}}


def words(count):
    for factor, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % factor == 0:
            return f"{count // factor} {suffix}"
    return f"{count} bytes"


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


def pair(figures):
    return f"{figures.speed(0):,.0f} / {figures.speed(1):,.0f}"


SUFFIX = {"python": ", from Python", "c": ", from C", "peer": ""}


def title(one):
    return one.name + SUFFIX[one.kind]


def cells(one, sizes, known, show):
    return [show(s) if known(one, s) else "-" for s in sizes]


def ratio_table(alone, results, sizes, known):
    yield "Ratio, raw bytes over stored bytes:\n"
    yield from table(["", *map(words, sizes)], [[one.name, *cells(
        one, sizes, known, lambda s: f"{results[one, s].raw / results[one, s].stored:.3f}")]
        for one in alone if one.kind != "c" and one.name != "memcpy"])


def speed_table(alone, results, sizes, known):
    yield "Encode / decode, MB/s, one thread, a call for each object:\n"
    yield from table(["", *map(words, sizes)],
                     [[title(one), *cells(one, sizes, known, lambda s: pair(results[one, s]))] for one in alone])


def relative_table(alone, yardstick, results, sizes, known):
    yield f"Encode / decode by the speed of {yardstick.name}, medians over rounds, one thread:\n"
    both = lambda one, size: known(one, size) and known(yardstick, size)
    yield from table(["", *map(words, sizes)], [[title(one), *cells(one, sizes, both, lambda s: " / ".join(
        f"{results[one, s].by(results[yardstick, s], way):.2f}" for way in (0, 1)))] for one in alone if one is not yardstick])


def batch_table(own, results, sizes):
    yield "Encode / decode, MB/s, all objects in one batch:\n"
    yield from table(["", "threads", *map(words, sizes)],
                     [[title(one), one.threads, *(pair(results[one, s]) for s in sizes)]
                      for one in own if one.threads > 1])


def growth_table(own, results):
    yield "Speed at 64 KiB by that at 1 MiB, of the fastest rounds (median over rounds):\n"
    yield from table(["", "threads", "encode", "decode"], [[title(one), one.threads, *(
        f"{results[one, 64 << 10].speed(way) / results[one, 1 << 20].speed(way):.2f} "
        f"({results[one, 64 << 10].by(results[one, 1 << 20], way):.2f})" for way in (0, 1))] for one in own])


def overhead_table(python, results, sizes):
    yield "Python's own time, microseconds a call, median (wall time less what the library counts; one thread):\n"
    yield from table(["", *map(words, sizes)],
                     [[one.name, *(f"{results[one, s].overhead_us():.2f}" for s in sizes)] for one in python]
                     + [[f"stats() after {one.name}", *(f"{statistics.median(one.after[s]) * 1e6:.2f}" for s in sizes)]
                        for one in python])


def tables(contestants, results, options):
    """Yields the document line by line."""
    sizes, threads = options.sizes, options.threads
    # zstd finds repeated values in objects of several layers.
    known = lambda one, size: options.shuffle or one.name != "zstd -3" or size <= LAYER_BYTES
    own = sorted((one for one in contestants if one.level), key=lambda one: (one.kind == "c", LEVELS[one.level], one.threads))
    alone = [one for one in contestants if one.threads == 1]
    yield from ratio_table(alone, results, sizes, known)
    yield from speed_table(alone, results, sizes, known)
    if max(threads) > 1:
        yield from batch_table(own, results, sizes)
    yardstick = next((one for one in contestants if one.name == options.beside), None)
    if yardstick:
        yield from relative_table(alone, yardstick, results, sizes, known)
    if {64 << 10, 1 << 20} <= set(sizes):
        yield from growth_table(own, results)
    if 1 in threads and not options.cpu:
        yield from overhead_table([one for one in alone if one.kind == "python"], results, sizes)
    yield from break_even([one for one in own if one.kind == "python"], sizes, results)


def break_even(own, sizes, results):
    """Yields a table of the disk speed below which compression wins. "In turn", one thread codes and then waits for
    the disk: E * (1 - 1 / ratio). "Beside", coding and disk work overlap: E."""
    yield "Compression beats raw files while the disk is slower than this, MB/s, stores / loads:\n"
    threads = sorted({one.threads for one in own})
    shown = [s for s in sizes if s in (64 << 10, 1 << 20, sizes[-1]) or len(sizes) < 3]
    rows = []
    for level, object_bytes in ((level, s) for level in dict.fromkeys(one.level for one in own) for s in shown):
        every = {one.threads: results[one, object_bytes] for one in own if one.level == level}
        first = every[threads[0]]
        saved = max(0, 1 - first.stored / first.raw)
        in_turn = f"{saved * first.speed(0):,.0f} / {saved * first.speed(1):,.0f}"
        rows.append([f"kvtool {level}", words(object_bytes), f"{100 * saved:.1f} %", in_turn,
                     *(pair(every[n]) for n in threads)])
    yield from table(["", "object", "saved", "coding and disk in turn", *(f"coding beside the disk, {n} thread{'s' * (n > 1)}"
                                                                          for n in threads)], rows)


def cpu():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def run(contestants, every, rounds, seconds):
    """Returns (contestant, size) -> Figures; ends early, after a whole round, after `seconds`."""
    results = {(one, objects.bytes): Figures(objects.values.nbytes, len(objects.values))
               for one in contestants for objects in every}
    end = time.monotonic() + seconds
    done = 0
    for turn in range(rounds + 1):
        for objects in every:
            for one in contestants:
                results[one, objects.bytes].add(one.turn(objects, turn == 0), turn > 0)
        done = turn
        if turn > 0 and time.monotonic() > end:
            break
    return results, done


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", nargs="+", metavar="STATE")
    parser.add_argument("--sizes", default="16KiB,64KiB,256KiB,1MiB,4MiB,32MiB")
    parser.add_argument("--pass", dest="pass_bytes", type=size, default=4 << 20, help="bytes of small objects in a round")
    parser.add_argument("--levels", default="fast,default,high")
    parser.add_argument("--threads", default="1,2,3,4")
    parser.add_argument("--shuffle", action="store_true", help="channels in another order in each layer")
    parser.add_argument("--beside", default="zstd -1", metavar="NAME", help="whose speed the others are also given by")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of wall time: for a busy machine, one thread")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=300, help="no further round begins after this")
    parser.add_argument("--c", metavar="PROGRAM", default="build/release/bin/kvt_bench_frames")
    parser.add_argument("--json-out", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    options.sizes = sorted(map(size, options.sizes.split(",")))
    options.threads = sorted(map(int, options.threads.split(",")))
    options.levels = options.levels.split(",")
    for one in options.sizes:
        if one % (2 * TOKEN_BYTES) != 0 or one > LAYER_BYTES and one % LAYER_BYTES != 0 or one == 0:
            parser.error(f"an object has K and V of whole tokens, {2 * TOKEN_BYTES} bytes, or whole layers, {LAYER_BYTES}: "
                         f"{one}")
    if options.cpu and options.threads != [1]:
        parser.error("--cpu goes with --threads 1: it adds up what threads do side by side")
    if not set(options.levels) <= set(LEVELS) or options.threads[0] < 1 or options.rounds < 1:
        parser.error("levels are " + ", ".join(LEVELS) + "; threads and rounds are at least 1")
    return options


def main():
    global clock
    options = arguments()
    clock = time.process_time if options.cpu else time.perf_counter
    packages, versions = peers()
    contestants = [Memcpy(), *packages, *(Module(level, n) for n in options.threads for level in options.levels)]
    process = None
    if os.access(options.c, os.X_OK):
        process = subprocess.Popen([options.c, "cpu" if options.cpu else "wall"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        contestants += [Program(process, level, n) for n in options.threads for level in options.levels]
    else:
        print(f"{options.c} is not there: nothing is measured from C", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="kvtool-frames-") as folder:
        planes = planes_of(options.states)
        every = [Objects(planes, one, pathlib.Path(folder), options) for one in options.sizes]
        results, done = run(contestants, every, options.rounds, options.seconds)
    if process:
        process.stdin.close()
        process.wait()
    known = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{cpu()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; kvtool {kvtool.__version__}, {known}; "
          f"the fastest of {done} rounds.\n")
    print("\n".join(tables(contestants, results, options)).rstrip())
    if options.json_out:
        records = [{"name": one.name, "kind": one.kind, "threads": one.threads, "object_bytes": bytes_, **figures.record()}
                   for (one, bytes_), figures in results.items()]
        options.json_out.write_text(json.dumps({"schema": "kvtool.bench-frames/1", "rounds": done, "contestants": records,
                                                "packages": versions}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
