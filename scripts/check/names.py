#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds code that compares the name of a policy, a codec, a format or an engine instead of asking a row of its table
for a property, and lists of such names. A new row would not be in them.

  check/names.py [--root ROOT]

Exit 1 for such a comparison or list, and for a line of OTHER_WORDS that is no longer needed.
"""
import argparse
import collections
import pathlib
import re
import sys

# Words of options and files that equal the name of a row but do not mean the row.
OTHER_WORDS = {
    "apps/kvtool/commands/replay/cmd_replay_blend.cc": "lmcache",
    "apps/kvtool/commands/replay/cmd_replay_quant.cc": "ref",
    "formats/tensors/tensor_snapshot.cc": "rotated",
    "formats/trace/trace_tensors.cc": "window",
    "lib/engines/cacheblend/cache_pair.cc": "rotated",
    "lib/engines/mnn/logs/analyzer.cc": "full",
    "lib/engines/mnn/logs/logs.cc": "full",
}
ENGINES = ("MNN", "llama.cpp", "vLLM", "SGLang", "LMCache", "MLX", "transformers", "InfiniLM")
LEAST_LISTED = 3  # so many names of one table in another file count as a second list
KEYS = {"blocks", "layers", "raw", "ref", "rotated", "rows", "split"}  # names of codecs that are also keys of documents
COMPARED = re.compile(r'[=!]= ?"([^"\\]+)"|"([^"\\]+)" [=!]= ')


def read_names(root):
    """Returns every name in the tables, with the file or folder that may compare it because it owns it."""
    names = {engine: "" for engine in ENGINES}
    policies = root / "lib/study/eviction/policy.cc"
    codecs = root / "lib/core/codec/table.cc"
    for table in (policies, codecs):
        for name in re.findall(r'\.name = "([^"]+)"', table.read_text()):
            names[name] = table.relative_to(root).parent.as_posix() + "/"
    for name in re.findall(r'^    \{"([\w-]+)",', (root / "formats/registry.cc").read_text(), re.M):
        names[name] = "formats/" + name.split("-")[0]
    return names


def find_lists(text, file, names):
    """Yields a line for each table of which a file outside of its folder has several names."""
    listed = collections.defaultdict(set)
    for name in set(re.findall(r'"([^"\n]+)"', text)) - KEYS:
        if names.get(name):
            listed["formats/" if names[name].startswith("formats/") else names[name]].add(name)
    for owner, found in listed.items():
        if len(found) >= LEAST_LISTED and not file.startswith(owner):
            yield f"{file}: lists {', '.join(sorted(found))}: loop over their table"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=".", type=pathlib.Path)
    root = parser.parse_args().root.resolve()
    names = read_names(root)
    found = collections.defaultdict(list)
    wrong = []
    for top in ("lib", "formats", "apps/kvtool", "apps/python/src"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            file = path.relative_to(root).as_posix()
            text = path.read_text()
            wrong += find_lists(text, file, names)
            for number, line in enumerate(text.split("\n"), 1):
                for match in COMPARED.finditer(line.split("//")[0]):
                    name = match[1] or match[2]
                    if name in names and not (names[name] and file.startswith(names[name])):
                        found[file, name].append(number)
    listed = {(file, name) for file, listed in OTHER_WORDS.items() for name in listed.split()}
    wrong += [f"{file}:{lines[0]}: compares {name}: make what it asks a property of the row"
             for (file, name), lines in found.items() if (file, name) not in listed]
    wrong += [f"{file}: compares {name} no more: take it off the list" for file, name in sorted(listed) if (file, name) not in found]
    print("\n".join(wrong) if wrong else f"none of {len(names)} names is compared, and no table is listed again")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
