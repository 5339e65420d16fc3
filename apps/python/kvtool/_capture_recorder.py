# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Writes the values that the taps take from a model's forward passes as a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import __version__, _capture_model
from ._capture_fisher import gradients
from ._capture_model import DTYPES
from ._capture_rules import CaptureError, LayerRules, Masks
from ._capture_taps import attention_modules
from ._run_folder import Rule, RunFolder
from ._safetensors import Tensor

_STORED = {dtype: name.upper() for name, dtype in DTYPES.items()}
_LOGIT_ROWS = 32  # rows whose logits are processed together; vocabularies are large


def raw_bytes(tensor: Any) -> memoryview:
    """Returns the bytes of a tensor in C order; bf16 has no NumPy type."""
    return memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())


class Logits:
    """For each row from the last of the prompt on: the top k, and the NLL of the next token."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._positions: list[int] = []
        self._ids = bytearray()
        self._logprobs = bytearray()
        self._nll: list[float] = []
        self._last: Any = None  # log-probabilities of a row whose next token is still unknown

    def add(self, first: int, logits: Any, tokens: list[int]) -> None:
        """Adds logits [rows, vocabulary] of the positions from `first` on; tokens: all tokens so
        far."""
        self._resolve(tokens)
        for begin in range(0, len(logits), _LOGIT_ROWS):
            block = logits[begin : begin + _LOGIT_ROWS].float().log_softmax(-1)
            top = block.topk(min(self._top_k, block.shape[-1]), -1)
            self._ids += raw_bytes(top.indices.int())
            self._logprobs += raw_bytes(top.values)
            for row, logprobs in enumerate(block, first + begin):
                self._positions.append(row)
                if row + 1 < len(tokens):
                    self._nll.append(-float(logprobs[tokens[row + 1]]))
                else:
                    self._last = logprobs.clone()
                    self._nll.append(float("nan"))

    def _resolve(self, tokens: list[int]) -> None:
        if self._last is not None and self._positions[-1] + 1 < len(tokens):
            self._nll[-1] = -float(self._last[tokens[self._positions[-1] + 1]])
            self._last = None

    def mean_nll(self) -> float | None:
        known = [nll for nll in self._nll if nll == nll]
        return sum(known) / len(known) if known else None

    def tensors(self) -> list[Tensor]:
        rows = len(self._positions)
        if not rows:
            return []
        top = len(self._ids) // (4 * rows)
        positions = torch.tensor(self._positions, dtype=torch.int32)
        return [
            Tensor("positions", "I32", (rows,), raw_bytes(positions)),
            Tensor("top_ids", "I32", (rows, top), bytes(self._ids)),
            Tensor("top_logprobs", "F32", (rows, top), bytes(self._logprobs)),
            Tensor("nll", "F32", (rows,), raw_bytes(torch.tensor(self._nll, dtype=torch.float32))),
        ]


class Recorder:
    """One run of one model, from its first token on; a Sink of the taps. docs/python.md describes the user's
    view."""

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        *,
        prompt_tokens: int | None = None,
        trace_dtype: str | None = None,
        top_k: int = 20,
        name: str | None = None,
        file: str | None = None,
        force: bool = False,
    ) -> None:
        if trace_dtype is not None and trace_dtype not in DTYPES:
            raise ValueError(f"trace_dtype must be one of {', '.join(DTYPES)}, not {trace_dtype!r}")
        if top_k < 1:
            raise ValueError("top_k must be at least 1")
        self.model, self.modules = model, attention_modules(model)
        self._facts = _capture_model.facts(model, self.modules, name, file)
        self.folder = RunFolder(path, force)
        self.tokens: list[int] = []
        self.prompt_tokens = prompt_tokens
        self._first = 0  # position of the first row of this forward
        self._rows = 0  # number of rows of this forward; 0 between two forwards
        self._is_check = False  # True: the forward is compared with the recording, not recorded
        self._is_hiding = False  # True if keys are hidden from this forward
        self._trace_dtype = DTYPES[trace_dtype] if trace_dtype else None
        self._seen: dict[str, int] = {}  # rows of this forward, by tensor
        self._asked: dict[int, tuple[Rule, Any, str]] = {}  # keys that the layers of this forward attended to
        self._keys: dict[int, int] = {}  # number of these keys, by layer
        self._heads: dict[str, tuple[int, int]] = {}
        self._masks, self._rules, self._logits = Masks(), LayerRules(), Logits(top_k)
        self._gradients = False
        self._evicted_samples = 0

    # Hooks that run before and after the model's forward.

    def before_forward(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids", given[0] if given else None)
        if ids is None:
            raise CaptureError("a forward pass without input_ids: the tokens of a run must be known")
        if ids.shape[0] != 1:
            raise CaptureError(f"a batch of {ids.shape[0]}: only one sequence can be recorded; pass them one by one")
        if module.training:
            raise CaptureError("the model is in training mode, where dropout changes what it computes; call model.eval()")
        self._rows = ids.shape[1]
        if self._is_check:
            return
        _check_cache(named.get("cache", named.get("past_key_values")), len(self.tokens))
        self.tokens += ids[0].tolist()
        if self.prompt_tokens is None:
            self.prompt_tokens = len(self.tokens)

    def after_forward(self, module: Any, given: Any, named: Any, output: Any) -> None:
        rows, self._rows = self._rows, 0
        if output is not None:  # None means that the forward raised; its error propagates
            if not self._is_check:
                self._check_rows(rows)
                self._take_logits(output)
            self._observe(rows)
            self._first += rows
        self._seen.clear()
        self._asked.clear()
        self._keys.clear()
        self._masks.clear()

    def _observe(self, rows: int) -> None:
        for layer, (rule, mask, implementation) in self._asked.items():
            visible = self._masks.visible(mask, implementation, self._keys.get(layer, 0))
            self._rules.observe(layer, rule, self._first, rows, visible)

    def _check_rows(self, rows: int) -> None:
        for layer in self.modules:
            for name in (f"q.{layer}", f"k_{layer}", f"v_{layer}"):
                if self._seen.get(name, 0) != rows:
                    raise CaptureError(
                        f"layer {layer} ({type(self.modules[layer]).__name__}): {self._seen.get(name, 0)} of {rows} rows of"
                        f" {name} were seen; a run needs a cache (use_cache=True), and each layer its own keys"
                    )

    def _take_logits(self, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None or self.prompt_tokens is None:
            return
        first = len(self.tokens) - logits.shape[1]  # some models compute only the last rows
        skipped = max(0, self.prompt_tokens - 1 - first)
        if skipped < logits.shape[1]:
            self._logits.add(first + skipped, logits[0, skipped:].detach(), self.tokens)

    # The Sink that the taps call.

    def queries(self, layer: int, query: Any, rule: Rule, mask: Any, implementation: str) -> None:
        if not self._rows:
            raise CaptureError("a part of the model ran by itself; call the model that is recorded")
        if not self._is_hiding:
            self._asked[layer] = (rule, mask, implementation)
        if not self._is_check:
            self._append(f"q.{layer}", query, self._trace_dtype)

    def entries(self, layer: int, key: Any, value: Any, cache: Any) -> None:
        if "Quantized" in type(cache).__name__ or type(cache).__name__ == "SinkCache":
            raise CaptureError(f"{type(cache).__name__}: its layers attend to other keys than the cache gets; use DynamicCache")
        if not self._is_check:
            self._append(f"k_{layer}", key, None)
            self._append(f"v_{layer}", value, None)

    def attended(self, layer: int, keys: int) -> None:
        self._keys[layer] = keys

    def _append(self, name: str, tensor: Any, dtype: Any) -> None:
        rows = tensor.detach()[0].transpose(0, 1)
        converted = rows if dtype is None else rows.to(dtype)
        if converted.dtype not in _STORED:
            raise CaptureError(f"{name}: values of {converted.dtype}; load the model as float32, bfloat16 or float16")
        if dtype == torch.float16 and bool((converted.isinf() & ~rows.isinf()).any()):
            raise CaptureError(f"{name}: values beyond the range of f16; choose another trace dtype")
        count, heads, head_dim = converted.shape
        self.folder.append(name, _STORED[converted.dtype], (heads, head_dim), raw_bytes(converted))
        self._seen[name] = self._seen.get(name, 0) + count
        self._heads[name] = (heads, head_dim)

    # After the run: gradients, and the folder's completion.

    def add_gradients(
        self, *, samples: int, evicted: int = 0, seed: int = 0, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Processes the run's tokens again (after the run), for `samples` gradients of the decode rows and `evicted`
        more of them at states that random keys were evicted from."""
        if self.prompt_tokens is None or self.prompt_tokens >= len(self.tokens):
            raise CaptureError("gradients need decode rows, and this run has none")

        def take(layer: int, gradient: Any) -> None:
            self.folder.append(f"g.{layer}", "F32", tuple(gradient.shape), raw_bytes(gradient.float()))

        heads = self._heads[f"q.{min(self.modules)}"][0]
        draw: dict[str, Any] = {"samples": samples, "evicted": evicted, "hiding": self._hiding, "seed": seed}
        draw["progress"] = progress
        self._gradients = self._is_check = True  # these passes must follow the same rules
        self._evicted_samples = evicted
        self._first = 0
        try:
            gradients(self.model, self.modules, self.tokens, self.prompt_tokens, heads=heads, take=take, **draw)
        finally:
            self._is_check = False

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        """While active, masks differ from the recorded ones by intent, and are not compared."""
        self._is_hiding = True
        try:
            yield
        finally:
            self._is_hiding = False

    def commit(self) -> None:
        if not self.tokens or self.prompt_tokens is None:
            raise CaptureError("no forward pass of the model was seen: nothing to record")
        if not 0 < self.prompt_tokens <= len(self.tokens):
            raise CaptureError(f"prompt_tokens is {self.prompt_tokens}, but {len(self.tokens)} tokens ran")
        layers = sorted(self.modules)
        query, key = self._heads[f"q.{layers[0]}"], self._heads[f"k_{layers[0]}"]
        for layer in layers:
            if self._heads[f"q.{layer}"] != query or self._heads[f"k_{layer}"] != key or query[1] != key[1]:
                raise CaptureError(f"layer {layer} has other heads than layer {layers[0]}, which a run cannot describe")
        engine, facts = _capture_model.engine(), self._facts
        rope = facts["rope"]
        trace = {
            "kv_heads": str(key[0]),
            "engine": " ".join(engine.values()),
            "model": facts["model"]["name"],
            **({"rope": _capture_model.rope_text(rope)} if rope else {}),
            **({"g_start": str(self.prompt_tokens)} if self._gradients else {}),
            **({"g_evicted": str(self._evicted_samples)} if self._evicted_samples else {}),
            **self._rules.metadata(),
        }
        self.folder.commit(
            tokens=self.tokens,
            prompt_tokens=self.prompt_tokens,
            layers=layers,
            trace_metadata=trace,
            snapshot_metadata={
                "kvtool.engine": trace["engine"],
                "kvtool.model": trace["model"],
                **({"kvtool.key_rotation": "rotated"} if rope else {}),
            },
            logits=self._logits.tensors(),
            document={
                "tool": {"name": "kvtool.capture", "version": __version__},
                "engine": engine,
                "model": facts["model"],
                "tokens": len(self.tokens),
                "prompt_tokens": self.prompt_tokens,
                "geometry": {
                    "layers": len(layers),
                    "query_heads": query[0],
                    "kv_heads": key[0],
                    "head_dim": key[1],
                },
                "rope": rope,
                "attention": self._attention(),
                "nll": self._logits.mean_nll(),
            },
        )

    def _attention(self) -> dict[str, Any]:
        """Returns the properties of attention: None where layers differ, for which the trace has one value per
        layer."""
        rules = list(self._rules.rules().values())
        common = {key: values[0] if len(set(values)) == 1 else None for key, values in zip(Rule._fields, zip(*rules))}
        implementations = {module.config._attn_implementation for module in self.modules.values()}
        return {**common, "flash": any("flash" in str(name) for name in implementations)}


def _check_cache(cache: Any, tokens: int) -> None:
    """A cache that holds other tokens than the recorded ones would assign rows to wrong
    positions."""
    if cache is None:
        held = 0
    elif isinstance(cache, tuple):  # old versions of transformers return a tuple
        held = int(cache[0][0].shape[2])
    elif "Dynamic" in type(cache).__name__:
        held = int(cache.get_seq_length())
    else:
        return  # static caches of old versions do not tell their length
    if held != tokens:
        raise CaptureError(
            f"the cache holds {held} tokens, but {tokens} were recorded: a run is recorded from its first token on, one run"
            " in each folder"
        )
