# SPDX-License-Identifier: Apache-2.0
"""Runs a program on a pseudo-terminal of the given width, and returns what it showed."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

END = b"\0end of what was shown\0"


def run(command, columns, interrupt_at=None, limit=180, **environment):
    """Returns (exit status, text). Sends SIGINT once `interrupt_at` has been shown."""
    shown_to, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = dict(os.environ, TERM="xterm", **environment)
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=env)
    shown, end, is_marked = b"", time.monotonic() + limit, False
    # Keeps the terminal open: after its last close, the kernel may drop unread output.
    while not shown.endswith(END):
        if time.monotonic() > end:
            running.kill()
            raise SystemExit(f"{command}: not done after {limit} seconds; it showed {shown!r}")
        has_ended = running.poll() is not None
        if select.select([shown_to], [], [], 0.02)[0]:
            shown += os.read(shown_to, 65536)
        elif has_ended and not is_marked:
            is_marked = os.write(terminal, END) > 0
        if interrupt_at is not None and interrupt_at in shown:
            running.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(shown_to)
    os.close(terminal)
    return running.wait(), shown.removesuffix(END).decode(errors="replace").replace("\r\n", "\n")
