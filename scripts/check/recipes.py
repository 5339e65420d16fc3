#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the recipes of CONTRIBUTING.md ("Adding things"): adds a small policy, codec, command and format to a copy of
the tree, each by its recipe and nothing else. house.py must accept each example, and fail if any one item of it is left
out. Prints the files that each recipe touches, with the lines added.

  recipes.py [--whole] [policy] [codec] [command] [format]     --whole: leaves no item out, which takes a few seconds

The examples are recipes/KIND.txt. "@@ FILE" begins an item of a recipe, and "&& FILE" continues it in another place:
the lines below are a new file, are put "before" or "after" the line that begins with the text given, at the "end" of
the table that the text begins, "append"ed to the file, "replace" the text in its line, or are a new file in "hex".
"""
import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

import house

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("policy", "codec", "command", "format")


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
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0")[:-1]:
        source, copy = ROOT / name, root / name
        if source.is_file() and not source.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())


def faults(root):
    """Yields what house.py finds, without the search of every file for addresses of registries."""
    for check in house.CHECKS:
        if check is not house.check_registries:
            yield from check(root)


def check_items(root, kind, items, whole):
    """Yields a line for each item that house.py does not miss, and each fault that it finds in the whole example."""
    for left_out in range(-1, 0 if whole else len(items)):
        _, before = apply(root, [item for i, item in enumerate(items) if i != left_out])
        fault = next(faults(root), None)
        restore(root, before)
        if left_out < 0 and fault:
            yield f"{kind}: house.py fails with all items: {fault}"
        elif left_out >= 0:
            print(f"  without {items[left_out][0][0]}: {str(fault).replace(f'{root}/', '')}", flush=True)
            if not fault:
                yield f"{kind}: house.py passes without {' '.join(items[left_out][0][:3])}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS, choices=[*KINDS, KINDS], metavar="KIND")
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    kinds, wrong = args.kinds, []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        copy_tree(root)
        for kind in kinds:
            items = read_items(kind)
            added, before = apply(root, items)
            restore(root, before)
            print(f"{kind}:", *(f"\n  {'new' if before[file] is None else '   '} {file} +{lines}" for file, lines in added.items()))
            wrong += check_items(root, kind, items, args.whole)
    proved = "accepts" if args.whole else "misses nothing of"
    print("\n".join(wrong) or f"house.py {proved} the recipes of {', '.join(kinds)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
