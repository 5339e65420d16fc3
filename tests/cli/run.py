#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one command-line test: CASE.sh with optional siblings that hold the expected results.

  CASE.exit    the exit status (default 0)
  CASE.stdout  expected standard output, a glob per line: '*' matches within a line, a line '...' any
               number of lines (missing: nothing may be printed)
  CASE.stderr  the same for standard error

A case that cannot run on this machine prints the reason and exits with 77, which ctest counts as skipped.

The script runs under `bash -eu` in an empty folder with $KVTOOL (the program), $TESTDATA, $SHARED_SUITE
(the folder of the case), $SCRIPTS, $PYTHON (which finds the modules of tests/cli/python) and $VALIDATE
(checks JSON on stdin against its schema). `run.py --update KVTOOL CASE.sh` rewrites the expectations that
no longer hold, with '*' for the paths of this machine.
"""
import fnmatch
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

# Less than ctest's own limit, which would end this script but not the processes that it started.
LIMIT_SECONDS = 240
SKIPPED = "77"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def matches(lines, patterns):
    """Returns True if the lines fit the patterns; '...' matches any number of lines."""
    if not patterns:
        return not lines
    if patterns[0] == "...":
        return any(matches(lines[i:], patterns[1:]) for i in range(len(lines) + 1))
    return bool(lines) and fnmatch.fnmatchcase(lines[0], patterns[0].replace("[", "[[]")) and matches(
        lines[1:], patterns[1:])


def run_limited(command, folder, env):
    """Returns exit status and output. At the limit every process of the case is ended, not only the
    shell."""
    running = subprocess.Popen(command, cwd=folder, env=env, text=True, errors="replace", start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        stdout, stderr = running.communicate(timeout=LIMIT_SECONDS)
        code = str(running.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        stdout, stderr = running.communicate()
        code = f"none: not done after {LIMIT_SECONDS} seconds"
    return {"exit": code, "stdout": stdout, "stderr": stderr}


def expectation(kind, path):
    """Returns the expectation in the file beside a case, or the default if there is none."""
    if path.exists():
        return path.read_text()
    return "0" if kind == "exit" else ""


def holds(kind, got, expected):
    if kind == "exit":
        return got == expected.strip()
    return matches(got.splitlines(), expected.splitlines())


def rewrite(kind, got, path, places):
    """Writes the output as the new expectation; paths of this machine become '*'."""
    if got == ("0" if kind == "exit" else ""):
        path.unlink(missing_ok=True)
        return
    for place in sorted(places, key=len, reverse=True):
        got = got.replace(place, "*")
    path.write_text(got if got.endswith("\n") else got + "\n")


def environment(kvtool, case):
    """Environment variables for the script of a case."""
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVTOOL_")}
    return dict(env, KVTOOL=os.path.abspath(kvtool), TESTDATA=str(ROOT / "testdata"), PYTHON=python,
                PYTHONPATH=str(ROOT / "tests/cli/python"), SCRIPTS=str(ROOT / "scripts"),
                VALIDATE=f"{python} {ROOT / 'tests/cli/validate.py'}", SHARED_SUITE=str(case.parent), NO_COLOR="1",
                LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", PATH=f"{ROOT / 'tests/cli/bin'}:{os.environ['PATH']}")


def main():
    update = sys.argv[1] == "--update"
    kvtool, case = sys.argv[-2:]
    case = pathlib.Path(case).resolve()
    env = environment(kvtool, case)
    with tempfile.TemporaryDirectory(prefix="kvtool-cli-") as folder:
        status = run_limited(["bash", "-euo", "pipefail", str(case)], folder, env)
    if status["exit"] == SKIPPED:
        print(status["stdout"] or f"{case}: exits with {SKIPPED} and does not say why")
        return int(SKIPPED) if status["stdout"] else 1
    broken = [kind for kind, got in status.items() if not holds(kind, got, expectation(kind, case.with_suffix("." + kind)))]
    for kind in broken:
        path = case.with_suffix("." + kind)
        if update:
            rewrite(kind, status[kind], path, [folder, str(ROOT), os.path.realpath(folder), env["KVTOOL"], env["PYTHON"]])
        else:
            print(f"--- {kind} differs from {path.name}; got:\n{status[kind]}")
    if broken and not update:
        for kind, got in status.items():
            print(f"--- {kind}:\n{got}")
    return 1 if broken and not update else 0


if __name__ == "__main__":
    sys.exit(main())
