# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Processes plans one after another: makes or reads each, predicts its cost offline, and applies it in an engine.
Returns the records for documents."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from . import _command
from ._command import StrPath
from ._loop_figures import open_loop
from ._loop_plan import Plan, keep_all, read_document, read_plan
from ._loop_run import Layers, Run
from ._loop_types import Types

Record = dict[str, Any]
# Quantiles (10 %, median, 90 %) of predicted over real KL in the study of docs/closed-loop.md, by the source of the
# prediction (with gradients: the states that they were taken at) and whether only types cause the loss. The program has
# the same (lib/study/eviction/quality.h); a test compares them.
CALIBRATIONS = {
    ("recorded", False): (0.46, 0.72, 1.13),
    ("evicted", False): (0.63, 1.12, 1.86),
    ("both", False): (0.65, 1.06, 1.69),
    ("weights", False): (0.69, 0.89, 1.54),
    ("recorded", True): (0.55, 0.72, 0.92),
    ("weights", True): (0.66, 1.0, 1.95),
}
BATCH = 4  # plans of a batch: evaluating them together is cheaper, and only one batch's files are on disk


class Wanted(NamedTuple):
    """A plan to make with a policy and a budget ("0.5" or "512t"), or to read from a file; or types of K and V, with
    or without a plan; or a cache to continue from."""

    policy: str
    budget: str | None
    path: StrPath | None = None
    types: Types | None = None
    cache: StrPath | None = None


class Case(NamedTuple):
    """A plan, its file and its name; layers: first and last layer of a plan on some layers only; restored: K and V of
    the prompt that replace the model's own."""

    policy: str
    budget: str | None
    plan: Plan
    path: StrPath = ""
    layers: tuple[int, int] | None = None
    types: Types | None = None
    restored: Layers | None = None

    @property
    def evicts(self) -> bool:
        return bool(self.plan.events)

    @property
    def is_dense(self) -> bool:
        """True if all values change a little and no token is missing."""
        return not self.evicts and bool(self.types or self.restored)


class Engine(Protocol):
    """Reads the decoded tokens of a run again under plans. Returns the KL to the full run and other losses for
    each."""

    def read_all(self, cases: Sequence[Case]) -> Iterator[dict[str, Any]]: ...


def replay(run: Run, policy: str, budget: str, plan_out: StrPath, **options: Any) -> Any:
    """Returns the document of `kvtool replay-h2o` on a run, which also writes its plan."""
    options = {"granularity": "kv-head", "no_quality": True, "force": True, **options}
    options |= {"policy": policy, "budget": budget, "trace": _command.path_bytes(run.trace_path)}
    options |= {"plan_out": _command.path_bytes(plan_out), "kv_heads": run.shape.kv_heads}
    return _command.run("replay-h2o", [run.snapshot_path], options)[1]


def make_case(run: Run, wanted: Wanted, folder: str, **options: Any) -> Case:
    """Returns the requested plan; a new one is written to the folder."""
    if wanted.path is not None:
        return Case(wanted.policy, None, read_plan(wanted.path, run.shape), wanted.path, types=wanted.types)
    if wanted.cache is not None:
        return Case(wanted.policy, None, keep_all(run.shape), wanted.cache, restored=run.read_prompt(wanted.cache))
    if wanted.types is not None:
        return Case(wanted.policy, None, keep_all(run.shape), types=wanted.types)
    assert wanted.budget is not None
    path = os.path.join(folder, f"{wanted.policy}-{wanted.budget}.json")
    replay(run, wanted.policy, wanted.budget, path, **options)
    return Case(wanted.policy, wanted.budget, read_plan(path, run.shape), path)


def measure(run: Run, wanted: Sequence[Wanted], engine: Engine, **options: Any) -> Iterator[tuple[Case, Record]]:
    """Returns the predicted and the real cost of each plan. options: those of replay-h2o."""
    for begin in range(0, len(wanted), BATCH):
        with tempfile.TemporaryDirectory(prefix="kvtool-plans-") as folder:
            cases = [make_case(run, entry, folder, **options) for entry in wanted[begin : begin + BATCH]]
            predicted = predict(run, *zip(*((case.plan, case.types, case.restored) for case in cases)))
            for case, figures, real in zip(cases, predicted, engine.read_all(cases)):
                yield case, record(run, case, figures, real)


def record(run: Run, case: Case, predicted: dict[str, Any], real: dict[str, Any]) -> Record:
    """Returns a document's description of a plan."""
    predicted = {**predicted, **expected(predicted, case)}
    low, high = predicted["low_nats"], predicted["high_nats"]
    return {
        "run": run.name,
        "policy": case.policy,
        "budget": case.budget,
        "layers": list(case.layers) if case.layers else None,
        "kept_share": case.plan.kept_share(),
        "cache": None if case.restored is None else os.fspath(case.path),
        "types": {str(layer): list(kinds) for layer, kinds in case.types.items()} if case.types else None,
        "predicted": predicted,
        "real": real,
        "within_band": None if low is None else low <= real["kl"] <= high,
    }


def expected(predicted: dict[str, Any], case: Case) -> dict[str, float | None]:
    """Returns the expected nats and their range, as replay-h2o prints them; None if no figure is in
    nats."""
    nats, source = predicted["predicted_kl"], predicted["basis"]
    if nats is None:
        nats, source = predicted["weighted_kl"], "weights"
    if nats is None:
        return {"expected_nats": None, "low_nats": None, "high_nats": None}
    p10, median, p90 = CALIBRATIONS[source, case.is_dense]
    return {"expected_nats": nats / median, "low_nats": nats / p90, "high_nats": nats / p10}


def predict(
    run: Run,
    plans: Sequence[Plan],
    types: Sequence[Types | None] | None = None,
    restored: Sequence[Layers | None] | None = None,
) -> list[dict[str, Any]]:
    """Returns the figures of each plan in the form of documents."""
    weights = layer_weights(run)
    none = [None] * len(plans)
    found = []
    for plan, kinds, prompt, figures in zip(plans, types or none, restored or none, open_loop(run, plans, types, restored)):
        weighted = figures.weighted_kl(weights) if weights else None
        recorded_only = Case("", None, plan, types=kinds, restored=prompt).is_dense
        found.append({**figures.document(recorded_only=recorded_only), "weighted_kl": weighted})
    return found


def layer_weights(run: Run) -> list[float] | None:
    """Returns the nats per relative squared output error of each layer, from the run's sensitivity.json; None without
    it."""
    path = run.sensitivity()
    if path is None:
        return None
    document = read_document(path, "kvtool.sensitivity/1")
    try:
        found = {int(entry["layer"]): float(entry["kl"]) for entry in document["layers"]}
        return [found[layer] / float(document["noise"]) ** 2 for layer in range(run.shape.layers)]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: not of schema kvtool.sensitivity/1: {error!r}") from None
