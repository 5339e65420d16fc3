#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Marks the comments of kvtool.h and kvtool.hpp for doxygen, because marks in the headers would make them harder to
read.

filter.py HEADER: the header with marked comments, to standard output
"""
import pathlib
import re
import sys


def mark(text, header):
    # The first comment describes the file; a line of dashes begins a section.
    if header.suffix == ".h":
        text = re.sub(r"\A/\*.*?\n \*\n", f"/** @file {header.name}\n *\n", text, flags=re.S)
        text = re.sub(r"^( *)/\* (?!----)", r"\1/** ", text, flags=re.M)
        text = re.sub(r"([;,] +)/\* ", r"\1/**< ", text)
        ends = iter([""])
        text = re.sub(r"^/\* ---- (.*) ---- \*/$",
                      lambda found: next(ends, "/** @} */\n") + f"/** @name {found[1][0].upper()}{found[1][1:]}\n * @{{ */",
                      text, flags=re.M)
        return text.replace("\n#ifdef __cplusplus\n}", "\n/** @} */\n#ifdef __cplusplus\n}")
    text = re.sub(r"\A(//.*\n)+", lambda found: f"/// @file {header.name}\n" + found[0].replace("//", "///"), text)
    text = re.sub(r"^( *)// ", r"\1/// ", text, flags=re.M)
    return re.sub(r"([;,}] +)// ", r"\1///< ", text)


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    sys.stdout.write(mark(path.read_text(), path))
