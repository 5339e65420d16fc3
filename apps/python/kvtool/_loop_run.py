# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Run folders (kvtool.run/1), as the capture programs write them: tokens, queries, gradients, caches. Needs only NumPy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy

from . import _safetensors
from ._command import StrPath
from ._loop_plan import Shape, read_document, whole
from ._run_folder import RUN_SCHEMA, Rule
from ._snapshot import open_snapshot

if TYPE_CHECKING:
    from ._arrays import Array


# K and V of each layer, [position, kv head, dim] f32.
Layers = list[tuple["Array", "Array"]]


class Run:
    """A recorded run of one text."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        self.name = os.path.basename(os.path.normpath(self.path))
        document = os.path.join(self.path, "run.json")
        if not os.path.exists(document) and os.path.isdir(self.path):
            raise ValueError(f"{self.path}: no run.json: not a run, or one that was not finished")
        self.document = read_document(document, RUN_SCHEMA)
        try:
            self._read()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{document}: not of schema kvtool.run/1: {error!r}") from None

    def _read(self) -> None:
        geometry = self.document["geometry"]
        self.shape = Shape(
            _count(geometry["layers"]),
            _count(geometry["kv_heads"]),
            _count(self.document["tokens"]),
            _count(self.document["prompt_tokens"]),
        )
        self.query_heads, self.head_dim = _count(geometry["query_heads"]), _count(geometry["head_dim"])
        if self.shape.prompt_tokens >= self.shape.tokens:
            raise ValueError(f"{self.path}: nothing was decoded after the prompt")
        if self.query_heads % self.shape.kv_heads:
            raise ValueError(f"{self.path}: {self.query_heads} query heads of {self.shape.kv_heads} kv heads")
        self.snapshot_path = self.file("snapshot")
        self.trace_path = self.file("trace")
        self._tensors, self.metadata = open_tensors(self.trace_path)
        tokens = self._tensors.get("tokens")
        if tokens is None or tokens.shape != (self.shape.tokens,):
            raise ValueError(f"{self.trace_path}: no {self.shape.tokens} token ids")
        self.tokens = tokens.astype("i8")

    @property
    def model(self) -> Mapping[str, Any]:
        """Returns run.json's description of the model."""
        model: Mapping[str, Any] = self.document["model"]
        return model

    def file(self, name: str) -> str:
        """Returns the path of one of the run's files, which must be in its folder."""
        entry = self.document["files"].get(name)
        if not isinstance(entry, str) or not entry:
            raise ValueError(f"{self.path}: the run has no {name}")
        root = os.path.realpath(self.path)
        path = os.path.realpath(os.path.join(root, entry))
        if os.path.commonpath([root, path]) != root:
            raise ValueError(f"{self.path}: {name} '{entry}' points outside the folder")
        return path

    def has_file(self, name: str) -> bool:
        return bool(self.document["files"].get(name))

    def rule(self, layer: int) -> Rule:
        """Returns the layer's attention parameters, from the trace's metadata."""

        def figure(name: str) -> float | None:
            text = self.metadata.get(f"{name}.{layer}", self.metadata.get(name))
            try:
                value = float(text) if text else 0.0
            except ValueError:
                raise ValueError(f"{self.trace_path}: {name} '{text}' is not a number") from None
            return value if value > 0 and math.isfinite(value) else None

        window = figure("window")
        return Rule(figure("scale") or self.head_dim**-0.5, figure("softcap"), int(window) if window else None)

    def queries(self, layer: int) -> Array:
        """[decoded row, query head, dim] f32."""
        rows, first = self._queries(layer)
        return as_f32(rows[self.shape.prompt_tokens - first :])

    def prompt_queries(self, layer: int) -> Array:
        """Returns [prompt row, query head, dim] f32, which a replay from the first token on
        needs."""
        rows, first = self._queries(layer)
        if first > 0:
            raise ValueError(f"{self.trace_path}: queries begin at position {first}, not with the prompt")
        return as_f32(rows[: self.shape.prompt_tokens])

    def _queries(self, layer: int) -> tuple[Array, int]:
        """Returns the rows that the trace has, and the position of the first."""
        rows = self._tensors.get(f"q.{layer}")
        first = self._position("q_start", "0")
        wanted = (self.shape.tokens - first, self.query_heads, self.head_dim)
        if rows is None or rows.shape != wanted:
            found = None if rows is None else rows.shape
            raise ValueError(f"{self.trace_path}: q.{layer} is {found}, not {wanted} with the decoded rows in it")
        return rows, first

    def _position(self, name: str, default: str) -> int:
        """Position of the first row of queries or gradients, which is not after the first decoded
        token."""
        text = self.metadata.get(name, default)
        if not text.isdecimal() or int(text) > self.shape.prompt_tokens:
            raise ValueError(f"{self.trace_path}: {name} '{text}' is not a position up to the prompt's end")
        return int(text)

    def gradients(self, layer: int) -> Array | None:
        """Returns [sample, decoded row, query head, dim] f32, or None if the run has no
        gradients."""
        rows = self._tensors.get(f"g.{layer}")
        if rows is None:
            return None
        first = self._position("g_start", self.metadata.get("q_start", "0"))
        begin = self.shape.prompt_tokens - first
        if rows.ndim != 4 or len(rows) == 0 or rows.shape[1:3] != (self.shape.tokens - first, self.query_heads):
            raise ValueError(f"{self.trace_path}: g.{layer} is {rows.shape}: not one row for each decoded position")
        return as_f32(rows[:, begin:])

    def evicted_samples(self) -> int:
        """Number of the gradients' last samples that are of states with evicted keys."""
        text = self.metadata.get("g_evicted") or "0"
        samples = self._tensors.get("g.0", numpy.empty(0)).shape[0]
        if not text.isdecimal() or int(text) > samples:
            raise ValueError(f"{self.trace_path}: g_evicted '{text}' is not a count up to the {samples} samples of g.0")
        return int(text)

    def caches(self) -> Layers:
        """Returns K and V of each layer at the end of the run."""
        return self._read_layers(self.snapshot_path, self.shape.tokens)

    def read_prompt(self, path: StrPath) -> Layers:
        """Returns K and V of each layer of the run's prompt from another file, such as a lossy archive of it."""
        name, prompt = os.fspath(path), self.shape.prompt_tokens
        found = self._read_layers(name, prompt)
        if not all(numpy.isfinite(array).all() for pair in found for array in pair):
            raise ValueError(f"{name}: values of the prompt are NaN or infinite")
        return found

    def _read_layers(self, path: str, tokens: int) -> Layers:
        layers, kv_heads, _, _ = self.shape
        found = []
        with open_snapshot(path, kv_heads=kv_heads) as snapshot:
            ids = snapshot.tokens
            if len(ids) and (len(ids) != tokens or (ids != self.tokens[:tokens]).any()):
                raise ValueError(f"{path}: its tokens are not the {tokens} of the run")
            if len(snapshot.layers) != layers:
                raise ValueError(f"{path}: {len(snapshot.layers)} layers, not {layers}")
            wanted = (tokens, kv_heads, self.head_dim)
            for layer in snapshot.layers:
                k, v = layer.k, layer.v
                if v is None or k.shape != wanted or v.shape != wanted:
                    raise ValueError(f"{path}: layer {layer.index} is not {tokens} x {kv_heads} heads of {self.head_dim}")
                found.append((as_f32(k), as_f32(v)))
        return found

    def recorded_nll(self) -> Array | None:
        """Returns the recorded NLL of the token after each decoded row but the last, or None."""
        if not self.has_file("logits"):
            return None
        path = self.file("logits")
        tensors = _safetensors.read(path)[0]
        positions, nll = tensors.get("positions"), tensors.get("nll")
        if positions is None or nll is None or positions.ndim != 1 or positions.shape != nll.shape:
            raise ValueError(f"{path}: positions and nll are missing or not of the same rows")
        wanted = (positions >= self.shape.prompt_tokens) & (positions < self.shape.tokens - 1)
        if wanted.sum() != self.shape.tokens - 1 - self.shape.prompt_tokens:
            raise ValueError(f"{path}: not one row for each decoded token")
        return as_f32(nll)[wanted]

    def sensitivity(self) -> str | None:
        """The path of the layers' weights, if the run has them."""
        return self.file("sensitivity") if self.has_file("sensitivity") else None


def _count(value: Any) -> int:
    return whole(value, "run.json: a count", 1, (1 << 31) + 1)


def as_f32(values: Array) -> Array:
    """Returns floats of 16 or 32 bits as f32; bf16 is given as bit patterns or by ml_dtypes."""
    if values.dtype == numpy.uint16:
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values.astype(numpy.float32, copy=False)


def open_tensors(path: StrPath) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns the mapped tensors of a safetensors file, or of all in a folder, and the metadata of the trace among
    them."""
    name = os.fspath(path)
    files = [name]
    if os.path.isdir(name):
        files = [os.path.join(name, entry) for entry in sorted(os.listdir(name)) if entry.endswith(".safetensors")]
    tensors: dict[str, Array] = {}
    metadata: dict[str, str] = {}
    for file in files:
        found, facts = _safetensors.read(file)
        twice = tensors.keys() & found.keys()
        if twice:
            raise ValueError(f"{file}: {sorted(twice)[0]} is in another file too")
        tensors |= found
        if "kvtool.trace" in facts and not metadata:
            metadata = facts
    if not metadata:
        raise ValueError(f"{name}: none of its files is a trace")
    return tensors, metadata
