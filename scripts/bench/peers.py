#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures alternative packages on the same chunks as kvtool's levels, alternately in one run.

  peers.py build/release/bin/kvtool slot0.bin
  peers.py build/release/bin/kvtool keys.npy --layout thd --chunk 32KiB --rounds 9 --json-out peers.json

FILE is anything that kvtool reads (a state of llama.cpp, safetensors, .npy ...); unknown options are passed to
kvtool. kvtool converts the file to safetensors; `kvtool bench` and the packages then measure the chunks of those
tensors: as many tokens as fit into --chunk, [token][head][dim], from the first tensors up to --most bytes. Every
round runs each package once over all K and all V, then kvtool once. The first round does not count, except for a
package that takes over ten seconds, which runs in that round only. MB/s are uncompressed bytes by CPU time, fastest
round and median. Each package runs with one thread, and its output is compared with the input. Its times include
Python's share (one call per chunk): a few microseconds a chunk.

  zipnn with the file's dtype; its Huffman method, which AUTO would choose
  pcodec      levels 8 and 12, as 16-bit integers and (float16) as floats
  blosc2      bitshuffle + zstd -5, shuffle + zstd -9; blosc: bitshuffle + zstd -5
  zstandard   -1, -3 and (with --slow) -9 and -19 on the bytes, -3 and (with --slow) -19 on the two byte planes
  lz4, zlib   on the bytes
  openzl      as 16-bit numbers, its generic graph, and the halves of floats separately (sign and fraction, exponent)

pip install numpy zipnn pcodec blosc blosc2 zstandard lz4 openzl; packages that are missing are named and skipped. Exit
status: 0 done, 1 a package does not restore its input, 77 no numpy or nothing to measure.
"""
import argparse
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SKIP = 77
PATIENCE = 10  # seconds
WIDTHS = {"F16": np.uint16, "BF16": np.uint16}
PARTS = ("k", "v")


class Peer:
    """A way to compress: `encode` takes a 1-D array of uint16, `decode` returns an object with the same bytes."""

    def __init__(self, name, encode, decode):
        self.name, self.encode, self.decode = name, encode, decode


def zipnn_peers(dtype):
    import zipnn
    coder = zipnn.ZipNN(input_format="byte", bytearray_dtype="float16" if dtype == "F16" else "bfloat16", threads=1)
    # The function works in place. Copying its input is not part of its own work, but every caller needs the copy.
    return [Peer("zipnn", lambda words: coder.compress(bytearray(words)), coder.decompress)]


def pcodec_peers(dtype):
    from pcodec import ChunkConfig, standalone
    views = [("u16", np.uint16)] + ([("f16", np.float16)] if dtype == "F16" else [])

    def make(view, kind, level):
        config = ChunkConfig(compression_level=level)
        return Peer(f"pcodec {view} -{level}", lambda words: standalone.simple_compress(words.view(kind), config),
                    standalone.simple_decompress)

    return [make(view, kind, level) for view, kind in views for level in (8, 12)]


def blosc_peers(_dtype):
    import blosc
    blosc.set_nthreads(1)
    return [Peer("blosc bitshuffle + zstd -5", lambda words: blosc.compress(
        words.tobytes(), typesize=2, clevel=5, shuffle=blosc.BITSHUFFLE, cname="zstd"), blosc.decompress)]


def blosc2_peers(_dtype):
    import blosc2

    def make(name, shuffle, level):
        options = {"codec": blosc2.Codec.ZSTD, "clevel": level, "typesize": 2, "nthreads": 1, "filters": [shuffle],
                   "filters_meta": [0]}
        return Peer(f"blosc2 {name} + zstd -{level}", lambda words: blosc2.compress2(words, **options),
                    lambda data: blosc2.decompress2(data, nthreads=1))

    return [make("bitshuffle", blosc2.Filter.BITSHUFFLE, 5), make("shuffle", blosc2.Filter.SHUFFLE, 9)]


def zstd_peers(slow):
    import zstandard
    reader = zstandard.ZstdDecompressor()

    def plain(level):
        writer = zstandard.ZstdCompressor(level=level)
        return Peer(f"zstd -{level}", writer.compress, reader.decompress)

    def planes(level):
        writer = zstandard.ZstdCompressor(level=level)

        def encode(words):
            octets = words.view(np.uint8)
            return [writer.compress(np.ascontiguousarray(octets[half::2])) for half in (0, 1)]

        def decode(frames):
            low, high = (np.frombuffer(reader.decompress(frame), np.uint8) for frame in frames)
            octets = np.empty(2 * len(low), np.uint8)
            octets[0::2], octets[1::2] = low, high
            return octets

        return Peer(f"byte planes + zstd -{level}", encode, decode)

    return [plain(1), plain(3), planes(3)] + ([plain(9), plain(19), planes(19)] if slow else [])


def lz4_peers(_dtype):
    import lz4.block
    return [Peer("lz4", lz4.block.compress, lz4.block.decompress)]


def zlib_peers():
    import zlib
    return [Peer("zlib -6", zlib.compress, zlib.decompress)]


def openzl_peers(dtype):
    import openzl.ext as zl

    def make(name, floats):
        compressor = zl.Compressor()
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        graph = zl.graphs.Compress()(compressor)
        if floats:
            node = zl.nodes.Float16Deconstruct if dtype == "F16" else zl.nodes.BFloat16Deconstruct
            graph = node()(compressor, sign_frac=graph, exponent=zl.graphs.Entropy()(compressor))
        compressor.select_starting_graph(graph)
        writer, reader = zl.CCtx(), zl.DCtx()

        def encode(words):
            writer.ref_compressor(compressor)
            writer.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
            return bytes(writer.compress([zl.Input(zl.Type.Numeric, words)]))

        def decode(data):
            return np.asarray(reader.decompress(data)[0].content.as_nparray())

        return Peer(f"openzl {name}", encode, decode)

    return [make("numbers", False), make("floats", True)]


def peers_of(dtype, slow):
    packages = {"zipnn": zipnn_peers, "pcodec": pcodec_peers, "blosc": blosc_peers, "blosc2": blosc2_peers,
                "zstandard": lambda _dtype: zstd_peers(slow), "lz4": lz4_peers, "openzl": openzl_peers}
    peers, versions = zlib_peers(), {}
    for package, make in packages.items():
        try:
            peers += make(dtype)
            versions[package] = importlib.metadata.version(package)
        except ImportError:
            print(f"{package} is not installed: left out", file=sys.stderr)
    return peers, versions


def size_of(encoded):
    return sum(map(len, encoded)) if isinstance(encoded, list) else len(encoded)


class Times:
    """Seconds of each round for the work on one part."""

    def __init__(self, name, kind):
        self.name, self.kind = name, kind
        self.stored = dict.fromkeys(PARTS, 0)
        self.encode = {part: [] for part in PARTS}
        self.decode = {part: [] for part in PARTS}

    def run(self, peer, part, chunks, first):
        if self.encode[part] and self.encode[part][0] + self.decode[part][0] > PATIENCE:
            return
        begin = time.process_time()
        encoded = [peer.encode(chunk) for chunk in chunks]
        middle = time.process_time()
        decoded = [peer.decode(data) for data in encoded]
        end = time.process_time()
        if not first or end - begin > PATIENCE:
            self.encode[part].append(middle - begin)
            self.decode[part].append(end - middle)
        if first:
            self.stored[part] = sum(map(size_of, encoded))
            if any(bytes(memoryview(back).cast("B")) != chunk.tobytes() for back, chunk in zip(decoded, chunks)):
                raise SystemExit(f"{peer.name} does not give back its input")

    def record(self, raw):
        """Returns the figures in the form of `kvtool bench --json`."""
        record = {"name": self.name, "kind": self.kind}
        for part in PARTS:
            record[part] = {"raw_bytes": raw[part], "stored_bytes": self.stored[part]}
            if raw[part]:
                record[part]["ratio"] = raw[part] / self.stored[part]
                for way, seconds in (("encode", self.encode[part]), ("decode", self.decode[part])):
                    record[part][way] = {"fastest_mb_per_s": raw[part] / 1e6 / min(seconds),
                                         "median_mb_per_s": raw[part] / 1e6 / statistics.median(seconds)}
        return record


def tensors(path):
    """Yields (is K, dtype, array [token, values] of uint16) for each tensor of kvtool's safetensors."""
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8:8 + length]))
    axes = header.pop("__metadata__", {}).get("kvtool.layout", "head,token,dim").split(",")
    for name, entry in header.items():
        if entry["dtype"] not in WIDTHS or name[:2] not in ("k_", "v_"):
            continue
        begin, end = entry["data_offsets"]
        array = np.array(data[8 + length + begin:8 + length + end]).view(np.uint16).reshape(entry["shape"])
        array = array.transpose([axes.index(axis) for axis in ("token", "head", "dim")])
        yield name[0], entry["dtype"], np.ascontiguousarray(array).reshape(array.shape[0], -1)


def chunks_of(path, chunk_bytes, most):
    """Returns chunks as `kvtool bench` cuts them, K and V separately."""
    whole = list(tensors(path))
    total = sum(array.nbytes for _, _, array in whole)
    share = 1 if total <= most else most / total
    chunks = {part: [] for part in PARTS}
    for part, _, array in whole:
        array = array[:max(1, int(share * len(array)))]
        rows = max(1, chunk_bytes // (2 * array.shape[1]))
        chunks[part] += [array[at:at + rows].ravel() for at in range(0, len(array), rows)]
    return chunks, {dtype for _, dtype, _ in whole}


def size(text):
    for suffix, factor in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)):
        if text.endswith(suffix) and text[:len(text) - len(suffix)].isdigit():
            return int(text[:len(text) - len(suffix)]) * factor
    raise argparse.ArgumentTypeError(f"a size such as 64KiB is expected, not {text}")


def level_turn(arguments, path, results, raw):
    """Runs one round of kvtool's own levels; adds its times to those of earlier rounds."""
    command = [arguments.kvtool, "bench", str(path), "--rounds", "1", "--chunk", str(arguments.chunk), "--most", str(arguments.most),
               "--json", "-q"] + (["--levels", arguments.levels] if arguments.levels else [])
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    tool, report = report["tool"], report["results"][0]
    for one in report["contestants"]:
        times = results.setdefault(one["name"], Times(one["name"], "level"))
        for part in PARTS:
            entry = one[part]
            if entry["raw_bytes"] != raw[part]:
                raise SystemExit(f"kvtool measures {entry['raw_bytes']} bytes of {part}, the packages {raw[part]}")
            if not raw[part]:
                continue
            times.stored[part] = entry["stored_bytes"]
            for way in ("encode", "decode"):
                getattr(times, way)[part].append(raw[part] / 1e6 / entry[way]["fastest_mb_per_s"])
    return tool, report["chunks"]


def table(records, raw):
    rows = [["", "K bytes", "ratio", "encode", "median", "decode", "median",
             "V bytes", "ratio", "encode", "median", "decode", "median"]]
    for record in records:
        row = [record["name"]]
        for part in PARTS:
            entry = record[part]
            if not raw[part]:
                row += ["-"] * 6
                continue
            row += [str(entry["stored_bytes"]), f"{entry['ratio']:.3f}x"]
            row += [f"{entry[way][which]:.{0 if entry[way][which] > 99.95 else 1}f}" for way in ("encode", "decode")
                    for which in ("fastest_mb_per_s", "median_mb_per_s")]
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) if column else cell.ljust(width)
                               for column, (cell, width) in enumerate(zip(row, widths))) for row in rows)


def against(records, raw):
    """Yields sentences that compare each level with the smallest peer and with ZipNN."""
    peers = [record for record in records if record["kind"] == "peer"]
    levels = {record["name"]: record for record in records if record["kind"] == "level"}
    for part in PARTS:
        if not raw[part] or not peers:
            continue
        zipnn = next((peer[part] for peer in peers if peer["name"] == "zipnn"), None)
        if zipnn and "default" in levels:
            own = levels["default"][part]
            less = 1 - own["stored_bytes"] / zipnn["stored_bytes"]
            speed = own["decode"]["median_mb_per_s"] / zipnn["decode"]["median_mb_per_s"]
            yield f"{part.upper()}: default against zipnn: {100 * less:.2f} % smaller, decodes at {speed:.2f}x its speed"
        smallest = min(peers, key=lambda peer: peer[part]["stored_bytes"])
        if "max" in levels:
            less = 1 - levels["max"][part]["stored_bytes"] / smallest[part]["stored_bytes"]
            yield f"{part.upper()}: max against the smallest peer, {smallest['name']}: {100 * less:.2f} % smaller"


def convert(arguments, path, rest):
    """Writes the file as safetensors. A state with unknown heads counts as having one head, because bench uses rows
    of all heads anyway."""
    command = [arguments.kvtool, "convert", arguments.file, "--to", "safetensors", "-o", str(path), "-q", *rest]
    first = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if first.returncode != 0 and "--kv-heads" in first.stderr:
        subprocess.run([*command, "--kv-heads", "1"], check=True)
    elif first.returncode != 0:
        raise SystemExit(first.stderr.rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvtool")
    parser.add_argument("file")
    parser.add_argument("--chunk", type=size, default=1 << 20, help="bytes of a chunk (default: 1MiB)")
    parser.add_argument("--most", type=size, default=64 << 20, help="bytes of K and V to measure on (default: 64MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--levels", help="only these of kvtool's, comma-separated")
    parser.add_argument("--slow", action="store_true", help="zstd -19, too")
    parser.add_argument("--json-out", metavar="FILE", type=pathlib.Path, help="write all figures to a file")
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="kvtool-peers-") as folder:
        path = pathlib.Path(folder) / "cache.safetensors"
        convert(arguments, path, rest)
        chunks, dtypes = chunks_of(path, arguments.chunk, arguments.most)
        raw = {part: sum(chunk.nbytes for chunk in chunks[part]) for part in PARTS}
        if len(dtypes) != 1:
            print("skipped: K and V of one type, f16 or bf16, are needed")
            return SKIP
        dtype = dtypes.pop()
        peers, versions = peers_of(dtype, arguments.slow)
        own, results = {}, {peer.name: Times(peer.name, "peer") for peer in peers}
        for turn in range(arguments.rounds + 1):
            for peer in peers:
                for part in PARTS:
                    results[peer.name].run(peer, part, chunks[part], turn == 0)
            if turn > 0:  # kvtool has its own warm-up round
                tool, count = level_turn(arguments, path, own, raw)
    records = [times.record(raw) for times in [*own.values(), *results.values()]]
    if count != sum(map(len, chunks.values())):
        raise SystemExit(f"kvtool measures {count} chunks, the packages {sum(map(len, chunks.values()))}")
    known = " ".join(f"{package} {version}" for package, version in versions.items())
    print(f"{arguments.file}: {dtype}, {count} chunks of up to {arguments.chunk} bytes, K {raw['k']} and V {raw['v']} bytes")
    print(f"MB/s, one thread, CPU time, fastest and median of {arguments.rounds} rounds; {known}")
    print(table(records, raw))
    for line in against(records, raw):
        print(line)
    if arguments.json_out:
        arguments.json_out.write_text(json.dumps({
            "schema": "kvtool.bench-peers/1", "tool": tool, "file": arguments.file, "dtype": dtype,
            "packages": versions, "params": {"chunk_bytes": arguments.chunk, "rounds": arguments.rounds}, "chunks": count,
            "contestants": records}, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
