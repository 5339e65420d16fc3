# SPDX-License-Identifier: Apache-2.0
"""Runs every command that `kvtool doctor` suggests, as a shell would take it: paste.py KVTOOL FILE...

Of lines that need something which only a user knows, the command must exist. A suggested command may say that something
is wrong with a file only where doctor has said so, too.
"""
import json
import os
import subprocess
import sys


def main(kvtool, files):
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
            if step["needs"] is not None:
                ran = subprocess.run([kvtool, words[1], "-h"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                if not any(word.isupper() for word in words):
                    print(step["command"], "has no word to fill in")
            else:
                ran = subprocess.run(["bash", "-c", f"{step['command']}  # {step['effect']}"], env=env, text=True,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            allowed = {0, 1, 3} if one["exit_code"] == 1 else {0}
            if ran.returncode not in allowed:
                print(f"{step['command']}: exit {ran.returncode}: {ran.stderr.strip()}")
    print("commands:", sum(len(one["next"]) for one in results))


main(os.path.abspath(sys.argv[1]), sys.argv[2:])
