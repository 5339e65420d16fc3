#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that two builds of kvtool behave the same: records what each does, then compares the records.

  same.py record KVTOOL FOLDER [--jobs N] [--only PATTERN] [--twice]
  same.py compare BEFORE AFTER

A record consists of JSON files in FOLDER:
  archives   SHA-256 of `compress` at every level for every state in testdata and ../shared/data, of frames,
             and of what the golden archives decompress to
  help       the text of `kvtool [COMMAND] --help`, `-h`, `schema`, `explain` and `formats`
  cases      for every call of the program in every tests/cli case: exit status, standard output and error; and the
             files that the case left. JSON is compared key by key, without regard to order.

Names of temporary folders, of the checkout and of the program are replaced, and so are measured times. With --twice
every case runs two times, and results that differ between the two are not compared, because they are not deterministic.
"""
import argparse
import concurrent.futures
import ctypes
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
import run as cli  # noqa: E402

LEVELS = ["compat", "fast", "default", "high", "max"]
# Keys whose values are measured, or depend on the build.
MEASURED = {"timing", "elapsed_us", "mb_per_s", "git", "speed", "started", "finished", "seconds", "attention_us", "peak_bytes"}
# Longer outputs of a recorded call are kept as a hash only.
KEPT_BYTES = 1 << 16


# ---- the wrapper: replaces the program within a case, and records its calls


def call_through():
    """Runs the program named by SAME_KVTOOL with the given arguments, copies its streams and records them."""
    program, log = os.environ["SAME_KVTOOL"], os.environ["SAME_LOG"]
    if os.isatty(1) or os.isatty(2) or sys.argv[1:2] == ["completion"]:
        os.execv(program, [program] + sys.argv[1:])

    def die_with_parent():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    running = subprocess.Popen([program] + sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=die_with_parent, close_fds=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: running.send_signal(got))
    texts = {}

    def copy(name, stream, descriptor):
        parts, open_end = [], True
        while block := os.read(stream.fileno(), 1 << 16):
            parts.append(block)
            while open_end and block:
                try:
                    block = block[os.write(descriptor, block):]
                except OSError:
                    open_end = False
                    stream.close()
                    break
            if not open_end:
                break
        texts[name] = b"".join(parts)

    copies = [threading.Thread(target=copy, args=("stderr", running.stderr, 2)),
              threading.Thread(target=copy, args=("stdout", running.stdout, 1))]
    for thread in copies:
        thread.start()
    status = running.wait()
    for thread in copies:
        thread.join()
    entry = {"argv": sys.argv[1:], "exit": status} | {name: text.decode("latin-1") for name, text in texts.items()}
    with open(log, "a") as out:  # calls of one case rarely overlap, so writes above PIPE_BUF stay whole
        out.write(json.dumps(entry) + "\n")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


# ---- records


def sha(data):
    return hashlib.sha256(data).hexdigest()


def without_measures(value):
    if isinstance(value, dict):
        return {key: without_measures(child) for key, child in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [without_measures(child) for child in value]
    return value


def normal(text, places):
    """Returns the text without parts that depend on the machine or the time; documents get sorted keys."""
    for place in places:
        text = text.replace(place, "*")
    lines = []
    try:
        return json.dumps(without_measures(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        try:
            line = json.dumps(without_measures(json.loads(line)), sort_keys=True) if line.startswith("{") else line
        except (ValueError, RecursionError):
            pass
        line = re.sub(r"\b\d+(\.\d+)? ?(B|kB|MB|GB|KiB|MiB|GiB)/s", "*/s", line)
        lines.append(re.sub(r"\b\d+(\.\d+)? ?(ms|us|s)\b", "* s", line))
    text = "\n".join(lines)
    return text if len(text) <= KEPT_BYTES else "sha256 " + sha(text.encode())


def run_case(case, kvtool, wrapper):
    with tempfile.TemporaryDirectory(prefix="kvtool-same-") as outer:
        folder, log = pathlib.Path(outer, "case"), pathlib.Path(outer, "log")
        folder.mkdir()
        env = dict(cli.environment(wrapper, case), SAME_KVTOOL=kvtool, SAME_LOG=str(log))
        cli.run_limited(["bash", "-euo", "pipefail", str(case)], folder, env)
        places = [str(folder), os.path.realpath(folder), outer, wrapper, kvtool, str(ROOT)]
        calls, seen = {}, {}
        for line in log.read_text().splitlines() if log.exists() else []:
            entry = json.loads(line)
            key = normal(" ".join(entry.pop("argv")), places)
            seen[key] = seen.get(key, 0) + 1
            calls[f"{key} #{seen[key]}"] = {
                name: normal(value, places) if isinstance(value, str) else value for name, value in entry.items()}
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_symlink() or not os.access(path, os.R_OK):
                continue
            data = path.read_bytes()
            text = normal(data.decode("latin-1"), places) if len(data) < 1 << 22 else None
            calls["file " + path.relative_to(folder).as_posix()] = {"sha256": sha(text.encode() if text is not None else data)}
    return calls


def cases(only):
    for case in sorted((ROOT / "tests/cli").glob("*/*.sh")):
        name = f"{case.parent.name}/{case.stem}"
        if fnmatch.fnmatch(name, only):
            yield name, case


def record_cases(kvtool, only, jobs, twice):
    with tempfile.TemporaryDirectory(prefix="kvtool-same-") as folder:
        wrapper = pathlib.Path(folder, "kvtool")
        wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -S {__file__} through \"$@\"\n")
        wrapper.chmod(0o755)
        result = {}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            runs = {name: [pool.submit(run_case, case, kvtool, str(wrapper)) for _ in range(2 if twice else 1)]
                    for name, case in cases(only)}
            for name, futures in runs.items():
                first, *others = [future.result() for future in futures]
                result[name] = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
        return result


def states():
    data = ROOT.parent / "shared/data"
    for top in (ROOT / "testdata", data):
        for path in sorted(top.rglob("*")):
            if path.is_file() and ("states" in path.parts or top == data) and path.suffix in (".bin", ".safetensors", ".npz"):
                yield path.relative_to(top).as_posix(), path


def record_archives(kvtool, jobs):
    def archive(path, level):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "a.kvz")
            done = subprocess.run([kvtool, "compress", "-q", "--level", level, str(path), "-o", out], capture_output=True, check=False)
            return sha(pathlib.Path(out).read_bytes()) if done.returncode == 0 else f"exit {done.returncode}"

    def restored(path):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([kvtool, "decompress", "-q", str(path), "-o", os.path.join(folder, "out")], capture_output=True,
                                  check=False, cwd=path.parent)
            parts = sorted(part for part in pathlib.Path(folder).rglob("*") if part.is_file())
            return f"exit {done.returncode} " + sha(b"".join(part.read_bytes() for part in parts))

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        made = {f"{name} {level}": pool.submit(archive, path, level) for name, path in states() for level in LEVELS}
        made |= {f"restored {path.relative_to(ROOT)}": pool.submit(restored, path)
                 for path in sorted((ROOT / "testdata").rglob("*.kvz"))}
        return {name: future.result() for name, future in made.items()}


def record_help(kvtool):
    def text(*words):
        done = subprocess.run([kvtool, *words], capture_output=True, check=False, text=True, errors="replace")
        return f"exit {done.returncode}\n{done.stdout}{done.stderr}"

    commands = subprocess.run([kvtool, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"^\s*'?([a-z][a-z0-9-]+(?: [a-z]+)?)'?\)", commands, re.M)))
    result = {f"{name} {flag}": text(*name.split(), flag) for name in names + [""] for flag in ("-h", "--help")}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([kvtool, "schema", "--output-dir", folder], capture_output=True, check=True)
        for path in sorted(pathlib.Path(folder).rglob("*.json")):
            result[f"schema {path.name}"] = json.dumps(json.loads(path.read_text()), sort_keys=True)
    result["explain"] = text("explain", "--list")
    result["formats"] = text("formats")
    return result


def record(args):
    folder, kvtool = pathlib.Path(args.folder), os.path.abspath(args.kvtool)
    folder.mkdir(parents=True, exist_ok=True)
    own = pathlib.Path(tempfile.mkdtemp(prefix="kvtool-same-"))  # a copy, because a build may replace the program
    try:
        program = shutil.copy2(kvtool, own / "kvtool")
        parts = {"help": lambda: record_help(program), "cases": lambda: record_cases(str(program), args.only, args.jobs, args.twice)}
        if args.only == "*":
            parts["archives"] = lambda: record_archives(program, args.jobs)
        for name, make in parts.items():
            (folder / f"{name}.json").write_text(json.dumps(make(), indent=1, sort_keys=True))
    finally:
        shutil.rmtree(own)


# ---- comparison


def differences(before, after, path=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            yield from differences(before[key], after.get(key), f"{path}/{key}" if path else key)
    elif before != after:
        yield path, before, after


def shown(value):
    text = "absent" if value is None else str(value)
    return text if len(text) <= 300 else text[:300] + "..."


def where_texts_part(before, after):
    """Returns the first difference of two long texts, with its surroundings."""
    if not isinstance(before, str) or not isinstance(after, str):
        return shown(before), shown(after)
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    start = max(0, at - 60)
    return shown(before[start:at + 160]), shown(after[start:at + 160])


def compare(args):
    found = compared = 0
    for name in ("archives", "help", "cases"):
        paths = [pathlib.Path(folder, f"{name}.json") for folder in (args.before, args.after)]
        if not all(path.exists() for path in paths):
            print(f"{name}: not compared, one record has none")
            continue
        before, after = [json.loads(path.read_text()) for path in paths]
        if name == "cases":
            before = {case: calls for case, calls in before.items() if case in after}
        compared += sum(len(value) if isinstance(value, dict) else 1 for value in before.values())
        for path, was, now in differences(before, after):
            found += 1
            first, second = where_texts_part(was, now)
            print(f"{name}: {path}\n  before: {first}\n  after:  {second}")
    print(f"{compared} compared, {found} differ")
    return 1 if found or not compared else 0


def main():
    if sys.argv[1:2] == ["through"]:
        del sys.argv[1]
        return call_through()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("kvtool")
    recording.add_argument("folder")
    recording.add_argument("--jobs", type=int, default=os.cpu_count())
    recording.add_argument("--only", default="*", help="cases, as 'gate/*'; archives are recorded only with all")
    recording.add_argument("--twice", action="store_true")
    recording.set_defaults(run=record)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.set_defaults(run=compare)
    args = parser.parse_args()
    return args.run(args) or 0


if __name__ == "__main__":
    sys.exit(main())
