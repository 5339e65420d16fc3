# SPDX-License-Identifier: Apache-2.0
"""Runs a command and checks that its peak of resident memory stays within bounds."""
import resource
import subprocess
import sys

subprocess.run(sys.argv[1:], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(sys.argv[2], "bounded" if peak < 96 + 4 * 2 else f"peak {peak:.0f} MiB")
