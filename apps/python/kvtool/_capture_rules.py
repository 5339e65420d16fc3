# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The rules of each layer's attention: scale, softcap and window, as the model was observed to apply
them."""

from __future__ import annotations

from typing import Any

import torch

from ._run_folder import Rule


class CaptureError(RuntimeError):
    """Raised if the run cannot be recorded as it is; the message gives the reason."""


# Implementations that apply the argument `softcap`. That of sdpa ignores it, so Gemma 2 attends without its softcap
# there.
_WITH_SOFTCAP = ("eager", "flash", "flex")


def declared_rule(module: Any, implementation: str, head_dim: int, arguments: dict[str, Any]) -> Rule:
    """Returns the rule that the module and the arguments of its attention function state."""
    if arguments.get("s_aux") is not None or arguments.get("head_mask") is not None:
        raise CaptureError(f"{type(module).__name__}: a trace cannot express attention sinks and head masks")
    config = module.config
    scale = arguments.get("scaling")
    if scale is None:
        scale = getattr(module, "scaling", None)
    softcap = arguments.get("softcap") if "softcap" in arguments else getattr(config, "attn_logit_softcapping", None)
    if "sliding_window" in arguments:
        window = arguments["sliding_window"]
    else:
        window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    honoured = implementation.rpartition("|")[2].startswith(_WITH_SOFTCAP)
    return Rule(
        float(scale) if scale is not None else head_dim**-0.5,
        float(softcap) if softcap and honoured else None,
        int(window) if window else None,
    )


class Masks:
    """Counts the keys that each row sees, once per mask and forward, because all layers of a kind share one."""

    def __init__(self) -> None:
        self._counted: dict[tuple[int, int], tuple[Any, Any]] = {}

    def clear(self) -> None:
        self._counted.clear()

    def visible(self, mask: Any, implementation: str, keys: int) -> Any:
        """Returns how many of `keys` keys each row sees; None if the implementation has no such mask and follows its
        arguments."""
        if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or implementation.startswith(("flash", "flex")):
            return None
        if (id(mask), keys) not in self._counted:
            self._counted[id(mask), keys] = (mask, _count(mask[..., :keys]))  # kept, so that no other mask gets its id
        return self._counted[id(mask), keys][1]


def _count(mask: Any) -> Any:
    rows = mask[0, 0]
    if rows.dtype == torch.bool:
        seen = rows
    else:
        seen = rows > torch.finfo(rows.dtype).min / 2
        if bool((rows[seen] != 0).any()):
            raise CaptureError("the mask adds a bias to the logits (ALiBi?), which a trace cannot express")
    if mask.shape[1] > 1 and bool((mask != mask[:, :1]).any()):
        raise CaptureError("the mask differs from head to head, which a trace cannot express")
    return seen.sum(-1).cpu()


class LayerRules:
    """The rule of every layer, checked against the keys that the rows of every forward could
    see."""

    def __init__(self) -> None:
        self._declared: dict[int, Rule] = {}
        self._windowed: dict[int, bool] = {}  # True if rows beyond the window saw only the window

    def observe(self, layer: int, rule: Rule, first: int, rows: int, visible: Any) -> None:
        """Adds rows at positions from `first` on with `rule`; `visible` counts the keys that each saw, if
        known."""
        if self._declared.setdefault(layer, rule) != rule:
            raise CaptureError(f"layer {layer}: attention follows {rule}, but earlier rows followed {self._declared[layer]}")
        if visible is None:
            return
        causal = torch.arange(first + 1, first + rows + 1)
        window = rule.window or first + rows
        beyond = causal > window
        is_full = bool((visible[beyond] == causal[beyond]).all())
        is_cut = bool((visible[beyond] == window).all())
        if not bool((visible[~beyond] == causal[~beyond]).all()) or not (is_full or is_cut):
            raise CaptureError(
                f"layer {layer}: the mask hides keys that causal attention"
                + (f" with a window of {rule.window}" if rule.window else "")
                + " would see (padding, packed sequences, chunked attention?)"
            )
        if bool(beyond.any()) and self._windowed.setdefault(layer, is_cut) != is_cut:
            raise CaptureError(
                f"layer {layer}: its window of {rule.window} held for some rows and not for others, as with this"
                " version of transformers and this kind of cache; use transformers 4.48 or later"
            )

    def rules(self) -> dict[int, Rule]:
        """Returns the rules as they were applied: a window that the masks never enforced does not
        count."""
        return {
            layer: rule if self._windowed.get(layer, True) else rule._replace(window=None)
            for layer, rule in sorted(self._declared.items())
        }

    def metadata(self) -> dict[str, str]:
        """Returns keys of a trace. Each property is one key (`scale`) if all layers agree, else a key for each layer
        that has it (`scale.{l}`)."""
        rules = self.rules()
        result = {}
        for key in Rule._fields:
            values = {layer: getattr(rule, key) for layer, rule in rules.items()}
            distinct = set(values.values())
            if distinct == {None}:
                continue
            if len(distinct) == 1:
                result[key] = repr(distinct.pop())
            else:
                result.update({f"{key}.{layer}": repr(value) for layer, value in values.items() if value is not None})
        return result
