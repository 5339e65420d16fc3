# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The program's commands for files: each function returns the result in the document that --json prints.

Every option of a command is a keyword argument: --kv-heads 4 is kv_heads=4, a flag is True, a list may be a list, a range
of tokens may be a range. `kvtool COMMAND --help` names them all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from . import _command, _safetensors
from ._command import Bases, Progress, StrPath
from ._errors import FAULTS, Error
from ._snapshot import Snapshot, format_of_name

Document = dict[str, Any]
Source = StrPath | Snapshot


def _source(source: Source, options: dict[str, Any]) -> tuple[StrPath, dict[str, Any]]:
    """Returns the path of a snapshot, and the options that it was opened with; new options override
    them."""
    if isinstance(source, Snapshot):
        return source.path, {**source.options, **options}
    return source, options


def _document(command: str, paths: Sequence[StrPath], options: dict[str, Any], progress: Progress | None) -> Document:
    result: Document = _command.run(command, paths, options, progress)[1]
    return result


def run(command: str, *paths: StrPath, progress: Progress | None = None, **options: Any) -> Any:
    """The result of any command that has --json: run("gate", "gate.json"), run("weights inspect", "model.bin").

    For several inputs it is a list of results. A negative verdict is in the result; failures raise Error.
    """
    return _command.run(command, paths, options, progress)[1]


def inspect(source: Source, *, progress: Progress | None = None, **options: Any) -> Document:
    """Describes a snapshot: engine, layers, heads, dtypes, sizes. stats=True reads every value."""
    path, options = _source(source, options)
    return _document("inspect", [path], options, progress)


def analyze(source: Source, *, progress: Progress | None = None, **options: Any) -> Document:
    """Shows what compresses and why: ratios verified by decoding, entropies, structure."""
    path, options = _source(source, options)
    return _document("analyze", [path], options, progress)


def bench(source: Source, *, progress: Progress | None = None, **options: Any) -> Document:
    """Compresses a snapshot with every level, and with peers=True with other codecs: ratio and speed of
    each."""
    path, options = _source(source, options)
    return _document("bench", [path], options, progress)


def train(
    sources: StrPath | Sequence[StrPath],
    output: StrPath,
    *,
    name: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Learn a profile (.kvp) from snapshots of one model: Profile(bytes of the file), compress(profile=file).

    name: name of the model, by default that of the snapshots. force: overwrite.
    """
    paths = [sources] if isinstance(sources, (str, bytes, os.PathLike)) else list(sources)
    options |= {"name": name, "force": force, "output": _command.path_bytes(output)}
    return _document("train", paths, options, progress)


def compress(
    source: Source,
    output: StrPath | None = None,
    *,
    level: str = "default",
    base: Bases = None,
    joined_layers: int | None = None,
    check: bool = True,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Write an archive (.kvz) that restores the source byte for byte; by default SOURCE.kvz.

    base: caches whose rows need not be stored again; the archive then needs those that it used. joined_layers: at
    level "max", the number of consecutive layers that are predicted from each other, 1 (none) to 16; None: 8. check:
    decode and compare every chunk, and read the archive back, before it gets its name. force: overwrite.
    profile=FILE: codes short chunks with that profile, which the archive then needs.
    """
    path, options = _source(source, options)
    options |= {"level": level, "no_check": not check, "force": force, "joined_layers": joined_layers}
    options["output"] = _command.path_option(output)
    if base is not None:
        options["base"] = base
    return _document("compress", [path], options, progress)


def decompress(
    archive: StrPath,
    output: StrPath | None = None,
    *,
    base: Bases = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Restore the source of an archive, or with to="safetensors" (layers=, tokens=, kv=) tensors from it.

    base: its references, if they are not in its folder. force: overwrite.
    """
    options |= {"base": base, "force": force, "output": _command.path_option(output)}
    status, document = _command.run("decompress", [archive], options, progress)
    return _unless_negative(status, document, archive, "the archive is damaged")


def verify(
    archive: StrPath,
    *,
    against: StrPath | None = None,
    base: Bases = None,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Prove that an archive is intact and, with against=, that it restores that file or folder.

    Raises Error otherwise: KV1103 for damage, KV1105 for another source; error.document has details. base: its
    references, if they are not in its folder; KV1107 if one is missing.
    """
    options |= {"base": base, "against": _command.path_option(against)}
    status, document = _command.run("verify", [archive], options, progress)
    text = "differs from the source" if document["verdict"] == "different" else "the archive is damaged"
    return _unless_negative(status, document, archive, text)


def _unless_negative(status: int, document: Document, archive: StrPath, text: str) -> Document:
    if status == 0:
        return document
    different = document.get("verdict") == "different"
    name = os.fspath(archive)
    error = Error(text)
    error.finding = 1105 if different else 1302 if status == 5 else 1103
    error.fault = FAULTS[4 if status == 5 else 2]
    error.file = name
    error.document = document
    error._text = f"{name}: {text} [KV{error.finding}]"
    raise error


def convert(
    source: Source,
    output: StrPath,
    *,
    to: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Write a snapshot, or part of it (layers=, tokens=), in another format; dtype= converts values."""
    path, options = _source(source, options)
    if to is None:
        to = format_of_name(os.fspath(output))
    options |= {"to": to, "force": force, "output": _command.path_bytes(output)}
    return _document("convert", [path], options, progress)


def diff(a: Source, b: Source, *, progress: Progress | None = None, **options: Any) -> Document:
    """Compare two snapshots across formats, value by value: a difference is in the document and raises nothing."""
    first, options = _source(a, options)
    second = b.path if isinstance(b, Snapshot) else b
    return _document("diff", [first, second], options, progress)


def replay_evict(
    source: Source,
    *,
    queries: Mapping[int, Any] | None = None,
    trace: StrPath | None = None,
    prompt_tokens: int | None = None,
    first_query: int = 0,
    policy: str | list[str] = "block",
    budget: Any = None,
    target_ratio: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Document:
    """Replays eviction: which tokens it keeps, what it saves, and what it costs in attention.

    queries: per layer an array [row, query head, dim] after RoPE, of the positions from first_query on; or trace: a
    file of them; neither for a recorded run, which has its own. prompt_tokens: where decoding begins. budget: the
    share or number of tokens to keep, 0.5 or "512t", or target_ratio: 3. policy: a name, a list of names or "all".

    With one policy and one target the document has "plan": the events of keep plans, whose "kept" is an array of
    [begin, count] rows of positions.
    """
    path, options = _source(source, options)
    is_run = os.path.isfile(os.path.join(os.fsdecode(path), "run.json"))
    given = (queries is not None) + (trace is not None)
    if given > 1 or (given == 0 and not is_run):
        raise ValueError("replay_evict: pass queries= or trace=")
    options |= {"policy": policy, "budget": budget, "target_ratio": target_ratio, "prompt_tokens": prompt_tokens}
    single = isinstance(policy, str) and policy != "all" and "," not in policy and not _several(budget, target_ratio)
    folder = tempfile.mkdtemp(prefix="kvtool-")
    try:
        if queries is not None:
            trace = os.path.join(folder, "trace.safetensors")
            _write_trace(trace, queries, first_query, prompt_tokens)
            options["prompt_tokens"] = None
        options["trace"] = _command.path_option(trace)
        if single:
            options["plan_out"] = os.path.join(folder, "plan.json")
        document = _document("replay-h2o", [path], options, progress)
        if single:
            document["plan"] = _read_plan(options["plan_out"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return document


replay_h2o = replay_evict  # the name before the command line had `replay evict`


def _several(*targets: Any) -> bool:
    for target in targets:
        if isinstance(target, (list, tuple)) and len(target) > 1:
            return True
        if isinstance(target, str) and any(sign in target for sign in ",+*"):
            return True
    return False


def _read_plan(path: str) -> Document:
    import numpy

    with open(path, encoding="utf-8") as file:
        plan: Document = json.load(file)
    for event in plan["events"]:
        event["kept"] = numpy.array(event["kept"], dtype=numpy.int64).reshape(-1, 2)
    return plan


def _write_trace(path: str, queries: Mapping[int, Any], first_query: int, prompt_tokens: int | None) -> None:
    """Writes queries in the form of formats/trace/FORMAT.md to a safetensors file."""
    import numpy

    metadata = {"kvtool.trace": "1", "q_start": str(first_query)}
    if prompt_tokens is not None:
        metadata["prompt_tokens"] = str(prompt_tokens)
    tensors = []
    for layer, rows in sorted(queries.items()):
        array = numpy.ascontiguousarray(rows, dtype="<f4")
        if array.ndim != 3:
            raise ValueError(f"queries of layer {layer}: expected [row, query head, dim]")
        tensors.append(_safetensors.Tensor(f"q.{layer}", "F32", array.shape, array.reshape(-1).view("u1").data))
    _safetensors.write(path, tensors, metadata)
