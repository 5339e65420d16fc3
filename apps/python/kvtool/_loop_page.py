# SPDX-License-Identifier: Apache-2.0
"""The page of a closed loop: predicted and real losses, self-contained, in the reader's light or dark
setting."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from typing import Any

from ._loop_chart import STYLE as CHART_STYLE
from ._loop_chart import Point, scatter
from ._loop_document import figure
from ._loop_summary import IN_NATS, PREDICTORS, usable

_STYLE = """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:1.5rem;margin:.2rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.sub,footer,figcaption{color:var(--dim)}p{max-width:46rem;margin:.4rem 0}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22.4rem),1fr));gap:1rem}
figure{margin:.5rem 0;max-width:27rem}figcaption,footer{font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
th{color:var(--dim);font-weight:600;font-size:.85rem}.n{text-align:right}footer{margin-top:2rem}
"""
SHOWN = 2  # figures that get a chart: those in nats first


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """The first columns are words, the others figures."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ['' if i < words else ' class="n"' for i in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds)) + "</tr>"

    body = "\n".join([line(head, "th"), *(line(row, "td") for row in rows)])
    return f'<div class="scroll"><table>\n{body}\n</table></div>\n'


def correlation_rows(document: dict[str, Any]) -> list[list[str]]:
    """For each figure: pooled correlation with its interval, for small losses, and within groups of a
    run."""
    rows = []
    for name, found in document["correlations"].items():
        cells = [PREDICTORS[name]]
        for part in ("pooled", "small"):
            low_high = found[part]["interval"]
            interval = f" ({low_high[0]:.3f} to {low_high[1]:.3f})" if low_high else ""
            value = found[part]["spearman"]
            cells.append("-" if value is None else f"{value:.3f}{interval}")
        for group in ("within_run_and_policy", "within_run_and_budget"):
            mean = found[group]["mean"]
            cells.append("-" if mean is None else f"{mean:.3f}")
        per_run = [value for value in found["per_run"].values() if value is not None]
        cells.append(f"{min(per_run):.3f}" if per_run else "-")
        rows.append(cells)
    return rows


def size_rows(document: dict[str, Any]) -> list[list[str]]:
    """For each figure in nats: the factor to the real KL, and its error if the other runs give the
    factor."""
    rows = []
    for name, found in document["sizes"].items():
        parts = [found[key]["median_factor"] for key in ("raw", "calibrated_on_other_runs", "calibrated_small")]
        tail = found["calibrated_on_other_runs"]["p90_factor"]
        rows.append([PREDICTORS[name], *map(figure, [found["factor"], *parts, tail])])
    return rows


def _plan_rows(document: dict[str, Any]) -> list[list[str]]:
    rows = []
    for row in document["plans"]:
        layers = "all" if row["layers"] is None else f"{row['layers'][0]}-{row['layers'][1]}"
        predicted, real = row["predicted"], row["real"]
        figures = [predicted[name] for name in ("output_error", "cosine_loss", "lost_mass", "predicted_kl")]
        figures += [real[name] for name in ("kl", "delta_nll", "agreement")]
        words = [row["run"], row["policy"], row["budget"] or "-", layers, f"{row['kept_share']:.3f}"]
        rows.append([*words, *map(figure, figures)])
    return rows


def _charts(document: dict[str, Any]) -> str:
    known = list(document["correlations"])
    parts = []
    for name in known[:SHOWN]:
        rows = usable(document["plans"], name)
        points = [
            Point(row["predicted"][name], row["real"]["kl"], row["policy"], f"{row['run']} {row['policy']} {row['budget'] or ''}")
            for row in rows
        ]
        svg = scatter(points, f"{PREDICTORS[name]} and real KL", PREDICTORS[name], "real KL, nats", diagonal=name in IN_NATS)
        note = "On the line, what was predicted came true." if name in IN_NATS else "A figure without a unit: its order counts."
        parts.append(f"<figure>\n{svg}\n<figcaption>{html.escape(PREDICTORS[name])}. {note}</figcaption>\n</figure>")
    return '<div class="row">\n' + "\n".join(parts) + "\n</div>\n" if parts else ""


def _plans(document: dict[str, Any]) -> str:
    if not document["plans"]:
        return ""
    head = ["figure", "Spearman, all plans (95 %)", "KL below 0.2 (95 %)", "of a run and policy", "of a run and budget"]
    head.append("least of a run")
    body = "<h2>Predicted against real</h2>\n" + _charts(document) + table(head, correlation_rows(document), 1)
    if document["sizes"]:
        head = ["in nats", "real over predicted", "off by", "calibrated on other runs", "of these below 0.2", "nine in ten within"]
        body += table(head, size_rows(document), 1)
    head = ["run", "policy", "budget", "layers", "kept", "output error", "1 - cosine", "lost mass", "predicted KL", "real KL"]
    return body + "<h2>Plans</h2>\n" + table([*head, "delta NLL", "greedy agreement"], _plan_rows(document), 4)


def _passes(document: dict[str, Any]) -> str:
    rows = [
        [row["run"], row["policy"], row["budget"] or "-", str(entry["pass"]), figure(entry["jaccard"]), figure(entry["kl"])]
        for row in document["plans"]
        for entry in row.get("passes", [])
    ]
    if not rows:
        return ""
    note = "<p>Plans made anew from the states that the plan before led to. Where a plan repeats, the loop is closed.</p>\n"
    return "<h2>Open loop and closed loop</h2>\n" + note + table(["run", "policy", "budget", "pass", "alike", "real KL"], rows, 3)


def _archives(document: dict[str, Any]) -> str:
    if not document["lossless"]:
        return ""
    rows = []
    for entry in document["lossless"]:
        same = ["equal" if entry[key] else "DIFFER" for key in ("tokens_equal", "logits_equal")]
        rows.append([entry["run"], entry["level"], *same, f"{entry['ratio']:.3f}x", str(entry["tokens"])])
    head = ["run", "level", "tokens", "logits", "ratio", "tokens compared"]
    return "<h2>Compressed, restored, gone on from</h2>\n" + table(head, rows, 4)


def _footer(document: dict[str, Any], command: str, inputs: Sequence[str]) -> str:
    by = f"Made by kvtool {document['tool']['version']}, plans applied in {document['engine']}"
    lines = [f"<p>{html.escape(by)}{', with' if command else '.'}</p>"]
    if command:
        lines.append(f"<p><code>{html.escape(command)}</code></p>")
    for path in inputs:
        lines.append(f"<p>{html.escape(_input_text(path))}</p>")
    return "<footer>" + "\n".join(lines) + "</footer>\n"


def _input_text(path: str) -> str:
    """Name, size and hash. A file that has disappeared meanwhile is named only."""
    hashed, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                hashed.update(part)
                size += len(part)
    except OSError:
        return f"{path}: cannot be read any more"
    return f"{path}: {size} bytes, SHA-256 {hashed.hexdigest()}"


def page(document: dict[str, Any], command: str = "", inputs: Sequence[str] = ()) -> str:
    """Builds the page of a document; at its end it shows the command and the inputs."""
    runs = [
        f"{run['name']}: {run['model']}, {run['prompt_tokens']} + {run['tokens'] - run['prompt_tokens']} tokens"
        for run in document["runs"]
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Predicted and real losses</title>\n'
        f"<style>\n{CHART_STYLE}{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Predicted and real losses</h1>\n"
        f'<p class="sub">{html.escape("; ".join(runs))}</p>\n{_plans(document)}{_passes(document)}{_archives(document)}'
        f"{_footer(document, command, inputs)}</main>\n</body>\n</html>\n"
    )
