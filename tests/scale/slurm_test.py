#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes a corpus in a Slurm array whose tasks are killed at random: the merged answer must equal that of one run,
byte for byte.

Usage: slurm_test.py KVTOOL [--snapshots N] [--shards N] [--kills N] [--kilobytes N] [--nodes N] [--seed N]

Starts a Slurm of its own in a scratch folder (slurm_here.py) and submits scripts/scale/kvtool-array.sbatch and,
behind it, kvtool-merge.sbatch. Meanwhile kvtool and the shells above it are killed, and tasks are cancelled and
requeued. Shards that the merge job reports as missing are submitted again, until it has an answer. At the end kvtool
merge itself is killed a few times. Exits with 1 if the answer differs by a byte, and with 77 and a reason if Slurm
cannot run.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import corpus
import slurm_here

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts/scale"
COMMAND = ["analyze", "--level", "high"]
# No case names a snapshot, so each case judges each input.
GATE = """{
  "schema": "kvtool.gate-config/1",
  "defaults": {"engine": "design", "mode": "store", "prompt_tokens": 8, "params": {
    "evict": 0, "evict_trigger_min_tokens": 32, "compress_front_layers": 2, "compress_store_disable_front": 0,
    "compress_block_tokens": 32, "compress_store_bootstrap_tokens": 32, "compress_store_grouped_step_tokens": 32,
    "compress_hot_sink_tokens": 4, "compress_hot_recent_tokens": 32}},
  "cases": [
    {"name": "smaller", "rules": [{"metric": "measured_ratio", "op": ">=", "limit": 1.166, "required": true}]},
    {"name": "whole", "rules": [{"metric": "content.mismatches", "op": "<=", "limit": 0, "required": true}]}
  ]
}
"""
ROUNDS = 12  # an array and its merge each; the last arrays run without kills
SECONDS_OF_A_TASK = {f"0:{second:02}" for second in range(15)}  # times under 15 s in squeue's format


class Killer:
    """Chooses running tasks at random and does to them what happens on a cluster."""

    def __init__(self, slurm, kills, rng):
        self.slurm, self.left, self.rng, self.done = slurm, kills, rng, collections.Counter()

    def look(self, job):
        """Disturbs some of the running tasks of an array; returns False once it has none left."""
        tasks = [line.split("|") for line in
                 self.slurm.run("squeue", "-h", "-r", "-j", job, "-o", "%K|%t|%r|%N|%M", check=False).splitlines()]
        for task, state, reason, _, took in tasks:
            if reason == "BeginTime":  # without a new begin time, a requeued task waits for two minutes
                self.call("scontrol", "update", f"jobid={job}_{task}", "StartTime=now")
            # If a task was to start on a node just when the node was lost, Slurm believes that it runs for ever.
            if state == "R" and took not in SECONDS_OF_A_TASK:
                self.call("scontrol", "requeue", f"{job}_{task}")
        running = [(task, node) for task, state, _, node, _ in tasks if state == "R"]
        for task, node in self.rng.sample(running, min(self.left, (len(running) + 1) // 2)):
            how = self.rng.choice(["kill kvtool", "kill kvtool", "kill the shell", "requeue", "cancel", "lose the node"])
            if self.strike(how, job, task, node):
                self.done[how] += 1
                self.left -= 1
        return bool(tasks)

    def strike(self, how, job, task, node):
        if how == "requeue":
            return self.call("scontrol", "requeue", f"{job}_{task}")
        if how == "cancel":
            return self.call("scancel", f"{job}_{task}")
        if how == "lose the node":
            return self.lose(node)
        return self.kill(job, task, how == "kill kvtool")

    def call(self, *words):
        return subprocess.run(words, env=self.slurm.env, capture_output=True).returncode == 0

    def lose(self, node):
        """Kills and restarts the node's daemon; kvtool continues as an orphan and still writes its results."""
        lines = self.slurm.run("squeue", "-h", "-r", "-w", node, "-t", "R", "-o", "%A %F_%K", check=False).splitlines()
        jobs = dict(line.split() for line in lines)
        steps = {f"[{number}.batch]" for number in jobs}
        for process in self.slurm.processes():
            try:
                words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").strip("\0").split()
                if words[:1] == ["slurmstepd:"] and steps & set(words):
                    os.kill(process, signal.SIGKILL)
            except OSError:
                pass  # it has ended
        self.slurm.restart(node)
        for name in jobs.values():
            self.call("scontrol", "requeue", name)
        return True

    def kill(self, job, task, is_program):
        """Sends SIGKILL to kvtool, or to the batch script that runs it."""
        marks = {f"SLURM_ARRAY_JOB_ID={job}".encode(), f"SLURM_ARRAY_TASK_ID={task}".encode()}
        for process in self.slurm.processes():
            try:
                entry = pathlib.Path(f"/proc/{process}")
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if marks <= set((entry / "environ").read_bytes().split(b"\0")) and (b"--shard" in words) == is_program:
                    os.kill(process, signal.SIGKILL)
                    return True
            except OSError:
                pass  # it has ended
        return False


class Run:
    def __init__(self, options, slurm, inputs, killer):
        self.options, self.slurm, self.inputs, self.killer = options, slurm, inputs, killer
        self.results = inputs.folder / "results"
        self.sent_again, self.finished = 0, inputs.folder / "finished.json"
        self.env = ["env", f"KVTOOL={inputs.kvtool}", f"KVTOOL_SHARDS={options.shards}", "KVTOOL_RETRIES=1000"]

    def submit(self, script, *words):
        return self.slurm.run(*self.env, "sbatch", "--parsable", "-D", self.inputs.folder, *words[0], SCRIPTS / script,
                              *words[1:]).strip()

    def whole(self):
        """Submits arrays until the merge job misses nothing. Returns its exit status."""
        tasks = f"0-{self.options.shards - 1}"
        for turn in range(ROUNDS):
            if turn == ROUNDS - 2:
                self.killer.left = 0
            array = self.submit("kvtool-array.sbatch", [f"--array={tasks}"], self.inputs.manifest, self.results, *COMMAND)
            merge = self.submit("kvtool-merge.sbatch", [f"--dependency=afterany:{array}"], self.results, "-f", "-q", "-o",
                                self.finished)
            while self.killer.look(array):
                time.sleep(self.options.pause)
            status, said = self.outcome(merge)
            missing = re.search(r"missing or not complete: ([\d,]+)", said)
            if not missing:
                return status
            tasks = missing[1]  # the list, in the syntax of --array
            self.sent_again += tasks.count(",") + 1
        raise RuntimeError(f"shards {tasks} are still missing after {ROUNDS} rounds")

    def outcome(self, merge):
        while True:
            job = self.slurm.run("scontrol", "show", "job", merge)
            if re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|NODE_FAIL|TIMEOUT)", job):
                break
            time.sleep(0.1)
        log = self.inputs.folder / f"kvtool-merge-{merge}.log"
        return int(re.search(r"ExitCode=(\d+):", job)[1]), log.read_text() if log.exists() else ""

    def said(self, words):
        """Counts tasks with messages in their logs."""
        return sum(log.read_text(errors="replace").count(words) for log in self.inputs.folder.glob("kvtool-*_*.log"))


def nightly(inputs, slurm, kills, rng):
    """Returns the result of scripts/scale/nightly.sh while kvtool is killed at random; its gate fails because of the damaged
    inputs."""
    config, out = inputs.folder / "gate.json", inputs.folder / "nightly"
    config.write_text(GATE)
    alone = inputs.alone("gate", config, junit=True)
    env = dict(slurm.env, KVTOOL=inputs.kvtool, KVTOOL_SHARDS="6", KVTOOL_RETRIES="1000")
    script = subprocess.Popen([SCRIPTS / "nightly.sh", inputs.folder / "dumps", config, out], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    killer = Killer(slurm, kills, rng)
    while script.poll() is None:
        for job in set(slurm.run("squeue", "-h", "-n", "kvtool", "-o", "%F", check=False).split()):
            killer.look(job)
        time.sleep(0.2)
    said = script.communicate()[0]
    made = tuple((out / name).read_bytes() for name in ("merged.json", "corpus.html", "junit.xml"))
    if script.returncode != 3 or made != alone:
        raise RuntimeError(f"nightly.sh ended with {script.returncode}, which should be 3, or its answer is another: {said}")
    return sum(killer.done.values())


def killed_merges(inputs, results, wanted, rng, count=10):
    """Checks that a killed merge leaves the complete document or none."""
    target, killed = inputs.folder / "killed.json", 0
    for _ in range(count):
        target.unlink(missing_ok=True)
        merge = subprocess.Popen([inputs.kvtool, "merge", *results, "-q", "-o", target], stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * 0.05)
        merge.kill()
        killed += merge.wait() == -signal.SIGKILL
        if target.exists() and target.read_bytes() != wanted:
            raise RuntimeError("a merge that was killed left half a document")
    return killed


def refusals(inputs, results):
    """Checks that missing, duplicate and foreign shards are refused by name."""
    inputs.call("inspect", "--corpus", inputs.manifest, "--results", inputs.folder / "foreign.jsonl", "--keep-going", "-q",
                wanted=(0, 3))
    shutil.copy(results[0], inputs.folder / "copy.jsonl")
    for files, words in [(results[1:], "missing or not complete: 0"), ([*results, inputs.folder / "copy.jsonl"], "is here twice"),
                         ([*results, inputs.folder / "foreign.jsonl"], "a foreign shard")]:
        said = inputs.call("merge", *files, wanted=(3,)).stderr
        if words not in said:
            raise RuntimeError(f"kvtool merge should say '{words}': {said}")


def check(options, slurm, folder):
    """Returns what is wrong."""
    rng, wrong, times = random.Random(options.seed), [], [time.monotonic()]
    inputs = corpus.Corpus(options.kvtool.resolve(), folder, options.snapshots, options.kilobytes, options.seed)
    times.append(time.monotonic())
    wanted = inputs.alone(*COMMAND)
    times.append(time.monotonic())
    run = Run(options, slurm, inputs, Killer(slurm, options.kills, rng))
    status = run.whole()
    times.append(time.monotonic())
    results = sorted(run.results.glob("shard-*.jsonl"))
    if run.finished.read_bytes() != wanted[0] or inputs.merged(results) != wanted:
        wrong.append("the merged answer is not that of one run")
    if status != 3:
        wrong.append(f"the merge job ended with {status}: damaged inputs should make it 3")
    killed = killed_merges(inputs, results, wanted[0], rng)
    refusals(inputs, results)
    kills = ", ".join(f"{what} {count}" for what, count in sorted(run.killer.done.items()))
    print(f"{inputs.count} snapshots of {inputs.bytes >> 20} MiB, {len(results)} shards on {options.nodes} nodes: {kills}; "
          f"{run.said('goes back into the queue')} went back by themselves, {run.said('another run writes')} met an orphan that "
          f"still wrote, {run.sent_again} sent again by name; {killed} merges killed", file=sys.stderr)
    print("made in {:.1f} s, one run {:.1f} s, the array {:.1f} s; {} bytes of JSON, {} of the page".format(
        *(end - begin for begin, end in zip(times, times[1:])), *map(len, wanted)), file=sys.stderr)
    killed = nightly(inputs, slurm, options.kills // 4, rng)
    print(f"nightly.sh, {killed} times struck: the same document, page and JUnit", file=sys.stderr)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool", type=pathlib.Path)
    parser.add_argument("--snapshots", type=int, default=200)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--kilobytes", type=int, default=1000, help="a typical snapshot")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2, help="of a node, as it tells Slurm")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two looks at the queue")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Turns SIGTERM into an exit, which ends the daemons.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))
    with tempfile.TemporaryDirectory(prefix="kvtool-slurm-") as folder:
        slurm = slurm_here.Slurm(f"{folder}/slurm", options.nodes, options.cpus)
        try:
            with slurm:
                wrong = check(options, slurm, pathlib.Path(folder).resolve())
        except slurm_here.CannotRun as reason:
            print(f"skipped: {reason}")
            return 77
        if slurm.processes():
            wrong.append(f"still running: {slurm.processes()}")
        print("\n".join(wrong) or "the same, byte for byte")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
