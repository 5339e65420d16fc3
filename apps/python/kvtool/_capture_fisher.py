# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Gradients of the log-probability of sampled tokens with respect to the output of each layer's
attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _capture_model
from ._capture_masks import narrowed_attention
from ._capture_rules import CaptureError
from ._capture_taps import output_projection

# Shares of the keys that remain at evicted states, one sample each, again from the first after the last. One share alone
# predicts worse: half of the keys in all samples gives 0.83 of the real loss at the median (docs/closed-loop.md).
KEPT_SHARES = (0.7, 0.5, 0.3, 0.15)
# The first and the most recent positions remain, as under every policy in use.
KEPT_SINKS, KEPT_RECENT = 4, 16


def gradients(
    model: Any,
    modules: dict[int, Any],
    tokens: list[int],
    prompt_tokens: int,
    *,
    samples: int,
    seed: int,
    heads: int,
    take: Callable[[int, Any], None],
    evicted: int = 0,
    hiding: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Calls take(layer, g) for each sample and layer, g [decode rows, heads, dim] in f32.

    A token y[t] is drawn from the model's own distribution in every decode row t, and g[r] is the gradient of the sum
    over t of log p(y[t]) with respect to the output of row r, all heads side by side, before the output projection.
    It contains the effect of row r on its own token and, through keys and values of later layers, on the tokens of
    later rows. The draws of different rows are independent with gradients of mean zero, so products of two tokens
    cancel in the mean of (g[r] . d)^2. The prompt's keys and values are constants.

    The last `evicted` samples are taken at states that random keys were evicted from, each at another one: the
    distribution and its gradients are those of the decode rows read without these keys. `hiding` is active while keys
    are hidden, for callers that check the model's masks.
    """
    if evicted:
        _require_masks(model, modules)
    device = next(model.parameters()).device
    ids = torch.tensor([tokens], device=device)
    cache = _capture_model.new_cache()

    def show(done: int) -> None:
        if progress:
            progress(done, samples + evicted)

    with _frozen(model):
        with torch.no_grad():
            _capture_model.read_prompt(model, ids[:, :prompt_tokens], cache)
        state = _State(model, modules, ids[:, prompt_tokens:], heads, take)
        prompt = _capture_model.cache_entries(cache, len(modules)) if evicted else []
        if samples:
            state.sample(samples, cache, torch.Generator().manual_seed(seed), show)
        # Evicted states have a generator of their own, so that they do not depend on the number of other samples.
        generator = torch.Generator().manual_seed(seed + 1)
        for number in range(evicted):
            kv_heads = prompt[0][0].shape[1]
            visible = evicted_masks(modules, kv_heads, prompt_tokens, len(tokens), number, generator)
            again = _capture_model.fill_cache(_capture_model.new_cache(), prompt)
            with hiding(), narrowed_attention(modules, heads // kv_heads, visible.__getitem__):
                state.sample(1, again, generator)
            show(samples + number + 1)


def _require_masks(model: Any, modules: dict[int, Any]) -> None:
    """Raises an error unless keys can be hidden from every layer and the prompt's cache can be filled again."""
    if sorted(modules) != list(range(len(modules))):
        raise CaptureError(f"{type(model).__name__}: gradients at evicted states need attention in every layer")
    if any(str(module.config._attn_implementation).startswith(("flash", "flex")) for module in modules.values()):
        raise CaptureError("gradients at evicted states need attention that takes a mask: pass --attention sdpa")


def evicted_masks(
    modules: dict[int, Any], kv_heads: int, prompt_tokens: int, tokens: int, number: int, generator: Any
) -> dict[int, Any]:
    """Returns the positions that each layer sees at an evicted state, [kv head, decode row, position]. Every kv head draws
    its own keys, the same for all rows."""
    rows = torch.arange(prompt_tokens, tokens)[:, None]
    keys = torch.arange(tokens)
    always = (keys < KEPT_SINKS) | (keys > rows - KEPT_RECENT)
    share = KEPT_SHARES[number % len(KEPT_SHARES)]
    return {
        layer: (keys <= rows) & (always | (torch.rand(kv_heads, 1, tokens, generator=generator) < share))
        for layer in sorted(modules)
    }


class _State:
    """Reads the decode rows after a prompt and takes gradients at the state that they reach."""

    def __init__(self, model: Any, modules: dict[int, Any], rows: Any, heads: int, take: Callable[[int, Any], None]) -> None:
        self._model, self._modules, self._rows, self._heads, self._take = model, modules, rows, heads, take

    def sample(self, samples: int, cache: Any, generator: Any, progress: Callable[[int], object] | None = None) -> None:
        """Takes gradients of `samples` draws at one state. The cache holds the prompt, and gets the rows."""
        with torch.enable_grad(), _outputs(self._modules) as outputs:
            logits = self._model(self._rows, **_capture_model.with_cache(self._model, cache)).logits[0]
            logprobs = logits.float().log_softmax(-1)
            probabilities = logprobs.detach().exp().cpu()
            for sample in range(samples):
                drawn = torch.multinomial(probabilities, 1, generator=generator).to(logprobs.device)
                total = logprobs.gather(1, drawn).sum()
                layers = list(outputs)
                found = torch.autograd.grad(total, [outputs[layer] for layer in layers], retain_graph=sample + 1 < samples)
                for layer, gradient in zip(layers, found):
                    self._take(layer, gradient[0].reshape(gradient.shape[1], self._heads, -1))
                if progress:
                    progress(sample + 1)


@contextlib.contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """Weights need no gradients, which would take time and memory."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def _outputs(modules: dict[int, Any]) -> Iterator[dict[int, Any]]:
    """Collects the input of each layer's output projection; the graph begins at the first one."""
    outputs: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        for layer, module in modules.items():

            def collect(_: Any, given: tuple[Any, ...], layer: int = layer) -> tuple[Any, ...]:
                outputs[layer] = given[0] if outputs else given[0].detach().requires_grad_(True)
                return (outputs[layer], *given[1:])

            stack.callback(output_projection(module).register_forward_pre_hook(collect).remove)
        yield outputs
