#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every place has the version of CMakeLists.txt, and that CHANGELOG.md has the form of Keep a Changelog
1.1.

Usage: version.py            the checks
       version.py --notes    the changelog's section of this version, for the page of a release
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def find(pattern, name):
    return re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M)[1]


def sections(text):
    """Returns {version: (date or None, {kind: body})}, newest first."""
    result = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, body = part.split("\n", 1)
        match = re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\](?: - (\d{4}-\d\d-\d\d))?", title)
        if not match:
            raise SystemExit(f"CHANGELOG.md: '## {title}' is neither [Unreleased] nor [X.Y.Z] - YYYY-MM-DD")
        kinds = re.split(r"^### (.*)\n", body, flags=re.M)
        result[match[1]] = (match[2], dict(zip(kinds[1::2], kinds[2::2])), kinds[1::2], kinds[0], body)
    return result


def changelog_faults(version, text):
    found = sections(text)
    releases = [name for name in found if name != "Unreleased"]
    if "https://keepachangelog.com" not in text.split("\n## ")[0]:
        yield "no link to keepachangelog.com at the top"
    if list(found)[0] != "Unreleased":
        yield "[Unreleased] is not the first section"
    numbers = [tuple(map(int, name.split("."))) for name in releases]
    if numbers != sorted(numbers, reverse=True):
        yield "releases are not newest first"
    if numbers and numbers[0] > tuple(map(int, version.split("."))):
        yield f"{releases[0]} is newer than the version of this tree, {version}"
    for name, (date, bodies, kinds, before, _) in found.items():
        if name != "Unreleased" and date is None:
            yield f"[{name}] has no date"
        if before.strip():
            yield f"[{name}]: lines before the first kind of change"
        for kind in kinds:
            if kind not in KINDS or kinds.count(kind) > 1:
                yield f"[{name}]: '### {kind}' is unknown, or there twice"
        for kind, body in bodies.items():
            for line in body.splitlines():
                if line and not line.startswith(("- ", "  ")):
                    yield f"[{name}] {kind}: neither an entry nor its next line: {line}"


def main():
    version = find(r"^project\(kvtool VERSION ([0-9.]+)", "CMakeLists.txt")
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if "--notes" in sys.argv:
        if version not in sections(text):
            raise SystemExit(f"CHANGELOG.md has no section [{version}]")
        print(sections(text)[version][4].strip())
        return 0
    said = {
        ".github/actions/gate/action.yml": find(r'default: "([0-9.]+)"', ".github/actions/gate/action.yml"),
        "vcpkg.json": find(r'"version": "([^"]*)"', "vcpkg.json"),
        "lib/api/kvtool.h": ".".join(find(rf"^#define KVT_VERSION_{part} (\d+)$", "lib/api/kvtool.h")
                                      for part in ("MAJOR", "MINOR", "PATCH")),
    }
    tag = subprocess.run(["git", "-C", str(ROOT), "describe", "--tags", "--exact-match", "--match", "v[0-9]*"],
                         capture_output=True, text=True).stdout.strip()
    if tag:
        said[f"the tag {tag}"] = tag[1:]
    faults = [f"{place} says {other}, CMakeLists.txt {version}" for place, other in said.items() if other != version]
    faults += [f"CHANGELOG.md: {fault}" for fault in changelog_faults(version, text)]
    if tag and version not in sections(text):
        faults.append(f"CHANGELOG.md: no section [{version}], and this commit has the tag {tag}")
    print("\n".join(faults) or f"version {version}, in all places")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
