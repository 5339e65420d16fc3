#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the mechanical rules of plain English in C++. A comment is a sentence that names its subject: no block begins
with Of, What, Whether, By or How, nor with a clause of Where or As that has no main clause. A function is a verb: its
name does not end in "Of".

  english.py [--root DIR]      exit 1 if there are more such comments or names than MOST allows, which only goes down
"""
import argparse
import pathlib
import re
import sys

MOST = {"comments": 0, "names": 0}
USUAL_NAMES = {"BytesOf", "IndexOf", "OffsetOf", "OneOf", "ParentOf", "ProfileOf", "RequireOneOf"}
COMMENT = re.compile(r"\s*//+!?<? ?(.*)")
NOUN_CLAUSE = re.compile(r"(Of|What|Whether|By|How)\b|(Where|As)\b[^,.;]*[.:;]")


def find_comments(lines):
    """Yields the number and the text of each comment block that begins with a noun clause."""
    block = None
    for number, line in enumerate([*lines, ""], 1):
        comment = COMMENT.match(line)
        if comment:
            block = (block[0], f"{block[1]} {comment[1]}") if block else (number, comment[1])
            continue
        if block and NOUN_CLAUSE.match(block[1]):
            yield block
        block = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    comments, names = [], {}
    for top in ("lib", "formats", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".hpp", ".cc"):
                continue
            text, file = path.read_text(), path.relative_to(root).as_posix()
            comments += [f"{file}:{number}: {block[:80]}" for number, block in find_comments(text.splitlines())]
            for name in re.findall(r"\b[A-Z]\w*Of(?=\()", text):
                if name not in USUAL_NAMES:
                    names.setdefault(name, f"{file}: {name}")
    failed = False
    for kind, found in (("comments", comments), ("names", sorted(names.values()))):
        print(f"{len(found)} {kind}, at most {MOST[kind]} are allowed")
        if len(found) > MOST[kind]:
            print("\n".join(found))
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
