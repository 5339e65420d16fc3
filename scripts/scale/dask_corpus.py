#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command of kvtool over a corpus on a Dask cluster: each task runs one shard.

Usage: dask_corpus.py --shards N --scheduler ADDRESS CORPUS RESULTS COMMAND [OPTION...]
       kvtool merge RESULTS/shard-*.jsonl

All nodes have the manifest, the corpus and the folder of the results under the same paths, and kvtool's wheel. Tasks
and workers may be killed at any time: inputs with a result are not processed again.
"""
import argparse
import os
import subprocess
import sys
import time

from distributed import Client, as_completed

# Runs kvtool in a process that ends with its worker: one that outlived it would lock the results against the next
# attempt.
KVTOOL = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the worker has ended")
from kvtool.__main__ import main
sys.exit(main())
"""


def run_shard(index, options):
    """Returns the exit status of kvtool, once each input of a shard has its result."""
    words = [*options.command, "--corpus", options.corpus, "--shard", f"{index}/{options.shards}", "--keep-going", "--results",
             os.path.join(options.results, f"shard-{index}.jsonl"), "--threads", str(options.cpus), "--no-progress", "-q"]
    status = subprocess.run([sys.executable, "-c", KVTOOL, str(os.getpid()), *words]).returncode
    if status in (0, 1, 3, 5):  # good, negative, invalid, unsupported: the results say which input has which
        return status
    if status == 2:
        raise ValueError(f"kvtool does not take {' '.join(options.command)}")
    time.sleep(1)  # a file that is missing, or locked by an earlier attempt, may be available soon
    raise OSError(f"shard {index}: kvtool ended with {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, required=True, help="a few for each CPU, with many files each")
    parser.add_argument("--scheduler", required=True, help="its address, such as tcp://10.0.0.1:8786")
    parser.add_argument("--cpus", type=int, default=1, help="threads of a task")
    parser.add_argument("--tries", type=int, default=20, help="of a shard whose worker is lost or that cannot read")
    parser.add_argument("corpus")
    parser.add_argument("results")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="such as: analyze --level high")
    options = parser.parse_args()
    if not options.command:
        parser.error("a command of kvtool is missing")
    options.corpus, options.results = os.path.abspath(options.corpus), os.path.abspath(options.results)
    os.makedirs(options.results, exist_ok=True)
    with Client(options.scheduler) as client:
        # By default Dask gives up on a task after four of its workers have died, whatever the reason.
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", options.tries))
        tasks = client.map(run_shard, range(options.shards), options=options, pure=False, retries=options.tries)
        statuses = []
        for task in as_completed(tasks):
            statuses.append(task.result())
            task.release()  # a worker may die, and without this its task runs again
    print(f"{len(statuses)} shards done, {sum(status != 0 for status in statuses)} with inputs that failed")


if __name__ == "__main__":
    main()
