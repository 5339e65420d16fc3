# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The program: `python -m kvtool`, or the script `kvtool`."""

from __future__ import annotations

import os
import sys

from . import _kvtool


def main() -> int:
    """Run the command line as the program does and return its exit status."""
    return _kvtool._main([os.fsencode(word) for word in ["kvtool", *sys.argv[1:]]])


if __name__ == "__main__":
    sys.exit(main())
