# SPDX-License-Identifier: Apache-2.0
"""What kvtool raises. Wrong types are TypeError, wrong words and shapes ValueError, as everywhere in Python."""

from __future__ import annotations

import os

FAULTS = ("none", "caller", "data", "io", "unsupported", "internal", "stopped")


class Error(ValueError):
    """A call failed, and kvtool says of what: ``explain(error.finding)`` is the whole page.

    finding: the number, 1103 of KV1103. fault: whose it is, "data" for bytes that were read, "caller", "io",
    "unsupported", "internal" or "stopped". offset: where in the input, or None. file: which, or None. hint: what to
    do, or "".
    """

    finding: int = 0
    fault: str = "none"
    offset: int | None = None
    hint: str = ""
    file: str | None = None


class IoError(OSError, Error):
    """The file system is at fault."""


class NotFoundError(FileNotFoundError, IoError):
    """There is no such file or folder."""


def make_error(
    finding: int, name: str, fault: int, message: str, offset: int | None, hint: str, file: str, number: int = 0
) -> Error:
    """The exception for a finding; called by the module that computes."""
    place = f"{file}: " if file else ""
    at = f" (offset {offset:#x})" if offset is not None else ""
    text = f"{place}{message}{at} [{name}]"
    error: Error
    if 100 <= finding < 200:
        kind = NotFoundError if number == 2 else IoError
        error = kind(number, f"{message} [{name}]", file or None) if number else kind(text)
    else:
        error = Error(text)
    error.finding = finding
    error.fault = FAULTS[fault]
    error.offset = offset
    error.hint = hint
    error.file = os.fspath(file) if file else None
    return error
