# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The cost of plans in attention, computed offline from a run's queries, keys and values, as replay-h2o defines its
figures.

Independent of the program's own code: the two must agree, and plans from elsewhere get the same figures. Needs only
NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from ._loop_plan import Plan, keep_all
from ._loop_run import Layers, Run
from ._loop_types import Types, stored
from ._run_folder import Rule

if TYPE_CHECKING:
    from ._arrays import Array


EVICTED_SHARE = 2 / 3  # of samples at evicted states in nats from both kinds, as in the program


class Figures:
    """Sums over layers, from which a plan's figures follow. evicted: number of the last samples of gradients that are of
    states with evicted keys."""

    def __init__(self, evicted: int = 0) -> None:
        self.evicted = evicted
        self.error2 = self.norm2 = self.cosine = self.mass = 0.0
        self.rows = self.head_rows = 0
        self.layer_cosines: list[float] = []
        self.inner: Array | None = None  # [sample, row]: sum over layers of gradient x change of the output

    def add(self, full: Array, changed: Array, mass: Array, gradient: Array | None) -> None:
        """One layer: outputs [row, query head, dim] and the kept share of attention [row, query head]."""
        rows = len(full)
        difference = (changed - full).reshape(rows, -1).astype(numpy.float64)
        a, b = (outputs.reshape(rows, -1).astype(numpy.float64) for outputs in (full, changed))
        norms = numpy.linalg.norm(a, axis=1) * numpy.linalg.norm(b, axis=1)
        cosines = numpy.where(norms > 0, (a * b).sum(1) / numpy.where(norms > 0, norms, 1), 1.0)
        self.error2 += float((difference**2).sum())
        self.norm2 += float((a**2).sum())
        self.cosine += float(cosines.sum())
        self.layer_cosines.append(float(cosines.mean()))
        self.mass += float(mass.sum())
        self.rows += rows
        self.head_rows += mass.size
        if gradient is not None:
            inner = numpy.einsum("srd,rd->sr", gradient.reshape(len(gradient), rows, -1), difference)
            self.inner = inner if self.inner is None else self.inner + inner

    def gradient_kl(self, recorded_only: bool = False) -> tuple[float | None, str | None]:
        """Returns the predicted nats, and the states that their gradients were taken at. recorded_only: for the small
        dense changes by types, which gradients at evicted states say nothing about."""
        recorded = 0 if self.inner is None else len(self.inner) - self.evicted
        if self.inner is None or (recorded_only and not recorded):
            return None, None
        halves = 0.5 * self.inner**2
        at_recorded, at_evicted = halves[:recorded], halves[recorded:]
        if recorded_only or not self.evicted:
            rows, basis = at_recorded.mean(0), "recorded"
        elif not recorded:
            rows, basis = at_evicted.mean(0), "evicted"
        else:
            rows, basis = (1 - EVICTED_SHARE) * at_recorded.mean(0) + EVICTED_SHARE * at_evicted.mean(0), "both"
        defined = rows[numpy.isfinite(rows)]
        return (float(defined.mean()), basis) if len(defined) else (None, None)

    def document(self, recorded_only: bool = False) -> dict[str, Any]:
        """Returns the figures under the names in documents of closed_loop."""
        nats, basis = self.gradient_kl(recorded_only)
        return {
            "output_error": math.sqrt(self.error2) / math.sqrt(self.norm2) if self.norm2 > 0 else None,
            "cosine_loss": 1 - self.cosine / self.rows if self.rows else None,
            "lost_mass": 1 - self.mass / self.head_rows if self.head_rows else None,
            "predicted_kl": nats,
            "basis": basis,
        }

    def weighted_kl(self, weights: Sequence[float]) -> float:
        """Nats from the weights of layers: sum of weight x 2 (1 - cosine)."""
        return sum(weight * 2 * (1 - cosine) for weight, cosine in zip(weights, self.layer_cosines))


def attend(
    queries: Array, keys: Array, values: Array, rule: Rule, first_row: int, masks: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Returns outputs [row, query head, dim] and kept shares of one layer for each mask [kv head, row, position].

    The first mask must be the full, causal one: the others renormalise those of its probabilities that they show.
    """
    rows, query_heads, _ = queries.shape
    tokens, kv_heads, dim = values.shape
    group = query_heads // kv_heads
    found: list[tuple[Array, Array]]
    found = [(numpy.zeros((rows, query_heads, dim), "f4"), numpy.zeros((rows, query_heads), "f4")) for _ in masks]
    near = None
    if rule.window is not None:
        near = numpy.arange(tokens) > numpy.arange(first_row, first_row + rows)[:, None] - rule.window
    for kv_head in range(kv_heads):
        seen = masks[0][kv_head] if near is None else masks[0][kv_head] & near
        for head in range(kv_head * group, (kv_head + 1) * group):
            scores = queries[:, head] @ keys[:, kv_head].T * numpy.float32(rule.scale)
            if rule.softcap is not None:
                scores = numpy.float32(rule.softcap) * numpy.tanh(scores / numpy.float32(rule.softcap))
            scores = numpy.where(seen, scores, numpy.float32(-numpy.inf))
            weights = numpy.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            for (outputs, shares), mask in zip(found, masks):
                kept = weights * mask[kv_head]
                share = kept.sum(1)
                # A query that sees nothing has an output of zeros.
                outputs[:, head] = kept @ values[:, kv_head] / numpy.where(share > 0, share, 1)[:, None]
                shares[:, head] = share
    return found


def open_loop(
    run: Run,
    plans: Sequence[Plan],
    types: Sequence[Types | None] | None = None,
    restored: Sequence[Layers | None] | None = None,
) -> list[Figures]:
    """Returns the figures of each plan over the decoded rows of a run; with types, for a cache that is also stored in
    them; with restored, for one whose prompt is replaced."""
    first = run.shape.prompt_tokens
    kinds, prompts = types or [None] * len(plans), restored or [None] * len(plans)
    full_plan = keep_all(run.shape)
    evicted = run.evicted_samples()
    figures = [Figures(evicted) for _ in plans]
    for layer, (keys, values) in enumerate(run.caches()):
        # If a plan evicts nothing in the layer, its outputs there are those of the full cache.
        places = [0] * len(plans)
        masks = [full_plan.mask(layer, first, run.shape.tokens)]
        for i, plan in enumerate(plans):
            if plan.changes(layer):
                places[i] = len(masks)
                masks.append(plan.mask(layer, first, run.shape.tokens))
        queries, rule = run.queries(layer), run.rule(layer)
        outputs = attend(queries, keys, values, rule, first, masks)
        gradient = run.gradients(layer)
        for entry, place, kind, prompt in zip(figures, places, kinds, prompts):
            changed = outputs[place]
            if prompt:
                k, v = (numpy.concatenate([new, old[first:]]) for new, old in zip(prompt[layer], (keys, values)))
                changed = attend(queries, k, v, rule, first, [masks[0], masks[place]])[1]
            if kind and layer in kind:
                of_k, of_v = kind[layer]
                read_back = stored(keys, of_k, True), stored(values, of_v, False)
                changed = attend(queries, *read_back, rule, first, [masks[0], masks[place]])[1]
            entry.add(outputs[0][0], *changed, gradient)
    return figures
