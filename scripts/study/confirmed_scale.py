#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Says how much a prediction gains if it is corrected as `advise --confirm` corrects it: by the median of real /
predicted of the three plans of the same text that are nearest to it in predicted loss, itself left out.

confirmed_scale.py [PREDICTIONS.csv]    the rows of prediction_study.py; prints one line for each kind of correction
"""
import collections
import csv
import math
import pathlib
import statistics
import sys

ROWS = pathlib.Path(__file__).resolve().parents[2] / "docs/closed-loop/predictions.csv"
MEDIAN = 1.06  # of predicted / real with both kinds of gradients (lib/study/eviction/quality.cc)


def describe(name, quotients):
    off = [abs(math.log(quotient)) for quotient in quotients]
    shares = ", ".join(f"within {factor} {sum(x < math.log(factor) for x in off) / len(off):.2f}" for factor in (1.25, 1.5, 2))
    print(f"{name}: {len(off)} plans, median factor {math.exp(statistics.median(off)):.2f}, {shares}")


def main():
    texts = collections.defaultdict(list)
    with open(sys.argv[1] if len(sys.argv) > 1 else ROWS, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            predicted, real = float(row["both"]) / MEDIAN, float(row["real"])
            if predicted > 0 and real > 0:
                texts[row["model"], row["text"]].append((predicted, real))
    predicted_alone, corrected = [], []
    for plans in texts.values():
        for number, (predicted, real) in enumerate(plans):
            others = plans[:number] + plans[number + 1 :]
            near = sorted(others, key=lambda plan: abs(math.log(plan[0] / predicted)))[:3]
            predicted_alone.append(predicted / real)
            corrected.append(predicted * statistics.median(r / p for p, r in near) / real)
    describe("predicted", predicted_alone)
    describe("corrected by three plans of the text", corrected)


main()
