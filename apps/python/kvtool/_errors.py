# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The exceptions of kvtool, and explanations of its findings. Wrong types are TypeError, wrong words and shapes
ValueError, as everywhere in Python; if a file system refuses something, it is the OSError that open() would raise."""

from __future__ import annotations

import errno
import keyword
import os
import re
from typing import Any, TypedDict

from . import _kvtool

FAULTS = ("none", "caller", "data", "io", "unsupported", "internal", "stopped")
_USAGE, _OPEN_FAILED, _CREATE_FAILED, _EXISTS = 1, 101, 103, 104
_FLAG = re.compile(r"(?<![\w-])(?:-\w/)?--([a-z][a-z0-9-]*)(?: ([A-Z][A-Z0-9:]*)\b)?")


class Error(ValueError):
    """A call failed; ``explain(error.finding)`` returns the page about the finding.

    finding: the number, 1103 for KV1103. fault: the cause, "data" for bytes that were read, "caller", "io",
    "unsupported", "internal" or "stopped". offset: position in the input, or None. file: its name, or None. hint:
    what to do, or "". document: the report of a command that reached a verdict; otherwise None.
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
    """The file system failed. errno is set if there is no such file."""

    __str__ = Error.__str__


class NotFoundError(FileNotFoundError, IoError):
    """The file or folder does not exist: errno and filename are set."""

    __str__ = Error.__str__


class ExistsError(FileExistsError, IoError):
    """The file exists, and force=True was not given: errno and filename are set."""

    __str__ = Error.__str__


class OptionError(TypeError, Error):
    """The command has no such keyword."""

    __str__ = Error.__str__


def in_python(text: str) -> str:
    """Turn flags in a message into keywords: --kv-heads H becomes kv_heads=H."""

    def name(match: re.Match[str]) -> str:
        word = match[1].replace("-", "_")
        return word + "_" * keyword.iskeyword(word) + (f"={match[2]}" if match[2] else "")

    text = text.replace("use -f/--force", "pass force=True").replace("--from opaque", 'from_="opaque"')
    text = _FLAG.sub(name, text)
    return re.sub(r"'kvtool ([a-z0-9 -]+) -h' shows how it is used", r"'kvtool \1 --help' lists what can be a keyword", text)


def _class_for(finding: int, fault: int, message: str, file: str) -> tuple[type[Error], tuple[Any, ...]]:
    """Return the class of the exception and its arguments."""
    folder = os.path.dirname(os.path.abspath(file))
    if file and finding in (_OPEN_FAILED, _CREATE_FAILED):
        if not os.path.lexists(file if finding == _OPEN_FAILED else folder):
            return NotFoundError, (errno.ENOENT, message, file)
    if file and finding == _EXISTS:
        return ExistsError, (errno.EEXIST, message, file)
    if finding == _USAGE and re.match(r"unknown (option )?'", message):
        return OptionError, (message,)
    return (IoError if FAULTS[fault] == "io" else Error), (message,)


def make_error(
    finding: int, name: str, fault: int, message: str, offset: int | None, hint: str, file: str, text: str
) -> Error:
    """Returns the exception for a finding; called by the compiled module."""
    message, hint, text = in_python(message), in_python(hint), in_python(text)
    kind, arguments = _class_for(finding, fault, message, file)
    error = kind(*arguments)
    at = f" (offset {offset:#x})" if offset is not None else ""
    error._text = text or f"{message}{at} [{name}]"
    error.finding = finding
    error.fault = FAULTS[fault]
    error.offset = offset
    error.hint = hint
    error.file = file or None
    return error


class Explanation(TypedDict):
    """The explanation of a finding."""

    finding: int
    id: str
    summary: str
    text: str
    fault: str


def explain(finding: int | str) -> Explanation:
    """Explains a finding: 1103, "KV1103", or the -1103 of a batch's status."""
    if isinstance(finding, str):
        digits = finding.upper().removeprefix("KV")
        if not digits.isdecimal():
            raise ValueError(f"finding '{finding}': expected KV and a number")
        finding = int(digits)
    number = abs(finding)
    if number > 39999:
        raise ValueError(f"finding {finding}: expected a number such as 1103")
    name, summary, text, fault = _kvtool._explain(number)
    return {"finding": number, "id": name, "summary": summary, "text": text, "fault": FAULTS[fault]}
