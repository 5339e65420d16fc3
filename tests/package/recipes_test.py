#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the recipes of packages name only values that scripts/release/package.sh fills in and files of the
static tarball."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "scripts/release/packaging"
FILLED = {"version", "url", "sha256", "homepage"}


def main():
    script = (ROOT / "scripts/release/package.sh").read_text()
    installed = (ROOT / "scripts/cmake/Install.cmake").read_text()
    assert FILLED == set(re.findall(r"s\|@(\w+)@\|", script[script.index("recipes() {"):script.index("checksums() {")]))
    for name in ("kvtool.rb.in", "recipe.yaml.in"):
        text = (PACKAGING / name).read_text()
        assert set(re.findall(r"@(\w+)@", text)) == FILLED, name
        used = set(re.findall(r"(?:bin|share)/[\w./*]+", text.replace("$PREFIX/", "$PREFIX-")))
        wanted = {"bin/kvtool", "share/man/man1/*.1"} | {f"share/completions/kvtool.{shell}" for shell in ("bash", "zsh", "fish")}
        assert wanted <= used, f"{name} lacks {wanted - used}"
        # These are made from the tarball, and package.sh provides the files that they name.
        for place in ('"$out/$name/bin/kvtool"', '"$out/$name/share/man/man1/"', '"$out/$name/share/completions/"'):
            assert place in script, place
    docker = (PACKAGING / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", docker, re.M)
    assert steps[0] == ("FROM", "scratch"), steps[0]
    for _, words in (step for step in steps if step[0] == "COPY"):
        for source in words.split()[:-1]:
            assert source == "bin/kvtool" or f"$name/{source}" in script or source in installed, source
    assert re.fullmatch(r"\d+:\d+", dict(steps)["USER"]), "an image without /etc/passwd knows no names"
    return 0


if __name__ == "__main__":
    sys.exit(main())
