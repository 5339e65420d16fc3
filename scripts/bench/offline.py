#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MNN's offline experiment in numpy and python-zstandard, side by side with `kvtool analyze`.

  offline.py bench KVTOOL [--rounds 5] [--threads 2] times both alternately on synthetic dumps, compares sizes
  offline.py check KVTOOL DUMPDIR                      compares the sizes of many option sets on real dumps

The arithmetic is the experiment's, one numpy expression per step; kvtool's time is that of the whole process. Needs
python3-numpy and python3-zstandard; sizes agree when both link the same libzstd.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import zstandard
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(0)

PREDICTORS = {"k": ["raw", "delta_seq", "xor_seq", "pair_delta", "pair_delta_delta_seq"], "v": ["raw", "delta_seq", "xor_seq"]}
DEFAULTS = {"entry_mode": "per_meta", "codec": "adaptive", "block": 64, "chunk": 0, "framing": 16, "by_stage": False, "bitshuffle": False,
            "front_n": 2, "stage": "both", "strict": False, "level": 3}
FLAGS = {"entry_mode": "--entry-mode", "codec": "--offline-codec", "block": "--adaptive-block-seq", "chunk": "--online-chunk-seq",
         "framing": "--online-framing-bytes", "by_stage": "--aggregate-by-stage", "bitshuffle": "--bitshuffle", "front_n": "--front-n",
         "stage": "--stage", "strict": "--strict-fp16", "level": "--zstd-level"}


def minus(block, before):
    """Returns differences modulo 256, computed in 16-bit integers as in the experiment."""
    return ((block.astype(np.int16) - before.astype(np.int16)) & 0xFF).astype(np.uint8)


def predict(block, name):
    """Returns the bytes of a [token][head][dim] block minus those of the previous token (seq) or dim
    (pair)."""
    out = block
    if name.startswith("pair_delta"):
        out = block.copy()
        odd = block[..., 1::2]
        out[..., 1::2] = minus(odd, block[..., 0:2 * odd.shape[-1]:2])
    if name == "xor_seq":
        out = np.concatenate([out[:1], np.bitwise_xor(out[1:], out[:-1])])
    elif name.endswith("delta_seq"):
        out = np.concatenate([out[:1], minus(out[1:], out[:-1])])
    return out


def payload_of(block, name, options):
    payload = np.ascontiguousarray(predict(block, name)).tobytes()
    if options["bitshuffle"]:
        bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little")
        payload = np.packbits(bits.reshape(-1, 8).T.ravel(), bitorder="little").tobytes()
    return payload


def plane_size(plane, names, is_high, options, compressor):
    if options["codec"] == "legacy":
        return len(compressor.compress(payload_of(plane, "delta_seq" if is_high else "raw", options)))
    step = min(options["block"], len(plane))
    best_of_blocks = []
    for begin in range(0, len(plane), step):
        candidates = [payload_of(plane[begin:begin + step], name, options) for name in names]
        best_of_blocks.append(min(candidates, key=lambda payload: len(compressor.compress(payload))))
    return len(compressor.compress(b"".join(best_of_blocks))) + len(best_of_blocks) + 8


def tensor_size(values, which, options, compressor):
    words = values.view(np.uint16)
    return sum(plane_size(plane, PREDICTORS[which], is_high, options, compressor)
               for plane, is_high in (((words >> 8).astype(np.uint8), True), ((words & 255).astype(np.uint8), False)))


def read_entries(folder, options):
    for path in sorted(pathlib.Path(folder).rglob("meta_*.json")):
        meta = json.loads(path.read_text())
        if not 0 <= meta["layer_id"] < options["front_n"] or options["stage"] not in ("both", meta["stage"]):
            continue
        if options["strict"] and meta["bytes_per_elem"] == 4:
            continue
        shape = (meta["seq_len"], meta["kv_heads"], meta["head_dim"])
        tensors = {}
        for which in "kv":
            raw = (path.parent / meta[which + "_file"]).read_bytes()
            tensors[which] = np.frombuffer(raw, np.float16 if meta["bytes_per_elem"] == 2 else np.float32).astype(np.float16).reshape(shape)
        yield meta, tensors


def experiment(folder, options):
    """Returns (raw bytes, compressed bytes) of K and of V."""
    compressor = zstandard.ZstdCompressor(level=options["level"])
    entries = list(read_entries(folder, options))
    grouped = options["entry_mode"] in ("aggregate", "chunked_grouped")
    groups = {}
    for place, (meta, tensors) in enumerate(entries):
        key = (meta["run_id"], meta["layer_id"], meta["kv_heads"], meta["head_dim"], meta["stage"] if options["by_stage"] else "")
        groups.setdefault(key if grouped else place, []).append((meta["seq_start"], place, tensors))
    sizes = {}
    for which in "kv":
        raw = compressed = 0
        for parts in groups.values():
            whole = np.concatenate([tensors[which] for _, _, tensors in sorted(parts, key=lambda part: part[:2])])
            raw += whole.nbytes
            if options["entry_mode"].startswith("chunked"):
                step = options["chunk"] or len(whole)
                for begin in range(0, len(whole), step):
                    compressed += tensor_size(whole[begin:begin + step], which, options, compressor) + options["framing"]
            else:
                compressed += tensor_size(whole, which, options, compressor)
                compressed += 4 + 4 * len(parts) if grouped else 0
        sizes[which] = (raw, compressed)
    return sizes


def entropy(data):
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    shares = counts[counts > 0] / len(data)
    return float(-(shares * np.log2(shares)).sum())


def distribution(folder, options):
    """Returns the figures of the distribution report, computed as the experiment does: with a new compressor per call."""
    ratio = lambda data: len(data) / len(zstandard.ZstdCompressor(level=options["level"]).compress(data))
    rows = []
    for _, tensors in read_entries(folder, dict(options, front_n=1 << 30)):
        row = {}
        for which in "kv":
            words = tensors[which].view(np.uint16)
            raw, high, low = tensors[which].tobytes(), (words >> 8).astype(np.uint8).tobytes(), (words & 255).astype(np.uint8).tobytes()
            row[which] = [entropy(raw), ratio(raw), entropy(high), entropy(low), ratio(high), ratio(low)]
            compressor = zstandard.ZstdCompressor(level=options["level"])
            row[which].append(len(raw) / (len(compressor.compress(high)) + len(compressor.compress(low))))
        rows.append(row)
    return rows


def command(kvtool, folder, options, threads, distribution_too=False):
    flags = [kvtool, "analyze", folder, "-q", "--reports-only", "--json", "-T", str(threads)]
    if distribution_too:
        return flags + ["--distribution"]
    for key, value in options.items():
        flags += [FLAGS[key]] if value is True else [] if value is False else [FLAGS[key], str(value)]
    return flags


def own(kvtool, folder, options, threads, distribution_too=False):
    done = subprocess.run(command(kvtool, folder, options, threads, distribution_too), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["results"][0]


def make_dumps(folder, prefill, decode, layers=2, heads=8, dim=128):
    """Makes dumps in which channels have their own spread and offset and neighbouring tokens are similar, as in K; V
    has less structure."""
    rng = np.random.default_rng(11)
    for layer in range(layers):
        place = pathlib.Path(folder) / "run" / f"layer_{layer}"
        place.mkdir(parents=True)
        tokens = prefill + decode
        noise = rng.standard_normal((tokens, heads, dim)).astype(np.float32)
        k = noise.copy()
        for t in range(1, tokens):
            k[t] = 0.8 * k[t - 1] + 0.6 * noise[t]
        k = (k * rng.uniform(0.2, 2, (heads, dim)) + rng.standard_normal((heads, dim))).astype(np.float16)
        v = (rng.standard_normal((tokens, heads, dim)) * rng.uniform(0.5, 1, (tokens, 1, 1))).astype(np.float16)
        for begin, end in [(0, prefill)] * (prefill > 0) + [(t, t + 1) for t in range(prefill, tokens)]:
            k[begin:end].tofile(place / f"k_t{begin}_{end}.bin")
            v[begin:end].tofile(place / f"v_t{begin}_{end}.bin")
            meta = {"layer_id": layer, "seq_start": begin, "seq_len": end - begin, "kv_heads": heads, "head_dim": dim, "bytes_per_elem": 2,
                    "dtype": "fp16", "add": end - begin, "stage": "decode" if end - begin == 1 else "prefill", "run_id": "run",
                    "k_file": f"k_t{begin}_{end}.bin", "v_file": f"v_t{begin}_{end}.bin"}
            (place / f"meta_t{begin}_{end}.json").write_text(json.dumps(meta))


def compare(sizes, document, what):
    got = {which: (document[which + "_raw_bytes"], document[which + "_compressed_bytes"]) for which in "kv"}
    if got != sizes:
        sys.exit(f"{what}: kvtool {got}, numpy {sizes}")


def check(arguments):
    option_sets = [{}, {"codec": "legacy"}, {"entry_mode": "aggregate", "by_stage": True}, {"entry_mode": "aggregate", "front_n": 9},
                   {"entry_mode": "chunked", "chunk": 48}, {"entry_mode": "chunked_grouped", "chunk": 48, "framing": 8},
                   {"entry_mode": "chunked_grouped", "chunk": 0}, {"stage": "prefill", "block": 32}, {"stage": "decode"},
                   {"strict": True, "bitshuffle": True}, {"codec": "legacy", "bitshuffle": True, "entry_mode": "aggregate"},
                   {"level": 1, "block": 7}, {"level": 9, "entry_mode": "aggregate"}]
    for changes in option_sets:
        options = dict(DEFAULTS, **changes)
        compare(experiment(arguments.dumps, options), own(arguments.kvtool, arguments.dumps, options, 2)["offline"], changes)
    print(f"{len(option_sets)} option sets agree")


def method(arguments):
    """Runs one side of the bench: the experiment's scripts as a separate process."""
    if arguments.options == "distribution":
        print(json.dumps(distribution(arguments.dumps, DEFAULTS)))
    else:
        print(json.dumps(experiment(arguments.dumps, json.loads(arguments.options))))


def timed(flags):
    """Returns wall seconds, CPU seconds, and the document."""
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(flags, check=True, capture_output=True, text=True)
    took, after = time.perf_counter() - begin, os.times()
    return took, after.children_user + after.children_system - before.children_user - before.children_system, json.loads(done.stdout)


def bench(arguments):
    cases = [("offline, 4096 tokens at once, as the gate", (4096, 0), {"entry_mode": "chunked_grouped", "chunk": 192, "framing": 8}),
             ("offline, 1024 tokens + 512 decoded", (1024, 512), {}),
             ("offline, 2048 decoded", (0, 2048), {}),
             ("offline, 128 tokens + 6 decoded", (128, 6), {}),
             ("distribution, 4096 tokens at once", (4096, 0), None),
             ("distribution, 2048 decoded", (0, 2048), None)]
    print(f"libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, numpy {np.__version__}; whole processes, least of {arguments.rounds} rounds; "
          f"kvtool with {arguments.threads} threads")
    print(f"{'':44}{'numpy s':>9}{'kvtool s':>10}{'faster':>9}   CPU time: numpy s, kvtool s, ratio")
    for name, sizes, changes in cases:
        with tempfile.TemporaryDirectory() as folder:
            make_dumps(folder, *sizes)
            options = dict(DEFAULTS, **(changes or {}))
            peer = [sys.executable, __file__, "method", folder, json.dumps(options) if changes is not None else "distribution"]
            ours = command(arguments.kvtool, folder, options, arguments.threads, changes is None)
            best = [float("inf")] * 4
            for _ in range(arguments.rounds):
                *peer_times, expected = timed(peer)
                *own_times, document = timed(ours)
                document = document["results"][0]
                best = [min(old, new) for old, new in zip(best, peer_times + own_times)]
            if changes is not None:
                compare({which: tuple(sizes) for which, sizes in expected.items()}, document["offline"], name)
            else:
                # Both programs read the metadata files in the order of their paths.
                rows = document["distribution"]["rows"]
                assert len(rows) == len(expected)
                for row, figures in zip(rows, expected):
                    assert abs(row["k_gear_ratio"] - figures["k"][-1]) < 1e-12 and abs(row["v_entropy"] - figures["v"][0]) < 1e-9
            wall, cpu, own_wall, own_cpu = best
            print(f"{name:44}{wall:9.3f}{own_wall:10.3f}{wall / own_wall:8.1f}x   {cpu:9.3f} {own_cpu:9.3f} {cpu / own_cpu:6.1f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("bench")
    one.add_argument("kvtool")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    one.set_defaults(run=bench)
    peer = commands.add_parser("method", help="used by bench")
    peer.add_argument("dumps")
    peer.add_argument("options")
    peer.set_defaults(run=method)
    two = commands.add_parser("check")
    two.add_argument("kvtool")
    two.add_argument("dumps")
    two.set_defaults(run=check)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
