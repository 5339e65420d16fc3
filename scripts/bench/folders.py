#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures folders of many small files: coded together by kvtool, coded separately, and by tar | zstd.

  folders.py KVTOOL CACHE.npz... [--files N] [--folder DIR]
  CACHE.npz   k and v of a real cache, [layer, token, channel] of two bytes each

Makes two folders of N files: `tokens`, one file for each token with K and V of all layers, and `pages`, runs of 1 to 64
KiB of one layer's K or V, in no known format. Prints bytes and the processor time that the packer and the unpacker took
on one thread. zstd is the program of that name. Needs numpy.
"""
import argparse
import hashlib
import pathlib
import random
import resource
import shutil
import subprocess
import tempfile

import numpy


def name_of(number):
    """Returns a name like those of engines' pages, which are hashes."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:32] + ".data"


def make_tokens(caches, folder, most):
    """Makes the files and returns the flags that kvtool needs to read them."""
    order, shape = [], caches[0][0].shape
    for k, v in caches:
        for token in range(k.shape[1]):
            if len(order) == most:
                break
            order.append(name_of(len(order)))
            (folder / order[-1]).write_bytes(k[:, token].tobytes() + v[:, token].tobytes())
    (folder.parent / "order.txt").write_text("\n".join(order) + "\n")
    return ["--raw", f"f16:2LTHD:2,{shape[0]},1,1,{shape[2]}", "--order", str(folder.parent / "order.txt")]


def make_pages(caches, folder, most):
    rng, made = random.Random(1), 0
    while made < most:
        cache = rng.choice(caches)[rng.randrange(2)]
        layer, row = rng.randrange(cache.shape[0]), cache.shape[2] * 2
        tokens = rng.randint(-(-1024 // row), 65536 // row)
        begin = rng.randrange(max(1, cache.shape[1] - tokens))
        (folder / name_of(made)).write_bytes(cache[layer, begin:begin + tokens].tobytes())
        made += 1
    return ["--from", "opaque"]


def cpu(*words, **options):
    """Returns the processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool")
    parser.add_argument("caches", nargs="+")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--folder")
    options = parser.parse_args()
    caches = [(loaded["k"], loaded["v"]) for loaded in map(numpy.load, options.caches)]
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        work = pathlib.Path(work)
        print("| folder | packer | bytes | ratio | packing, unpacking (CPU s) |\n|---|---|---|---|---|")
        for kind, make in (("tokens", make_tokens), ("pages", make_pages)):
            folder, archive, back = work / kind, work / "archive", work / "back"
            folder.mkdir()
            how = make(caches, folder, options.files)
            raw = sum(path.stat().st_size for path in folder.iterdir())
            runs = [(f"kvtool {level}{' apart' if apart else ''}",
                     [options.kvtool, "compress", "-qq", "-T1", "-f", "--no-check", "--level", level, *apart, *how, folder, "-o", archive],
                     [options.kvtool, "decompress", "-qq", "-T1", archive, "-o", back])
                    for level, apart in (("default", ["--no-solid"]), ("fast", []), ("default", []), ("high", []))]
            for level in (3, 19):
                runs.append((f"tar, zstd -{level}", ["bash", "-c", f"tar cf - -C {folder} . | zstd -q -f -T1 -{level} -o {archive}"],
                             ["bash", "-c", f"mkdir {back} && zstd -q -dc {archive} | tar xf - -C {back}"]))
            for name, pack, unpack in runs:
                packing = cpu(*pack)
                size = archive.stat().st_size
                unpacking = cpu(*unpack)
                subprocess.run(["diff", "-rq", folder, back], check=True)
                shutil.rmtree(back)
                archive.unlink()
                print(f"| {kind}, {raw} | {name} | {size} | {raw / size:.3f} | {packing:.1f}, {unpacking:.1f} |", flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
