#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the libFuzzer programs of `cmake --preset fuzz`, several at once, and reports the result of each.

  fuzz.py [--seconds 60 | --cpu-seconds 600] [--jobs 2] [--timeout 20] [--work DIR] [--keep] [TARGET ...]

Each target starts from testdata/fuzz/TARGET and the corpus of earlier runs in DIR, with the words of
tests/fuzz/TARGET.dict if it exists; findings are written to DIR/TARGET/findings. With --keep, inputs that reach new
code are minimised and copied into testdata/fuzz/TARGET (at most 64 KiB each), where every ordinary build replays them.
Exit status 1 if there are findings.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_KEPT_BYTES, MOST_KEPT_FILES = 64 << 10, 60
# A wrong size in a reader shows up as an allocation beyond the limit, a slow input as a time-out.
FLAGS = ["-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=65536", "-use_value_profile=1"]


def stop_after(running, seconds):
    """Waits for the process, interrupts it after this many processor seconds, and returns its resource usage."""
    tick = os.sysconf("SC_CLK_TCK")
    while True:
        pid, _, usage = os.wait4(running.pid, os.WNOHANG)
        if pid:
            return usage
        # The name in parentheses may contain blanks; user and system time are the 14th and 15th fields of proc(5).
        fields = pathlib.Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / tick >= seconds:
            running.send_signal(signal.SIGINT)
            return os.wait4(running.pid, 0)[2]
        time.sleep(1)


def fuzz(program, name, options):
    """Runs one target: returns (name, CPU seconds, executions, edges covered, corpus inputs, findings)."""
    work = options.work / name
    corpus, findings = work / "corpus", work / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    log, words = work / "log", ROOT / "tests/fuzz" / f"{name}.dict"
    dictionary = [f"-dict={words}"] if words.exists() else []
    with open(log, "w") as out:
        running = subprocess.Popen(
            [program, f"-max_total_time={0 if options.cpu_seconds else options.seconds}", f"-timeout={options.timeout}", *FLAGS, *dictionary,
             f"-artifact_prefix={findings}/", corpus, ROOT / "testdata/fuzz" / name], stdout=subprocess.DEVNULL, stderr=out, stdin=subprocess.DEVNULL)
        usage = stop_after(running, options.cpu_seconds) if options.cpu_seconds else os.wait4(running.pid, 0)[2]
        running.returncode = 0
    text = log.read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units:\s+(\d+)", text) or re.findall(r"^#(\d+)", text, re.M)
    covered = re.findall(r"cov: (\d+)", text)
    found = sorted(item.name for item in findings.iterdir())
    if options.keep and not found:
        keep(program, name, corpus)
    return (name, usage.ru_utime + usage.ru_stime, int(executions[-1]) if executions else 0,
            int(covered[-1]) if covered else 0, sum(1 for _ in corpus.iterdir()), found)


def keep(program, name, corpus):
    """Adds the inputs that reach code which the checked-in corpus does not, smallest first."""
    checked_in = ROOT / "testdata/fuzz" / name
    merged = corpus.parent / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    shutil.copytree(checked_in, merged)
    subprocess.run([program, "-merge=1", "-rss_limit_mb=2048", merged, corpus], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    before = {item.name for item in checked_in.iterdir()}
    new = sorted((item for item in merged.iterdir() if item.name not in before), key=lambda item: item.stat().st_size)
    for item in new[:max(0, MOST_KEPT_FILES - len(before))]:
        if item.stat().st_size <= MOST_KEPT_BYTES:
            shutil.copy(item, checked_in / item.name[:16])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help="names without fuzz_ (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="of wall time, for each target")
    parser.add_argument("--cpu-seconds", type=int,
                        help="of processor time instead, for a machine that does other things beside")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=int, default=20,
                        help="seconds of wall time that make an input slow; more on a machine that is busy otherwise")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--work", type=pathlib.Path, help="corpora and findings (default: BUILD/findings)")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to testdata/fuzz")
    options = parser.parse_args()
    options.work = options.work or options.build / "findings"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    programs = {path.name[len("fuzz_"):]: path for path in sorted((options.build / "bin").glob("fuzz_*"))}
    unknown = [name for name in options.targets if name not in programs]
    if unknown or not programs:
        sys.exit(f"no fuzz target {' '.join(unknown)} in {options.build}/bin: cmake --preset fuzz builds them")
    failed = False
    print(f"{'target':<16} {'CPU s':>7} {'executions':>12} {'edges':>7} {'inputs':>7}  findings", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(fuzz, programs[name], name, options) for name in options.targets or programs]
        for run in concurrent.futures.as_completed(runs):
            name, cpu, executions, edges, inputs, found = run.result()
            failed |= bool(found)
            print(f"{name:<16} {cpu:7.0f} {executions:12} {edges:7} {inputs:7}  {' '.join(found) or 'none'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
