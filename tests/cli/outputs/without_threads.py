# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a user who may not start a second process or thread."""
import os
import resource
import sys

os.chdir("/")
os.setgid(54321)
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.execv(sys.argv[1], sys.argv[1:])
