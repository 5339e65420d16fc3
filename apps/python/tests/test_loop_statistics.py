# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Ranks, intervals and calibrations, compared with their definitions."""

import itertools
import math
import random

import pytest

from kvtool import _loop_statistics as statistics


def slow_rank(values, i):
    """One plus the number of smaller values, plus half of the other equal ones."""
    smaller = sum(value < values[i] for value in values)
    equal = sum(value == values[i] for value in values)
    return smaller + (equal + 1) / 2


def slow_spearman(x, y):
    """Pearson's coefficient of ranks."""
    a, b = ([slow_rank(values, i) for i in range(len(values))] for values in (x, y))
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    over = sum((p - ma) * (q - mb) for p, q in zip(a, b))
    return over / math.sqrt(sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b))


@pytest.mark.parametrize("seed", range(5))
def test_spearman(seed):
    dice = random.Random(seed)
    x = [dice.randrange(8) for _ in range(30)]
    y = [value + dice.randrange(6) for value in x]
    assert statistics.ranks(x).tolist() == [slow_rank(x, i) for i in range(30)]
    assert statistics.spearman(x, y) == pytest.approx(slow_spearman(x, y))


def test_spearman_of_known_orders():
    # Without ties it is 1 - 6 sum d^2 / (n (n^2 - 1)).
    for order in itertools.permutations(range(5)):
        expected = 1 - 6 * sum((a - b) ** 2 for a, b in enumerate(order)) / (5 * 24)
        assert statistics.spearman(range(5), order) == pytest.approx(expected)
    assert statistics.spearman([1, 2, 3], [math.exp(v) for v in (1, 2, 3)]) == 1


def test_what_has_no_rank_correlation():
    assert statistics.spearman([1, 2], [1, 2]) is None
    assert statistics.spearman([1, 1, 1], [1, 2, 3]) is None
    with pytest.raises(ValueError):
        statistics.spearman([1, 2, 3], [1, 2])


def test_interval():
    dice = random.Random(1)
    x = [dice.random() for _ in range(120)]
    y = [value + 0.3 * dice.random() for value in x]
    single = list(range(120))
    low, high = statistics.spearman_interval(x, y, single)
    assert low < statistics.spearman(x, y) < high and high - low < 0.15
    assert statistics.spearman_interval(x, y, single) == (low, high)
    # Ten copies of each run add no evidence if they are resampled together.
    copies = statistics.spearman_interval(x * 10, y * 10, single * 10)
    assert copies[1] - copies[0] == pytest.approx(high - low, rel=0.2)
    assert statistics.spearman_interval(x, y, [0, 1] * 60) is None


def test_within():
    x = [1, 2, 3, 1, 2, 3, 5, 5]
    y = [1, 2, 3, 3, 2, 1, 7, 8]
    assert statistics.within(x, y, list("aaabbbcc")) == {"mean": 0, "min": -1, "groups": 2}
    assert statistics.within([], [], []) == {"mean": None, "min": None, "groups": 0}


def test_calibration_comes_from_other_texts():
    predicted = [1, 2, 4, 1, 2, 4, 1, 2]
    real = [2, 4, 8, 3, 6, 12, 5, 10]
    texts = list("aaabbbcc")
    # Expected factors are the medians of the other texts' quotients: for a 3 3 3 5 5, for b 2 2 2 5 5, for c 2 2 2 3 3
    # 3.
    assert statistics.calibrated(predicted, real, texts) == [3, 6, 12, 2, 4, 8, 2.5, 5]
    assert statistics.calibrated([1, 2], [3, 4], ["a", "a"]) == [None, None]
    assert statistics.calibration([0, 1], [5, 0]) is None


def test_factor_off():
    off = statistics.factor_off([1, 2, 4, None, 0], [1, 1, 1, 1, 1])
    assert off["runs"] == 3
    assert off["median_factor"] == pytest.approx(2)
    assert off["quotient"]["median"] == pytest.approx(2)
    # A figure that is half as large is off by the same factor as one twice as large.
    assert statistics.factor_off([0.5], [1])["median_factor"] == pytest.approx(2)
    assert statistics.factor_off([], [])["median_factor"] is None
