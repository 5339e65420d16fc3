#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom_test.py BUILD: the SBOM of the program has what SPDX 2.3 requires, and names the libraries that the program has.
Exit 77 where there is no dpkg."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = {
    "document": "spdxVersion dataLicense SPDXID name documentNamespace creationInfo packages relationships",
    "package": "SPDXID name versionInfo downloadLocation licenseConcluded licenseDeclared copyrightText",
    "relationship": "spdxElementId relationshipType relatedSpdxElement",
}


def lacks(kind, element):
    return [key for key in REQUIRED[kind].split() if not element.get(key)]


def main():
    if shutil.which("dpkg-query") is None or shutil.which("ninja") is None:
        print("skipped: no dpkg, or no ninja")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "sbom.json"
        command = [sys.executable, ROOT / "scripts/release/sbom.py", sys.argv[1], "bin/kvtool", "-o", out]
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1000000000"})
        first = out.read_bytes()
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1000000000"})
        assert first == out.read_bytes(), "not the same twice"
        missing = subprocess.run([sys.executable, ROOT / "scripts/release/sbom.py", folder, "bin/kvtool", "-o", out], capture_output=True)
        assert missing.returncode == 2, "a build that is none"
    sbom = json.loads(first)
    faults = lacks("document", sbom)
    ids = {"SPDXRef-DOCUMENT"}
    for package in sbom["packages"]:
        faults += [f"{package['name']}: {key}" for key in lacks("package", package)]
        assert re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", package["SPDXID"]) and package["SPDXID"] not in ids, package
        ids.add(package["SPDXID"])
    for relation in sbom["relationships"]:
        faults += lacks("relationship", relation)
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= ids, relation
    assert not faults, faults
    assert sbom["creationInfo"]["created"] == "2001-09-09T01:46:40Z", sbom["creationInfo"]
    names = {package["name"] for package in sbom["packages"]}
    # Libraries that are loaded, linked as archives, or compiled in.
    wanted = {"kvtool", "glibc", "libzstd", "xxhash", "cli11", "nlohmann-json3"}
    assert wanted <= names, f"not named: {wanted - names}"
    assert not names & {"catch2", "linux"}, names
    unsaid = [package["name"] for package in sbom["packages"] if package["licenseDeclared"] == "NOASSERTION"]
    assert not unsaid, f"without a licence: {unsaid}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
