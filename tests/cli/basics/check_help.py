# SPDX-License-Identifier: Apache-2.0
"""The first screen has at most 25 lines and -h of every command and verb at most 40, both at 80 columns. A help's
examples use its own command or verb, and kvtool accepts every example."""
import json
import os
import re
import shlex
import subprocess
import tempfile

KVTOOL = os.environ["KVTOOL"]
MOST_FIRST, MOST_SHORT, COLUMNS = 25, 40, 80


def text_of(*words):
    done = subprocess.run([KVTOOL, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{' '.join(words)}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def check_size(name, text, most):
    lines = text.splitlines()
    if not 5 < len(lines) <= most:
        print(f"{name}: {len(lines)} lines, {most} at most")
    for line in lines:
        if len(line.removesuffix(" \\")) > COLUMNS and len(line.split()) > 1:
            print(f"{name}: {len(line)} columns: {line}")


def examples_in(text):
    body = re.search(r"^Examples:\n((?:  .*\n)+)", text, re.M)
    lines = re.sub(r"\n {4,}", " ", body[1]).splitlines() if body else []
    return [line.strip() for line in lines]


def check_example(where, example):
    call = re.search(r"kvtool .*", example)
    words = shlex.split(re.split(r" \| | > |\)", call[0])[0])[1:] if call else []
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([KVTOOL, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=3, check=False, env={**os.environ, "HOME": folder})
        except subprocess.TimeoutExpired:
            return  # the command accepted the value and runs until it is stopped
    if not words or done.returncode == 2 or "[KV0001]" in done.stderr:
        print(f"{where}: the example does not parse: {example}\n{done.stderr}")


overview = text_of("help", "all")
names = [name.split() for name in re.findall(r"^  ([a-z][a-z0-9-]*(?: [a-z]+)?)  ", overview, re.M)]
older = [[name] for name in re.findall(r"(replay-[a-z0-9]+)\s\(", overview)]
verbs = [line["command"].split() for line in json.loads(text_of("__options")) if " " in line["command"]]
assert len(names) > 25 and len(verbs) > 15 and len(older) == 5, (names, verbs, older)

for words in ([], ["-h"], ["--help"], ["help"]):
    shown = subprocess.run([KVTOOL, *words], capture_output=True, text=True, check=False).stdout
    check_size(" ".join(["kvtool", *words]), shown, MOST_FIRST)
seen = set()
for words in [*names, *older, *verbs]:
    name = " ".join(words)
    short = text_of(*words, "-h")
    check_size(f"{name} -h", short, MOST_SHORT)
    examples = examples_in(short)
    if not 1 <= len(examples) <= 3:
        print(f"{name} -h: {len(examples)} examples")
    if words not in older:
        for example in examples:
            if f"kvtool {name} " not in example + " ":
                print(f"{name} -h: not of this command: {example}")
    long = text_of(*words, "--help")
    if words != ["replay"] and "Exit status:" not in long:
        print(f"{name} --help: no exit status")
    for example in examples_in(long):
        if example not in seen:
            seen.add(example)
            check_example(name, example)
print("examples parse:", len(seen) > 60)
