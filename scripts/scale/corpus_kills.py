#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills runs over a corpus, and the merge of their results, at random moments, and checks that nothing is lost or
counted twice.

Usage: corpus_kills.py KVTOOL [--inputs N] [--kills N] [--seed N] [--config GATE.json] [--work DIR]

Each of analyze, compress and gate runs over a corpus with --results, is killed (SIGKILL) after a random time, is
started again, and so on, N times in all; then it runs to its end. After each kill all lines that were complete before
must still exist. At the end each input must have one line, the same as without kills; the merged document, page and
JUnit must have the same bytes; compress must have left each archive, byte for byte, and nothing else. merge is killed
likewise: its output must be the old or the new one. Exit 1 otherwise.
"""
import argparse
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import small_caches

COMMANDS = {
    "analyze": [],
    "compress": ["--level", "high"],
    "gate": [],
}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def lines_of(path):
    """Returns the complete lines of results, by name; a line that a kill cut does not count."""
    lines = {}
    text = path.read_bytes() if path.exists() else b""
    for line in text.split(b"\n")[1:-1]:
        document = json.loads(line)
        if document["name"] in lines:
            fail(f"{path}: {document['name']} is there twice")
        lines[document["name"]] = line
    return lines


def run_killed(command, seconds):
    """Returns True if the command was killed before it ended."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    if process.returncode != 0:
        fail(f"{command}: exit {process.returncode}")
    return False


def run(command):
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        fail(f"{command}: exit {done.returncode}: {done.stderr}")
    return time.monotonic() - begin


def content(path):
    """Returns the bytes of a file; for a page without its footer, which names the command and so its
    folder."""
    return re.sub(rb"<footer>.*?</footer>", b"", path.read_bytes(), flags=re.S)


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def merged(kvtool, results, to):
    return [kvtool, "merge", results, "-o", to / "merged.json", "--html-out", to / "page.html", "--junit-out", to / "junit.xml",
            "-f", "-q"]


def kill_runs(kvtool, name, words, work, rng, kills):
    command = [kvtool, name, *words, "--corpus", work / "corpus.jsonl", "--deterministic", "--keep-going", "--jobs", "4", "-q"]

    def command_of(where):
        return command + (["--output-dir", where / "archives"] if name == "compress" else [])
    alone, torn = work / name / "alone", work / name / "torn"
    for folder in (alone, torn):
        folder.mkdir(parents=True)
    took = run(command_of(alone) + ["--results", alone / "r.jsonl"])
    count, before = 0, {}
    while count < kills:
        killed = run_killed(command_of(torn) + ["--results", torn / "r.jsonl"], rng.random() * took * 0.5)
        lines = lines_of(torn / "r.jsonl")
        for key, line in before.items():
            if lines.get(key) != line:
                fail(f"{name}: the result of {key} is lost or changed")
        before = lines
        if killed:
            count += 1
        else:
            (torn / "r.jsonl").unlink()  # the run ended before the kill, so the test begins again
            for path in (torn / "archives").rglob("*.kvz"):
                path.unlink()
            before = {}
    run(command_of(torn) + ["--results", torn / "r.jsonl"])
    if lines_of(torn / "r.jsonl") != {key: line.replace(b"/alone/", b"/torn/") for key, line in lines_of(alone / "r.jsonl").items()}:
        fail(f"{name}: the results are others than without kills")
    for folder in (alone, torn):
        run(merged(kvtool, folder / "r.jsonl", folder))
    for what in ("merged.json", "page.html", "junit.xml"):
        if content(alone / what) != content(torn / what):
            fail(f"{name}: {what} differs")
    if name == "compress" and files_below(alone / "archives") != files_below(torn / "archives"):
        fail("compress: other archives than without kills")
    return count


def kill_merges(kvtool, folder, rng, kills):
    """Kills merges over an old output, and checks that the output is completely old or new."""
    good = {name: content(folder / name) for name in ("merged.json", "page.html", "junit.xml")}
    to = folder / "again"
    to.mkdir()
    took, counts = run(merged(kvtool, folder / "r.jsonl", to)), {"killed": 0, "old": 0, "new": 0}
    while counts["killed"] < kills:
        for name in good:
            (to / name).write_bytes(b"old")
        counts["killed"] += run_killed(merged(kvtool, folder / "r.jsonl", to), rng.random() * took * 1.2)
        for name, text in good.items():
            there = content(to / name)
            if there not in (b"old", text):
                fail(f"merge: {name} is neither the old nor the new")
            counts["old" if there == b"old" else "new"] += 1
    run(merged(kvtool, folder / "r.jsonl", to))
    if {name: content(to / name) for name in files_below(to)} != good:
        fail(f"merge: {sorted(files_below(to))} rather than the outputs alone")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kvtool")
    parser.add_argument("--inputs", type=int, default=400)
    parser.add_argument("--kills", type=int, default=50, help="of each command, and of merge")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", help="gate's config; without it gate is left out")
    parser.add_argument("--work")
    options = parser.parse_args()
    kvtool = pathlib.Path(options.kvtool).resolve()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = pathlib.Path(folder)
        small_caches.make(work / "dumps", options.inputs, tokens=96, seed=options.seed)
        run([kvtool, "corpus", "make", work / "dumps", "-o", work / "corpus.jsonl", "-q"])
        for name, words in COMMANDS.items():
            if name == "gate":
                if not options.config:
                    continue
                words = [pathlib.Path(options.config).resolve()]
            count = kill_runs(kvtool, name, words, work, rng, options.kills)
            counts = kill_merges(kvtool, work / name / "alone", rng, options.kills)
            print(f"{name}: {count} runs killed, {options.inputs} results, the same; {counts['killed']} merges killed, "
                  f"{counts['old']} outputs old, {counts['new']} new, none else", flush=True)


if __name__ == "__main__":
    main()
