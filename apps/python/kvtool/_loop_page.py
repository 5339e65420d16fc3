# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The page of a closed loop: predicted against real, self-contained, in the reader's light or dark setting. Its charts
look like the program's own: inline SVG without scripts."""

from __future__ import annotations

import hashlib
import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._loop_document import banded, figure
from ._loop_statistics import IN_NATS, PREDICTORS, usable

_STYLE = """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.2rem 1rem 3rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.sub,footer,figcaption{color:var(--dim)}p{max-width:46rem;margin:.4rem 0}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22.4rem),1fr));gap:1rem}
figure{margin:.5rem 0;max-width:27rem}figcaption,footer{font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}
td,th{padding:.25rem .5rem;border-bottom:1px solid var(--rule);text-align:left;overflow-wrap:normal}td{white-space:nowrap}
th{vertical-align:bottom;color:var(--dim);font-weight:600;font-size:.85rem}.n{text-align:right}footer{margin-top:2rem}
"""
SHOWN = 2  # number of figures with a chart, those in nats first


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
        words = [row["run"], row["policy"], row["budget"] or "-", layers, f"{row['kept_share']:.3f}"]
        errors = [figure(predicted[name]) for name in ("output_error", "cosine_loss", "lost_mass")]
        losses = [figure(real[name]) for name in ("kl", "delta_nll", "agreement")]
        rows.append([*words, *errors, banded(predicted), *losses])
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
        note = "It has no unit: only its order matters."
        if name in IN_NATS:
            note = "Points on the line were predicted exactly. The expected KL of the table is this figure, calibrated."
        parts.append(f"<figure>\n{svg}\n<figcaption>{note}</figcaption>\n</figure>")
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
    head = ["run", "policy", "budget", "layers", "kept", "output error", "1 - cosine", "attention lost", "expected KL", "real KL"]
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
    return "<h2>Compressed, restored, continued</h2>\n" + table(head, rows, 4)


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
        return f"{path}: can no longer be read"
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


# ---- scatter charts over two logarithmic axes ----

# The colours of the program's pages (lib/report/svg_text.cc).
CHART_STYLE = """:root{--paper:#fff;--ink:#1c2430;--dim:#5b6573;--rule:#e3e7ec;
--c0:#0b62c4;--c1:#c2410c;--c2:#0f7b4f;--c3:#8b3fb8;--c4:#946200;--c5:#0e7490;--c6:#be185d;--c7:#5f6b7c}
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e6eaf0;--dim:#9aa5b3;--rule:#2a323d;
--c0:#5aa7ff;--c1:#ff9255;--c2:#4fcf96;--c3:#c792ea;--c4:#e3b341;--c5:#4dd0e1;--c6:#ff7eb6;--c7:#a3afbf}}
svg{width:100%;height:auto;display:block;background:var(--paper)}
svg text{font:12px system-ui,sans-serif;fill:var(--dim)}svg .b{font-weight:600;fill:var(--ink)}svg .m{text-anchor:middle}svg .e{text-anchor:end}
svg .g{stroke:var(--rule)}svg .a{stroke:var(--dim);stroke-dasharray:4 3}
"""
_COLOURS = 8
_WIDTH, _PLOT, _LEFT, _TOP = 356, 270, 64, 28  # the width of a phone's page, so that letters are 12 px there
_KEY, _LETTER = 15, 7.2  # height of a line of the key, width of a letter in it
# Marks go through all colours before the next shape.
_SHAPES = ("M-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0", "M0,-4L3.6,3L-3.6,3Z", "M-2.8,-2.8H2.8V2.8H-2.8Z")


class Point(NamedTuple):
    """A point of a series; tip: text shown while the pointer is on it."""

    x: float
    y: float
    series: str
    tip: str


class _Axis(NamedTuple):
    """A logarithmic axis, from pixel begin to pixel end."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Powers of ten, and on a short axis 2 and 5 times these."""
        steps = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = [step * 10.0**power for power in powers for step in steps]
        return [value for value in values if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Returns the logarithms that an axis spans: at least a decade, and a margin."""
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    missing = max(0.0, 1 - (high - low)) / 2
    return low - missing, high + missing


def scatter(points: Sequence[Point], title: str, x_label: str, y_label: str, diagonal: bool = False) -> str:
    """diagonal: both axes have the same range, and a line shows x = y. Points at or below 0 cannot be drawn and are
    counted."""
    drawn = [point for point in points if 0 < point.x < math.inf and 0 < point.y < math.inf]
    if not drawn:
        return f'<svg viewBox="0 0 {_WIDTH} 40" role="img"><title>{html.escape(title)}</title></svg>'
    xs, ys = [point.x for point in drawn], [point.y for point in drawn]
    x_span, y_span = (_extent(xs + ys), _extent(xs + ys)) if diagonal else (_extent(xs), _extent(ys))
    right, bottom = _WIDTH - 12, _TOP + _PLOT
    x, y = _Axis(*x_span, _LEFT, right), _Axis(*y_span, bottom, _TOP)
    series = sorted({point.series for point in drawn})
    parts = [f'<text class="b" x="2" y="12">{html.escape(title)}</text>', *_grid(x, y, x_label, y_label)]
    if diagonal:
        ends = [10 ** x.low, 10 ** x.high]
        parts.append(_line(x.at(ends[0]), y.at(ends[0]), x.at(ends[1]), y.at(ends[1]), "a"))
    for point in drawn:
        mark = _mark(series.index(point.series), x.at(point.x), y.at(point.y))
        parts.append(f"{mark}<title>{html.escape(point.tip)}: {point.x:.4g}, {point.y:.4g}</title></path>")
    below = bottom + 46
    room = _WIDTH - 8
    columns = max(1, int(room // (_LETTER * max(map(len, series)) + 18)))
    for i, name in enumerate(series):
        left, line = 4 + (i % columns) * room / columns, below + i // columns * _KEY
        text = f'<text x="{left + 12:.1f}" y="{line}">{html.escape(name)}</text>'
        parts.append(f"{_mark(i, left + 4, line - 4)}</path>{text}")
    height = below + (len(series) - 1) // columns * _KEY + 8
    missing = len(points) - len(drawn)
    if missing:
        parts.append(f'<text class="e" x="{right}" y="{_TOP + _PLOT - 6}">{missing} at or below 0 not shown</text>')
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join([f"{head}<title>{html.escape(title)}</title>", *parts, "</svg>"])


def _mark(number: int, x: float, y: float) -> str:
    """The element stays open, because a tip may follow."""
    shape, colour = _SHAPES[number // _COLOURS % len(_SHAPES)], number % _COLOURS
    return f'<path d="{shape}" transform="translate({x:.1f} {y:.1f})" fill="var(--c{colour})" fill-opacity=".75">'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _grid(x: _Axis, y: _Axis, x_label: str, y_label: str) -> list[str]:
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(_line(at, y.begin, at, y.end, "g"))
        parts.append(f'<text class="m" x="{at:.1f}" y="{y.begin + 14}">{value:g}</text>')
    for value in y.ticks():
        at = y.at(value)
        parts.append(_line(x.begin, at, x.end, at, "g"))
        parts.append(f'<text class="e" x="{x.begin - 5}" y="{at + 4:.1f}">{value:g}</text>')
    parts.append(f'<text class="m" x="{(x.begin + x.end) / 2:.1f}" y="{y.begin + 28}">{html.escape(x_label)}</text>')
    middle = (y.begin + y.end) / 2
    parts.append(f'<text class="m" transform="translate(14 {middle:.1f}) rotate(-90)">{html.escape(y_label)}</text>')
    return parts
