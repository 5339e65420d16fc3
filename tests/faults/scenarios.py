# SPDX-License-Identifier: Apache-2.0
"""The commands that run.py disturbs, and what each may leave behind."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
STATE = ROOT / "testdata/llamacpp/states/s260k-v050-f16.seq0.bin"
OTHER = ROOT / "testdata/llamacpp/states/s260k-v050-holes.seq0.bin"
DUMP = ROOT / "testdata/golden/mnn/dumps/case_fp16_h8_l1_fa64"


def plain_environment():
    return {key: value for key, value in os.environ.items() if not key.startswith("KVTOOL_")}


def digest(path):
    """Returns the contents of a path: nothing, a file, or a folder with everything below it, including empty
    folders."""
    if not path.exists():
        return "absent"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for item in sorted(path.rglob("*")):
        whole.update(str(item.relative_to(path)).encode() + b"\0")
        whole.update(item.read_bytes() if item.is_file() else b"folder")
    return whole.hexdigest()


class Scenario:
    """A command, the files that it needs, its output, and further outputs.

    A text describes the output's state. After a fault it must be the state before the run, or that after a run without
    faults."""

    def __init__(self, name, output, command, before=None, beside=(), makes_output=True):
        self.name, self.output, self.command, self.before = name, output, command, before
        self.beside, self.makes_output = beside, makes_output

    def prepare(self, kvtool, folder):
        shutil.copy(STATE, folder / "state.bin")
        shutil.copy(OTHER, folder / "other.bin")
        shutil.copytree(DUMP, folder / "dump")
        for command in self.before or []:
            subprocess.run([kvtool, *command], cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True)

    def again(self):
        """Returns the command to run after a fault."""
        return self.command if "-f" in self.command else [*self.command, "-f"]

    def look(self, kvtool, folder):
        return digest(folder / self.output)

    def is_sound(self, found, old, complete):
        return found in (old, complete)

    def leftovers(self, kvtool, folder):
        """Returns what a failed run left inside its output; empty if nothing."""
        return ""


class Pieces(Scenario):
    """An output of pieces that appear one by one, each complete: a set of texts, some of which may be
    missing."""

    def again(self):
        return self.command

    def is_sound(self, found, old, complete):
        return set(found.split("\n")) - {""} <= set(complete.split("\n"))


class Lines(Pieces):
    """A file of results. The next run removes whatever follows the last newline, and repeats failed
    inputs."""

    def look(self, kvtool, folder):
        path = folder / self.output
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return "\n".join(sorted(line for line in whole if json.loads(line).get("exit_code") != 4))


class Files(Pieces):
    """A folder of outputs; a second run replaces those that are there."""

    def again(self):
        return [*self.command, "-f"]

    def look(self, kvtool, folder):
        files = sorted(path for path in (folder / self.output).rglob("*") if path.is_file())
        return "\n".join(f"{path.relative_to(folder)} {digest(path)}" for path in files
                         if not path.name.startswith(f".{path.name.split('.kvtool-')[0].lstrip('.')}.kvtool-"))


class Report(Scenario):
    """A document. One that reports the failure counts as absent."""

    def look(self, kvtool, folder):
        path = folder / self.output
        if path.exists() and json.loads(path.read_text())["exit_code"] == 4:
            return "absent"
        return super().look(kvtool, folder)


class Stored(Scenario):
    """A store: its states, each extracted and checked by verify."""

    def again(self):
        return self.command

    def run(self, kvtool, folder, *command):
        return subprocess.run([kvtool, "store", *command], cwd=folder, env=plain_environment(), timeout=60,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def leftovers(self, kvtool, folder):
        if self.command[1] != "add" or not (folder / self.output / "states").is_dir():
            return ""
        verified = self.run(kvtool, folder, "verify", "-q", self.output, "--json")
        result = json.loads(verified.stdout)["results"][0]
        return "" if result["leftover_files"] == 0 and not result["unlisted"] else f"{result}"

    def look(self, kvtool, folder):
        listed = self.run(kvtool, folder, "list", self.output, "--json")
        if listed.returncode != 0:
            is_there = (folder / self.output / "index.sqlite").exists()
            return f"list: {listed.stderr.decode()}" if is_there else "absent"
        states = json.loads(listed.stdout)["results"][0]["states"]
        if not states:
            return "absent"
        verified = self.run(kvtool, folder, "verify", "-q", self.output)
        if verified.returncode != 0:
            return f"verify: {verified.stderr.decode()}"
        hashes = [hashlib.sha256(self.run(kvtool, folder, "get", self.output, f"@{state['state']}", "-c").stdout)
                  for state in states]
        return " ".join(f"{state['name']} {found.hexdigest()}" for state, found in zip(states, hashes))


RESULTS = ["--deterministic", "--jobs", "1", "-q"]
SCENARIOS = [
    Scenario("compress", "out.kvz", ["compress", "state.bin", "-o", "out.kvz", "-T1"]),
    Scenario("compress-replaces", "out.kvz", ["compress", "state.bin", "-o", "out.kvz", "-f", "-T2"],
             [["compress", "state.bin", "-o", "out.kvz", "--level", "fast"]]),
    Scenario("compress-folder", "out.kvz", ["compress", "dump", "-o", "out.kvz", "-T2"]),
    Scenario("decompress", "out.bin", ["decompress", "in.kvz", "-o", "out.bin", "-T1"],
             [["compress", "state.bin", "-o", "in.kvz"]]),
    Scenario("decompress-replaces", "out.bin", ["decompress", "in.kvz", "-o", "out.bin", "-f", "-T2"],
             [["compress", "state.bin", "-o", "in.kvz"],
              ["convert", "state.bin", "--kv-heads", "4", "--to", "npz", "-o", "out.bin"]]),
    Scenario("decompress-folder", "out", ["decompress", "in.kvz", "-o", "out", "-T1"],
             [["compress", "dump", "-o", "in.kvz"]]),
    Scenario("decompress-replaces-folder", "out", ["decompress", "in.kvz", "-o", "out", "-f", "-T1"],
             [["compress", "dump", "-o", "in.kvz"], ["decompress", "in.kvz", "-o", "out"]]),
    Scenario("convert", "out.npz", ["convert", "state.bin", "--kv-heads", "4", "--to", "npz", "-o", "out.npz", "-f"],
             [["convert", "state.bin", "--kv-heads", "4", "--to", "safetensors", "-o", "out.npz"]]),
    Scenario("gate", "summary.json", ["gate", str(ROOT / "testdata/gate/pass.json"), "--deterministic", "-T2",
                                      "--case", "design_store", "-o", "summary.json"],
             beside=("summary.md", "cases.jsonl")),
    Stored("store-add-first", "st", ["store", "add", "-q", "st", "other.bin", "--level", "fast", "-T2"]),
    Stored("store-add", "st", ["store", "add", "-q", "st", "state.bin", "--level", "fast", "-T2"],
           [["store", "add", "-q", "st", "other.bin", "--level", "fast"]], makes_output=False),
    Scenario("store-get", "out.bin", ["store", "get", "-q", "st", "other.bin", "-o", "out.bin", "-T2"],
             [["store", "add", "-q", "st", "other.bin", "--level", "fast"]]),
    # Without -q, which would suppress the warning about remains of the previous folder.
    Scenario("store-get-replaces-folder", "out", ["store", "get", "st", "dump", "-o", "out", "-f", "-T2"],
             [["store", "add", "-q", "st", "dump", "--level", "fast"], ["store", "get", "-q", "st", "dump", "-o", "out"]]),
    Stored("store-gc", "st", ["store", "gc", "-q", "st", "-T2"],
           [["store", "add", "-q", "st", "other.bin", "--level", "fast"],
            ["store", "add", "-q", "st", "state.bin", "--level", "fast", "--name", "gone"],
            ["store", "prune", "-q", "st", "--keep-last", "0", "gone"]], makes_output=False),
    Stored("store-repair", "st", ["store", "verify", "-q", "st", "--repair", "-T2"],
           [["store", "add", "-q", "st", "other.bin", "--level", "fast"],
            ["store", "add", "-q", "st", "state.bin", "--level", "fast"]], makes_output=False),
    Scenario("train", "out.kvp", ["train", "-q", "other.bin", "--name", "made", "-o", "out.kvp", "-T2"]),
    Report("merge", "out.json", ["merge", "results.jsonl", "-q", "-o", "out.json"],
             [["inspect", "state.bin", "other.bin", "--results", "results.jsonl", *RESULTS]]),
    Lines("results", "results.jsonl", ["inspect", "state.bin", "other.bin", "--results", "results.jsonl", *RESULTS]),
    Files("output-dir", "out", ["compress", "state.bin", "other.bin", "--level", "fast", "--output-dir", "out",
                                "--jobs", "2", "-q", "-T2"]),
]
