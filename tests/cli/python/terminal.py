# SPDX-License-Identifier: Apache-2.0
"""Runs a program with a pseudo-terminal as its output, as wide as asked, and returns what it showed."""
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time


def run(command, columns, interrupt_at=None, limit=180, **environment):
    """(exit status, text). SIGINT is sent when `interrupt_at` has been shown."""
    shown_to, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = dict(os.environ, TERM="xterm", **environment)
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    shown, end = b"", time.monotonic() + limit
    while True:
        if time.monotonic() > end:
            running.kill()
            raise SystemExit(f"{command}: not done after {limit} seconds; it showed {shown!r}")
        try:
            part = os.read(shown_to, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        shown += part
        if interrupt_at is not None and interrupt_at in shown:
            running.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(shown_to)
    return running.wait(), shown.decode(errors="replace").replace("\r\n", "\n")
