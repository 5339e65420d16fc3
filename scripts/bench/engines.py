#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the plug-ins' codec saves and costs at the object sizes of LMCache, vLLM and SGLang.

    PYTHONPATH=build/python/package python3 scripts/bench/engines.py STATE... [--levels fast,default] [--disk] [--threads 4]

STATE: files that kvtool opens, of models of any size. Planes of 1024 channels (8 KV heads of 128 values) are
assembled from the channels of all their layers, rounded to bf16; each layer of an object then begins at another
token, so that no segment of a frame holds the same bytes twice. Nothing is generated.

The first table gives bytes and MB/s of one thread for each kind of object, in memory. --disk gives the throughput of
stores and loads through a folder whose reads and writes are slowed down to a disk's speed, beside raw files.
"""

import argparse
import os
import sys
import tempfile
import threading
import time

import numpy as np

import kvtool
from kvtool import Codec, PageLayout
from kvtool._directory import FrameDirectory
from kvtool._frames import FrameStore, Item
from kvtool._interleaved import Content, shape_apart

HEADS, DIM, TOKENS = 8, 128, 256
MODELS = {"Llama-3-8B": 32, "Qwen3-0.6B": 28}  # number of layers; both have 8 KV heads of 128 values


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def planes_of(paths):
    """Returns K and V as [token, channel] of bf16, with every channel of every layer; if they are too few, they
    repeat."""
    planes = []
    for part in ("k", "v"):
        channels = []
        for path in paths:
            snapshot = kvtool.open(path, kv_heads=1)
            for layer in snapshot.layers:
                values = np.asarray(getattr(layer, part))
                values = values.astype(np.float32).reshape(len(values), -1)
                if len(values) >= TOKENS:
                    channels.append(bf16(values[:TOKENS]))
        found = np.concatenate(channels, axis=1)
        if part == "k":
            print(f"{found.shape[1]} channels of {TOKENS} tokens from {len(paths)} files", file=sys.stderr)
        planes.append(np.ascontiguousarray(np.take(found, range(HEADS * DIM), axis=1, mode="wrap")))
    return planes


def objects_of(planes, layers):
    """Yields (name, raw bytes as arrays, shape, content), as the plug-ins pass them to the codec."""

    def cache(tokens, step):
        """Returns [2, layer, token, head, dim]. Each layer begins `step` tokens after the one before, so that a
        segment, which is coded alone, does not hold the same token of two layers."""
        begins = [step * layer for layer in range(layers)]
        numbers = [np.arange(begin, begin + tokens) % TOKENS for begin in begins]
        return np.stack([[plane[n].reshape(tokens, HEADS, DIM) for n in numbers] for plane in planes])

    chunk = cache(TOKENS, 8)
    yield "LMCache chunk, 256 tokens", chunk, PageLayout("bf16", (2 * layers * TOKENS, 1, HEADS * DIM)), None
    for tokens in (16, 256):
        row = np.ascontiguousarray(np.concatenate(cache(tokens, 16), axis=-1))  # [layer, token, head, K then V]
        content = Content(2 * DIM, 2 * DIM)
        shape = shape_apart(content, row.nbytes, "bf16", HEADS, False)
        yield f"vLLM row, {tokens} tokens", row, shape, content
        if tokens == 16:
            yield "vLLM row, 16 tokens, no hint", row, PageLayout("bf16"), None
    for tokens in (1, 16, 64):
        page = np.ascontiguousarray(cache(tokens, 8).transpose(0, 2, 1, 3, 4))  # page_first
        yield f"SGLang page, {tokens} tokens", page, PageLayout("bf16", (2 * tokens, layers * HEADS, DIM)), None


def best(work, seconds=1.5):
    """Returns the seconds of the fastest run; makes at least three runs."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(raw, shape, content, level):
    source = raw.reshape(-1).view(np.uint8)
    context = kvtool.Context(level)
    frame = bytearray(kvtool.bound(source.nbytes))
    apart, back = np.empty_like(source), np.empty_like(source)
    size = 0

    def encode():
        nonlocal size
        data = source
        if content is not None:
            content.take_apart(source, apart)
            data = apart
        size = context.encode(data, out=frame, **shape.arguments())

    def decode():
        context.decode(memoryview(frame)[:size], out=back)
        if content is not None:
            content.put_together(back.copy(), back)

    stored, loaded = best(encode), best(decode)
    assert (back == source).all()
    return size, source.nbytes / stored / 1e6, source.nbytes / loaded / 1e6


def print_objects(planes, levels):
    print("| object | raw bytes | level | stored | saved | store MB/s | load MB/s |")
    print("|---|---|---|---|---|---|---|")
    for model, layers in MODELS.items():
        for name, raw, shape, content in objects_of(planes, layers):
            for level in levels:
                size, store, load = measure(raw, shape, content, level)
                saved = 100 * (1 - size / raw.nbytes)
                print(f"| {model}, {name} | {raw.nbytes} | {level} | {size} | {saved:.1f} % | {store:.0f} | {load:.0f} |")


class SlowDisk:
    """Limits os.write and os.preadv of all threads together to `rate` bytes a second."""

    def __init__(self, rate):
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.perf_counter()
        self._write, self._read = os.write, os.preadv

    def _wait(self, count):
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + count / self._rate
            until = self._free_at
        while (left := until - time.perf_counter()) > 0:
            time.sleep(left)

    def __enter__(self):
        os.write = lambda fd, data: self._counted(self._write(fd, data))
        os.preadv = lambda fd, buffers, offset: self._counted(self._read(fd, buffers, offset))
        return self

    def _counted(self, count):
        self._wait(count)
        return count

    def __exit__(self, *_):
        os.write, os.preadv = self._write, self._read


def in_threads(count, parts, work):
    waiting = list(parts)

    def run():
        while waiting:
            try:
                part = waiting.pop()
            except IndexError:
                return
            work(part)

    threads = [threading.Thread(target=run) for _ in range(count)]
    start = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return time.perf_counter() - start


def disk_speeds(raw, shape, rate, level, threads):
    """Returns MB/s of raw bytes, stored and loaded; level None means raw files."""
    source = raw.reshape(-1).view(np.uint8)
    objects = max(2 * threads, int(rate * 0.5 / source.nbytes))
    objects = min(objects, int(1.5e9 / source.nbytes))
    identity = Codec(identity={"engine": "bench"})
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVTOOL_BENCH_DIR")) as folder, SlowDisk(rate):
        directory = FrameDirectory(folder)
        store = FrameStore(directory, Codec(level or "fast"))
        targets = threading.local()

        def save(i):
            name, context = identity.name(b"%d" % i), identity.context(b"%d" % i)
            if level is None:
                directory.put(name, source)
            else:
                assert store.store([Item(name, context, source)], shape)[0] > 0

        def fetch(i):
            if not hasattr(targets, "memory"):
                targets.memory = np.empty_like(source)
            name, context = identity.name(b"%d" % i), identity.context(b"%d" % i)
            if level is None:
                store.read(name, memoryview(targets.memory))
            else:
                assert store.load([Item(name, context, targets.memory)]) == [0]

        bytes_ = objects * source.nbytes / 1e6
        return bytes_ / in_threads(threads, range(objects), save), bytes_ / in_threads(threads, range(objects), fetch)


def print_disks(planes, level, threads, rates):
    name, raw, shape, _ = next(objects_of(planes, MODELS["Llama-3-8B"]))
    raw = np.ascontiguousarray(raw[:, :8])  # 8 MiB: one rank of four, or a row of 64 tokens
    print(f"\n{threads} threads, {raw.nbytes} bytes an object, level {level}\n")
    print("| disk MB/s | store raw | store compressed | load raw | load compressed |")
    print("|---|---|---|---|---|")
    shape = PageLayout("bf16", (2 * 8 * TOKENS, 1, HEADS * DIM))
    for rate in rates:
        plain, coded = disk_speeds(raw, shape, rate * 1e6, None, threads), disk_speeds(raw, shape, rate * 1e6, level, threads)
        print(f"| {rate} | {plain[0]:.0f} | {coded[0]:.0f} | {plain[1]:.0f} | {coded[1]:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", nargs="+", metavar="STATE")
    parser.add_argument("--levels", default="fast,default,high")
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rates", default="100,250,500,1000,2000,4000")
    options = parser.parse_args()
    planes = planes_of(options.states)
    if options.disk:
        for level in options.levels.split(","):
            print_disks(planes, level, options.threads, [int(rate) for rate in options.rates.split(",")])
    else:
        print_objects(planes, options.levels.split(","))


if __name__ == "__main__":
    main()
