#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interleaves the rows of a cache's sequences, as continuous batching does, and measures what that costs.

  weave.py CACHE --kvtool build/release/bin/kvtool [--kv-heads H | --model GGUF] [--levels default,high,max]
  weave.py CACHE --kvtool KVTOOL --turns OUT.safetensors      only writes the cache with interleaved rows

CACHE is any snapshot whose cells belong to several sequences, such as a session of llama.cpp. Prints, for each level,
the ratios of K and V: with the sequences in separate files (sum of all), one after another in one file, and
interleaved at random (each in its own order). --before KVTOOL adds another version's result for the last case. Needs
numpy.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy

TYPES = {"F16": "<u2", "BF16": "<u2", "F32": "<u4", "I64": "<i8", "I32": "<i4"}


class Cache:
    """A safetensors file as kvtool writes it."""

    def __init__(self, path):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        self.meta = header.pop("__metadata__")
        self.tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            values = numpy.frombuffer(data[8 + size + begin:8 + size + end], TYPES[entry["dtype"]])
            self.tensors[name] = entry["dtype"], values.reshape(entry["shape"])
        runs = [run.split("*") for run in self.meta["kvtool.sequences"].split(";")]
        self.sequences = numpy.array([ids for ids, *count in runs for _ in range(int(count[0]) if count else 1)])

    def write(self, rows, path):
        """Writes some rows in this order, without token ids, which no longer match."""
        runs = []
        for ids in self.sequences[rows]:
            if runs and runs[-1][0] == ids:
                runs[-1][1] += 1
            else:
                runs.append([ids, 1])
        header, blob = {"__metadata__": dict(self.meta, **{"kvtool.sequences": ";".join(f"{a}*{b}" for a, b in runs)})}, b""
        for name, (dtype, values) in self.tensors.items():
            if name == "tokens":
                continue
            content = values[rows].tobytes()
            shape = [len(rows), *values.shape[1:]]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(content)]}
            blob += content
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + blob)

    def lanes(self):
        return [numpy.nonzero(self.sequences == ids)[0] for ids in dict.fromkeys(self.sequences)]

    def by_turns(self):
        """Returns all rows interleaved, each sequence in its own order."""
        lanes = self.lanes()
        which = numpy.repeat(numpy.arange(len(lanes)), [len(lane) for lane in lanes])
        numpy.random.default_rng(1).shuffle(which)
        rows = numpy.empty(len(which), int)
        for number, lane in enumerate(lanes):
            rows[which == number] = lane
        return rows


def stored(kvtool, path, level):
    """Returns bytes of K and of V: (raw, stored) each."""
    run = [kvtool, "compress", "-f", "--json", "--level", level, path, "-o", path.with_suffix(".kvz")]
    said = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)["results"][0]
    return numpy.array([[said[kind][field] for field in ("raw_bytes", "stored_bytes")] for kind in "kv"])


def main():
    parser = argparse.ArgumentParser(description="rows of several sequences by turns")
    parser.add_argument("cache")
    parser.add_argument("--kvtool", required=True)
    parser.add_argument("--before")
    parser.add_argument("--turns", type=pathlib.Path)
    parser.add_argument("--levels", default="default,high,max")
    parser.add_argument("--kv-heads")
    parser.add_argument("--model")
    options = parser.parse_args()
    flags = [part for flag, value in (("--kv-heads", options.kv_heads), ("--model", options.model)) if value for part in (flag, value)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        whole = folder / "whole.safetensors"
        subprocess.run([options.kvtool, "convert", "-q", options.cache, *flags, "--to", "safetensors", "-o", whole], check=True)
        cache = Cache(whole)
        if options.turns:
            cache.write(cache.by_turns(), options.turns)
            return
        lanes, turns, apart = cache.lanes(), folder / "turns.safetensors", folder / "apart.safetensors"
        cache.write(cache.by_turns(), turns)
        cache.write(numpy.concatenate(lanes), apart)
        own = [folder / f"own{number}.safetensors" for number in range(len(lanes))]
        for path, lane in zip(own, lanes):
            cache.write(lane, path)
        for level in options.levels.split(","):
            bytes_of = {"own files": sum(stored(options.kvtool, path, level) for path in own),
                        "one after another": stored(options.kvtool, apart, level), "by turns": stored(options.kvtool, turns, level)}
            if options.before:
                bytes_of["by turns, before"] = stored(options.before, turns, level)
            print(level + ": " + ", ".join(f"{name} {b[0, 0] / b[0, 1]:.3f} / {b[1, 0] / b[1, 1]:.3f}" for name, b in bytes_of.items()))


if __name__ == "__main__":
    main()
