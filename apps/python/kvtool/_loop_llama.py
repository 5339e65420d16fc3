# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Applies plans in llama.cpp: kvtool-capture-llama --confirm reads a run's tokens again and evicts as the plans
say."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from ._command import StrPath
from ._loop_measure import Case
from ._loop_plan import PLAN_SCHEMA, keep_all
from ._loop_run import Run

PROGRAM = "kvtool-capture-llama"
_FIGURES = ("kl", "kl_standard_error", "delta_nll", "agreement", "rows", "by")


class EngineError(RuntimeError):
    """The program failed; status: its exit status, numbered as kvtool's own."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class LlamaEngine:
    """Runs the program, which loads the model for each batch of plans."""

    def __init__(self, run: Run, program: StrPath, model: StrPath | None, threads: int | None = None) -> None:
        self.run = run
        self._words = [os.fspath(program), "--confirm", run.path]
        if model is not None:
            self._words += ["-m", os.fspath(model)]
        if threads is not None:
            self._words += ["-t", str(threads)]

    def keep_all_kl(self) -> float:
        """Returns the KL of a plan that drops nothing: 0, unless the machine does not repeat its results."""
        head = {"schema": PLAN_SCHEMA, "unit": "position", "applied": "before the next token"}
        with tempfile.TemporaryDirectory(prefix="kvtool-plans-") as folder:
            path = os.path.join(folder, "keep-all.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**head, "policy": "keep-all", "events": []}, file)
            (real,) = self.read_all([Case("keep-all", None, keep_all(self.run.shape), path)])
        return float(real["kl"])

    def read_all(self, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        """Yields one line of JSON for each plan, in order."""
        words = [*self._words, "--plan", *(os.path.abspath(case.path) for case in cases)]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except FileNotFoundError:
            raise EngineError(f"{words[0]}: no such program; give its path with --llama", 5) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EngineError(f"{words[0]}: {last}", done.returncode if done.returncode > 0 else 70)
        lines = done.stdout.splitlines()
        if len(lines) != len(cases):
            raise EngineError(f"{words[0]}: {len(lines)} lines for {len(cases)} plans", 70)
        for line in lines:
            yield _figures(line, words[0])


def _figures(line: str, program: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
        return {name: found[name] for name in _FIGURES}
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{program}: not a line of --confirm: {error!r}: {line[:200]}", 70) from None
