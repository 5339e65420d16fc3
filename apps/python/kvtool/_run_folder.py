# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The folder of a recorded run (schema kvtool.run/1) while it is written. Needs neither torch nor NumPy.

Everything is written to a temporary folder beside the final one, which is renamed once run.json is in it: the final
folder always holds a complete run, and an interrupted run leaves nothing.
"""

from __future__ import annotations

import array
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _safetensors
from ._safetensors import Bytes, RowFile, Tensor

RUN_SCHEMA = "kvtool.run/1"
_KV_LAYOUT = {"kvtool.layout": "token,head,dim"}


class Rule(NamedTuple):
    """How a layer attends: the factor of scores, the cap on them, and how many positions are seen, the query's own
    included; None where there is no cap or no window."""

    scale: float
    softcap: float | None
    window: int | None


class RunFolder:
    """A run that is being recorded: takes rows of queries, keys and values of each layer, then commit() or discard().

    force: replace an existing run. Nothing else is ever replaced.
    """

    def __init__(self, path: str | os.PathLike[str], force: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._force = force
        refuse_what_is_there(self.path, force)
        parent = os.path.dirname(self.path)
        if not os.path.isdir(parent):
            raise FileNotFoundError(f"{parent}: no such folder")
        self._partial = tempfile.mkdtemp(prefix=f".{os.path.basename(self.path)}-", suffix=".partial", dir=parent)
        os.chmod(self._partial, 0o777 & ~umask())
        os.mkdir(self._at("trace"))
        os.mkdir(self._at("rows"))
        self._open: dict[str, RowFile] = {}

    def _at(self, *names: str) -> str:
        return os.path.join(self._partial, *names)

    def append(self, name: str, dtype: str, row_shape: tuple[int, ...], rows: Bytes) -> None:
        """Rows of the tensor `name`: q.{l} and g.{l} belong to the trace, k_{l} and v_{l} to the snapshot."""
        of_trace = name.startswith(("q.", "g."))
        place = self._at("trace" if of_trace else "rows", f"{name}.safetensors")
        _safetensors.append_rows(self._open, place, name, dtype, row_shape, rows)

    def commit(
        self,
        *,
        tokens: list[int],
        prompt_tokens: int,
        layers: list[int],
        trace_metadata: dict[str, str],
        snapshot_metadata: dict[str, str],
        logits: list[Tensor],
        document: dict[str, Any],
    ) -> None:
        """Completes all files, writes run.json last and renames the folder."""
        for file in self._open.values():
            file.complete()
        self._write_snapshot("snapshot.safetensors", tokens, layers, snapshot_metadata)
        if prompt_tokens < len(tokens):
            self._write_snapshot("prefill.safetensors", tokens[:prompt_tokens], layers, snapshot_metadata)
        shutil.rmtree(self._at("rows"))
        metadata = {"kvtool.trace": "1", "prompt_tokens": str(prompt_tokens), "q_start": "0", **trace_metadata}
        _safetensors.write(self._at("trace", "trace.safetensors"), [_integers("tokens", "I32", tokens)], metadata)
        if logits:
            _safetensors.write(self._at("logits.safetensors"), logits)
        files = {
            "snapshot": "snapshot.safetensors",
            "prefill": "prefill.safetensors" if prompt_tokens < len(tokens) else None,
            "trace": "trace",
            "logits": "logits.safetensors" if logits else None,
            "sensitivity": None,
        }
        with open(self._at("run.json"), "x", encoding="utf-8") as out:
            json.dump({"schema": RUN_SCHEMA, **document, "files": files}, out, indent=2, allow_nan=False)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        self._take_the_place()

    def _write_snapshot(self, file: str, tokens: list[int], layers: list[int], metadata: dict[str, str]) -> None:
        tensors = [_integers("positions", "I64", range(len(tokens))), _integers("tokens", "I32", tokens)]
        for layer in layers:
            for name in (f"k_{layer}", f"v_{layer}"):
                rows = self._open[name]
                tensors.append(Tensor(name, rows.dtype, (len(tokens), *rows.row_shape), rows))
        _safetensors.write(self._at(file), tensors, {**_KV_LAYOUT, **metadata})

    def _take_the_place(self) -> None:
        refuse_what_is_there(self.path, self._force)  # a folder that another process created meanwhile
        if not os.path.isdir(self.path) or not os.listdir(self.path):
            os.rename(self._partial, self.path)  # also replaces an empty folder
            return
        old = self._partial.removesuffix(".partial") + ".replaced"
        os.rename(self.path, old)
        os.rename(self._partial, self.path)
        shutil.rmtree(old)

    def discard(self) -> None:
        """Removes everything that was written."""
        for file in self._open.values():
            file.close()
        shutil.rmtree(self._partial, ignore_errors=True)


def refuse_what_is_there(path: str | os.PathLike[str], force: bool) -> None:
    """Raises FileExistsError for anything but a missing or empty folder and, with `force`, a recorded
    run."""
    if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
        return
    if not _is_run(path):
        raise FileExistsError(f"{os.fspath(path)}: exists and is not a recorded run; choose another name")
    if not force:
        raise FileExistsError(f"{os.fspath(path)}: holds a run; pass -f (force=True) to replace it")


def _integers(name: str, dtype: str, values: Iterable[int]) -> Tensor:
    packed = array.array({"I32": "i", "I64": "q"}[dtype], values)
    if sys.byteorder == "big":
        packed.byteswap()
    return Tensor(name, dtype, (len(packed),), memoryview(packed))


def _is_run(path: str | os.PathLike[str]) -> bool:
    try:
        with open(os.path.join(path, "run.json"), encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("schema") == RUN_SCHEMA


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
