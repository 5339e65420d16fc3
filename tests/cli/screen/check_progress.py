# SPDX-License-Identifier: Apache-2.0
"""Checks the progress line: it fits the terminal, shows whole seconds and MiB/s, and Ctrl-C clears
it."""
import os
import re

import terminal

COMMAND = [os.environ["KVTOOL"], "compress", "big.bin", "--raw", "f16:2LTHD:2,2,?,8,64", "--level", "max", "-o", "big.kvz", "-T", "1"]
for columns in (30, 100):
    status, text = terminal.run(COMMAND, columns, interrupt_at=b"big.bin: ")
    drawn = [line for line in re.split(r"[\r\n]", text.replace("\x1b[K", "")) if line]
    print(columns, status, bool(drawn), max(map(len, drawn)) < columns, text.endswith("\r\x1b[K"))
    if columns == 100:
        print(all(re.fullmatch(r"big.bin: [0-9.]+ [KM]?i?B of 24.00 MiB \([0-9]+%\), ([0-9]+ h )?([0-9]+ min )?([0-9]+ s )?left, "
                               r"[0-9.]+ MiB/s", line) for line in drawn) or drawn)
print([name for name in os.listdir(".") if "kvz" in name])
