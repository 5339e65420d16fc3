# SPDX-License-Identifier: Apache-2.0
"""What kvtool raises. Wrong types are TypeError, wrong words and shapes ValueError, as everywhere in Python."""

from __future__ import annotations

import errno
import os
from typing import Any

FAULTS = ("none", "caller", "data", "io", "unsupported", "internal", "stopped")
_OPEN_FAILED = 101


class Error(ValueError):
    """A call failed, and kvtool says of what: ``explain(error.finding)`` is the whole page.

    finding: the number, 1103 of KV1103. fault: whose it is, "data" for bytes that were read, "caller", "io",
    "unsupported", "internal" or "stopped". offset: where in the input, or None. file: which, or None. hint: what to
    do, or "". document: of a command that came to a verdict, what it reports; otherwise None.
    """

    finding: int = 0
    fault: str = "none"
    offset: int | None = None
    hint: str = ""
    file: str | None = None
    document: dict[str, Any] | None = None
    _text: str = ""

    def __str__(self) -> str:
        return self._text + (f"\nhint: {self.hint}" if self.hint else "")


class IoError(OSError, Error):
    """The file system is at fault. errno is set where there is no such file."""

    __str__ = Error.__str__


class NotFoundError(FileNotFoundError, IoError):
    """There is no such file or folder: errno and filename are set."""

    __str__ = Error.__str__


def make_error(
    finding: int, name: str, fault: int, message: str, offset: int | None, hint: str, file: str, text: str
) -> Error:
    """The exception for a finding; called by the module that computes."""
    error: Error
    if finding == _OPEN_FAILED and file and not os.path.lexists(file):
        error = NotFoundError(errno.ENOENT, message, file)
    elif FAULTS[fault] == "io":
        error = IoError(message)
    else:
        error = Error(message)
    at = f" (offset {offset:#x})" if offset is not None else ""
    error._text = text or f"{message}{at} [{name}]"
    error.finding = finding
    error.fault = FAULTS[fault]
    error.offset = offset
    error.hint = hint
    error.file = file or None
    return error
