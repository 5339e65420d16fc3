#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks commit messages: a subject of at most 72 characters that begins with a capital letter and ends without a full
stop, and a body that says why.

  commits.py [BASE]      checks BASE..HEAD; by default BASE is origin/main or else the last tag, and if HEAD has no
                         commits beyond them, the last 50 commits are checked

Merges and commits before RULE_SINCE are not checked. Exit 1 for a bad message, 77 where there is no git history.
"""
import pathlib
import re
import subprocess
import sys

RULE_SINCE = "2026-11-29T21:00:00+00:00"  # older commits were written before the rule
MOST_SUBJECT = 72
MOST_COMMITS = 50


def git(*arguments):
    root = pathlib.Path(__file__).resolve().parents[2]
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)


def default_range():
    for find in (("rev-parse", "--verify", "--quiet", "origin/main"), ("describe", "--tags", "--abbrev=0")):
        base = git(*find).stdout.strip()
        if base and git("rev-list", "-1", f"{base}..HEAD").stdout:
            return [f"{base}..HEAD"]
    return [f"-{MOST_COMMITS}", "HEAD"]


def faults(subject, body):
    if len(subject) > MOST_SUBJECT:
        yield f"its subject has {len(subject)} characters, at most {MOST_SUBJECT} are allowed"
    if not re.match(r"[A-Z]", subject):
        yield "its subject does not begin with a capital letter"
    if subject.endswith("."):
        yield "its subject ends with a full stop"
    if not body.strip():
        yield "it has no body that says why"


def main():
    head = git("rev-parse", "--verify", "HEAD")
    if head.returncode != 0:
        print(f"skipped: {head.stderr.strip()}")
        return 77
    chosen = [f"{sys.argv[1]}..HEAD"] if len(sys.argv) > 1 else default_range()
    log = git("log", "--no-merges", f"--since={RULE_SINCE}", "--format=%h%x1f%s%x1f%b%x1e", *chosen)
    if log.returncode != 0:
        sys.exit(log.stderr.strip())
    commits = [entry.strip("\n").split("\x1f") for entry in log.stdout.split("\x1e")[:-1]]
    wrong = [f"{commit} '{subject}': {fault}" for commit, subject, body in commits for fault in faults(subject, body)]
    print("\n".join(wrong) if wrong else f"{len(commits)} commit messages are well formed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
