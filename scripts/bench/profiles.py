#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares pages coded with a profile with OpenZL's compressors chosen by the same training data: size and speed in
one run.

  profiles.py KVTOOL LIBKVTOOL.so --train STATE... --test STATE... [--rounds 3] [--kv-heads H | --model GGUF]

A profile is learnt from the training states. OpenZL's wheel (0.3) has no trainer: openzl.ext has neither a function nor
a class for it, and the tool that has one is not in the wheel. So all compressors that its Python interface can make are
tried on the training pages of each layer's K and V, and the smallest is used for that layer; --show lists the choice.
Pages of 16, 32 and 64 KiB of the test states, and chunks of 1 MiB without a profile, are coded in turn, every layer's
pages in a row, on one thread. Speeds are the fastest round, by the library's own clock (kvt_ctx_stats) and, for OpenZL,
around each call. Needs numpy and openzl.
"""
import argparse
import collections
import ctypes
import json
import pathlib
import subprocess
import tempfile
import time

import numpy
import openzl.ext as zl

TYPES = {"F16": 1, "BF16": 2}
ROLES = {"k": 1, "v": 2}


class Desc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint8), ("order", ctypes.c_uint8), ("role", ctypes.c_uint8),
                ("reserved", ctypes.c_uint8), ("heads", ctypes.c_uint32), ("head_dim", ctypes.c_uint32), ("tokens", ctypes.c_uint64),
                ("tag", ctypes.c_uint32), ("reserved2", ctypes.c_uint32), ("context", ctypes.c_uint8 * 16)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64) for name in ("raw", "stored", "encode_ns", "decode_ns", "frames", "stored_raw", "decoded", "refused")]


def layers_of(kvtool, state, flags):
    """Returns {(layer, "k" or "v"): (dtype, array [token][head][dim])}."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "state.safetensors")
        subprocess.run([kvtool, "convert", "-q", state, *flags, "--to", "safetensors", "-o", path], check=True)
        data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    found = {}
    for name, entry in header.items():
        if name[:2] not in ("k_", "v_"):
            continue
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[8 + size + begin:8 + size + end], "<u2").reshape(entry["shape"])
        found[int(name[2:]), name[0]] = entry["dtype"], values
    return found


class Ours:
    def __init__(self, library, profile):
        self.lib, self.ctx = library, ctypes.c_void_p()
        self.check(library.kvt_ctx_create(None, ctypes.byref(self.ctx)))
        if profile is not None:
            self.check(library.kvt_ctx_use_profile(self.ctx, profile))

    @staticmethod
    def check(status):
        if status:
            raise RuntimeError(f"status {status}")

    def stats(self):
        stats = Stats(ctypes.sizeof(Stats))
        self.lib.kvt_ctx_stats(self.ctx, ctypes.byref(stats))
        return stats

    def run(self, dtype, kind, pages):
        """Returns (bytes of frames, seconds to encode, to decode)."""
        before, frames = self.stats(), []
        for page in pages:
            desc = Desc(ctypes.sizeof(Desc), TYPES[dtype], 0, ROLES[kind], 0, page.shape[1], page.shape[2], page.shape[0])
            frame, written = ctypes.create_string_buffer(page.nbytes + 128), ctypes.c_size_t()
            self.check(self.lib.kvt_encode(self.ctx, ctypes.byref(desc), page.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(page.nbytes),
                                           frame, ctypes.c_size_t(page.nbytes + 128), ctypes.byref(written)))
            frames.append((frame, written.value))
        for page, (frame, size) in zip(pages, frames):
            back = numpy.empty_like(page)
            self.check(self.lib.kvt_decode(self.ctx, frame, ctypes.c_size_t(size), None, back.ctypes.data_as(ctypes.c_void_p),
                                           ctypes.c_size_t(page.nbytes)))
            assert numpy.array_equal(back, page)
        after = self.stats()
        return sum(size for _, size in frames), (after.encode_ns - before.encode_ns) / 1e9, (after.decode_ns - before.decode_ns) / 1e9


def openzl_candidates(dtype):
    """Returns {name: a function that selects a graph in a compressor}."""
    ends = {"generic": zl.graphs.Compress, "store": zl.graphs.Store, "entropy": zl.graphs.Entropy, "fse": zl.graphs.Fse,
            "huffman": zl.graphs.Huffman, "zstd": zl.graphs.Zstd, "field-lz": zl.graphs.FieldLz, "flatpack": zl.graphs.Flatpack}
    node = zl.nodes.Float16Deconstruct if dtype == "F16" else zl.nodes.BFloat16Deconstruct
    found = {}
    for name in ("generic", "field-lz"):
        found[name] = lambda c, name=name: ends[name]()(c)
    found["delta, generic"] = lambda c: zl.nodes.DeltaInt()(c, zl.graphs.Compress()(c))
    for low in ("generic", "store", "entropy", "zstd", "field-lz"):
        for high in ("entropy", "fse", "huffman", "generic", "zstd", "flatpack"):
            found[f"halves: {low}, {high}"] = lambda c, low=low, high=high: node()(
                c, sign_frac=ends[low]()(c), exponent=ends[high]()(c))
    return found


class OpenZl:
    def __init__(self, select):
        self.compressor, self.writer, self.reader = zl.Compressor(), zl.CCtx(), zl.DCtx()
        self.compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        self.compressor.select_starting_graph(select(self.compressor))

    def encode(self, page):
        self.writer.ref_compressor(self.compressor)
        self.writer.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        return bytes(self.writer.compress([zl.Input(zl.Type.Numeric, page.reshape(-1))]))

    def run(self, pages):
        encode = decode = 0
        frames = []
        for page in pages:
            start = time.perf_counter()
            frames.append(self.encode(page))
            encode += time.perf_counter() - start
        for page, frame in zip(pages, frames):
            start = time.perf_counter()
            back = self.reader.decompress(frame)[0].content.as_nparray()
            decode += time.perf_counter() - start
            assert numpy.array_equal(back, page.reshape(-1))
        return sum(map(len, frames)), encode, decode


def pages_of(values, size):
    rows = max(1, size // (values.strides[0]))
    return [numpy.ascontiguousarray(values[at:at + rows]) for at in range(0, len(values) - rows + 1, rows)]


def smallest(dtype, pages):
    """Returns (name, compressor) with the smallest output for the training pages; those that cannot code them are
    skipped."""
    best = None
    for name, select in openzl_candidates(dtype).items():
        try:
            compressor = OpenZl(select)
            size = sum(len(compressor.encode(page)) for page in pages)
        except (RuntimeError, TypeError, ValueError):
            continue
        if best is None or size < best[0]:
            best = size, name, compressor
    return best[1:]


def pages_in(states, layer, kind, size):
    return [page for state in states for page in pages_of(state[layer, kind][1], size)]


def compare(kind, size, ours, train, test, options):
    """Prints ratio and speeds of all contestants on the pages of one size, K or V."""
    raw, sums, chosen = 0, collections.defaultdict(lambda: numpy.zeros(3)), collections.Counter()
    layers = sorted(layer for layer, of in test[0] if of == kind)
    dtype = test[0][layers[0], kind][0]
    for layer in layers:
        pages = pages_in(test, layer, kind, size) or [state[layer, kind][1] for state in test]
        raw += sum(page.nbytes for page in pages)
        contestants = {name: lambda one=one: one.run(dtype, kind, pages) for name, one in ours.items()}
        if size < 1 << 20:
            name, compressor = smallest(dtype, pages_in(train, layer, kind, size)[:16])
            chosen[name] += 1
            contestants["openzl"] = lambda: compressor.run(pages)
        rounds = [{name: numpy.array(run()) for name, run in contestants.items()} for _ in range(options.rounds)]
        for name in contestants:
            sums[name] += numpy.min([one[name] for one in rounds], axis=0)
    text = "; ".join(f"{name} {raw / s[0]:.3f} ({raw / s[1] / 1e6:.0f}, {raw / s[2] / 1e6:.0f})" for name, s in sums.items())
    print(f"{kind.upper()} {dtype}, {size >> 10} KiB: {text}" + (f"  [{dict(chosen)}]" if options.show else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description="pages with a profile, beside OpenZL")
    parser.add_argument("kvtool")
    parser.add_argument("library")
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--test", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-heads")
    parser.add_argument("--model")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    flags = [part for flag, value in (("--kv-heads", options.kv_heads), ("--model", options.model)) if value for part in (flag, value)]
    train = [layers_of(options.kvtool, state, flags) for state in options.train]
    test = [layers_of(options.kvtool, state, flags) for state in options.test]
    library = ctypes.CDLL(options.library)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, "model.kvp")
        subprocess.run([options.kvtool, "train", *options.train, *flags, "-qq", "-o", model], check=True)
        kvp = model.read_bytes()
    profile = ctypes.c_void_p()
    Ours.check(library.kvt_profile_open(kvp, ctypes.c_size_t(len(kvp)), ctypes.byref(profile)))
    ours = {"kvtool, profile": Ours(library, profile), "kvtool": Ours(library, None)}
    print(f"profile of {len(kvp)} bytes; MB/s of one thread: encode, decode")
    for kind in "kv":
        for size in (16 << 10, 32 << 10, 64 << 10, 1 << 20):
            compare(kind, size, ours, train, test, options)


if __name__ == "__main__":
    main()
