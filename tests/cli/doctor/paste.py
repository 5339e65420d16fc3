# SPDX-License-Identifier: Apache-2.0
"""Runs every command that `kvtool doctor` suggests, as a shell would take it: paste.py [--fill "WORD=TEXT ..."] KVTOOL FILE...

In lines with a placeholder that only the user can fill in, the command must exist; --fill gives values with which
they run, too. A suggested command may report a fault of a file only if doctor reported it, too.
"""
import json
import os
import re
import subprocess
import sys


def fill(command, known):
    """Replaces words in capitals by what a user would put there; None if one of them is unknown."""
    for word, text in known.items():
        command = re.sub(rf"\b{word}\b", text, command)
    return None if re.search(r" [A-Z]+( |$)", command) else command


def main(kvtool, files, known):
    env = dict(os.environ, PATH=f"{os.path.dirname(kvtool)}:{os.environ['PATH']}")
    done = subprocess.run([kvtool, "doctor", "--json", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    results = json.loads(done.stdout)["results"]
    if [one["inputs"][0]["file"] for one in results] != files:
        print("not every input has a result")
    for one in results:
        if not one["next"]:
            print(one["inputs"][0]["file"], "has no next command")
        for step in one["next"]:
            words = step["command"].split()
            command = step["command"] if step["needs"] is None else fill(step["command"], known) if known else None
            if known and command is None:
                print(step["command"], "needs a word that is not known here")
            if command is None:
                ran = subprocess.run([kvtool, words[1], "-h"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                if not any(word.isupper() for word in words):
                    print(step["command"], "has no word to fill in")
            else:
                ran = subprocess.run(["bash", "-c", f"{command}  # {step['effect']}"], env=env, text=True,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            allowed = {0, 1, 3} if one["exit_code"] == 1 else {0}
            if ran.returncode not in allowed:
                print(f"{step['command']}: exit {ran.returncode}: {ran.stderr.strip()}")
    print("commands:", sum(len(one["next"]) for one in results))


arguments = sys.argv[1:]
filled = {}
if arguments[0] == "--fill":
    filled = dict(pair.split("=") for pair in arguments[1].split())
    arguments = arguments[2:]
main(os.path.abspath(arguments[0]), arguments[1:], filled)
