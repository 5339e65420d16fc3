#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MNN's offline experiment in numpy and python-zstandard, side by side with `kvtool analyze`.

  bench_offline.py bench KVTOOL [--rounds 5] [--threads 2]   times both in turns on made-up dumps, sizes compared
  bench_offline.py check KVTOOL DUMPDIR                      compares the sizes of many option sets on real dumps

The arithmetic is that of the experiment, one numpy expression per step; kvtool's time is that of the whole process.
Needs python3-numpy and python3-zstandard; sizes agree when both link the same libzstd.
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


def predict(block, name):
    """Bytes of a [token][head][dim] block, each against the same place one token (seq) or one dim (pair) before."""
    out = block
    if name.startswith("pair_delta"):
        out = out.copy()
        odd = out[..., 1::2]
        odd -= block[..., 0:2 * odd.shape[-1]:2]
    if name == "xor_seq":
        out = np.concatenate([out[:1], out[1:] ^ out[:-1]])
    elif name.endswith("delta_seq"):
        out = np.concatenate([out[:1], out[1:] - out[:-1]])
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
    """(raw bytes, compressed bytes) of K and of V."""
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
    """The figures of the distribution report, in the way it gets them: a compressor per call."""
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
    return json.loads(done.stdout)


def make_dumps(folder, prefill, decode, layers=2, heads=8, dim=128):
    """Channels with a spread and an offset of their own, neighbours in time alike: what K looks like; V is plainer."""
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


def timed(body):
    begin = time.perf_counter()
    result = body()
    return time.perf_counter() - begin, result


def bench(arguments):
    cases = [("offline, prefill of 4096 tokens", (4096, 0), {"entry_mode": "chunked_grouped", "chunk": 192, "framing": 8}),
             ("offline, 1024 tokens and 512 decoded, per meta", (1024, 512), {}),
             ("offline, 2048 decoded, per meta", (0, 2048), {}),
             ("distribution, prefill of 4096 tokens", (4096, 0), None),
             ("distribution, 2048 decoded", (0, 2048), None)]
    print(f"libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, numpy {np.__version__}, {arguments.threads} threads, best of {arguments.rounds}")
    for name, (prefill, decode), changes in cases:
        with tempfile.TemporaryDirectory() as folder:
            make_dumps(folder, prefill, decode)
            options = dict(DEFAULTS, **(changes or {}))
            peer_best = own_best = float("inf")
            for _ in range(arguments.rounds):
                took, expected = timed(lambda: (experiment if changes is not None else distribution)(folder, options))
                peer_best = min(peer_best, took)
                took, document = timed(lambda: own(arguments.kvtool, folder, options, arguments.threads, changes is None))
                own_best = min(own_best, took)
            if changes is not None:
                compare(expected, document["offline"], name)
            else:
                rows = document["distribution"]["rows"]  # both walk the metas in the order of their paths
                assert len(rows) == len(expected)
                for row, figures in zip(rows, expected):
                    assert abs(row["k_gear_ratio"] - figures["k"][-1]) < 1e-12 and abs(row["v_entropy"] - figures["v"][0]) < 1e-9
            print(f"{name:48} numpy {peer_best:7.3f} s   kvtool {own_best:7.3f} s   {peer_best / own_best:6.1f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("bench")
    one.add_argument("kvtool")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    one.set_defaults(run=bench)
    two = commands.add_parser("check")
    two.add_argument("kvtool")
    two.add_argument("dumps")
    two.set_defaults(run=check)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
