#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the names and texts of all commands' flags, and that docs/flags.md agrees with them.

Usage: flags.py KVTOOL            the checks
       flags.py KVTOOL --update rewrites the tables of docs/flags.md
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "flags.md"
MARK = "<!-- Written by scripts/check/flags.py --update from what the commands declare. -->\n"

# Texts that refer to something else instead of saying what the flag does.
EMPTY_TEXTS = ["as in the original", "same as", "the same for", "as in convert", "see the original"]
VALUES = {"", "TEXT", "INT", "NUMBER", "FILE", "FOLDER", "RANGES", "SIZE"}
# Current name of each option that had several names. A command that shows another of the names fails this check.
ONE_NAME = {
    "--rope-base": ["--rope-theta", "--theta"],
    "--rope-dims": ["--rope-dim", "--rotary-dim"],
    "--input-dtype": ["--as"],
    "--sample-bytes": ["--most"],
    "--sample-rows": ["--rows", "--quality-rows"],
    "--slow-peers": ["--slow"],
    "--chunks-joined": ["--old"],
    "--jsonl-out": ["--jsonl"],
    "--level": ["--levels"],
    "--policy": ["--policies"],
    "--budget": ["--budgets"],
    "--streaming-sink": ["--sinks", "--streaming-sinks"],
    "--compression-factor": ["--factor"],
    "--min-groups": [],
    "--image-tokens": ["--image-len"],
    "--suffix-tokens": ["--suffix-len"],
    "--chunk-tokens": ["--chunk-lens"],
    "--group-tokens": ["--lossless-block-tokens"],
    "--force": ["--overwrite", "--yes"],
    "--output": ["--out"],
}
# Options that write a file; their command must have -f.
WRITES = re.compile(r"^--(output|output-dir|[a-z-]+-out)$")


def all_options(document):
    for line in document:
        for option in line["options"]:
            yield line["command"], option


def has_force(document, command):
    return any("--force" in option["names"] for line in document if line["command"] == command for option in line["options"])


def option_faults(document):
    for command, option in all_options(document):
        names, where = option["names"], f"{command} {option['names'][-1]}"
        text = option["text"].lower()
        if not text:
            yield f"{where}: no text"
        for phrase in EMPTY_TEXTS:
            if phrase in text:
                yield f"{where}: '{phrase}' says nothing to who does not know the other"
        if option["value"] not in VALUES:
            yield f"{where}: value {option['value']} is none of {sorted(VALUES)}"
        for name, others in ONE_NAME.items():
            for other in set(others) & set(names):
                yield f"{where}: {other} is called {name} everywhere"
        if len([name for name in names if name.startswith("--")]) > 1:
            yield f"{where}: two names are shown for one thing: {', '.join(names)}"
        if set(names) & set(option["aliases"]):
            yield f"{where}: an alias is shown"
        for name in names:
            if WRITES.match(name) and not has_force(document, command):
                yield f"{where}: it writes a file, and the command has no -f to overwrite one"


def kind_faults(document):
    """Checks that a flag takes the same kind of value everywhere."""
    kinds = {}
    for command, option in all_options(document):
        if option["names"][-1].startswith("--"):
            kinds.setdefault(option["names"][-1], {}).setdefault(bool(option["value"]), []).append(command)
    for name, commands in kinds.items():
        if len(commands) > 1:
            yield f"{name}: a flag for {commands[False]}, with a value for {commands[True]}"


def replay_faults(document):
    """Checks that --NAME of replay-h2o is --h2o-NAME where the lossless runtime has its own flags."""
    shown = {command: {name for c, option in all_options(document) if c == command for name in option["names"]}
             for command in ("replay-h2o", "replay-lossless")}
    for name in shown["replay-lossless"]:
        own = {"--h2o-enable"}
        if name.startswith("--h2o-") and name not in own and name.replace("--h2o-", "--", 1) not in shown["replay-h2o"]:
            yield f"replay-lossless {name}: replay-h2o has no {name.replace('--h2o-', '--', 1)}"


def explanation_faults(kvtool):
    """Checks that every finding says what happened, why it matters and what to do, and shows an example."""
    listed = subprocess.run([kvtool, "explain"], check=True, capture_output=True, text=True).stdout
    numbers = re.findall(r"^(KV\d{4})", listed, re.M)
    if len(numbers) < 40:
        yield f"explain lists {len(numbers)} findings"
    for number in numbers:
        text = subprocess.run([kvtool, "explain", number], check=True, capture_output=True, text=True).stdout
        for heading in ("What happened", "Why it matters", "What to do", "Example"):
            body = re.search(rf"^{heading}:?\n((?:  .*\n)+)", text, re.M)
            if not body or len(body[1].strip()) < 12:
                yield f"explain {number}: '{heading}' is missing"


def hidden_faults(kvtool, document):
    """Checks that older names are in no help, manual page or completion."""
    shells = "".join(subprocess.run([kvtool, "completion", shell], check=True, capture_output=True, text=True).stdout
                     for shell in ("bash", "zsh", "fish"))
    for command in sorted({command.split()[0] for command, _ in all_options(document)}):
        help_text = subprocess.run([kvtool, command, "--help"], check=True, capture_output=True, text=True).stdout
        page = subprocess.run([kvtool, "man", command], check=True, capture_output=True, text=True).stdout
        for name, option in all_options(document):
            if name.split()[0] != command:
                continue
            shown = {n for c, o in all_options(document) if c.split()[0] == command for n in o["names"]}
            for alias in set(option["aliases"]) - shown:
                word = re.compile(re.escape(alias) + r"(?![a-z-])")
                if word.search(help_text) or word.search(page.replace("\\-", "-")):
                    yield f"{command}: the older name {alias} is in its help or manual page"
    everywhere = {n for _, option in all_options(document) for n in option["names"]}
    for _, option in all_options(document):
        for alias in set(option["aliases"]) - everywhere:
            if re.search(re.escape(alias) + r"(?![a-z-])", shells):
                yield f"completion: offers the older name {alias}"


def faults(kvtool, document):
    yield from option_faults(document)
    yield from kind_faults(document)
    yield from replay_faults(document)
    yield from explanation_faults(kvtool)
    yield from hidden_faults(kvtool, document)


def tables(document):
    rows = {}
    for command, option in all_options(document):
        for alias in option["aliases"]:
            rows.setdefault((option["names"][-1], alias), []).append(command)
    text = MARK + "\n| name | older names | commands |\n|---|---|---|\n"
    older = {}
    for (name, alias), commands in sorted(rows.items()):
        older.setdefault((name, tuple(commands)), []).append(alias)
    for (name, commands), aliases in sorted(older.items()):
        where = "all that read snapshots" if len(commands) > 6 else ", ".join(f"`{c}`" for c in commands)
        text += f"| `{name}` | {', '.join(f'`{a}`' for a in aliases)} | {where} |\n"
    return text


def main():
    kvtool = sys.argv[1]
    document = json.loads(subprocess.run([kvtool, "__options"], check=True, capture_output=True, text=True).stdout)
    page = PAGE.read_text(encoding="utf-8")
    wanted = page.split(MARK)[0] + tables(document)
    if "--update" in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    found = list(faults(kvtool, document))
    if page != wanted:
        found.append(f"docs/flags.md is not what the commands declare: {sys.argv[0]} KVTOOL --update writes it")
    print("\n".join(found) or f"{len(list(all_options(document)))} options of {len(document)} command lines keep the rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
