# SPDX-License-Identifier: Apache-2.0
"""Checks what commands and their help show on terminals of 60, 80 and 120 columns: only a single word may exceed the
width, and no word is broken. In a pipe nothing is wrapped."""
import os
import re
import subprocess

import terminal
from cases import CALLS, PRODUCTS

KVTOOL = os.environ["KVTOOL"]


def words(text):
    """The characters of a text, without its line breaks."""
    return re.sub(r"\s+", "", text)


def too_wide(text, columns):
    for line in text.split("\n"):
        if line.endswith(" \\"):  # the line ends in a backslash, which stays with the word before it
            line = line[:-2] + "--"
        if len(line) > columns and len(line.split()) > 1 and max(map(len, line.split())) + len(line) - len(line.lstrip()) <= columns:
            yield line


def check(command, columns):
    status, text = terminal.run([KVTOOL, *command, "--no-color", "--no-progress"], columns)
    name = " ".join(command[:2])
    if "\x1b" in text or not text.strip():
        print(f"{name}, {columns} columns: shows {text[:80]!r}")
    for line in too_wide(text, columns):
        print(f"{name}, {columns} columns: {len(line)} wide: {line}")
    return status, text


for call in CALLS:
    for columns in (60, 80, 120):
        status, text = check(call, columns)
        if status not in (0, 1):
            print(" ".join(call), status, text)
names = subprocess.run([KVTOOL, "help", "all"], check=True, capture_output=True, text=True).stdout
commands = re.findall(r"^  ([a-z][a-z0-9-]*(?: [a-z]+)?)  ", names, re.M)
called = {" ".join(call[: 2 if call[0] == "replay" else 1]) for call in CALLS + PRODUCTS}
assert len(commands) > 20 and called | {"replay"} == set(commands), called ^ set(commands)
for command in commands:
    piped = subprocess.run([KVTOOL, *command.split(), "--help"], check=True, capture_output=True, text=True).stdout
    for columns in (60, 120):
        _, text = check([*command.split(), "--help"], columns)
        # A terminal changes line breaks, but no words.
        if words(text) != words(piped):
            print(f"{command} --help says other things on {columns} columns")
for call in PRODUCTS:
    piped = subprocess.run([KVTOOL, *call], check=True, capture_output=True, text=True).stdout
    status, text = terminal.run([KVTOOL, *call], 60)
    if text != piped:
        print(f"{' '.join(call)}: a terminal changes it")
# A narrow terminal turns tables into paragraphs; a wide table in a pipe stays as it is.
piped = subprocess.run([KVTOOL, *CALLS[3]], check=True, capture_output=True, text=True).stdout
print("a pipe is as wide as it needs to be:", max(map(len, piped.split("\n"))) > 80)
