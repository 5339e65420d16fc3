# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Hides positions from a model's attention. A hook before each attention module restricts the mask that the model made,
so every model whose attention takes a mask is supported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def narrowed_attention(modules: dict[int, Any], group: int, visible: Callable[[int], Any]) -> Iterator[None]:
    """While active, each layer's attention sees only the positions that visible(layer) shows: bools
    [kv head, row, position]. group: query heads of a kv head."""
    with contextlib.ExitStack() as stack:
        for layer, module in modules.items():

            def narrow(module: Any, given: Any, named: dict[str, Any], layer: int = layer) -> Any:
                if "attention_mask" not in named:
                    raise ValueError(f"{type(module).__name__} gets no attention_mask: no positions can be hidden from it")
                states = next((value for value in (*given, *named.values()) if torch.is_tensor(value)), None)
                assert states is not None
                mask = _narrowed(named["attention_mask"], visible(layer).to(states.device), group, states.dtype)
                return given, {**named, "attention_mask": mask}

            stack.callback(module.register_forward_pre_hook(narrow, with_kwargs=True).remove)
        yield


def _narrowed(mask: Any, seen: Any, group: int, dtype: Any) -> Any:
    """Returns the model's own mask, if it made one, without the hidden positions: [1, query head, row, position], to be
    added."""
    seen = seen.repeat_interleave(group, 0)[None]
    lowest = torch.finfo(dtype).min
    if mask is None:
        mask = torch.zeros((), dtype=dtype, device=seen.device)
    elif mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)
    if mask.dim() == 4:
        mask = mask[..., : seen.shape[-1]]
    return torch.where(seen, mask.to(dtype), lowest)
