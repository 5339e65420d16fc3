# SPDX-License-Identifier: Apache-2.0
"""Overwrites a.bin while it is compressed: rewrite_input.py KVTOOL ROUND."""
import os
import subprocess
import sys
import time

kvtool, round = sys.argv[1], int(sys.argv[2])
size = os.path.getsize("a.bin")
with open("a.bin", "r+b") as file:
    run = subprocess.Popen([kvtool, "compress", "-T1", "--level", "max", "-q", "--raw", "f16:2LTHD:2,2,?,8,64", "a.bin", "-o", "changed.kvz"],
                           stderr=subprocess.PIPE, text=True)
    while run.poll() is None:
        for at in range(0, size, 65536):
            file.seek(at)
            file.write(os.urandom(512))
        file.flush()
    said = run.stderr.read()
assert run.returncode == 4, (run.returncode, said)
assert "changed while it was read [KV0102]" in said, said
assert not os.path.exists("changed.kvz")
