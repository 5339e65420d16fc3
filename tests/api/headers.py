#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the headers as programs include them, one at a time, without warnings; and the programs that the documents
show.

  headers.py ROOT LIBRARY CC CXX      LIBRARY is libkvtool.so, which the programs of docs/library.md are linked with

C99, C11 and C++20 with CC and CXX, and with clang where it is installed. The program in docs/library.md and the
example at the top of kvtool.h compile as they are printed; the page's program also runs.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wshadow", "-Wconversion"]
C = ["-Wstrict-prototypes", "-Wc++-compat"]
# The unit uses a macro, a constant and a struct, so that the header's contents are compiled and not
# only parsed.
C_UNIT = """#include "{header}"
#include "{header}"
static unsigned char room[KVT_ENCODE_BOUND(64)];
typedef char bound_is_a_constant[sizeof room == 64 + KVT_FRAME_HEADER_BYTES ? 1 : -1];
typedef char overflow_is_zero[KVT_ENCODE_BOUND(SIZE_MAX) == 0 && KVT_ENCODE_BOUND(SIZE_MAX - 127) == 0 ? 1 : -1];
typedef char most_is_whole[KVT_ENCODE_BOUND(SIZE_MAX - 128) == SIZE_MAX ? 1 : -1];
#if KVT_VERSION != KVT_VERSION_MAJOR * 10000 + KVT_VERSION_MINOR * 100 + KVT_VERSION_PATCH
#error the version
#endif
bound_is_a_constant used;
overflow_is_zero also_used;
most_is_whole used_too;
kvt_status use(kvt_ctx* ctx, size_t* n);
kvt_status use(kvt_ctx* ctx, size_t* n) {{ return kvt_encode(ctx, NULL, NULL, 0, room, sizeof room, n); }}
"""
CXX_UNIT = """#include "{header}"
#include "{header}"
int use() {{ return KVT_E_CONTEXT_DIFFERS; }}
"""


def compile_unit(compiler, flags, text, suffix, include, folder):
    source = folder / f"unit{suffix}"
    source.write_text(text)
    done = subprocess.run([compiler, *flags, *STRICT, f"-I{include}", "-c", source, "-o", folder / "unit.o"],
                          capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"{compiler} {' '.join(flags)}: {done.stderr}"]


def example(header):
    """The example in the header's first comment, as a function."""
    comment = re.search(r" \* Example:.*?(?= \* These rules)", header.read_text(), re.S)[0]
    lines = [line[3:] for line in comment.splitlines() if line.startswith(" *   ")]
    return "\n".join(re.sub(r"//.*", "", line) for line in lines)


def main():
    root, library, cc, cxx = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    include, wrong, count = root / "lib/api", [], 0
    compilers = [(cc, cxx)] + ([("clang", "clang++")] if shutil.which("clang") and shutil.which("clang++") else [])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for of_c, of_cxx in compilers:
            for header in ("kvtool.h", "kvtool_study.h"):
                for standard in ("-std=c99", "-std=c11"):
                    wrong += compile_unit(of_c, [standard, *C], C_UNIT.format(header=header), ".c", include, folder)
                    count += 1
                for flags in (["-std=c++20"], ["-std=c++11"]):
                    wrong += compile_unit(of_cxx, flags, CXX_UNIT.format(header=header), ".cc", include, folder)
                    count += 1
            for header in ("kvtool.hpp", "kvtool_study.hpp"):
                wrong += compile_unit(of_cxx, ["-std=c++20"], CXX_UNIT.format(header=header), ".cc", include, folder)
                count += 1
        shown = """#include <string.h>
#include "kvtool.h"
enum { PAGE = 16 * 8 * 128 * 2 };
void put(void*, const char*, const void*, size_t);
void compute(void*);
void example(const char* key, void* page, void* frame, void* store);
void example(const char* key, void* page, void* frame, void* store) {
""" + example(include / "kvtool.h") + "\n}\n"
        wrong += compile_unit(cc, ["-std=c11", "-Wno-implicit-fallthrough"], shown, ".c", include, folder)
        # The page's program, built with only what the page names: the header and the library.
        page = (root / "docs/library.md").read_text()
        programs = [block for block in re.findall(r"^```c\n(.*?)^```$", page, re.S | re.M) if "int main(" in block]
        if len(programs) != 1:
            wrong.append(f"docs/library.md has {len(programs)} programs")
        if programs[:1] != [(root / "docs/examples/page_store.c").read_text().split("\n", 1)[1]]:
            wrong.append("the program of docs/library.md is not docs/examples/page_store.c")
        for text in programs:
            source, program = folder / "program.c", folder / "program"
            source.write_text(text)
            built = subprocess.run([cc, "-std=c11", *STRICT, f"-I{include}", source, "-o", program, f"-L{library.parent}",
                                    "-lkvtool", f"-Wl,-rpath,{library.parent}"], capture_output=True, text=True, check=False)
            ran = subprocess.run([program], capture_output=True, text=True, check=False) if built.returncode == 0 else built
            if ran.returncode != 0:
                wrong.append(f"the program of docs/library.md: {ran.stdout}{ran.stderr}")
            elif ran.stdout not in page:
                wrong.append(f"docs/library.md does not show what its program prints: {ran.stdout}")
    print("\n".join(wrong) if wrong else f"{count} units of {len(compilers)} pairs of compilers, and the documents' programs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
