# SPDX-License-Identifier: Apache-2.0
"""Compares predictions of replay-quant with the losses that quant_loop_study.py measured: records, tables, picture."""
import csv
import hashlib
import json
import math
import subprocess

import numpy as np

from kvtool import _loop_statistics as statistics
from kvtool._loop_page import CHART_STYLE, Point, scatter
from quant_loop_study import BLOCKS, FIRST_ROWS, TORCH, Losses, run_folder, tokens_of

COMBINED = ["q8_0", "q5_1", "q4_0"]
LATE = ("kivi4", "kivi2")  # the prompt is attended to in full, so only rows after it lose anything
FIGURES = ["output_error", "one_minus_cosine", "attention_kl"]


def predictions(arguments, name, engine, first, *flags):
    """Returns figures by "K:V" of one replay-quant, cached in WORK/predicted."""
    words = [str(run_folder(arguments.work, name, engine)), "--sample-rows", "0", "--prompt-tokens", str(first), *flags]
    digest = hashlib.sha256(" ".join(words[1:]).encode()).hexdigest()[:12]
    path = arguments.work / "predicted" / f"{name}-{engine}-{digest}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        done = subprocess.run([arguments.kvtool, "replay-quant", *words, "--json", "-q", "--threads", str(arguments.threads)],
                              stdout=subprocess.PIPE, check=True)
        path.write_bytes(done.stdout)
    runs = json.loads(path.read_text())["results"][0]["runs"]
    return {f"{run['k']}:{run['v']}": run for run in runs[1:]}


def record(name, engine, rows, losses, key, k, v, predicted):
    first = FIRST_ROWS[rows]
    kl = losses.rows[f"{key}/kl"][first:]
    return {"text": name, "engine": engine, "rows": rows, "types": key, "k": k, "v": v,
            **{figure: predicted[figure] for figure in FIGURES}, "predicted_kl": predicted["predicted_kl"]["nats"],
            "kl": float(kl.mean()), "kl_standard_error": float(kl.std() / math.sqrt(len(kl))),
            "same_top": float(losses.rows[f"{key}/same"][first:].mean())}


def records_of(arguments, name, rows):
    """Returns the losses of llama.cpp and torch for one text, and the predicted ones."""
    first, found = FIRST_ROWS[rows], []
    llama, torch = Losses(arguments.work, name, "llama"), Losses(arguments.work, name, "torch")
    lists = {"--k": ",".join(BLOCKS), "--v": ",".join(BLOCKS)}
    for side in lists:
        predicted = predictions(arguments, name, "llama", first, side, lists[side])
        plain = predictions(arguments, name, "llama", first, side, "q8_0,q4_0", "--hadamard", "no")
        for kind in BLOCKS:
            k, v = (kind, "f16") if side == "--k" else ("f16", kind)
            if llama.has(f"{k}:{v}"):
                found.append(record(name, "llama", rows, llama, f"{k}:{v}", k, v, predicted[f"{k}:{v}"]))
            key = f"{kind}-plain-{side[2:]}"
            if llama.has(key):
                found.append(record(name, "llama", rows, llama, key, k, v, plain[f"{k}:{v}"]))
    both = predictions(arguments, name, "llama", first, "--k", ",".join(COMBINED), "--v", ",".join(COMBINED))
    for pair, figures in both.items():
        if "f16" not in pair and llama.has(pair):
            found.append(record(name, "llama", rows, llama, pair, *pair.split(":"), figures))
    for side in ("k", "v"):
        kinds = [kind for kind in TORCH if torch.has(f"{kind}-{side}") and not (rows == "all" and kind in LATE)]
        if not kinds:
            continue
        predicted = predictions(arguments, name, "torch", first, f"--{side}", ",".join(kinds), "--engine-q", "exact")
        for kind in kinds:
            k, v = (kind, "f16") if side == "k" else ("f16", kind)
            found.append(record(name, "torch", rows, torch, f"{kind}-{side}", k, v, predicted[f"{k}:{v}"]))
    return found


def summary_of(records):
    """Returns correlations, and the factor between predicted and real nats, uncalibrated and with the other texts'
    calibration."""
    texts = [row["text"] for row in records]
    real = [row["kl"] for row in records]
    predicted = [row["predicted_kl"] for row in records]
    found = {"runs": len(records), "correlations": {}, "raw": statistics.factor_off(predicted, real),
             "calibrated_on_other_texts": statistics.factor_off(statistics.calibrated(predicted, real, texts), real)}
    for figure in ["predicted_kl", *FIGURES[:2]]:
        values = [row[figure] for row in records]
        inside = [statistics.spearman([values[i] for i in at], [real[i] for i in at])
                  for at in ([i for i, text in enumerate(texts) if text == name] for name in sorted(set(texts)))]
        found["correlations"][figure] = {"spearman": statistics.spearman(values, real), "per_text": inside}
    return found


def sides(records):
    """Returns the cost of K over the cost of V in the same type, by text: real, and predicted by each figure."""
    by_key = {(row["text"], row["types"]): row for row in records}
    found = []
    for (text, key), row in by_key.items():
        other = by_key.get((text, f"f16:{row['k']}" if ":" in key else key[:-1] + "v"))
        if row["v"] != "f16" or row["k"] == "f16" or other is None:
            continue
        quotients = {figure: row[figure] / other[figure] for figure in ("kl", "predicted_kl", "one_minus_cosine")}
        found.append({"text": text, "type": row["k"] + ("-plain" if "plain" in key else ""), **quotients})
    return found


def write_table(path, records):
    head = ["text", "engine", "rows", "types", "k", "v", *FIGURES, "predicted_kl", "kl", "kl_standard_error", "same_top"]
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head)
        for row in records:
            table.writerow([f"{row[name]:.5g}" if isinstance(row[name], float) else row[name] for name in head])


def picture(records):
    points = [Point(row["predicted_kl"], row["kl"], ("V" if row["k"] == "f16" else "K" if row["v"] == "f16" else "both")
                    + (", torch" if row["engine"] == "torch" else ""), f"{row['text']} {row['types']}") for row in records]
    svg = scatter(points, "Predicted and real KL of quantised caches", "predicted KL, nats", "real KL, nats", diagonal=True)
    first, rest = svg.split(">", 1)
    return f"{first}>\n<style>\n{CHART_STYLE}</style>{rest}\n"


def geometric_mean(values):
    return math.exp(float(np.mean(np.log(values))))


def print_types(records):
    """Prints a line for each type: means over texts, K and V."""
    print("| type | engine | K real | K predicted | V real | V predicted | K over V, real | predicted |\n| --- |" + " --- |" * 7)
    by_key = {}
    for row in records:
        by_key.setdefault((row["engine"], row["types"]), []).append(row)
    for (engine, key), rows in by_key.items():
        if rows[0]["v"] != "f16" or rows[0]["k"] == "f16":
            continue
        others = by_key.get((engine, f"f16:{rows[0]['k']}" if ":" in key else key[:-1] + "v"), [])
        cells = [f"{geometric_mean([row[f] for row in part]):.3g}" if part else "-"
                 for part in (rows, others) for f in ("kl", "predicted_kl")]
        shared = sorted({row["text"] for row in rows} & {row["text"] for row in others})
        ratios = ["-", "-"]
        if shared:
            of = {(row["text"], side): row for side, part in (("k", rows), ("v", others)) for row in part}
            ratios = [f"{geometric_mean([of[t, 'k'][f] / of[t, 'v'][f] for t in shared]):.1f}" for f in ("kl", "predicted_kl")]
        name = rows[0]["k"] + (", not rotated" if "plain" in key else "")
        print(f"| {name} | {engine} | " + " | ".join(cells + ratios) + " |")


def add_texts(arguments, names, document):
    """Adds a description of each text, and the loss that the engine's own noise causes on it."""
    for name in names:
        run = json.loads((run_folder(arguments.work, name, "llama") / "run.json").read_text())
        text = (arguments.work / "texts" / f"{name}.txt").read_bytes()
        document["texts"][name] = {"sha256": hashlib.sha256(text).hexdigest(), "nll": run["nll"]}
        document["engine"] = run["engine"]
        losses = Losses(arguments.work, name, "llama")
        document["floor"][name] = float(losses.rows["floor/kl"][1:].mean()) if losses.has("floor") else None


def add_rows(records, document):
    """Adds the summaries of the whole and of its parts, by the rows that were measured."""
    parts = {"": lambda row: True, "K": lambda row: row["v"] == "f16", "V": lambda row: row["k"] == "f16",
             "llama": lambda row: row["engine"] == "llama", "torch": lambda row: row["engine"] == "torch"}
    for rows in FIRST_ROWS:
        of_rows = [row for row in records if row["rows"] == rows]
        document["rows"][rows] = {part or "whole": summary_of([row for row in of_rows if wanted(row)])
                                  for part, wanted in parts.items() if any(wanted(row) for row in of_rows)}
        document["rows"][rows]["k_over_v"] = sides(of_rows)


def print_rows(document):
    for rows, found in document["rows"].items():
        for part, entry in found.items():
            if part == "k_over_v":
                continue
            off, raw = entry["calibrated_on_other_texts"], entry["raw"]
            print(rows, part, entry["runs"], {name: round(c["spearman"], 3) for name, c in entry["correlations"].items()},
                  "least of a text", round(min(entry["correlations"]["predicted_kl"]["per_text"]), 3), "quotient",
                  raw["quotient"], "off by", off["median_factor"], off["p90_factor"])


def report(arguments):
    names = [name for name in arguments.texts if (arguments.work / "real" / f"{name}-llama.npz").exists()]
    records = [row for rows in FIRST_ROWS for name in names for row in records_of(arguments, name, rows)]
    document = {"model": "SmolLM2-135M-Instruct, Q4_1 widened to F32", "tokens": len(tokens_of(arguments.work, names[0])),
                "first_rows": FIRST_ROWS, "texts": {}, "floor": {}, "rows": {}}
    add_texts(arguments, names, document)
    add_rows(records, document)
    document["calibration"] = statistics.factor_off([row["predicted_kl"] for row in records], [row["kl"] for row in records])
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_table(arguments.out / "quant.csv", records)
    (arguments.out / "quant.json").write_text(json.dumps(document, indent=1) + "\n")
    decoded = [row for row in records if row["rows"] == "decoded"]
    (arguments.out / "quant.svg").write_text(picture(decoded))
    print_types(decoded)
    print_rows(document)
    print("calibration", document["calibration"])
