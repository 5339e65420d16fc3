#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the recipes of CONTRIBUTING.md ("Adding things"): adds a small policy, codec, command and format to a copy of
the tree, each by its recipe and nothing else, builds the copy, and runs what must follow from the rows by itself.
house.py must accept each example, and fail if any one item of it is left out.

  recipes.py [--copy DIR] [--no-build] [policy] [codec] [command] [format]

The examples are recipes/KIND.txt. "@@ FILE" begins an item of a recipe, and "&& FILE" continues it in another place:
the lines below are a new file, are put "before" or "after" the line that begins with the text given, at the "end" of
the table that the text begins, "append"ed to the file, "replace" the text in its line, or are a new file in "hex".
With --copy the copy and its build stay in DIR, and a second run builds only what has changed.
"""
import argparse
import contextlib
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

import house

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("policy", "codec", "command", "format")
STATE, TRACE = "testdata/trace/s260k.seq0.bin", "testdata/trace/s260k"
FLAT = "testdata/fuzz/flatkv/small"
RUN = [STATE, "--trace", TRACE, "--prompt-tokens", "64", "--policy", "stride", "--budget", "0.5"]
KVTOOL, UNIT = "build/release/bin/kvtool", "build/release/bin/unit_tests"
CASE = ["python3", "tests/cli/run.py", KVTOOL]
ARCHIVE = ["build/ramp.kvz", "build/ramp.back"]
# A command for each promise of a recipe, and a text that it must print.
PROMISES = {
    "policy": [([KVTOOL, "replay", "evict", "--help"], "--stride-step"),
               ([KVTOOL, "completion", "bash"], "stride"),
               ([KVTOOL, "schema", "h2o"], "stride_step"),
               ([KVTOOL, "replay", "evict", *RUN, "--stride-step", "3", "--json"], '"stride_step": 3'),
               ([KVTOOL, "advise", *RUN, "--max-error", "90%"], "stride"),
               ([UNIT, "[h2o]"], "All tests passed")],
    "codec": [([UNIT, "[codec]"], "All tests passed"),
              ([UNIT, "the table of codecs is that of the archive's FORMAT.md"], "All tests passed"),
              (["build/release/bin/fuzz_chunk", "testdata/fuzz/chunk"], ""),
              ([KVTOOL, "compress", "build/ramp.bin", "--raw", "f16:2LTHD:2,1,64,2,32", "--level", "max", "-f", "-o", ARCHIVE[0]],
               ""),
              (["python3", "scripts/decoder/decode_kvz.py", ARCHIVE[0], "--list"], "codec 32"),
              (["python3", "scripts/decoder/decode_kvz.py", *ARCHIVE], ""),
              (["cmp", "build/ramp.bin", ARCHIVE[1]], "")],
    "command": [([KVTOOL, "help", "all"], "  sizes "),
                ([KVTOOL, "sizes", "--help"], "Exit status:"),
                ([KVTOOL, "schema", "sizes"], "k_bytes"),
                ([KVTOOL, "completion", "fish"], "sizes"),
                ([KVTOOL, "man", "sizes"], "show how many bytes each layer has"),
                ([*CASE, "tests/cli/sizes/page.sh"], ""),
                ([*CASE, "tests/cli/basics/man.sh"], ""),
                ([*CASE, "tests/cli/basics/documents.sh"], ""),
                (["python3", "scripts/check/flags.py", KVTOOL], "")],
    "format": [([KVTOOL, "formats"], "flatkv"),
               ([KVTOOL, "doctor", FLAT], "flatkv"),
               ([KVTOOL, "inspect", FLAT], "flatkv"),
               ([KVTOOL, "completion", "bash"], "flatkv"),
               ([KVTOOL, "convert", FLAT, "--to", "npz", "-f", "-o", "build/flat.npz"], "npz"),
               ([UNIT, "[flatkv]"], "All tests passed"),
               (["build/release/bin/fuzz_flatkv", "testdata/fuzz/flatkv"], "")]}
TARGETS = {"policy": ["unit_tests"], "codec": ["unit_tests", "fuzz_chunk"], "command": [], "format": ["unit_tests", "fuzz_flatkv"]}


def read_items(kind):
    """Returns the items of a recipe: each a list of (file, action, anchor, text)."""
    text = (pathlib.Path(__file__).with_suffix("") / f"{kind}.txt").read_text()
    items = []
    for head, body in re.findall(r"^((?:@@|&&) .*)\n((?:(?!@@ |&& ).*\n)*)", text, re.M):
        mark, file, action, anchor = [*head.split(" ", 3), *["new", ""][head.count(" ") - 1:]][:4]
        if mark == "@@":
            items.append([])
        items[-1].append((file, action, anchor, body))
    return items


def changed(lines, action, anchor, text):
    """Returns the lines of a file after one step of a recipe."""
    if action == "append":
        return [*lines, text]
    found = [i for i, line in enumerate(lines) if (anchor in line if action in ("end", "replace") else line.startswith(anchor))]
    if not found:
        sys.exit(f"no line has {anchor!r}: mend the example")
    at = found[0]
    if action == "replace":
        return [*lines[:at], lines[at].replace(anchor, text.rstrip("\n"), 1), *lines[at + 1:]]
    if action == "after":
        at += 1
    elif action == "end":
        at = next(i for i in range(at, len(lines)) if lines[i].startswith("}"))
    return [*lines[:at], text, *lines[at:]]


def apply(root, items):
    """Adds the items to a tree; returns {file: lines added} and what to write back: {file: bytes, or None if new}."""
    added, before = {}, {}
    for file, action, anchor, text in (step for item in items for step in item):
        path = root / file
        before.setdefault(file, path.read_bytes() if path.exists() else None)
        path.parent.mkdir(parents=True, exist_ok=True)
        if action == "hex":
            path.write_bytes(bytes.fromhex(text))
        elif action == "new":
            path.write_text(text)
        else:
            path.write_text("".join(changed(path.read_text().splitlines(keepends=True), action, anchor, text)))
        added[file] = added.get(file, 0) + text.count("\n")
    return added, before


def restore(root, before):
    """Undoes `apply`, and removes folders that it made."""
    for file, data in before.items():
        if data is not None:
            (root / file).write_bytes(data)
            continue
        (root / file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (root / file).parent.rmdir()


def copy_tree(root):
    """Makes the tracked files in `root` equal to those of this tree; equal ones keep their time, so that a build stays."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0")[:-1]:
        source, copy = ROOT / name, root / name
        if source.is_symlink() or not source.is_file():
            continue
        data = source.read_bytes()
        if copy.is_file() and copy.read_bytes() == data:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
        copy.chmod(source.stat().st_mode)


def faults(root):
    """Yields what house.py finds, without the search of every file for addresses of registries."""
    for check in house.CHECKS:
        if check is not house.check_registries:
            yield from check(root)


def check_items(root, kind, items):
    """Yields a line for each item that house.py does not miss, and each fault that it finds in the whole example."""
    for left_out in range(-1, len(items)):
        _, before = apply(root, [item for i, item in enumerate(items) if i != left_out])
        fault = next(faults(root), None)
        restore(root, before)
        if left_out < 0 and fault:
            yield f"{kind}: house.py fails with all items: {fault}"
        elif left_out >= 0:
            print(f"  without {items[left_out][0][0]}: {str(fault).replace(f'{root}/', '')}", flush=True)
            if not fault:
                yield f"{kind}: house.py passes without {' '.join(items[left_out][0][:3])}"


def run(root, command):
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout + done.stderr


def build(root, kinds):
    targets = sorted({"kvtool", *(target for kind in kinds for target in TARGETS[kind])})
    for command in (["cmake", "--preset", "release", "-DKVTOOL_REPLAY=ON"], ["cmake", "--build", "build/release", "--target", *targets]):
        status, text = run(root, command)
        if status != 0:
            sys.exit(f"{' '.join(command)}: exit {status}\n{text[-4000:]}")


def check_promises(root, kind):
    if kind == "codec":
        (root / "build/ramp.bin").write_bytes(struct.pack("<8192H", *((8 * i) & 0x3fff for i in range(8192))))
        (root / ARCHIVE[1]).unlink(missing_ok=True)
    for command, needle in PROMISES[kind]:
        status, text = run(root, command)
        if status != 0 or needle not in text:
            yield f"{kind}: {' '.join(command)}: exit {status}, without {needle!r}:\n{text[-1500:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", type=pathlib.Path)
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("kinds", nargs="*", default=KINDS, choices=[*KINDS, KINDS], metavar="KIND")
    args = parser.parse_args()
    wrong = []
    with contextlib.ExitStack() as stack:
        root = (args.copy or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))).resolve()
        if root == ROOT:
            parser.error("--copy: the examples never go into this tree itself")
        recipes = {kind: read_items(kind) for kind in args.kinds}
        copy_tree(root)
        files = {step[0] for kind in KINDS for item in read_items(kind) for step in item}
        restore(root, {file: None for file in files if not (ROOT / file).exists()})  # of a run that was interrupted
        for kind, items in recipes.items():
            added, before = apply(root, items)
            restore(root, before)
            print(f"{kind}:", *(f"\n  {'new' if before[file] is None else '   '} {file} +{lines}" for file, lines in added.items()))
            wrong += check_items(root, kind, items)
        if not args.no_build and not wrong:
            for items in recipes.values():
                stack.callback(restore, root, apply(root, items)[1])
            begin = time.monotonic()
            build(root, recipes)
            print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
            wrong += [line for kind in recipes for line in check_promises(root, kind)]
    print("\n".join(wrong) or f"the recipes of {', '.join(args.kinds)} hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
