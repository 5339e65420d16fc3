# SPDX-License-Identifier: Apache-2.0
"""closed_loop with a model of transformers, which is loaded once for all runs. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import _capture_model
from ._loop_iterate import iterate
from ._loop_lossless import lossless
from ._loop_measure import Case
from ._loop_run import Run
from ._loop_torch import Reader


class TorchSide:
    """A model, and the runs that it reads."""

    def __init__(self, model: str, threads: int | None = None) -> None:
        if threads:
            torch.set_num_threads(threads)
        # Computes in f32 whatever the type of the weights, because the rounding of bf16 would hide a small loss.
        self.model = _capture_model.load_model(model, "f32")

    def reader(self, run: Run) -> Reader:
        return Reader(self.model, run)

    def passes(self, reader: Reader, case: Case, options: dict[str, Any]) -> list[dict[str, Any]]:
        """Iterates from the open loop to the closed loop, for a plan that a policy made."""
        return list(iterate(reader, case, **options))

    def lossless(self, run: Run) -> Iterator[dict[str, Any]]:
        return lossless(self.model, run)
