#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the recipes in CONTRIBUTING.md ("Adding things") promise: every row of a table has its files, every such
file has its row, and every header says which sources implement it. The other checks find faults that compilers do
not report.

  house.py ROOT
"""
import json
import pathlib
import re
import subprocess
import sys

# Folders in which each source has the name of its header, or is named by a header of the folder.
HEADERS_NAME_SOURCES = ["lib/core/codec", "lib/core/archive", "lib/study/eviction", "lib/engines/mnn/h2o"]
FIRST_OWN_CODEC = 16  # codecs below this number are the engine's; formats/gear/FORMAT.md specifies them
# Formats without a grammar or fuzz target of their own.
NO_GRAMMAR = {"kvz": "lib/core/archive/FORMAT.md"}
# Hosts of package registries and their mirrors, with or without a scheme. Packages come through npm, pip and apt-get,
# as the machine has them configured.
REGISTRY = re.compile(
    rb"(?<![\w.-])(?:[\w-]+\.)*(?:(?:npmjs|npmmirror|yarnpkg|pypi|pythonhosted|anaconda|rubygems|maven|nuget|golang|nodesource)\.(?:org|com|dev)"
    rb"|crates\.io|alpinelinux\.org|pypi\.\w+\.\w+|(?:deb|ftp|security|snapshot|archive|packages|ports|https?|httpredir|mirrors?)(?:\.\w\w)?\."
    rb"(?:debian|ubuntu)\.(?:org|com|net)|pkg\.(?:dev|github\.com)|ghcr\.io|docker\.(?:io|com)|jfrog\.io"
    rb"|[\w.-]+/(?:pypi/simple|api/(?:npm|pypi)|artifactory))\b[\w./@%-]*")
# Kernels that are tested through their only users: snapshot layouts, and every test of SIMD targets.
TESTED_BY_USERS = {"reorder", "targets"}


def check_policies(root):
    folder = root / "lib/study/eviction/policies"
    table, header = (folder.parent / "policy.cc").read_text(), (folder.parent / "policy.h").read_text()
    wanted = set(re.findall(r"\.make = (\w+)", table))
    for factory in sorted(wanted - set(re.findall(r"^std::unique_ptr<Rule> (Make\w+)\(", table, re.M))):
        yield f"lib/study/eviction/policy.cc: does not declare {factory}"
    for source in sorted(folder.glob("*.cc")):
        defined = set(re.findall(r"^std::unique_ptr<Rule> (Make\w+)\(", source.read_text(), re.M))
        for factory in defined - wanted:
            yield f"{source}: no row of policy.cc points to {factory}"
        if not defined:
            yield f"{source}: defines no rule that policy.cc could point to"
        wanted -= defined
    for factory in sorted(wanted):
        yield f"{folder}: no file defines {factory}"
    struct = header[header.index("struct PaperParameters {"):]
    numbers = set(re.findall(r"^  (?:uint64_t|double) (\w+) = ", struct[:struct.index("};")], re.M))
    for number in sorted(numbers ^ set(re.findall(r"&PaperParameters::(\w+)", table))):
        yield f"lib/study/eviction: {number} is not both in PaperParameters and in the table of policy.cc"


def check_codecs(root):
    page = (root / "lib/core/archive/FORMAT.md").read_text()
    page = page[page.index("## Codecs"):page.index("## Trailer")]
    listed = {int(number): (name, text) for number, name, text in re.findall(r"^\| (\d+) \| ([\w-]+) \| (.*) \|$", page, re.M)}
    codecs = root / "lib/core/codec"
    ids = {row: int(number) for row, number in re.findall(r"^  (k\w+) = (\d+),", (codecs / "codec.h").read_text(), re.M)}
    tests = " ".join(path.read_text() for path in (root / "tests").rglob("*_test.cc") if path.name != "wire_values_test.cc")
    rows = {}
    for text in (codecs / "table.cc").read_text().split("{.id = CodecId::")[1:]:
        row = text[:text.index(",")]
        if row not in ids:
            yield f"lib/core/codec/codec.h: {row} has no number"
            continue
        rows[ids[row]] = re.search(r'\.name = "([\w-]+)"', text)[1]
        if ".decode = " not in text or ".needs = {" not in text and ".encode = " not in text:
            yield f"lib/core/codec/table.cc: {row} lacks its encoder or its decoder"
        if ids[row] >= FIRST_OWN_CODEC and not re.search(rf"\b{row}\b", tests):
            yield f"tests/core/codec: no test names {row}"
    for number in sorted(listed.keys() | rows.keys() | set(ids.values())):
        name, text = listed.get(number, ("", ""))
        if rows.get(number) != name:
            yield f"lib/core/codec/table.cc: codec {number} is '{rows.get(number)}', '{name}' in lib/core/archive/FORMAT.md"
        if number < FIRST_OWN_CODEC:
            continue
        link = re.search(r"\(\.\./codec/(\w+)/FORMAT\.md\b", text)
        if not link:
            yield f"lib/core/archive/FORMAT.md: codec {number} has no link to the grammar of its family"
        elif not re.search(rf"^#+ .*\(codec {number}\)$", (codecs / link[1] / "FORMAT.md").read_text(), re.M):
            yield f"{codecs / link[1]}/FORMAT.md: no title says (codec {number})"
    yield from check_decoder(root, rows)


def check_decoder(root, rows):
    text = (root / "scripts/decoder/kvz_decoder/chunks.py").read_text()
    names, numbers = re.search(r"^(RAW, .*) = \(\n    (.*)\)$", text, re.M).groups()
    named = dict(zip(map(int, numbers.split(", ")), names.split(", ")))
    for number in sorted(rows):
        if not re.search(rf"^    {named.get(number, '-')}: ", text, re.M):
            yield f"scripts/decoder/kvz_decoder/chunks.py: does not decode codec {number}"


def check_reader(root, folder, registry):
    if list(folder.glob("*.h")) and not list(folder.glob("*.cc")):
        yield f"{folder}: no source implements the format"
    for header in folder.glob("*.h"):
        space = re.search(r"^namespace kv(?:::(\w+))? \{", header.read_text(), re.M)
        for opener in re.findall(r"^Snapshot (Open\w*)\(Source source, const OpenOptions", header.read_text(), re.M):
            row = re.search(rf"\b{space[1] + '::' if space[1] else ''}{opener}\b", registry)
            if not row or f'#include "{header.relative_to(root)}"' not in registry:
                yield f"{header}: no row of formats/registry.cc points to {opener}, or its include is missing"


def check_formats(root):
    fuzzed = " ".join(path.read_text() for path in (root / "tests/fuzz").glob("*.cc"))
    tests = " ".join(path.read_text() for path in (root / "tests").rglob("*_test.cc"))
    registry = (root / "formats/registry.cc").read_text()
    for header in re.findall(r'^#include "(formats/\w+/\w+\.h)"', registry, re.M):
        if not (root / header).is_file():
            yield f"formats/registry.cc: there is no {header}"
    for folder in sorted(path for path in (root / "formats").iterdir() if path.is_dir()):
        if not (root / NO_GRAMMAR.get(folder.name, f"formats/{folder.name}/FORMAT.md")).is_file():
            yield f"{folder}: no FORMAT.md"
        registered = f'#include "formats/{folder.name}/' in registry
        if registered and f'"formats/{folder.name}/' not in fuzzed and folder.name not in fuzzed:
            yield f"{folder}: no fuzz target reads the format"
        if registered and f'"formats/{folder.name}/' not in tests:
            yield f"{folder}: no test includes the format"
        yield from check_reader(root, folder, registry)
    table = registry[registry.index("kFormats[] = {"):]
    page = (root / "docs/formats.md").read_text()
    for name in re.findall(r'^    \{"([\w-]+)",', table[:table.index("\n};")], re.M):
        if f"`{name}`" not in page:
            yield f"docs/formats.md: does not name {name}"


def check_fuzz_targets(root):
    bounds = (root / "tests/fuzz/bounds.txt").read_text()
    for target in sorted((root / "tests/fuzz").glob("fuzz_*.cc")):
        name = target.stem.removeprefix("fuzz_")
        if not re.search(rf"^{name} \d+ \d+$", bounds, re.M):
            yield f"tests/fuzz/bounds.txt: no line for {name}"
        if not list((root / "testdata/fuzz" / name).glob("*")):
            yield f"testdata/fuzz/{name}: no corpus"


def check_commands(root):
    table = (root / "apps/kvtool/commands.cc").read_text()
    makers = set(re.findall(r"\b(Make\w+)(?:, \"[\w -]+\")?\},", table))
    for maker in sorted(makers):
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", maker.removeprefix("Make")).lower()
        if not any((root / "apps/kvtool/commands").rglob(f"cmd_{name}.cc")):
            yield f"apps/kvtool/commands: no cmd_{name}.cc, but commands.cc lists {maker}"
        if f"std::unique_ptr<Command> {maker}();" not in table:
            yield f"apps/kvtool/commands.cc: does not declare {maker}"
    for source in sorted((root / "apps/kvtool").rglob("cmd_*.cc")):
        maker = "Make" + "".join(word.capitalize() for word in source.stem.removeprefix("cmd_").split("_"))
        if f"std::unique_ptr<Command> {maker}() {{" not in source.read_text():
            yield f"{source}: does not define {maker}"
        if maker not in makers and maker not in "".join(
                other.read_text() for other in (root / "apps/kvtool").rglob("*.cc")
                if other != source and other.name != "commands.cc"):
            yield f"{source}: no table of commands lists {maker}"
    yield from check_uses(root, table)
    yield from check_documents(root)


def check_uses(root, table):
    """Finds commands that no test runs or no page names."""
    tests = " ".join(path.read_text() for path in (root / "tests/cli").rglob("*.sh"))
    pages = " ".join(path.read_text() for path in [root / "README.md", *(root / "docs").glob("*.md")])
    for name, words in re.findall(r'^    \{"([\w-]+)", Shelf::k(?:.(?!\n    \{))*?(?:Make\w+(?:, "([\w ]+)")?)?\},$', table, re.M | re.S):
        if not re.search(rf'(?:KVTOOL"?|good) (?:[-\w]+ )?({name}|{words or name})\b', tests):
            yield f"tests/cli: no case runs kvtool {words or name}"
        if not re.search(rf"(?:kvtool |`)({name}|{words or name})\b", pages):
            yield f"docs: no page names kvtool {words or name}"


def check_documents(root):
    table = (root / "apps/kvtool/documents/document_names.cc").read_text()
    sources = {path: path.read_text() for path in sorted((root / "apps/kvtool").rglob("*.cc"))}
    defined = {fields for text in sources.values() for fields in re.findall(r"^const FieldTable& (\w+Fields)\(\) \{", text, re.M)}
    declared = set(re.findall(r"^const FieldTable& (\w+Fields)\(\);", table, re.M))
    rows = set(re.findall(r"^    \{.*? (\w+Fields),", table, re.M))
    for fields in sorted((defined | declared | rows) - (defined & declared & rows)):
        yield f"apps/kvtool/documents/document_names.cc: {fields} lacks its row, its declaration, or its definition in a command"
    names = set(re.findall(r'^    \{"[\w -]*", "([\w-]+)"', table, re.M))
    for source, text in sources.items():
        for name in re.findall(r'\.Emit\([\w.]+, "([\w -]+)"', text):
            if name not in names:
                yield f"{source}: emits {name}, of which document_names.cc has no row"


def check_members(root):
    """Finds members of a command that hide a member of Command: Command::Files would then guard an empty name."""
    command = (root / "apps/kvtool/command.h").read_text()
    own = re.findall(r"^  [\w:]+ (\w+_);$", command[command.index("protected:"):command.index("struct CommandEntry")], re.M)
    for source in sorted((root / "apps/kvtool/commands").rglob("*.*")):
        for number, line in enumerate(source.read_text().split("\n"), 1):
            for name in own:
                if re.match(rf"  [\w:]+ (\w+, )*{name}[;,]", line):
                    yield f"{source}:{number}: hides {name} of Command"


def check_kernels(root):
    tests = " ".join(path.read_text() for path in (root / "tests").rglob("*_test.cc"))
    for header in sorted((root / "lib/core/kernels").glob("*.h")):
        if header.stem in TESTED_BY_USERS:
            continue
        if header.with_suffix(".cc").is_file() and f'"lib/core/kernels/{header.name}"' not in tests:
            yield f"{header}: no test includes the kernel"


def check_sources(root):
    for top in HEADERS_NAME_SOURCES:
        for source in sorted((root / top).rglob("*.cc")):
            headers = [path.read_text() for path in source.parent.glob("*.h")]
            if source.with_suffix(".h").is_file() or source.parent.name == "policies":
                continue
            if not any(re.search(rf"\b{source.name}\b", text) for text in headers):
                yield f"{source}: implements no header of its name, and no header beside it names it"


def check_thread_locals(root):
    """Finds thread_local objects with a destructor: if memory runs out, the C library cannot register it and ends the
    program."""
    for top in ("lib", "formats", "apps/kvtool"):
        for source in sorted((root / top).rglob("*.cc")) + sorted((root / top).rglob("*.h")):
            for number, line in enumerate(source.read_text().splitlines(), 1):
                if re.match(r"\s*(static |inline )*thread_local (?!.*\* )(?!(bool|int|u?int\d+_t|size_t) )", line):
                    yield f"{source}:{number}: an object of a thread: lease one from a Reuse (lib/core/base/arena.h)"


def check_braced_json(root):
    """Finds `json = {value}`: an array of one for GCC 12, but the value itself for clang."""
    for top in ("lib", "formats", "apps"):
        for source in sorted((root / top).rglob("*.cc")):
            for number, line in enumerate(source.read_text().splitlines(), 1):
                if re.search(r'\["[^"]+"\] = \{(?!")[^{},]*(\([^{}]*\))?\};', line):
                    yield f"{source}:{number}: one JSON value in braces: say json::array({{value}}), or leave the braces out"


def check_presets(root):
    """Checks that users' presets do not turn warnings into errors, because a newer compiler's warning would end their
    build."""
    for preset in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]:
        if preset.get("cacheVariables", {}).get("KVTOOL_WERROR") == "ON" and not preset["name"].startswith("ci"):
            yield f"CMakePresets.json: {preset['name']} sets KVTOOL_WERROR, which belongs to CI's presets (ci*) alone"


def check_registries(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True)
    # an exported tree has no git index, so all its files are read
    files = [root / name for name in listed.stdout.split("\0")[:-1]] or root.rglob("*")
    for path in files:
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        for found in REGISTRY.finditer(data):
            yield (f"{path}:{data.count(10, 0, found.start()) + 1}: {found[0].decode()}: the address of a registry; "
                   "fetch the package with npm, pip or apt-get")


def check_json_readers(root):
    """Finds uses of nlohmann's parser, which has no limits: input from outside goes through lib/core/base/json.h."""
    bounded = {"formats/plan/plan.cc",  # its callback bounds the depth and keeps at most one event
               "formats/safetensors/safetensors.cc",  # builds no tree
               "lib/core/base/json.cc",
               "apps/kvtool/commands/cmd_schema.cc"}  # reads kvtool's own schemas
    for top in ("lib", "formats", "apps"):
        for source in sorted((root / top).rglob("*.cc")):
            if str(source.relative_to(root)) in bounded:
                continue
            for number, line in enumerate(source.read_text().splitlines(), 1):
                if re.search(r"(json|Json|Document)::(parse|sax_parse|accept)\(", line):
                    yield f"{source}:{number}: a JSON parser without limits: say ReadJson or ReadOrderedJson"


def check_named_sources(root):
    """Finds pages and comments that name a source which does not exist."""
    tops = ("apps", "docs", "formats", "lib", "tests")
    there = {path.name for top in tops for path in (root / top).rglob("*.cc")}
    for top in tops:
        for page in sorted((root / top).rglob("*")):
            if page.suffix not in (".md", ".h", ".cc"):
                continue
            for name in re.findall(r"(?<![\w/.*-])[a-z]\w*\.cc\b", page.read_text(errors="ignore")):
                if name not in there:
                    yield f"{page}: there is no {name}"


def check_numbers(root):
    """Finds strtod and similar functions: they depend on the locale of the host program, and accept different texts.
    kvtool-capture-llama, which includes none of our headers, calls from_chars itself; lib/core/base/system.cc
    implements it for standard libraries without it."""
    kin = r"strto(?:d|f|ld|l|ll|ul|ull|imax|umax)|sto(?:d|f|ld|i|l|ll|ul|ull)|ato(?:f|i|ll)|v?[fs]?scanf|setlocale"
    for top in ("lib", "formats", "apps"):
        for source in sorted((root / top).rglob("*.cc")) + sorted((root / top).rglob("*.h")):
            is_own = source.is_relative_to(root / "apps/capture-llama") or source.stem in ("number", "system")
            words = re.compile(rf"\b({kin}{'' if is_own else '|from_chars'})\(")
            for number, line in enumerate(source.read_text().splitlines(), 1):
                if found := words.search(line):
                    yield f"{source}:{number}: {found[1]}: call ParseNumber or TakeNumber (lib/core/base/number.h)"


CHECKS = [check_policies, check_codecs, check_formats, check_fuzz_targets, check_commands, check_members, check_kernels,
          check_sources, check_thread_locals, check_braced_json, check_presets, check_json_readers, check_named_sources,
          check_numbers, check_registries]


def main():
    root = pathlib.Path(sys.argv[1])
    wrong = [line for check in CHECKS for line in check(root)]
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print("every table has its files, and every file its row")


if __name__ == "__main__":
    main()
