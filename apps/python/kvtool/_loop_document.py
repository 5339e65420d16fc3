# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Documents of closed_loop (schema kvtool.closed-loop/1): their contents, display and writing."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from . import __version__
from ._loop_run import Run
from ._loop_statistics import summary
from ._run_folder import umask


def run_entry(run: Run) -> dict[str, Any]:
    """Returns a document's description of a run."""
    layers, kv_heads, tokens, prompt = run.shape
    facts = {"name": run.name, "model": run.model.get("name"), "engine": run.document["engine"].get("name")}
    geometry = {"layers": layers, "query_heads": run.query_heads, "kv_heads": kv_heads, "head_dim": run.head_dim}
    return {**facts, "tokens": tokens, "prompt_tokens": prompt, "geometry": geometry, "nll": run.document.get("nll")}


def document(
    engine: str, runs: list[dict[str, Any]], records: list[dict[str, Any]], archives: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "schema": "kvtool.closed-loop/1",
        "tool": {"name": "kvtool.closed_loop", "version": __version__},
        "engine": engine,
        "runs": runs,
        "plans": records,
        **summary(records),
        "lossless": archives,
    }


def verdict(of: dict[str, Any]) -> int:
    """Returns 1 if a restored cache let the model continue differently. A loss that plans cause is a figure, not a
    failure."""
    return 0 if all(entry["tokens_equal"] and entry["logits_equal"] for entry in of["lossless"]) else 1


def text(of: dict[str, Any]) -> str:
    return json.dumps(of, indent=1, allow_nan=False) + "\n"


def refuse_existing(path: str, force: bool) -> None:
    """Checks before anything is computed; write() checks again."""
    if os.path.lexists(path) and not (force and os.path.isfile(path)):
        raise FileExistsError(f"{path}: exists; -f overwrites files")


def write(path: str, contents: str, force: bool) -> None:
    """The file appears complete or not at all."""
    refuse_existing(path, force)
    folder = os.path.dirname(os.path.abspath(path))
    handle, partial = tempfile.mkstemp(prefix=f".{os.path.basename(path)}-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o666 & ~umask())
        if force:
            os.replace(partial, path)
        else:
            os.link(partial, path)  # refuses a file that was created meanwhile
            os.unlink(partial)
    except BaseException:
        if os.path.lexists(partial):
            os.unlink(partial)
        raise


def figure(value: float | None) -> str:
    """Four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def banded(predicted: dict[str, Any]) -> str:
    """Returns the expected nats with the range of 80 % of the study's runs, as replay evict prints
    them."""
    nats = [predicted[name] for name in ("expected_nats", "low_nats", "high_nats")]
    return "-" if None in nats else "{:.3g} ({:.3g}-{:.3g})".format(*nats)


class Table:
    """Prints rows as they are measured, because each takes minutes."""

    COLUMNS = ("run", "policy", "budget", "kept", "error", "1-cosine", "predicted KL", "real KL", "inside", "dNLL", "agree")

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._begun = quiet, False

    def show(self, row: dict[str, Any]) -> None:
        if self._quiet:
            return
        if not self._begun:
            self._begun = True
            self._line(self.COLUMNS)
        predicted, real = row["predicted"], row["real"]
        inside = {None: "-", True: "yes", False: "no"}[row["within_band"]]
        cells = [row["run"], row["policy"], row["budget"] or "-", f"{row['kept_share']:.3f}"]
        cells += [figure(predicted["output_error"]), figure(predicted["cosine_loss"]), banded(predicted)]
        self._line((*cells, figure(real["kl"]), inside, figure(real["delta_nll"]), figure(real["agreement"])))
        for entry in row.get("passes", []):
            alike, kl = figure(entry["jaccard"]), figure(entry["kl"])
            self._print(f"  pass {entry['pass']}: plan {alike} alike, real KL {kl}")

    def show_archive(self, entry: dict[str, Any]) -> None:
        if self._quiet:
            return
        words = [f"{what} {'equal' if entry[what + '_equal'] else 'DIFFER'}" for what in ("tokens", "logits")]
        head = f"{entry['run']}: level {entry['level']}, {entry['ratio']:.3f}x"
        self._print(f"{head}: next {entry['tokens']} {', '.join(words)}")

    def _line(self, cells: tuple[str, ...]) -> None:
        widths = (16, 12, 7, 7, 10, 10, 24, 10, 6, 10, 8)
        left = "  ".join(cell.ljust(width) for cell, width in zip(cells[:3], widths))
        right = "  ".join(cell.rjust(width) for cell, width in zip(cells[3:], widths[3:]))
        self._print(f"{left}  {right}")

    def _print(self, text: str) -> None:
        """Prints a line. If the reader stops early (`| head`), only the table ends, not the study or its
        page."""
        if self._quiet:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:
            self._quiet = True
            # The rest of the buffer would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
