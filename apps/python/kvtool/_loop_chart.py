# SPDX-License-Identifier: Apache-2.0
"""A scatter chart over two logarithmic axes as inline SVG, in the style of the program's charts, without
scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

# The colours of the program's pages (lib/report/svg_text.cc).
STYLE = """:root{--paper:#fff;--ink:#1c2430;--dim:#5b6573;--rule:#e3e7ec;
--c0:#0b62c4;--c1:#c2410c;--c2:#0f7b4f;--c3:#8b3fb8;--c4:#a16207;--c5:#0e7490;--c6:#be185d;--c7:#64748b}
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

    def decades(self) -> list[int]:
        return list(range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1))


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
    for power in x.decades():
        at = x.at(10.0**power)
        parts.append(_line(at, y.begin, at, y.end, "g"))
        parts.append(f'<text class="m" x="{at:.1f}" y="{y.begin + 14}">{10.0**power:g}</text>')
    for power in y.decades():
        at = y.at(10.0**power)
        parts.append(_line(x.begin, at, x.end, at, "g"))
        parts.append(f'<text class="e" x="{x.begin - 5}" y="{at + 4:.1f}">{10.0**power:g}</text>')
    parts.append(f'<text class="m" x="{(x.begin + x.end) / 2:.1f}" y="{y.begin + 28}">{html.escape(x_label)}</text>')
    middle = (y.begin + y.end) / 2
    parts.append(f'<text class="m" transform="translate(14 {middle:.1f}) rotate(-90)">{html.escape(y_label)}</text>')
    return parts
