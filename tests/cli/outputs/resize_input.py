# SPDX-License-Identifier: Apache-2.0
"""Shortens and lengthens a.bin while it is compressed: resize_input.py KVTOOL."""
import os
import subprocess
import sys

def is_writing(run):  # true if the output is open: unnamed, or under a temporary name next to the input
    folder = f"/proc/{run.pid}/fd"
    try:
        opened = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
        return any("(deleted)" in name or name.startswith(os.path.realpath(".") + "/.") for name in opened)
    except FileNotFoundError:
        return False
for change in (lambda: os.truncate("a.bin", 100), lambda: os.truncate("a.bin", 8 << 20)):
    open("a.bin", "wb").write(os.urandom(4 << 20))
    run = subprocess.Popen([sys.argv[1], "compress", "-T1", "--level", "max", "-q", "--raw", "f16:2LTHD:2,2,?,8,64", "a.bin", "-o", "changed.kvz"],
                           stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not is_writing(run):
        pass
    change()
    said = run.stderr.read()
    assert run.wait() == 4, (run.returncode, said)
    assert "changed" in said and said.count("\n") == 1, said
assert not os.path.exists("changed.kvz")
