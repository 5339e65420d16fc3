# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""How well predictions of many plans rank and size what these cost. Needs only NumPy.

Runs of one text and policy differ only in their budget, so their ranks are not independent. Therefore intervals
resample such groups as a whole, and calibrations come from other texts than the one that they are used on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy
import numpy.typing

Floats = numpy.typing.NDArray[numpy.float64]
RESAMPLES = 2000


def ranks(values: Sequence[float]) -> Floats:
    """Ranks from 1 on; equal values share the mean of their ranks."""
    array = numpy.asarray(values, dtype=numpy.float64)
    _, place, count = numpy.unique(array, return_inverse=True, return_counts=True)
    ends = numpy.cumsum(count)
    result: Floats = (ends - (count - 1) / 2)[place.reshape(-1)]
    return result


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Rank correlation; None for fewer than three pairs, or if one side is constant."""
    if len(x) != len(y):
        raise ValueError(f"spearman: {len(x)} and {len(y)} values")
    if len(x) < 3:
        return None
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    if norm == 0:
        return None
    return float(numpy.clip(a @ b / norm, -1, 1))


def _places_of(groups: Sequence[Hashable]) -> list[list[int]]:
    """The places of each group's members."""
    members: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    return list(members.values())


def spearman_interval(
    x: Sequence[float], y: Sequence[float], groups: Sequence[Hashable], seed: int = 0
) -> tuple[float, float] | None:
    """95 % bootstrap interval of spearman(x, y) in which groups are resampled as a whole. None for fewer than three
    groups."""
    lists = [numpy.array(places) for places in _places_of(groups)]
    if len(lists) < 3:
        return None
    random = numpy.random.default_rng(seed)
    a, b = numpy.asarray(x, dtype=numpy.float64), numpy.asarray(y, dtype=numpy.float64)
    found = []
    for _ in range(RESAMPLES):
        chosen = numpy.concatenate([lists[i] for i in random.integers(0, len(lists), len(lists))])
        value = spearman(a[chosen].tolist(), b[chosen].tolist())
        if value is not None:
            found.append(value)
    if not found:
        return None
    low, high = numpy.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def correlation(x: Sequence[float], y: Sequence[float], groups: Sequence[Hashable]) -> dict[str, Any]:
    """Spearman's coefficient with its interval, in the form of documents."""
    interval = spearman_interval(x, y, groups)
    return {"spearman": spearman(x, y), "interval": list(interval) if interval else None, "runs": len(x)}


def within(x: Sequence[float], y: Sequence[float], groups: Sequence[Hashable]) -> dict[str, Any]:
    """Spearman's coefficient within each group that has one: its mean, its minimum, and the number of groups."""
    found = [spearman([x[i] for i in places], [y[i] for i in places]) for places in _places_of(groups)]
    values = [value for value in found if value is not None]
    if not values:
        return {"mean": None, "min": None, "groups": 0}
    return {"mean": sum(values) / len(values), "min": min(values), "groups": len(values)}


def median(values: Sequence[float]) -> float:
    return float(numpy.median(numpy.asarray(values, dtype=numpy.float64)))


def calibration(predicted: Sequence[float], real: Sequence[float]) -> float | None:
    """The factor that makes a prediction right at the median; None without a pair above 0."""
    quotients = [r / p for p, r in zip(predicted, real) if p > 0 and r > 0]
    return median(quotients) if quotients else None


def calibrated(predicted: Sequence[float], real: Sequence[float], texts: Sequence[Hashable]) -> list[float | None]:
    """Each prediction times the factor of the other texts; None if there is no other text."""
    factors: dict[Hashable, float | None] = {}
    for text in set(texts):
        others = [i for i, other in enumerate(texts) if other != text]
        factors[text] = calibration([predicted[i] for i in others], [real[i] for i in others])
    result: list[float | None] = []
    for value, text in zip(predicted, texts):
        factor = factors[text]
        result.append(None if factor is None else value * factor)
    return result


def factor_off(predicted: Sequence[float | None], real: Sequence[float]) -> dict[str, Any]:
    """Factors by which predictions are off: at the median, for nine in ten, and the range of the
    quotient."""
    quotients = [p / r for p, r in zip(predicted, real) if p is not None and p > 0 and r > 0]
    if not quotients:
        return {"runs": 0, "median_factor": None, "p90_factor": None, "quotient": None}
    logs = numpy.log(numpy.asarray(quotients))
    middle, high = numpy.percentile(numpy.abs(logs), [50, 90])
    low, centre, top = numpy.percentile(logs, [10, 50, 90])
    return {
        "runs": len(quotients),
        "median_factor": math.exp(middle),
        "p90_factor": math.exp(high),
        "quotient": {"p10": math.exp(low), "median": math.exp(centre), "p90": math.exp(top)},
    }


# ---- the sections of documents ----

# Figures in the order of the page, beginning with the one that is probably the best.
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
    per_run = {run: spearman(*pairs([row for row in rows if row["run"] == run], name)) for run in runs}
    groups = [by_policy(row) for row in rows]
    return {
        "pooled": correlation(*pairs(rows, name), groups),
        "small": correlation(*pairs(small, name), [by_policy(row) for row in small]),
        "per_run": per_run,
        "within_run_and_policy": within(*pairs(rows, name), groups),
        "within_run_and_budget": within(*pairs(rows, name), [by_budget(row) for row in rows]),
    }


def sizes(records: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Factor by which a figure in nats is off, uncalibrated and calibrated by the other runs."""
    rows = [row for row in usable(records, name) if row["real"]["kl"] > 0]
    predicted, real = pairs(rows, name)
    scaled = calibrated(predicted, real, [row["run"] for row in rows])
    small = [i for i, value in enumerate(real) if value < SMALL_KL]
    return {
        "factor": calibration(predicted, real),
        "raw": factor_off(predicted, real),
        "calibrated_on_other_runs": factor_off(scaled, real),
        "calibrated_small": factor_off([scaled[i] for i in small], [real[i] for i in small]),
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the keys `correlations` and `sizes` of a document: for each figure that some record
    has."""
    known = [name for name in PREDICTORS if usable(records, name)]
    return {
        "correlations": {name: correlations(records, name) for name in known},
        "sizes": {name: sizes(records, name) for name in known if name in IN_NATS},
    }
