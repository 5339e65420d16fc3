# SPDX-License-Identifier: Apache-2.0
"""Checks that -qq prints nothing, -q only errors, and that -v and -vv add output on every command; the exit status is
the same."""
import os
import subprocess

from cases import CALLS, PRODUCTS

KVTOOL = os.environ["KVTOOL"]


def run(call, *flags):
    done = subprocess.run([KVTOOL, *call, *flags], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


for call in CALLS + PRODUCTS:
    name = " ".join(call[:2])
    status, out, err = run(call)
    seen = run(call, "-qq")
    if seen != (status, "", ""):
        print(f"{name} -qq: {seen}, exit {status} without")
    quiet = run(call, "-q")
    if quiet != (status, out if call in PRODUCTS else "", ""):
        print(f"{name} -q: {quiet}")
    more, all_of_it = run(call, "-v"), run(call, "-vv")
    if not (len(err) < len(more[2]) < len(all_of_it[2]) and more[0] == all_of_it[0] == status):
        print(f"{name}: -v {more}, -vv {all_of_it}")
    if " took " not in more[2] or "--verbose (command line)" not in all_of_it[2]:
        print(f"{name}: neither time nor settings: {all_of_it[2]}")
# A failure prints a message unless it is suppressed, and its status stays.
print([(status, out, bool(err)) for status, out, err in (run(["inspect", "absent"], *q) for q in ([], ["-q"], ["-qq"]))])
# A requested document is printed with -q, but not with -qq.
print([bool(run(["targets", "--json"], q)[1]) for q in ("-q", "-qq")])
os.environ["KVTOOL_THREADS"] = "3"
print("--threads 3 (from KVTOOL_THREADS)" in run(["targets"], "-vv")[2])
