#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds the golden archives of a version to testdata/archives: later versions must read them.

  add_archives.py KVTOOL [--version NAME] NAME: by default the version that KVTOOL prints
  add_archives.py KVTOOL --version 0.2.0-next --only pages,pages-opaque,by-turns
                                              between releases: only sources with new features of the format

Synthetic sources and small real states are compressed at every level, so that each codec, element type, order and
kind of chunk is in some archive; it fails if one is missing. An existing archive is never written again: it must be
decoded, however its codec has changed since. The manifest gets a line per new archive.

Needs numpy and zstandard.
"""
import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHIVES = ROOT / "testdata/archives"
STATES = ROOT / "testdata/llamacpp/states"
LEVELS = ("compat", "fast", "default", "high", "max")
COLUMNS = "archive\tarchive_sha256\tsource_bytes\tsource_sha256\tflags"
MOST_BYTES = 1 << 20  # size limit of one archive
PLAIN = "f64 i8 u8 i16 u16 i32 u32 i64 u64 bool f8_e4m3 f8_e5m2".split()
WIDTHS = {"f64": 8, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i16": 2, "u16": 2}
# Codecs that other test data covers: of frames (split), of archives that need others (ref, ref-cdf, ref-layers,
# ref-sparse; testdata/references), of joined layers (testdata/layers) and of those that need a profile
# (testdata/profiles).
ELSEWHERE = {"24", "25", "26", "27", "28", "29", "30"}
BLOCKS = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}


def halves(values):
    return values.astype("<f2").tobytes()


def brains(values):
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def floats(values):
    return values.astype("<f4").tobytes()


def bytes_e4m3(values):
    """Returns E4M3 by rounding away the seven lowest bits of f16 / 256, which is near enough here."""
    bits = (values / 256).astype("<f2").view("<u2")
    return (bits >> 8 & 0x80 | (bits & 0x7fff) + 0x40 >> 7).astype("u1").tobytes()


def bytes_e5m2(values):
    return (values.astype("<f2").view("<u2") + 0x80 >> 8).astype("u1").tobytes()


def caches(random):
    """Returns K and V of two layers: a random walk, noise, the reversed walk, repeated rows."""
    walk = numpy.cumsum(0.2 * random.standard_normal((96, 48)), axis=0) + random.standard_normal(48)
    noise = random.standard_normal((96, 48))
    return [walk, noise, walk[::-1], noise[random.integers(0, 20, 96)]]


def turning(random):
    """Returns keys rotated by RoPE, with some repeated tokens, in heads of odd sizes."""
    tokens, heads, half = 100, 2, 10
    values = 2 * random.standard_normal((heads, 2 * half)) + random.standard_normal((tokens, heads, 2 * half))
    for token in range(1, tokens, 2):
        values[token] = values[random.integers(token)] + 0.01 * random.standard_normal((heads, 2 * half))
    angle = numpy.arange(tokens)[:, None, None] * 1e4 ** (-numpy.arange(half) / half)
    a, b = values[..., :half], values[..., half:]
    keys = numpy.concatenate((a * numpy.cos(angle) - b * numpy.sin(angle), a * numpy.sin(angle) + b * numpy.cos(angle)), -1)
    return [keys, values]


def by_turns(random):
    """Returns three sequences of one cache with interleaved rows as safetensors; the third begins with a row that all
    share."""
    turns = random.permutation(numpy.repeat(numpy.arange(3), 30))
    count, rows = numpy.zeros(3, int), []
    for sequence in turns:
        rows.append((sequence, count[sequence] + (5 if sequence == 1 else 0)))
        count[sequence] += 1
    mixing = random.standard_normal((4, 12, 24)) / 4
    walks = numpy.cumsum(0.1 * random.standard_normal((3, 40, 12)), axis=1) + 2 * random.standard_normal((3, 1, 12))
    positions = numpy.array([position for _, position in rows])
    angle = positions[:, None, None] * 1e4 ** (-numpy.arange(6) / 6)
    tensors = {"positions": ("I64", positions.astype("<i8"))}
    for number, name in enumerate(("k_0", "v_0", "k_1", "v_1")):
        x = (walks[turns, positions] @ mixing[number] + 0.02 * random.standard_normal((90, 24))).reshape(90, 2, 12)
        if name[0] == "k":
            a, b = x[..., :6], x[..., 6:]
            x = numpy.concatenate((a * numpy.cos(angle) - b * numpy.sin(angle), a * numpy.sin(angle) + b * numpy.cos(angle)), -1)
        tensors[name] = "F16", x.astype("<f2")
    ids = ["0,1,2*1" if position == 0 else f"{sequence}*1" for sequence, position in rows]
    header, blob = {"__metadata__": {"kvtool.layout": "token,head,dim", "kvtool.sequences": ";".join(ids), "kvtool.key_rotation": "rotated"}}, b""
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(blob), len(blob) + values.nbytes]}
        blob += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + blob


def wide(random):
    """Returns bf16 values with exponents in a window of fifteen and some outside."""
    exponents = numpy.where(random.random(6144) < 0.01, 3, random.integers(110, 125, 6144))
    return (random.integers(0, 1 << 16, 6144) & 0x807F | exponents << 7).astype("<u2").tobytes()


def sources(folder):
    """Yields (name, path, flags, levels) of each source; synthetic sources are written to
    `folder`."""
    random = numpy.random.default_rng(12)

    def made(name, content, flags, levels=LEVELS):
        (folder / name).write_bytes(content)
        return name, folder / name, flags.split(), levels

    cache = caches(random)
    for dtype, store in (("f16", halves), ("bf16", brains), ("f32", floats)):
        yield made(f"cache-{dtype}", b"".join(map(store, cache)), f"--raw {dtype}:L2THD:2,2,?,3,16")
    # Makes f32 values that are exact f16, and exact bf16.
    yield made("f32-of-f16", b"".join(floats(v.astype("f2")) for v in cache), "--raw f32:L2THD:2,2,?,3,16", ("default",))
    exact = b"".join((v.astype("<f4").view("<u4") & 0xFFFF0000).tobytes() for v in cache)
    yield made("f32-of-bf16", exact, "--raw f32:L2THD:2,2,?,3,16", ("default",))
    keys = turning(random)
    yield made("turning-f16", b"".join(map(halves, keys)), "--raw f16:L2THD:1,2,?,2,20", ("high", "max"))
    yield made("turning-bf16", b"".join(map(brains, keys)), "--raw bf16:L2THD:1,2,?,2,20", ("high", "max"))
    for dtype, store in (("f8_e4m3", bytes_e4m3), ("f8_e5m2", bytes_e5m2)):
        yield made(f"cache-{dtype}", b"".join(map(store, cache)), f"--raw {dtype}:L2THD:2,2,?,3,16", ("default", "high", "max"))
        yield made(f"turning-{dtype}", b"".join(map(store, keys)), f"--raw {dtype}:L2THD:1,2,?,2,20", ("high", "max"))
    yield made("wide-bf16", wide(random), "--raw bf16:L2THD:1,2,?,3,16", ("fast",))
    noise = random.bytes(6144)
    for order, dims in (("2LTHD", "2,2,?,4,16"), ("2LHTD", "2,2,4,?,16"), ("2LHDT", "2,2,4,16,?"), ("2LCT", "2,2,64,?")):
        yield made(f"noise-{order}", noise, f"--raw f16:{order}:{dims}", ("compat", "default"))
    for dtype in PLAIN:
        small = (100 * random.standard_normal(1024)).astype("i1").tobytes()[:1024 // 8 * 8]
        bits = bytes(b & 1 for b in small) if dtype == "bool" else small
        yield made(f"type-{dtype}", bits * WIDTHS.get(dtype, 1), f"--raw {dtype}:2LTC:2,1,?,16", ("default",))
    for dtype, size in BLOCKS.items():
        blocks = numpy.frombuffer(random.bytes(2 * 24 * 4 * size), "u1").reshape(-1, size) & 0x3F
        yield made(f"type-{dtype}", blocks.tobytes(), f"--raw {dtype}:2LTC:2,1,?,128", ("compat", "default"))
    tree = folder / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below/text").write_text("the same line again\n" * 200)
    (tree / "below/noise").write_bytes(noise)
    (tree / "empty").write_bytes(b"")
    yield "tree", tree, ["--from", "opaque"], ("default",)
    # Makes small files that are coded together: pages of a cache with heads first, and files in no known format.
    pages = folder / "pages"
    pages.mkdir()
    for page in range(6):
        rows = [values[16 * page:16 * page + 16].reshape(16, 3, 16) for values in cache]
        (pages / f"{page}.data").write_bytes(b"".join(halves(one.transpose(1, 0, 2)) for one in rows))
    yield "pages", pages, "--raw f16:L2HTD:2,2,3,16,16 --order *.data".split(), ("default",)
    yield "pages-opaque", pages, ["--from", "opaque"], ("default",)
    yield made("by-turns.safetensors", by_turns(random), "", ("fast", "default", "high", "max"))
    for state, levels in (("s260k-v050-holes.seq0.bin", LEVELS), ("s260k-v050-shared-prefix.session.bin", ("high",)),
                          ("kjv3m-v050-q4_0-rotated.seq0.bin", ("default",)),
                          ("s260k-b3889-f16-vtrans.seq0.bin", ("max",))):
        yield state.rsplit(".", 2)[0], STATES / state, [], levels
    yield "dynamic-cache", ROOT / "testdata/golden/blend/pt/dynamic_cache_4x.zip.pt", [], ("default",)
    yield "old-kvs", ROOT / "testdata/golden/blend/pt/old_kvs_list_f16.legacy.pt", [], ("default",)
    yield "mnn-dump", ROOT / "testdata/golden/blend/mnn_dump", [], ("default",)


def content_of(path):
    """Returns the content of a file; for a folder each file's name, a newline, its size, a newline and its bytes, in
    the order of names."""
    if path.is_file():
        return path.read_bytes()
    files = {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return b"".join(f"{name}\n{len(data)}\n".encode() + data for name, data in sorted(files.items(), key=lambda i: i[0].encode()))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def chunks_of(archive):
    said = subprocess.run([sys.executable, ROOT / "scripts/decoder/decode_kvz.py", archive, "--list"], check=True, capture_output=True)
    return [dict(re.findall(r"(\w+)=(\d+)", line)) for line in said.stdout.decode().splitlines()]


def check_coverage(archives):
    """Checks that the archives have every codec and dtype that FORMAT.md names, and each kind and order."""
    text = (ROOT / "lib/core/archive/FORMAT.md").read_text()
    table = text[text.index("## Codecs"):text.index("## Trailer")]
    dtypes = text[text.index("dtypes (elements"):text.index("## Codecs")]
    wanted = {"codec": set(re.findall(r"^\| (\d+) \|", table, re.M)) - ELSEWHERE,
              "dtype": set(re.findall(r"(?:: |, |\n)(\d+) [a-z]", dtypes)),
              "kind": {"0", "1", "2"}, "order": {"0", "1", "3"}, "source_order": {"0", "1", "2", "3"}}
    for field, values in wanted.items():
        found = {chunk[field] for archive in archives for chunk in chunks_of(archive)}
        if not values <= found:
            sys.exit(f"no archive has a chunk of {field} {', '.join(sorted(values - found))}")


def main():
    parser = argparse.ArgumentParser(description="adds golden archives")
    parser.add_argument("kvtool")
    parser.add_argument("--version")
    parser.add_argument("--only")
    options = parser.parse_args()
    said = subprocess.run([options.kvtool, "--version"], check=True, capture_output=True, text=True).stdout
    version = options.version or said.split()[1]
    target = ARCHIVES / version
    target.mkdir(parents=True, exist_ok=True)
    manifest = ARCHIVES / "manifest.tsv"
    lines = manifest.read_text().splitlines() if manifest.exists() else [COLUMNS]
    with tempfile.TemporaryDirectory() as folder:
        for name, path, flags, levels in sources(pathlib.Path(folder)):
            if options.only and name.removesuffix(".safetensors") not in options.only.split(","):
                continue
            for level in levels:
                archive = target / f"{name.removesuffix('.safetensors')}.{level}.kvz"
                if archive.exists():
                    continue
                subprocess.run([options.kvtool, "compress", "-qq", "--level", level, *flags, path, "-o", archive], check=True)
                data, content = archive.read_bytes(), content_of(path)
                if len(data) > MOST_BYTES:
                    sys.exit(f"{archive} has {len(data)} bytes")
                lines.append("\t".join((f"{version}/{archive.name}", sha256(data), str(len(content)), sha256(content), " ".join(flags))))
                print(f"{archive.relative_to(ROOT)}: {len(data)} bytes")
    if not options.only:
        check_coverage(sorted(target.glob("*.kvz")))
    manifest.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
