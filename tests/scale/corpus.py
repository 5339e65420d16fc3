# SPDX-License-Identifier: Apache-2.0
"""A synthetic corpus, and the answer of one run over all of it, which every way of running it in parts must
reproduce."""
import json
import pathlib
import random
import subprocess

DAMAGED = 25  # one input in 25 is truncated, since corpora must count failures, too


def write_snapshot(path, rng, kilobytes):
    """Writes two layers of f16 to a safetensors file, with exponents as a cache has them."""
    high = bytes(0x28 + byte % 24 + (byte & 0x80) for byte in range(256))
    tokens = max(8, kilobytes * 1024 // (4 * 4 * 64 * 2))
    size = 4 * tokens * 64 * 2
    names = [f"{kind}_cache.{layer}" for layer in range(2) for kind in ("key", "value")]
    head = json.dumps({name: {"dtype": "F16", "shape": [1, 4, tokens, 64], "data_offsets": [i * size, (i + 1) * size]}
                       for i, name in enumerate(names)}).encode()
    head += b" " * (-len(head) % 8)
    values = bytearray(4 * size)
    values[0::2] = rng.randbytes(2 * size)
    values[1::2] = rng.randbytes(2 * size).translate(high)
    path.write_bytes(len(head).to_bytes(8, "little") + head + values)


class Corpus:
    """Writes `count` snapshots to `folder`, and returns their manifest and the answer of one run without
    shards."""

    def __init__(self, kvtool, folder, count, kilobytes, seed=1):
        self.kvtool, self.folder, self.count = str(kvtool), pathlib.Path(folder), count
        self.manifest = self.folder / "corpus.jsonl"
        rng = random.Random(seed)
        for i in range(count):
            path = self.folder / "dumps" / f"day{i % 7}" / f"slot{i:05}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_snapshot(path, rng, int(kilobytes * rng.lognormvariate(0, 0.7)) + 16)
            if i % DAMAGED == DAMAGED - 1:
                path.write_bytes(path.read_bytes()[:-100])
        self.bytes = sum(path.stat().st_size for path in self.folder.glob("dumps/*/*"))
        self.call("corpus", "make", self.folder / "dumps", "-o", self.manifest, "-q")

    def call(self, *words, wanted=(0,)):
        done = subprocess.run([self.kvtool, *map(str, words)], capture_output=True, text=True)
        if done.returncode not in wanted:
            raise RuntimeError(f"kvtool {' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def alone(self, *command, junit=False):
        """Returns the bytes of the document, the page and the JUnit file of a run over all inputs at
        once."""
        results = self.folder / f"alone-{command[0]}.jsonl"
        self.call(*command, "--corpus", self.manifest, "--results", results, "--keep-going", "-q", wanted=(0, 1, 3))
        return self.merged([results], junit)

    def merged(self, results, junit=False):
        files = [self.folder / name for name in ("merged.json", "merged.html", "junit.xml")[:3 if junit else 2]]
        words = [word for pair in zip(("-o", "--html-out", "--junit-out"), files) for word in pair]
        self.call("merge", *results, "-q", "-f", *words, wanted=(0, 1, 3))
        return tuple(file.read_bytes() for file in files)
