"""Counts how often a command opens files in a folder, and lists folders: count_opens.py FOLDER
COMMAND..."""
import ctypes
import os
import struct
import subprocess
import sys

IN_OPEN, IN_ISDIR = 0x20, 0x40000000
HEAD = struct.Struct("iIII")

libc = ctypes.CDLL(None)
descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
for path, _, _ in os.walk(sys.argv[1]):
    if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_OPEN) < 0:
        sys.exit("this system gives no more watches")
subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
opens = lists = 0
while True:
    try:
        events = os.read(descriptor, 1 << 20)
    except BlockingIOError:
        break
    at = 0
    while at < len(events):
        _, mask, _, length = HEAD.unpack_from(events, at)
        opens += 1
        lists += mask & IN_ISDIR != 0
        at += HEAD.size + length
print(opens, lists)
