# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Applies plans in a model of transformers: it reads the run's own tokens again with masks. Imports torch.

The masks show each kv head the positions that the plan keeps. The full run uses the same path with a plan that keeps
everything, so only the eviction differs between the two.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import _files
from ._capture_masks import narrowed_attention
from ._capture_model import cache_entries, fill_cache, new_cache, with_cache
from ._capture_recorder import raw_bytes
from ._capture_rules import CaptureError
from ._capture_taps import Sink, attention_modules, tapped
from ._codec import LEVELS
from ._loop_measure import Case, Wanted, make_case
from ._loop_plan import Plan, keep_all
from ._loop_run import Layers, Run, as_f32
from ._loop_types import Types, stored
from ._run_folder import Rule, RunFolder
from ._snapshot import open_snapshot

BLOCK_ROWS = 512  # rows that the model reads at once
# Rounding in engines and quantised matrix products changes a token's NLL by hundredths.
MAX_NLL_APART = 0.25
_KL_ROWS = 64  # rows of logits that are compared at once, in f64


class Real:
    """The real cost of a plan: for each decoded row the KL to the full run, and the change of the next token's
    loss."""

    def __init__(self, kl: Any, nll: Any, full_nll: Any, agrees: Any) -> None:
        self.kl, self.nll, self.full_nll, self.agrees = kl, nll, full_nll, agrees

    def document(self) -> dict[str, Any]:
        """In the form of documents of closed_loop; the last row has no next token."""
        rows = len(self.kl)
        scored = len(self.nll)
        error = float(self.kl.std() / rows**0.5) if rows > 1 else None
        return {
            "kl": float(self.kl.mean()),
            "kl_standard_error": error,
            "kl_p95": float(self.kl.quantile(0.95)),
            "kl_max": float(self.kl.max()),
            "delta_nll": float((self.nll - self.full_nll).mean()) if scored else None,
            "agreement": float(self.agrees.double().mean()),
            "rows": rows,
            "by": "torch mask",
        }


class Reader:
    """A model that has read a run's prompt, and reads its decoded tokens again under any plan."""

    def __init__(self, model: Any, run: Run) -> None:
        self.model, self.run = model, run
        try:
            self.modules = attention_modules(model)
        except CaptureError as error:
            raise NotImplementedError(str(error)) from None
        layers, _, tokens, prompt = run.shape
        if sorted(self.modules) != list(range(layers)):
            raise ValueError(f"{run.path}: the run has {layers} layers, the model {len(self.modules)}")
        self.tokens = torch.from_numpy(run.tokens.copy())
        size = model.get_input_embeddings().weight.shape[0]
        if int(self.tokens.min()) < 0 or int(self.tokens.max()) >= size:
            raise ValueError(f"{run.path}: token ids beyond the model's vocabulary of {size}")
        with torch.inference_mode():
            cache = new_cache()
            self._read_prompt(cache)
            self.prompt_cache = cache_entries(cache, layers)
            if self.prompt_cache[0][0].shape[1] != run.shape.kv_heads:
                raise ValueError(f"{run.path}: the model does not have the run's {run.shape.kv_heads} kv heads")
            self.full = torch.cat(list(self._log_probabilities(keep_all(run.shape))))
        self._check_model()

    def _check_model(self) -> None:
        """Checks that the likelihoods of the run's tokens are those that were captured, which shows that the model is
        the same."""
        recorded = self.run.recorded_nll()
        targets = self.tokens[self.run.shape.prompt_tokens + 1 :]
        here = -self.full[: len(targets)].gather(1, targets[:, None])[:, 0].double()
        if recorded is None or not len(here):
            return
        there = torch.from_numpy(recorded[: len(targets)].copy()).double()
        apart = float((here - there).abs().mean())
        if not apart <= MAX_NLL_APART:
            raise ValueError(
                f"{self.run.path}: this model finds the tokens on average {apart:.3f} nats more or less likely than"
                f" {self.run.model['name']} did: is it another model?"
            )

    def keep_all_kl(self) -> float:
        """Cost of a plan that drops nothing: 0, unless the machine does not repeat its results."""
        return float(self.read(keep_all(self.run.shape)).kl.max())

    def read_all(self, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        """Implements Engine."""
        for case in cases:
            yield self.read(case.plan, types=case.types, restored=case.restored).document()

    def read(
        self, plan: Plan, sink: Sink | None = None, types: Types | None = None, restored: Layers | None = None
    ) -> Real:
        """Compares the decoded rows under a plan with the full run. A sink receives the queries, keys and values.
        With types, the cache stores K and V in them, including those of the prompt; with restored, the model continues
        from these."""
        prompt = self.run.shape.prompt_tokens
        targets = self.tokens[prompt + 1 :]
        kl, nll, full_nll, agrees = [], [], [], []
        at = 0
        with torch.inference_mode(), tapped(self.modules, sink) if sink else contextlib.nullcontext():
            for block in self._log_probabilities(plan, types, restored):
                for begin in range(0, len(block), _KL_ROWS):
                    b = block[begin : begin + _KL_ROWS].double()
                    a = self.full[at : at + len(b)].double()
                    kl.append((a.exp() * (a - b)).sum(-1))
                    agrees.append(a.argmax(-1) == b.argmax(-1))
                    next_tokens = targets[at : at + len(b), None]
                    nll.append(-b[: len(next_tokens)].gather(1, next_tokens)[:, 0])
                    full_nll.append(-a[: len(next_tokens)].gather(1, next_tokens)[:, 0])
                    at += len(b)
        return Real(torch.cat(kl), torch.cat(nll), torch.cat(full_nll), torch.cat(agrees))

    def _log_probabilities(
        self, plan: Plan, types: Types | None = None, restored: Layers | None = None
    ) -> Iterator[Any]:
        """Yields log-probabilities of the next token for one block of decoded rows after
        another."""
        _, _, tokens, prompt = self.run.shape
        cache = new_cache()
        if types:
            _keep_in(cache, types)
            self._read_prompt(cache)
        elif restored:
            fill_cache(cache, [tuple(_entry(array, prompt, self.model) for array in pair) for pair in restored])
        else:
            fill_cache(cache, self.prompt_cache)
        for begin in range(prompt, tokens, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, tokens)
            with self._masked(plan, begin, end):
                logits = self._forward(begin, end, cache, logits=True)
            yield logits[0].float().log_softmax(-1)

    def _read_prompt(self, cache: Any) -> None:
        prompt = self.run.shape.prompt_tokens
        for begin in range(0, prompt, BLOCK_ROWS):
            self._forward(begin, min(begin + BLOCK_ROWS, prompt), cache, logits=False)

    def _forward(self, begin: int, end: int, cache: Any, logits: bool) -> Any:
        device = self.model.device
        reader = self.model if logits else self.model.base_model
        named = {"input_ids": self.tokens[None, begin:end].to(device), **with_cache(reader, cache)}
        named["position_ids"] = torch.arange(begin, end, device=device)[None]
        if not logits:
            reader(**named)
            return None
        return reader(**named).logits.cpu()

    def _masked(self, plan: Plan, begin: int, end: int) -> contextlib.AbstractContextManager[None]:
        """While active, every layer's attention sees what the plan shows to the rows from begin to
        end."""
        group = self.run.query_heads // self.run.shape.kv_heads
        return narrowed_attention(self.modules, group, lambda layer: torch.from_numpy(plan.mask(layer, begin, end)))


def _keep_in(cache: Any, types: Types) -> None:
    """Makes a cache store K and V in types: attention reads the rounded values, including those of the row
    itself."""
    update = cache.update

    def keep(tensor: Any, kind: str, is_key: bool) -> Any:
        rows = stored(tensor[0].transpose(0, 1).float().cpu().numpy(), kind, is_key)
        return torch.from_numpy(rows).transpose(0, 1)[None].to(tensor.device, tensor.dtype)

    def update_rounded(keys: Any, values: Any, layer: int, *rest: Any, **named: Any) -> Any:
        if layer in types:
            k, v = types[layer]
            keys, values = keep(keys, k, True), keep(values, v, False)
        return update(keys, values, layer, *rest, **named)

    cache.update = update_rounded


# ---- open loop against closed loop ----
#
# A replay decides by the queries and keys of the run that lost nothing. In an engine every decision changes what the next
# one sees. So the run is read under its plan, the states it then has are replayed to a new plan, and so on.

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
        """Ignored: the run under a plan has every position, whatever its layers attended to."""

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


# ---- archives: a model continues from a restored cache as it would from its own ----

TOKENS = 64


def lossless(model: Any, run: Run) -> Iterator[dict[str, Any]]:
    """Yields for each level whether the next tokens and all their logits equal those of the run's own cache."""
    if run.document["engine"]["name"] != "transformers":
        raise ValueError(f"{run.path}: a cache of {run.document['engine']['name']}: only that engine can continue from it")
    source = run.snapshot_path
    tokens, logits = go_on(model, run, source)
    with tempfile.TemporaryDirectory(prefix="kvtool-lossless-") as folder:
        archive, restored = os.path.join(folder, "a.kvz"), os.path.join(folder, "restored" + os.path.splitext(source)[1])
        for level in LEVELS:
            packed = _files.compress(source, archive, level=level, force=True)
            _files.decompress(archive, restored, force=True)
            again_tokens, again_logits = go_on(model, run, restored)
            yield {
                "run": run.name,
                "level": level,
                "ratio": packed["ratio"],
                "tokens": TOKENS,
                "tokens_equal": again_tokens == tokens,
                "logits_equal": torch.equal(again_logits, logits),
            }


def go_on(model: Any, run: Run, snapshot: str) -> tuple[list[int], Any]:
    """Returns the next tokens, chosen greedily, and their logits, from a cache in a file.

    The run's last token is read again, so that the first choice also depends on the file.
    """
    last = run.shape.tokens - 1
    cache = new_cache()
    with open_snapshot(snapshot) as opened:
        for number, layer in enumerate(opened.layers):
            keys, values = (_entry(array, last, model) for array in (layer.k, layer.v))
            cache.update(keys, values, number)
    token = int(run.tokens[last])
    tokens, rows = [], []
    with torch.inference_mode():
        for _ in range(TOKENS):
            ids = torch.tensor([[token]], device=model.device)
            logits = model(ids, **with_cache(model, cache)).logits[0, -1]
            token = int(logits.argmax())
            tokens.append(token)
            rows.append(logits.cpu())
    return tokens, torch.stack(rows)


def _entry(array: Any, count: int, model: Any) -> Any:
    """Converts [position, head, dim] of a file to a layer of a cache: [1, head, position, dim]."""
    rows = torch.from_numpy(as_f32(array)[:count].copy())
    return rows.to(device=model.device, dtype=model.dtype).transpose(0, 1)[None].contiguous()
