# SPDX-License-Identifier: Apache-2.0
"""Summarises how well the predictions for many plans rank and match their real costs. Needs only
NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _loop_statistics as statistics

# In the order of the pages: the figure that is probably best first.
PREDICTORS = {
    "predicted_kl": "predicted KL",
    "weighted_kl": "layer-weighted KL",
    "output_error": "output error",
    "cosine_loss": "1 - cosine",
    "lost_mass": "lost attention mass",
}
IN_NATS = ("predicted_kl", "weighted_kl")
SMALL_KL = 0.2  # a plan above this loss is useless, and every figure ranks it last


def usable(records: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Records with the figure and with a real KL to compare it with."""
    return [row for row in records if row["predicted"].get(name) is not None and row["real"].get("kl") is not None]


def pairs(records: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    return [row["predicted"][name] for row in records], [row["real"]["kl"] for row in records]


def by_policy(row: dict[str, Any]) -> tuple[Any, ...]:
    """Runs of one text and policy differ only in their budget or in their layers."""
    return row["run"], row["policy"]


def by_budget(row: dict[str, Any]) -> tuple[Any, ...]:
    """Runs of one text and budget, among which the best policy is sought."""
    return row["run"], row["budget"]


def correlations(records: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Spearman's coefficient with the real KL: pooled, for small losses, per run, and within groups of a
    run."""
    rows = usable(records, name)
    small = [row for row in rows if row["real"]["kl"] < SMALL_KL]
    runs = sorted({row["run"] for row in rows})
    per_run = {run: statistics.spearman(*pairs([row for row in rows if row["run"] == run], name)) for run in runs}
    groups = [by_policy(row) for row in rows]
    return {
        "pooled": statistics.correlation(*pairs(rows, name), groups),
        "small": statistics.correlation(*pairs(small, name), [by_policy(row) for row in small]),
        "per_run": per_run,
        "within_run_and_policy": statistics.within(*pairs(rows, name), groups),
        "within_run_and_budget": statistics.within(*pairs(rows, name), [by_budget(row) for row in rows]),
    }


def sizes(records: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Factor by which a figure in nats is off, uncalibrated and calibrated by the other runs."""
    rows = [row for row in usable(records, name) if row["real"]["kl"] > 0]
    predicted, real = pairs(rows, name)
    calibrated = statistics.calibrated(predicted, real, [row["run"] for row in rows])
    small = [i for i, value in enumerate(real) if value < SMALL_KL]
    return {
        "factor": statistics.calibration(predicted, real),
        "raw": statistics.factor_off(predicted, real),
        "calibrated_on_other_runs": statistics.factor_off(calibrated, real),
        "calibrated_small": statistics.factor_off([calibrated[i] for i in small], [real[i] for i in small]),
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the keys `correlations` and `sizes` of a document: for each figure that some record
    has."""
    known = [name for name in PREDICTORS if usable(records, name)]
    return {
        "correlations": {name: correlations(records, name) for name in known},
        "sizes": {name: sizes(records, name) for name in known if name in IN_NATS},
    }
