# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Converts plans (kvtool.h2o-plan/1) to attention masks. Needs only NumPy.

An event at token t lists the positions that its layer or kv head keeps. The query at t still sees the evicted ones;
later queries see the kept positions and everything after t.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy
import numpy.typing

from ._command import StrPath

Bools = numpy.typing.NDArray[numpy.bool_]

# Size limit of a plan. Evictions at every step of a long run make long plans, but never longer than this.
MAX_FILE_BYTES = 2 << 30
PLAN_SCHEMA = "kvtool.h2o-plan/1"


class Shape(NamedTuple):
    """Properties of the run that a plan is for."""

    layers: int
    kv_heads: int
    tokens: int
    prompt_tokens: int


class Plan:
    """The positions that each query of a layer and kv head still sees.

    events: per layer and kv head the tokens after which positions are evicted, ascending, each with the kept
    positions: a bool for every position up to that token.
    """

    def __init__(self, shape: Shape, events: dict[tuple[int, int], list[tuple[int, Bools]]], policy: str = "") -> None:
        self.shape, self.events, self.policy = shape, events, policy

    def changes(self, layer: int) -> bool:
        """True if some query of the layer may see fewer than all positions."""
        return any((layer, head) in self.events for head in range(self.shape.kv_heads))

    def mask(self, layer: int, begin: int, end: int) -> Bools:
        """[kv head, row, position]: which positions before `end` the queries at positions begin to end - 1
        see."""
        causal = numpy.arange(end) <= numpy.arange(begin, end)[:, None]
        mask = numpy.repeat(causal[None], self.shape.kv_heads, 0)
        for head in range(self.shape.kv_heads):
            events = self.events.get((layer, head), [])
            for (token, held), last in zip(events, [event[0] for event in events[1:]] + [end - 1]):
                rows = slice(max(token + 1 - begin, 0), max(last + 1 - begin, 0))
                seen = mask[head, rows]
                seen[:, : token + 1] &= held[:end]
        return mask

    def on_layers(self, layers: Iterable[int]) -> Plan:
        """Returns the plan with events on these layers only; the others keep everything."""
        wanted = set(layers)
        return Plan(self.shape, {key: held for key, held in self.events.items() if key[0] in wanted}, self.policy)

    def kept_share(self) -> float:
        """Share of the full cache's positions that the last query sees, over layers and kv
        heads."""
        layers, kv_heads, tokens, _ = self.shape
        lost = 0
        for events in self.events.values():
            earlier = [held for token, held in events if token + 1 < tokens]
            lost += int((~earlier[-1]).sum()) if earlier else 0
        return 1 - lost / (layers * kv_heads * tokens)

    def jaccard(self, other: Plan) -> float:
        """Similarity of two plans: positions visible under both, divided by those visible under either, over all
        decoded rows."""
        both = either = 0
        rows = self.shape.prompt_tokens, self.shape.tokens
        for layer in range(self.shape.layers):
            if not (self.changes(layer) or other.changes(layer)):
                continue
            a, b = self.mask(layer, *rows), other.mask(layer, *rows)
            both += int((a & b).sum())
            either += int((a | b).sum())
        return both / either if either else 1.0


def read_document(path: StrPath, schema: str) -> dict[str, Any]:
    """The JSON document in a file. ValueError if it is not one, or has another schema."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        try:
            document: Any = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: not a JSON document: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"{name}: not a document of schema {schema}")
    return document


def keep_all(shape: Shape) -> Plan:
    """Returns the plan that drops nothing."""
    return Plan(shape, {}, "keep-all")


def read_plan(path: StrPath, shape: Shape) -> Plan:
    """Reads a plan from a file. Raises ValueError if it is not a plan, or one for another run."""
    name = os.fspath(path)
    size = os.path.getsize(path)
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{name}: {size} bytes are more than a plan may have ({MAX_FILE_BYTES})")
    with _uncollected():
        document = read_document(path, PLAN_SCHEMA)
        try:
            return plan_of(document, shape)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disables the cyclic garbage collector, which would scan millions of ranges repeatedly and take most of the
    time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def plan_of(document: dict[str, Any], shape: Shape) -> Plan:
    """The plan that a document describes, checked against the run that it shall be applied to."""
    for key, only in (("unit", "position"), ("applied", "before the next token")):
        if document.get(key) != only:
            raise ValueError(f"'{key}' is {document.get(key)!r}, not '{only}'")
    if not isinstance(document.get("events"), list):
        raise ValueError("'events' is not a list")
    events: dict[tuple[int, int], list[tuple[int, Bools]]] = {}
    for number, (token, layer, heads, held) in enumerate(_events(document["events"], shape)):
        for head in heads:
            before = events.setdefault((layer, head), [])
            try:
                _check_order(before, token, held)
            except ValueError as error:
                raise ValueError(f"event {number} (layer {layer}, kv head {head}, token {token}): {error}") from None
            before.append((token, held))
    return Plan(shape, events, str(document.get("policy", "")))


def _events(entries: list[Any], shape: Shape) -> Iterator[tuple[int, int, Iterable[int], Bools]]:
    for number, entry in enumerate(entries):
        try:
            if not isinstance(entry, dict):
                raise ValueError("no object")
            layer = whole(entry.get("layer"), "layer", 0, shape.layers)
            # A prompt is read at once and in full: nothing can go before its last token.
            token = whole(entry.get("token"), "token", shape.prompt_tokens - 1, shape.tokens)
            head = entry.get("kv_head")
            heads = range(shape.kv_heads) if head is None else [whole(head, "kv_head", 0, shape.kv_heads)]
            held = _held(entry.get("kept"), token)
        except ValueError as error:
            raise ValueError(f"event {number}: {error}") from None
        yield token, layer, heads, held


def whole(value: Any, name: str, low: int, end: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    if not low <= value < end:
        raise ValueError(f"{name} {value} is not in {low} to {end - 1}")
    return value


def _held(kept: Any, token: int) -> Bools:
    """Converts ascending disjoint ranges [begin, count] to one bool for each position up to the
    token."""
    if not isinstance(kept, list):
        raise ValueError("'kept' is not a list")
    if len(kept) > token + 1:
        raise ValueError(f"'kept' has {len(kept)} ranges of {token + 1} positions")
    try:
        pairs = numpy.array(kept) if kept else numpy.empty((0, 2), numpy.int64)
    except ValueError:
        raise ValueError("'kept' has ranges that are not [begin, count]") from None
    if pairs.dtype != numpy.int64 or pairs.shape != (len(kept), 2):
        raise ValueError("'kept' has ranges that are not [begin, count]")
    begins, counts = pairs[:, 0], pairs[:, 1]
    outside = (begins < 0) | (begins > token) | (counts < 1) | (counts > token + 1 - begins)
    if outside.any():
        begin, count = pairs[int(outside.argmax())].tolist()
        raise ValueError(f"'kept' has [{begin}, {count}], which is not within positions 0 to {token}")
    ends = begins + counts
    if (begins[1:] < ends[:-1]).any():
        raise ValueError("'kept' is not ascending, or its ranges overlap")
    steps = numpy.zeros(token + 2, numpy.int8)
    steps[begins] += 1
    steps[ends] -= 1
    held: Bools = numpy.cumsum(steps, dtype=numpy.int8)[:-1].view(numpy.bool_)
    return held


def _check_order(before: list[tuple[int, Bools]], token: int, held: Bools) -> None:
    if not before:
        return
    last, old = before[-1]
    if token <= last:
        raise ValueError(f"it comes after the event at token {last}")
    back = held[: last + 1] & ~old
    if back.any():
        raise ValueError(f"it brings back position {int(back.argmax())}, which was evicted at token {last}")
