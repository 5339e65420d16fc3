#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every `$ command` in the console blocks of README.md and docs/**/*.md and compares its output with the output
shown.

Usage: readme.py KVTOOL [--update] [PAGE...] The blocks of a page share one scratch folder, which scripts/examples.sh
fills. Measured times and rates (12.3 MB/s, 4.5 ms) and the program's version may differ, `...` stands for any text
within a line and a line `...` for any lines; everything else must match exactly. --update writes the real output
where the page shows none or a different one.

For calls of kvtool in other blocks and within sentences, which are not run, the command and its options must exist.
README.md or docs/cli.md must name every command.
"""
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEASURED = [
    (re.compile(r"\d+(\.\d+)? (MB/s|MiB/s|ms|us|ns|s)\b"), "# \\2"),
    (re.compile(r"kvtool \d\S* \([0-9a-f]+\), SIMD \w+"), "kvtool VERSION"),
]


def masked(text):
    for pattern, mask in MEASURED:
        text = pattern.sub(mask, text)
    return "".join(line.rstrip() + "\n" for line in text.strip().splitlines())


def agree(printed, shown):
    """Returns True if the text shown, with its `...`, matches the output."""
    pattern = ""
    for line in masked(shown).splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += r".*".join(re.escape(part) for part in line.split("...")) + r"\n"
    return re.fullmatch(pattern, masked(printed)) is not None


def run(command, folder, kvtool):
    env = dict(os.environ, PATH=f"{os.path.dirname(kvtool)}:{os.environ['PATH']}", NO_COLOR="1", LC_ALL="C.UTF-8")
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.stdout


def check(page, kvtool, update):
    """Returns the number of commands that ran, and the faults."""
    name = page.relative_to(ROOT)
    lines, out, wrong, count = page.read_text().splitlines(), [], [], 0
    with tempfile.TemporaryDirectory(prefix="kvtool-page-") as folder:
        folder = os.path.join(folder, "examples")
        subprocess.run([ROOT / "scripts/examples.sh", folder], check=True)
        inside, i = False, 0
        while i < len(lines):
            line = lines[i]
            i += 1
            out.append(line)
            if line.startswith("```"):
                inside = line == "```console"
                continue
            if not inside or not line.startswith("$ "):
                continue
            shown = []
            while i < len(lines) and not lines[i].startswith(("```", "$ ")):
                shown.append(lines[i])
                i += 1
            printed = run(line[2:], folder, kvtool)
            count += 1
            same = agree(printed, "\n".join(shown))
            if same or not update:
                out += shown
            else:
                out += printed.rstrip().splitlines() + ([""] if lines[i].startswith("$ ") else [])
            if not same and not update:
                wrong.append(f"{name} shows something else than `{line[2:]}` prints:\n{printed}")
    if update:
        page.write_text("\n".join(out) + "\n")
    return count, wrong


@functools.cache
def help_of(kvtool, *command):
    done = subprocess.run([kvtool, *command, "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def check_calls(page, kvtool):
    """Yields the calls of kvtool on the page whose command or options do not exist."""
    text = page.read_text(encoding="utf-8")
    calls = []
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        calls += re.findall(r"^(?:\$ )?kvtool (.*?)(?:  +#.*)?$", block.replace("\\\n", " "), re.M)
    calls += re.findall(r"`kvtool ([^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    for call in calls:
        # Takes the words up to the next command, without quoted text.
        words = re.split(r" (?:&&|\|\|?|;|>) ", re.sub(r"'[^']*'", "X", " ".join(call.split())) + " ; ")[0].split()
        if not words or not re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
            continue
        command, known = words[0], help_of(kvtool, words[0])
        if known:
            known += help_of(kvtool, "help", "batch")
        if len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
            known += help_of(kvtool, *words[:2])
        if not known:
            yield f"{page.relative_to(ROOT)}: `kvtool {call}`: there is no command {command}"
        for option in (word.split("=")[0].rstrip(",.;") for word in words if re.match(r"--\w", word)):
            if known and not re.search(re.escape(option) + r"(?![\w-])", known):
                yield f"{page.relative_to(ROOT)}: `kvtool {call}`: {command} has no option {option}"


def unnamed_commands(kvtool):
    listed = re.findall(r"^  ([a-z][a-z0-9-]*(?: [a-z]+)?)  ", subprocess.check_output([kvtool, "help", "all"], text=True), re.M)
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert listed
    return [f"neither README.md nor docs/cli.md names {name}" for name in listed
            if not re.search(rf"`(kvtool )?{name}\b(?!-)", text)]


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    kvtool, update = os.path.abspath(arguments[0]), "--update" in sys.argv
    if "zstd 1.5.4" not in subprocess.check_output([kvtool, "targets"], text=True):
        print("skipped: sizes in the documents are those of zstd 1.5.4")
        return 0
    pages = [pathlib.Path(a).resolve() for a in arguments[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda page: check(page, kvtool, update), pages))
    wrong = [message for _, messages in results for message in messages]
    wrong += [message for page in pages for message in check_calls(page, kvtool)]
    wrong += unnamed_commands(kvtool)
    count = sum(number for number, _ in results)
    print("\n".join(wrong + [f"{count} commands on {sum(n > 0 for n, _ in results)} of {len(pages)} pages ran"]))
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
