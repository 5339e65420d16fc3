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
from ._capture_taps import output_projection


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
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Calls take(layer, g) for each sample and layer, g [decode rows, heads, dim] in f32.

    A token y[t] is drawn from the model's own distribution in every decode row t, and g[r] is the gradient of the sum
    over t of log p(y[t]) with respect to the output of row r, all heads side by side, before the output projection.
    It contains the effect of row r on its own token and, through keys and values of later layers, on the tokens of
    later rows. The draws of different rows are independent with gradients of mean zero, so products of two tokens
    cancel in the mean of (g[r] . d)^2. The prompt's keys and values are constants.
    """
    device = next(model.parameters()).device
    ids = torch.tensor([tokens], device=device)
    cache = _capture_model.new_cache()
    generator = torch.Generator().manual_seed(seed)
    with _frozen(model):
        with torch.no_grad():
            _capture_model.read_prompt(model, ids[:, :prompt_tokens], cache)
        with torch.enable_grad(), _outputs(modules) as outputs:
            logits = model(ids[:, prompt_tokens:], **_capture_model.with_cache(model, cache)).logits[0]
            logprobs = logits.float().log_softmax(-1)
            probabilities = logprobs.detach().exp().cpu()
            for sample in range(samples):
                drawn = torch.multinomial(probabilities, 1, generator=generator).to(device)
                total = logprobs.gather(1, drawn).sum()
                layers = list(outputs)
                found = torch.autograd.grad(total, [outputs[layer] for layer in layers], retain_graph=sample + 1 < samples)
                for layer, gradient in zip(layers, found):
                    take(layer, gradient[0].reshape(gradient.shape[1], heads, -1))
                if progress:
                    progress(sample + 1, samples)


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
