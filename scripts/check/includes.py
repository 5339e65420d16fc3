#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the direction of includes: apps -> engines -> study -> core and apps -> formats -> core. The Python module
binds the program's commands and kvtool.h, and includes neither studies nor engines. The capture program is
separate: it is built with llama.cpp's headers and libraries and nothing else.

Also checks that only apps/ prints, that third-party headers appear only where CONTRIBUTING.md allows them, and that a
source implements the header of its own name, or a header of its folder names it ("#pragma once  // implemented by
X.cc").
Usage: includes.py [ROOT]; exit 1 with one line per violation.
"""
import pathlib
import re
import sys

# folder -> project folders (prefixes) that it may include; the first match from the top counts
ALLOWED = [
    ("lib/core/base/", ["lib/core/base/"]),
    ("lib/core/kernels/", ["lib/core/kernels/", "lib/core/base/"]),
    ("lib/core/codec/", ["lib/core/codec/", "lib/core/kernels/", "lib/core/base/"]),
    ("lib/core/snapshot/", ["lib/core/snapshot/", "lib/core/kernels/", "lib/core/base/"]),
    ("lib/core/weights/", ["lib/core/weights/", "lib/core/snapshot/", "lib/core/base/"]),
    ("lib/core/transform/", ["lib/core/transform/", "lib/core/codec/transformed/", "lib/core/snapshot/", "lib/core/base/"]),
    ("lib/core/frame/", ["lib/core/frame/", "lib/core/codec/", "lib/core/base/"]),
    ("lib/core/archive/", ["lib/core/"]),
    ("lib/store/", ["lib/store/", "lib/core/"]),
    ("lib/report/", ["lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/corpus/", ["lib/corpus/", "lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/fields/", ["lib/fields/", "lib/core/base/"]),
    ("lib/remote/", ["lib/remote/", "lib/core/base/"]),
    ("lib/api/study/", ["lib/api/", "lib/engines/mnn/h2o/", "lib/study/", "lib/core/"]),
    ("lib/api/", ["lib/api/", "formats/", "lib/core/", "kvtool.h"]),
    ("lib/study/dense/", ["lib/study/dense/", "lib/core/kernels/", "lib/core/base/"]),
    ("lib/study/", ["lib/study/", "lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/engines/mnn/", ["lib/engines/mnn/", "lib/study/", "lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/engines/llamacpp/", ["lib/engines/llamacpp/", "lib/study/", "lib/core/"]),
    ("lib/engines/infinilm/", ["lib/engines/infinilm/", "lib/study/", "lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/engines/cacheblend/", ["lib/engines/cacheblend/", "lib/study/", "lib/report/", "lib/fields/", "lib/core/"]),
    ("lib/engines/dynamo/", ["lib/engines/dynamo/", "lib/study/transform/", "lib/core/"]),
    ("lib/engines/sglang/", ["lib/engines/sglang/", "lib/study/transform/", "lib/core/"]),
    ("formats/", ["formats/", "lib/core/"]),
    ("apps/kvtool/", ["apps/kvtool/", "formats/", "lib/", "version.h"]),
    ("apps/capture-llama/", ["apps/capture-llama/", "llama.h", "ggml.h", "ggml-backend.h"]),
    ("apps/python/", ["apps/python/", "apps/kvtool/", "formats/", "lib/api/kvtool.h", "lib/core/"]),
]
# third-party header -> folders (or files) that may include it
THIRD_PARTY = {
    "xxhash.h": ["lib/core/base/hash.cc", "apps/capture-llama/capture.cc"],
    "llama.h": ["apps/capture-llama/"],
    "ggml": ["apps/capture-llama/"],
    "hwy/": ["lib/core/kernels/", "lib/study/dense/"],
    "cblas.h": ["lib/study/dense/"],
    "zlib.h": ["formats/zip/"],
    "curl/": ["lib/remote/"],
    "sqlite3.h": ["lib/store/database.cc", "lib/store/index_files.cc", "apps/kvtool/commands/cmd_targets.cc"],
    "zstd": ["lib/core/codec/", "lib/engines/mnn/offline/", "lib/api/library.cc", "apps/kvtool/commands/cmd_targets.cc"],
    "nlohmann/": ["lib/core/base/json.", "lib/fields/value.", "lib/corpus/", "lib/report/", "lib/study/", "lib/engines/", "formats/", "apps/"],
    "nanobind/": ["apps/python/src/"],
    "CLI/": ["apps/kvtool/line/command_line.cc", "apps/kvtool/line/parse_errors.cc"],
}
# Folders in which every source must belong to a header.
PAIRED = ("formats", "lib/core/base", "lib/core/snapshot", "lib/core/transform", "lib/core/weights")
PRINTS = re.compile(r"std::c(out|err)\b|\bfmt::print\(|(?<![fsn])printf\(|\bputs\(")


def unpaired(root):
    """Returns one line per source that no header claims, and per claim of a source that does not exist."""
    wrong = []
    for folder in {path.parent for top in PAIRED for path in (root / top).rglob("*.h")}:
        claims = set()
        for header in folder.glob("*.h"):
            said = re.search(r"^#pragma once  // implemented by (.*)$", header.read_text(), re.M)
            named = re.findall(r"\w+\.cc", said[1]) if said else []
            claims |= set(named or [header.stem + ".cc"])
            wrong += [f"{header.relative_to(root)}: there is no {name}" for name in named if not (folder / name).exists()]
        wrong += [f"{path.relative_to(root)}: no header says that it implements it" for path in folder.glob("*.cc")
                  if path.name not in claims]
    return sorted(wrong)


def faults(name, text):
    """Yields one line per violation of a source."""
    allowed = next(rule for prefix, rule in ALLOWED if name.startswith(prefix))
    for line, include in re.findall(r'^(#include "([^"]+)")', text, re.M):
        if not include.startswith(("hwy/", *allowed)):
            yield f"{name}: {line} points the wrong way"
    for include in re.findall(r"^#include [<\"]([^>\"]+)[>\"]", text, re.M):
        for header, places in THIRD_PARTY.items():
            if include.startswith(header) and not name.startswith(tuple(places)):
                yield f"{name}: <{include}> belongs in {', '.join(places)}"
    if not name.startswith("apps/") and name != "lib/core/base/error.cc" and PRINTS.search(text):
        yield f"{name}: the library computes, the program talks"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    sources = [path for top in ("apps", "formats", "lib") for path in sorted((root / top).rglob("*"))
               if path.suffix in (".h", ".cc")]
    wrong = [fault for path in sources for fault in faults(path.relative_to(root).as_posix(), path.read_text())]
    wrong += unpaired(root)
    print("\n".join(wrong) if wrong else "all includes point the right way")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
