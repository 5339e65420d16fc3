#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes a corpus on a Ray or Dask cluster whose workers are killed at random: the merged answer must equal that
of one run, byte for byte.

Usage: python_test.py ray|dask KVTOOL [--snapshots N] [--shards N] [--kills N] [--kilobytes N] [--seed N]
                      [--python PYTHON] [--install BUILD]

PYTHON has kvtool's wheel and ray or distributed (default: the one that runs this). --install makes one in the scratch
folder, with the wheel from BUILD and the rest from PyPI (some 400 MB for Ray). Two nodes of one CPU are started
(python_cluster.py), scripts/scale/ray_corpus.py or dask_corpus.py runs on them, and workers and kvtool are killed by
SIGKILL. Exits with 1 if the answer differs by a byte or a process is left, and with 77 and a reason if PYTHON lacks
something.
"""
import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = ["analyze", "--level", "high"]
PACKAGES = {"ray": "ray", "dask": "distributed"}
LIMIT_SECONDS = 400


def install(kind, build, folder):
    """Returns a Python with the wheel and the cluster's package."""
    subprocess.run([ROOT / "scripts/release/build_wheel.sh", "--build", build, "--out", folder / "wheel", sys.executable], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGES[kind],
                    *(folder / "wheel").glob("*.whl")], check=True)
    return python


def descendants(root):
    """Returns {process: its command line} for all descendants of a process."""
    children, words = collections.defaultdict(list), {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")
                children[parent].append(int(entry.name))
            except OSError:
                pass  # it has ended
    found, queue = {}, [root]
    while queue:
        for process in children[queue.pop()]:
            found[process] = words[process]
            queue.append(process)
    return found


def victims(kind, cluster):
    """Returns running kvtools, and the workers above them."""
    below = descendants(cluster)
    programs = {process: "kvtool" for process, words in below.items() if b"--shard" in words}
    for process, words in below.items():
        is_worker = words[0].startswith(b"ray::run_shard") if kind == "ray" else any(b"spawn_main" in word for word in words)
        if is_worker and descendants(process).keys() & programs.keys():
            programs[process] = "a worker"
    return programs


def start_cluster(kind, python, env, log):
    cluster = subprocess.Popen([python, ROOT / "tests/scale/python_cluster.py", kind], env=env, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    for line in cluster.stdout:
        if ":" in line and " " not in line.strip():
            return cluster, line.strip()
    raise RuntimeError(f"the cluster of {kind} does not start")


def run(options, inputs, python, env, rng):
    """Returns seconds, and the number of kills of each kind."""
    with open(inputs.folder / "cluster.log", "w") as log:
        cluster, address = start_cluster(options.kind, python, env, log)
    done = collections.Counter()
    try:
        where = ["--scheduler", address] if options.kind == "dask" else []
        begin = time.monotonic()
        with open(inputs.folder / "driver.log", "w+") as log:
            driver = subprocess.Popen([python, ROOT / f"scripts/scale/{options.kind}_corpus.py", "--shards", str(options.shards), *where,
                                       inputs.manifest, inputs.folder / "results", *COMMAND], stdout=log, stderr=log,
                                      env=dict(env, RAY_ADDRESS=address))
            while driver.poll() is None:
                if time.monotonic() - begin > LIMIT_SECONDS:
                    driver.kill()
                found = sorted(victims(options.kind, cluster.pid).items())
                if found and sum(done.values()) < options.kills:
                    process, what = rng.choice(found)
                    try:
                        os.kill(process, signal.SIGKILL)
                        done[what] += 1
                    except ProcessLookupError:
                        pass  # it had ended
                time.sleep(options.pause)
            if driver.returncode != 0:
                log.seek(0)
                said = log.read()[-2000:] + (inputs.folder / "cluster.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{options.kind}_corpus.py ended with {driver.returncode}: {said}")
        return time.monotonic() - begin, done
    finally:
        started = descendants(cluster.pid).keys() | {cluster.pid}
        cluster.stdin.close()
        try:
            cluster.wait(60)
        except subprocess.TimeoutExpired:
            cluster.kill()
            cluster.wait()
        end = time.monotonic() + 10
        while left := [process for process in started if alive(process)]:
            if time.monotonic() > end:
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise RuntimeError(f"processes of the cluster of {options.kind} were left: {left}")
            time.sleep(0.1)


def alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=PACKAGES)
    parser.add_argument("kvtool", type=pathlib.Path)
    parser.add_argument("--snapshots", type=int, default=200)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kilobytes", type=int, default=1000, help="a typical snapshot")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--install", metavar="BUILD")
    options = parser.parse_args()
    # Turns SIGTERM into an exit, which removes the folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))
    # Ray's workers have a low priority, so they are slow next to other load.
    env = dict(os.environ, RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0", PYTHONWARNINGS="ignore")
    with tempfile.TemporaryDirectory(prefix=f"kvtool-{options.kind}-") as folder:
        folder = pathlib.Path(folder)
        env["RAY_TMPDIR"] = str(folder)
        python = install(options.kind, options.install, folder) if options.install else options.python
        needs = f"import kvtool, {PACKAGES[options.kind]}"
        if subprocess.run([python, "-c", needs], cwd=folder, capture_output=True).returncode != 0:
            print(f"skipped: {python} cannot {needs} (--install)")
            return 77
        versions = {subprocess.run([*words, "--version"], cwd=folder, capture_output=True, text=True).stdout.split("SIMD")[0]
                    for words in ([options.kvtool.resolve()], [python, "-m", "kvtool"])}
        if len(versions) > 1:
            print(f"skipped: the wheel is another build: {' '.join(versions)}")
            return 77
        inputs = corpus.Corpus(options.kvtool.resolve(), folder, options.snapshots, options.kilobytes, options.seed)
        begin = time.monotonic()
        wanted = inputs.alone(*COMMAND)
        alone = time.monotonic() - begin
        seconds, killed = run(options, inputs, python, env, random.Random(options.seed))
        same = inputs.merged(sorted((folder / "results").glob("shard-*.jsonl"))) == wanted
        kills = ", ".join(f"{what} {count} times" for what, count in sorted(killed.items()))
        print(f"{inputs.count} snapshots, {options.shards} shards, killed: {kills or 'nothing'}; one run {alone:.1f} s, "
              f"{options.kind} {seconds:.1f} s", file=sys.stderr)
        print(f"the same: {len(wanted[0])} bytes of JSON, {len(wanted[1])} of the page" if same
              else "the merged answer is not that of one run")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
