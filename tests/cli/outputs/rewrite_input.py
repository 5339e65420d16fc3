# SPDX-License-Identifier: Apache-2.0
"""Overwrites a.bin while a command reads it: rewrite_input.py ROUND COMMAND..., to which -o is added."""
import os
import subprocess
import sys

# With a coarse file system clock a short run may not notice the change.
TRIES = 20
size = os.path.getsize("a.bin")
for _ in range(TRIES):
    with open("a.bin", "r+b") as file:
        run = subprocess.Popen([*sys.argv[2:], "-o", "changed"], stderr=subprocess.PIPE, text=True)
        while run.poll() is None:
            for at in range(0, size, 65536):
                file.seek(at)
                file.write(os.urandom(512))
            file.flush()
        said = run.stderr.read()
    if run.returncode != 0:
        break
    os.remove("changed")
assert run.returncode == 4, (run.returncode, said)
assert "changed while it was read [KV0102]" in said, said
assert not os.path.exists("changed")
