#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills kvtool store at random moments, several runs at a time, and checks that nothing is lost.

Usage: store_kills.py KVTOOL STATE [--states N] [--runs N] [--jobs N] [--seed N] [--work DIR]
  STATE   a llama.cpp state, from which chats are made that share their beginnings

Runs of add, get, list, verify, gc and prune are drawn at random; about every third is killed after a random time. At
the end the store must be intact, every listed state must be one that was added to that chat, byte for byte, and every
add that succeeded must be listed unless its chat was pruned. Exit 1 otherwise.
"""
import argparse
import hashlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

KEEP = 3


def make_sources(kvtool, state, folder, chats, rng):
    """Returns [(chat, path, digest)]: growing saves of each chat. Chats are equal up to some byte, and differ from
    there on."""
    sources, lengths = [], [60, 130, 200, 270, 350, 430, 512]
    for length in lengths:
        subprocess.run([kvtool, "convert", "-q", state, "--to", "llama-state", "--tokens", f"0:{length}", "-o",
                        folder / f"grown{length}"], check=True)
    for chat in range(chats):
        for length in lengths:
            data = bytearray((folder / f"grown{length}").read_bytes())
            # The last quarter contains only values of V, which may be any bytes.
            at = len(data) * 3 // 4 + chat % (len(data) // 8)
            data[at] ^= 1 + chat % 255
            path = folder / f"chat{chat}-{length}"
            path.write_bytes(data)
            sources.append((f"chat{chat}", path, hashlib.sha256(data).hexdigest()))
    rng.shuffle(sources)
    return sources


class Run:
    def __init__(self, command, kill_after, add=None):
        self.add = add
        self.end = time.monotonic() + kill_after if kill_after is not None else None
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.killed = False

    def poll(self):
        if self.end is not None and not self.killed and time.monotonic() >= self.end and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.killed = True
        return self.process.poll()


def command_of(kvtool, store, what, sources, added, rng, work, count):
    if what == "add":
        chat, path, _ = added
        return [kvtool, "store", "add", store, path, "--name", chat, "-T1"]
    if what == "get":
        chat = rng.choice(sources)[0]
        return [kvtool, "store", "get", store, chat, "-T1", "-o", work / f"got{count}"]
    if what == "prune":
        return [kvtool, "store", "prune", store, rng.choice(sources)[0], "--keep-last", str(KEEP)]
    return [kvtool, "store", what, store]


class Trial:
    """Concurrent runs on one store, and the results that the store reported to them."""

    def __init__(self, kvtool, store, sources, work, rng):
        self.kvtool, self.store, self.sources, self.work, self.rng = kvtool, store, sources, work, rng
        self.acknowledged, self.pruned, self.queue = {(sources[0][0], sources[0][2])}, set(), list(sources[1:])
        self.running, self.started, self.killed, self.wrong = [], 0, 0, []

    def settle(self, run):
        code = run.process.returncode
        errors = run.process.stderr.read()
        self.killed += run.killed
        if run.add and code == 0:
            self.acknowledged.add((run.add[0], run.add[2]))
        elif run.add:
            self.queue.append(run.add)  # the state must be in the store at the end
        if not run.killed and code != 0 and "has no state" not in errors:
            self.wrong.append(f"exit {code}: {' '.join(map(str, run.process.args))}: {errors.strip()}")

    def start(self, longest):
        kinds = ["get", "list", "gc", "prune", "verify"]
        what = "add" if self.queue and self.rng.random() < 0.7 else self.rng.choice(kinds)
        added = self.queue.pop() if what == "add" else None
        command = command_of(self.kvtool, self.store, what, self.sources, added, self.rng, self.work, self.started)
        if what == "prune":
            self.pruned.add(command[4])
        kill_after = self.rng.random() * longest if self.rng.random() < 0.33 else None
        self.running.append(Run(command, kill_after, added))
        self.started += 1

    def run(self, options):
        while self.queue or self.running or self.started < options.runs:
            for run in [run for run in self.running if run.poll() is not None]:
                self.running.remove(run)
                self.settle(run)
            if len(self.running) < options.jobs and (self.queue or self.started < options.runs):
                self.start(options.longest)
            time.sleep(0.002)

    def check_store(self):
        """Checks what is in the store, and returns the number of listed states."""
        verify = subprocess.run([self.kvtool, "store", "verify", self.store], capture_output=True, text=True)
        if verify.returncode != 0:
            self.wrong.append(f"verify: {verify.stdout}{verify.stderr}")
        listed = json.loads(subprocess.run([self.kvtool, "store", "list", self.store, "--json"], capture_output=True,
                                           text=True, check=True).stdout)["results"][0]["states"]
        known = {(chat, digest) for chat, _, digest in self.sources}
        restored = set()
        for state in listed:
            got = subprocess.run([self.kvtool, "store", "get", self.store, f"@{state['state']}", "-c", "-T1"],
                                 capture_output=True)
            key = (state["name"], hashlib.sha256(got.stdout).hexdigest())
            restored.add(key)
            if got.returncode != 0 or key not in known:
                self.wrong.append(f"state {state['state']} of {state['name']} does not come back: {got.stderr.decode()}")
        self.wrong += [f"a state of {chat} was added and is not listed"
                       for chat, _ in self.acknowledged - restored if chat not in self.pruned]
        return len(listed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool")
    parser.add_argument("state")
    parser.add_argument("--states", type=int, default=28)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=0.15, help="seconds until a run is killed")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "sources").mkdir()
        store, kvtool = work / "store", options.kvtool
        sources = make_sources(kvtool, options.state, work / "sources", max(1, options.states // 7), rng)
        subprocess.run([kvtool, "store", "add", "-q", store, sources[0][1], "--name", sources[0][0]], check=True)
        trial = Trial(kvtool, store, sources, work, rng)
        trial.run(options)
        listed = trial.check_store()
    print("\n".join(trial.wrong) if trial.wrong else "nothing is lost")
    print(f"{trial.started} runs, {trial.killed} killed, {len(trial.acknowledged)} added, {listed} listed", file=sys.stderr)
    return 1 if trial.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
