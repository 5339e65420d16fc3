# SPDX-License-Identifier: Apache-2.0
"""Pastes the commands that doctor suggests on a terminal of 60 columns, as a block: narrow.py KVTOOL
FILE."""
import os
import subprocess
import sys

import terminal

kvtool, file = os.path.abspath(sys.argv[1]), sys.argv[2]
_, text = terminal.run([kvtool, "doctor", file], 60)
lines = text.replace("\r", "").split("\n")
first = next(i for i, line in enumerate(lines) if line.startswith("  next"))
block = [line[11:] for line in lines[first:]]
# The script gets a number for the placeholder N.
script = "set -e\n" + "\n".join(block).replace("--kv-heads N", "--kv-heads 4")
env = dict(os.environ, PATH=f"{os.path.dirname(kvtool)}:{os.environ['PATH']}")
done = subprocess.run(["bash", "-c", script], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
print("exit", done.returncode, done.stderr if done.returncode else "")
print("lines that go on:", sum(line.endswith("\\") for line in block))
