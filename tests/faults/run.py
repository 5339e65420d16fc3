#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs commands with one fault at every Nth system call, and checks what is left behind.

  run.py KVTOOL INJECT [--sample N] [--seed S] [--scenario NAME] [--call NAME] [--part K/N] [--asan LIBASAN]

INJECT is the library built from inject.cc. Without --sample every call of every kind fails once; --part takes every
Nth fault from the Kth on, so that a long run can be shared out or taken up again. After a fault: the exit status is 0
or 4, one line says what happened, the output is the old one, absent or complete, and no temporary name is left, or a
warning names it and the next run removes it. After SIGKILL the output is old, absent or complete, and running the
command again succeeds and leaves nothing behind. The write log shows that data reached the disk before its name.
"""
import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

from scenarios import SCENARIOS, plain_environment

ENOSPC, EIO, EMFILE, ENOMEM, EDQUOT = 28, 5, 24, 12, 122
ERRNOS = {"open": [EMFILE, EIO], "write": [ENOSPC, EIO], "pwrite": [ENOSPC, EIO], "fsync": [EIO, EDQUOT],
          "rename": [EIO], "link": [EIO, ENOSPC], "mmap": [ENOMEM], "ftruncate": [EIO], "pthread_create": [11],
          "malloc": [ENOMEM]}
LIMIT_SECONDS = 60


class Failure(Exception):
    pass


class Runner:
    def __init__(self, options):
        self.kvtool, self.inject = os.path.abspath(options.kvtool), os.path.abspath(options.inject)
        self.asan = options.asan
        self.runs = 0

    def run(self, command, folder, faults=None):
        """Runs the command with these faults. Returns exit status and standard error."""
        env = plain_environment()
        if faults is not None:
            env.update(faults, LD_PRELOAD=f"{self.asan} {self.inject}" if self.asan else self.inject)
            env.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")
        self.runs += 1
        done = subprocess.run([self.kvtool, *command], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=LIMIT_SECONDS)
        return done.returncode, done.stderr.decode(errors="replace")

    def fresh(self, template):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtool-faults-"))
        shutil.copytree(template, folder, dirs_exist_ok=True, copy_function=shutil.copy)
        for item in template.rglob("*"):  # extended attributes mark the folders
            for name in os.listxattr(item):
                os.setxattr(folder / item.relative_to(template), name, os.getxattr(item, name))
        return folder


def extra_names(folder, allowed):
    return sorted(item.name for item in folder.iterdir() if item.name not in allowed)


def check_names(folder, allowed):
    extra = extra_names(folder, allowed)
    if extra:
        raise Failure(f"left behind: {' '.join(extra)}")


def check_leftovers(runner, scenario, folder, allowed, errors):
    """Checks that a warning names what could not be removed, and that the next run with the same output removes
    it."""
    extra = extra_names(folder, allowed)
    if not extra:
        return
    for name in extra:
        if not name.startswith(f".{scenario.output}.kvtool-"):
            raise Failure(f"left behind: {name}")
        if not any(name in line and "warning: could not be removed" in line for line in errors.splitlines()):
            raise Failure(f"left behind without a warning: {name}")
    code, errors = runner.run(scenario.again(), folder)
    if code != 0:
        raise Failure(f"after a leftover: exit {code}: {errors}")
    check_names(folder, allowed)


def check_one(runner, scenario, template, old, complete, faults):
    """Runs the command with one fault; after a kill, runs it again without faults."""
    folder = runner.fresh(template)
    names = {item.name for item in template.iterdir()} | {scenario.output, *scenario.beside}
    try:
        code, errors = runner.run(scenario.command, folder, faults)
        found = scenario.look(runner.kvtool, folder)
        # If the file system cannot exchange two names, a folder that is being replaced has another name for a moment.
        parked = folder / f".{scenario.output}.kvtool-replaced"
        is_parked = found == "absent" and "FAULT_KILL" in faults and parked.is_dir()
        if not is_parked and not scenario.is_sound(found, old, complete):
            raise Failure(f"exit {code}: the output is {'absent' if found == 'absent' else 'neither old nor complete'}: {found[:300]}")
        if "FAULT_KILL" in faults:
            if code not in (-9, 0):
                raise Failure(f"exit {code} where SIGKILL was due: {errors}")
            code, errors = runner.run(scenario.again(), folder)
            if code != 0:
                raise Failure(f"after the kill: exit {code}: {errors}")
            if scenario.look(runner.kvtool, folder) != complete:
                raise Failure("after the kill: the output is not complete")
        elif code == 0:
            if found != complete:
                raise Failure("exit 0 with the old output")
        elif code != 4:
            raise Failure(f"exit {code}: {errors}")
        elif sum(line.startswith("kvtool: ") and "warning" not in line for line in errors.splitlines()) < 1:
            raise Failure(f"exit 4 without a line that says why: {errors!r}")
        elif left := scenario.leftovers(runner.kvtool, folder):
            raise Failure(f"exit 4 and left behind: {left}")
        if "Sanitizer" in errors:
            raise Failure(errors)
        check_leftovers(runner, scenario, folder, names, errors)
    finally:
        shutil.rmtree(folder)


def identity_of(path):
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}"


def files_in(folder, output, identities):
    """Returns the files of the output that have one of the identities."""
    below = (folder / output).rglob("*") if (folder / output).is_dir() else [folder / output]
    return [str(path.relative_to(folder)) for path in below if path.is_file() and identity_of(path) in identities]


def check_log(log, folder, scenario):
    """Simulates a crash: replays the log of a run that succeeded. A power cut loses data that was not synced, and
    names in a folder that was not synced after they appeared. So data must be synced before its file is renamed, all
    names below the output must be synced at the end, and everything that a store's index names must be synced before
    the index changes."""
    output = scenario.output
    index = folder / output / "index.sqlite"
    index = identity_of(index) if index.exists() else None
    dirty, identities, waiting, named = set(), {}, {}, False

    def appears(path):
        """Notes a new name; returns True if it is the output's."""
        inside = os.path.relpath(path, folder) if os.path.isabs(path) else path
        parent = folder / os.path.dirname(inside.rstrip("/"))
        if (inside + "/").startswith(output + "/") and parent.is_dir():
            waiting[identity_of(parent)] = path
        return os.path.basename(path.rstrip("/")) == output

    for line in log.read_text(errors="replace").splitlines():
        word, _, rest = line.partition(" ")
        if word in ("create", "unnamed"):
            identity, _, path = rest.partition(" ")
            identities[path] = identity
            named |= word == "create" and appears(path)
        elif word == "write":
            identity = rest.split()[0]
            if identity == index and waiting.keys() & {identity_of(folder / output / name) for name in ("packs", "states")}:
                raise Failure(f"the index changes before the names {' '.join(waiting.values())} were synced")
            dirty.add(identity)
        elif word == "sync":
            dirty.discard(rest)
        elif word == "syncdir":
            waiting.pop(rest, None)
        elif word == "syncall":
            dirty.clear()
            waiting.clear()
        elif word == "mkdir":
            named |= appears(rest)
        elif word in ("link", "rename", "exchange"):
            source, _, target = rest.partition("\t")
            identity = source if word == "link" else identities.get(source)
            identities[target] = identity
            named |= appears(target)
            if identity in dirty:
                raise Failure(f"'{line}' before its data was synced")
    if not named and scenario.makes_output:
        raise Failure("the log has no line that gives the output its name")
    if waiting:
        raise Failure(f"names that were not synced: {' '.join(waiting.values())}")
    if lost := files_in(folder, output, dirty):
        raise Failure(f"written and not synced: {' '.join(lost)}")


def check_scenario(runner, scenario, options, chooser):
    with tempfile.TemporaryDirectory(prefix="kvtool-faults-") as base:
        template = pathlib.Path(base) / "template"
        template.mkdir()
        scenario.prepare(runner.kvtool, template)
        old = scenario.look(runner.kvtool, template)
        folder = runner.fresh(template)
        counts, log = pathlib.Path(base) / "counts", pathlib.Path(base) / "log"
        code, errors = runner.run(scenario.command, folder, {"FAULT_COUNTS": str(counts), "FAULT_LOG": str(log)})
        if code != 0:
            raise Failure(f"without faults: exit {code}: {errors}")
        complete = scenario.look(runner.kvtool, folder)
        check_log(log, folder, scenario)
        shutil.rmtree(folder)

        plan = []  # (call, number) of the faults to inject; a sample has equally many of each call
        for line in counts.read_text().splitlines():
            call, count = line.split()
            if options.call and call != options.call:
                continue
            of_call = []
            for at in range(1, int(count) + 1):
                of_call += [{"FAULT_CALL": call, "FAULT_AT": str(at), "FAULT_ERRNO": str(number)}
                            for number in ERRNOS[call]]
                if call not in ("malloc", "pthread_create", "mmap"):
                    of_call.append({"FAULT_CALL": call, "FAULT_AT": str(at), "FAULT_KILL": "1"})
            plan += chooser.sample(of_call, min(options.sample or len(of_call), len(of_call)))
        plan += [{"FAULT_DENY": deny} for deny in ("tmpfile", "proc", "exchange", "tmpfile,exchange", "nfs", "exchange,nfs")]
        part, parts = options.part
        plan = plan[part - 1::parts]
        failed = 0
        for faults in plan:
            try:
                check_one(runner, scenario, template, old, complete, faults)
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed += 1
                words = " ".join(f"{key}={value}" for key, value in faults.items())
                print(f"{scenario.name}: {words}: {failure}", flush=True)
        print(f"{scenario.name}: {len(plan)} faults, {failed} failed", flush=True)
        return failed


def part_of(text):
    """Parses K/N."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N")
    return int(part), int(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvtool")
    parser.add_argument("inject")
    parser.add_argument("--sample", type=int, default=0, help="faults of each call per scenario (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", help="this one only")
    parser.add_argument("--call", help="faults of this call only")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="every Nth fault from the Kth on")
    parser.add_argument("--asan", help="libasan.so, for a program built with it")
    options = parser.parse_args()
    runner, chooser, failed = Runner(options), random.Random(options.seed), 0
    for scenario in SCENARIOS:
        if options.scenario in (None, scenario.name):
            try:
                failed += check_scenario(runner, scenario, options, chooser)
            except Failure as failure:
                failed += 1
                print(f"{scenario.name}: {failure}")
    print(f"{runner.runs} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
