# SPDX-License-Identifier: Apache-2.0
"""Iterates from the open loop to the closed loop: makes a new plan from the states that the last plan led to, until
plans repeat. Imports torch.

A replay decides by the queries and keys of the full run. In an engine every decision changes the input of the next
one. So the run is read under its plan, the resulting states are replayed to make a new plan, and so on.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from ._capture_recorder import raw_bytes
from ._capture_rules import Rule
from ._loop_measure import Case, Wanted, make_case
from ._loop_plan import Plan
from ._loop_run import Run
from ._loop_torch import Reader
from ._run_folder import RunFolder

PASSES = 4


class States:
    """A Sink that appends the decoded rows of queries, keys and values to a run, after those of the prompt."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._folder = folder
        prompt = run.shape.prompt_tokens
        for layer, (keys, values) in enumerate(run.caches()):
            rows = {f"q.{layer}": run.prompt_queries(layer), f"k_{layer}": keys[:prompt], f"v_{layer}": values[:prompt]}
            for name, array in rows.items():
                folder.append(name, "F32", array.shape[1:], memoryview(array.tobytes()))

    def queries(self, layer: int, query: Any, rule: Rule, mask: Any, implementation: str) -> None:
        self._append(f"q.{layer}", query)

    def entries(self, layer: int, key: Any, value: Any, cache: Any) -> None:
        self._append(f"k_{layer}", key)
        self._append(f"v_{layer}", value)

    def attended(self, layer: int, keys: int) -> None:
        """Returns how many keys a layer sees: here all of them, whatever it could keep."""

    def _append(self, name: str, tensor: Any) -> None:
        rows = tensor.detach()[0].transpose(0, 1).float()
        self._folder.append(name, "F32", tuple(rows.shape[1:]), raw_bytes(rows))


def evicted_run(reader: Reader, plan: Plan, path: str) -> Run:
    """Writes the run under a plan as a run folder of its own."""
    run = reader.run
    folder = RunFolder(path)
    try:
        reader.read(plan, States(run, folder))
        rules = ("scale", "softcap", "window")
        metadata = {key: text for key, text in run.metadata.items() if key.partition(".")[0] in rules}
        document = {key: value for key, value in run.document.items() if key not in ("schema", "files")}
        folder.commit(
            tokens=run.tokens.tolist(),
            prompt_tokens=run.shape.prompt_tokens,
            layers=list(range(run.shape.layers)),
            trace_metadata={**metadata, "kv_heads": str(run.shape.kv_heads)},
            snapshot_metadata={"kvtool.key_rotation": "rotated"} if run.document.get("rope") else {},
            logits=[],
            document=document,
        )
    except BaseException:
        folder.discard()
        raise
    return Run(path)


def iterate(reader: Reader, case: Case, **options: Any) -> Iterator[dict[str, Any]]:
    """Yields for each pass how similar the plan is to the one before, and its cost. Ends when a plan
    repeats."""
    if case.budget is None:
        raise ValueError(f"{case.policy}: --iterate makes plans anew, and needs a policy and a budget")
    if reader.run.document["engine"]["name"] != "transformers":
        raise ValueError(f"{reader.run.path}: --iterate needs a run of kvtool.capture, whose states the model shares")
    plan = case.plan
    for number in range(1, PASSES + 1):
        with tempfile.TemporaryDirectory(prefix="kvtool-iterate-") as folder:
            states = evicted_run(reader, plan, os.path.join(folder, "run"))
            again = make_case(states, Wanted(case.policy, case.budget), folder, **options).plan
        alike = again.jaccard(plan)
        plan = again
        yield {"pass": number, "jaccard": alike, "kl": reader.read(plan).document()["kl"]}
        if alike == 1:
            return
