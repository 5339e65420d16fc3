# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Commands of the program, called as functions: keyword arguments become options, results become dicts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Union

from . import _kvtool

StrPath = Union[str, "os.PathLike[str]"]
# One reference or several, against which archives were coded.
Bases = Union[StrPath, "Sequence[StrPath]", None]
Progress = Callable[[int, int], "bool | None"]

_log = logging.getLogger("kvtool")
# Options that are repeated for each value.
_REPEATED = {"base", "profile"}
# Options whose names are reserved words of Python: from_="npz" is --from npz.
_KEYWORDS = {"from_": "from", "as_": "as"}


def path_option(path: StrPath | None) -> bytes | None:
    """Returns the value of an option that names a file; None if the option is not given."""
    return None if path is None else path_bytes(path)


def path_bytes(path: StrPath | bytes) -> bytes:
    """Returns a path as the parser of command lines must see it: "-" and "--json" are files
    here."""
    name = os.fsencode(path)
    return b"./" + name if name.startswith(b"-") else name


def option_words(options: dict[str, Any]) -> list[bytes]:
    """Returns --kv-heads=4 for kv_heads=4. True is a flag; None and False are omitted; lists are joined by
    commas."""
    words = []
    for name, value in options.items():
        flag = "--" + _KEYWORDS.get(name, name).replace("_", "-")
        if value is None or value is False:
            continue
        if name in _REPEATED:
            paths = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
            words += [flag.encode() + b"=" + os.fsencode(path) for path in paths]
            continue
        if value is True:
            words.append(flag.encode())
            continue
        if isinstance(value, range):
            if value.step != 1:
                raise ValueError(f"{name}: expected a range of step 1")
            value = f"{value.start}:{value.stop}"
        elif isinstance(value, slice):
            if value.step not in (None, 1):
                raise ValueError(f"{name}: expected a slice of step 1")
            value = f"{'' if value.start is None else value.start}:{'' if value.stop is None else value.stop}"
        elif isinstance(value, (list, tuple)):
            value = ",".join(str(entry) for entry in value)
        text = os.fsencode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value).encode()
        words.append(flag.encode() + b"=" + text)
    return words


def run(
    command: str, paths: Sequence[StrPath], options: dict[str, Any], progress: Progress | None = None
) -> tuple[int, Any]:
    """Returns the status of a command (0, or 1 for a negative verdict) and its result; for several inputs a list of
    results.

    Any other status raises Error.
    """
    name, *verbs = command.split()
    words = [*(verb.encode() for verb in verbs), *option_words(options), b"--json"]
    words += [path_bytes(path) for path in paths]
    status, documents, warnings = _kvtool._run(name, words, progress)
    for warning in warnings:
        _log.warning("%s", warning)
    results = json.loads(documents[0])["results"] if documents else [None]
    return status, results[0] if len(results) == 1 else results
