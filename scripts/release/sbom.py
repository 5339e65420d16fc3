#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the components of a program as an SPDX 2.3 document: the Debian packages whose libraries it loads or
contains.

Usage: sbom.py BUILD PROGRAM -o FILE
  BUILD     the build folder (Ninja) that PROGRAM was linked in: its link line names the archives, its dependency log
            the headers
  PROGRAM   a target of BUILD, such as bin/kvtool

Loaded libraries are read from the program itself. dpkg maps files to packages, and BUILD/generated/copyright maps
packages to licences; a library that is missing there ends the run. Libraries that scripts/release/package.sh compiled
from Debian's sources are named in PREFIX/sources.txt.
"""
import argparse
import datetime
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]

def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def link_line(build, program):
    """Returns the words of the command that linked the program."""
    commands = output_of("ninja", "-C", str(build), "-t", "commands", "-s", program)
    return shlex.split(commands.splitlines()[-1]) if commands else []


def linked_archives(build, program):
    """Returns archives from outside the tree, and those that the compiler adds to a static program."""
    words = link_line(build, program)
    paths = {pathlib.Path(word) for word in words if word.endswith(".a") and word.startswith("/")}
    if {"-static", "-static-pie"} & set(words):
        for name in ("libstdc++.a", "libgcc.a", "libgcc_eh.a", "libc.a", "libm.a"):
            paths.add(pathlib.Path(output_of("c++", f"-print-file-name={name}").strip()))
    elif "-static-libstdc++" in words:
        paths.add(pathlib.Path(output_of("c++", "-print-file-name=libstdc++.a").strip()))
    return {path.resolve() for path in paths}


def loaded_libraries(binary):
    found = re.findall(r"=> (/\S+) \(0x", output_of("ldd", str(binary)))
    return {pathlib.Path(path).resolve() for path in found}


def headers(build):
    """Returns headers from outside that were compiled in, which are the only trace of header-only libraries. Headers
    of tests are not in the program, and the kernel's describe an interface."""
    names, ours = set(), False
    for line in output_of("ninja", "-C", str(build), "-t", "deps").splitlines():
        if not line.startswith(" "):
            # CMake 3.31 also records what linkers read: archives, including those of tests.
            ours = line.partition(":")[0].endswith((".o", ".gch")) and not line.startswith("tests/")
        elif ours and line.strip().startswith("/"):
            names.add(line.strip())
    outside = {pathlib.Path(name).resolve() for name in names if not name.startswith(f"{ROOT}/")}
    return {path for path in outside if not {"linux", "asm", "asm-generic"} & set(path.parts)}


def packages_of(paths):
    """Returns {package: (version, source, source version)} of the files that dpkg knows, and the files that it does
    not know."""
    owners, unknown = set(), []
    # /lib and /usr/lib are the same, and the database may name either.
    asked = {str(path): path for path in paths} | {str(path).removeprefix("/usr"): path for path in paths}
    known = set()
    for line in output_of("dpkg-query", "-S", *sorted(asked)).splitlines() if asked else []:
        names, _, path = line.partition(": /")
        if "/" + path in asked and not names.startswith("diversion by"):
            owners.update(names.split(", "))
            known.add(asked["/" + path])
    unknown = sorted(set(paths) - known)
    found = {}
    for line in output_of("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${source:Package}\t${source:Version}\n",
                          *sorted(owners)).splitlines() if owners else []:
        package, version, source, source_version = line.split("\t")
        found[package] = (version, source, source_version)
    return found, unknown


def licences(build):
    """Returns {pattern of Debian sources: SPDX expression} from the list that the program prints and packages install."""
    found = {}
    for paragraph in re.split(r"\n\s*\n", (build / "generated/copyright").read_text(encoding="utf-8")):
        source = re.match(r"Files: (\S+)/\*$", paragraph, re.M)
        if source:
            said = re.search(r"^Comment: .*, SPDX ([^,]+),", paragraph, re.M) or re.search(r"^License: (.*)$", paragraph, re.M)
            found[source[1]] = said[1]
    return found


def declared_licence(source, listed):
    for pattern, licence in listed.items():
        if fnmatch.fnmatch(source, pattern):
            return licence
    raise SystemExit(f"sbom.py: scripts/release/packaging/copyright.in has no paragraph of {source}")


def purl(source, version):
    return f"pkg:deb/debian/{source}@{urllib.parse.quote(version, safe='.~')}?arch=source"


def entry(name, version, licence, locator):
    element = {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}"), "name": name, "versionInfo": version,
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence, "copyrightText": "NOASSERTION",
    }
    if locator:
        element["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}]
    return element


def document(build, program):
    binary = build / program
    listed_licences = licences(build)
    version = re.search(r"^project\(kvtool VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()
    own = entry(binary.name, version, "Apache-2.0", None)
    own["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
    packages, relations = [own], [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"])]
    seen = {}
    for kind, paths in (("STATIC_LINK", linked_archives(build, program)), ("DYNAMIC_LINK", loaded_libraries(binary)),
                        ("STATIC_LINK", headers(build))):
        found, unknown = packages_of(paths)
        for package, (number, source, source_version) in sorted(found.items()):
            # A library's packages of headers, archives and shared objects count as one source.
            if (source, kind) in seen or (kind == "STATIC_LINK" and (source, "DYNAMIC_LINK") in seen):
                continue
            seen[source, kind] = True
            part = entry(source, source_version, declared_licence(source, listed_licences), purl(source, source_version))
            part["comment"] = f"through the package {package} {number}"
            if part["SPDXID"] not in {other["SPDXID"] for other in packages}:
                packages.append(part)
            relations.append((own["SPDXID"], kind, part["SPDXID"]))
        for path in unknown:
            listed = next((folder / "sources.txt" for folder in path.parents if (folder / "sources.txt").exists()), None)
            for line in listed.read_text().splitlines() if listed else []:
                source, number = line.split()
                if (source, kind) not in seen:
                    seen[source, kind] = True
                    packages.append(entry(source, number, declared_licence(source, listed_licences), purl(source, number)))
                    relations.append((own["SPDXID"], kind, packages[-1]["SPDXID"]))
            if not listed:
                raise SystemExit(f"sbom.py: no package has {path}, and no sources.txt names it")
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now().timestamp()),
                                           datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"kvtool-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/kvtool-{version}-{digest[:32]}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": [f"Tool: kvtool-sbom.py-{version}"]},
        "packages": packages,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("program")
    parser.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if not (arguments.build / arguments.program).is_file():
        parser.error(f"{arguments.build / arguments.program} is not there")
    content = document(arguments.build.resolve(), arguments.program)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{arguments.out}: {len(content['packages']) - 1} parts of {arguments.program}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
