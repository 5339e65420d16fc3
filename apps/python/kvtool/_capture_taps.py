# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Takes queries, keys and values out of transformers. The user's model is changed only while it is recorded.

Keys and values are those that a layer passes to its cache, before the cache changes them. Queries are those that the
attention function receives (transformers 4.48 and later), or what apply_rotary_pos_emb returns (before).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple, Protocol

from ._capture_rules import CaptureError, declared_rule
from ._run_folder import Rule

_OUTPUT_PROJECTIONS = ("o_proj", "dense", "out_proj", "c_proj", "wo")


class Sink(Protocol):
    """Receives what the taps take from an attention module. Tensors are [batch, heads, rows,
    head_dim]."""

    def queries(self, layer: int, query: Any, rule: Rule, mask: Any, implementation: str) -> None: ...

    def entries(self, layer: int, key: Any, value: Any, cache: Any) -> None: ...

    def attended(self, layer: int, keys: int) -> None:
        """Receives the number of keys that the layer attends to; its mask has at least as many
        columns."""


def attention_modules(model: Any) -> dict[int, Any]:
    """The self-attention of each layer that has a cache, by layer."""
    found: dict[int, Any] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if type(layer) is int and output_projection(module) is not None:
            if layer in found:
                raise CaptureError(
                    f"{type(model).__name__}: both {type(found[layer]).__name__} and {type(module).__name__} are"
                    f" attention of layer {layer}; only decoders with one attention a layer can be recorded"
                )
            found[layer] = module
    if not found:
        raise CaptureError(f"{type(model).__name__}: no attention modules with a layer_idx; is this a transformers model?")
    return found


def output_projection(module: Any) -> Any:
    """Returns the linear map that follows attention in a module and takes all heads concatenated, or
    None."""
    return next((getattr(module, name) for name in _OUTPUT_PROJECTIONS if hasattr(module, name)), None)


class _Running(NamedTuple):
    """An attention module that is running, and the keywords of its call."""

    layer: int
    module: Any
    named: dict[str, Any]


@contextlib.contextmanager
def tapped(modules: dict[int, Any], sink: Sink) -> Iterator[None]:
    """While active, `sink` receives the queries, keys and values of these modules."""
    with contextlib.ExitStack() as stack:
        running: list[_Running] = []
        for layer, module in modules.items():

            def enter(module: Any, given: Any, named: dict[str, Any], layer: int = layer) -> None:
                running.append(_Running(layer, module, named))

            def leave(*_: Any) -> None:
                running.pop()

            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        _tap_caches(stack, running, sink)
        spaces = _namespaces(modules)
        if all("ALL_ATTENTION_FUNCTIONS" in space for space in spaces):
            _tap_functions(stack, modules, spaces, running, sink)
        else:
            _tap_rotations(stack, modules, spaces, running, sink)
        yield


def _namespaces(modules: dict[int, Any]) -> list[dict[str, Any]]:
    """Returns the globals in which the modules' own code finds its functions."""
    spaces: list[dict[str, Any]] = [inspect.unwrap(type(module).forward).__globals__ for module in modules.values()]
    return list({id(space): space for space in spaces}.values())


def _replace_attribute(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    old = vars(owner).get(name)
    setattr(owner, name, value)
    stack.callback(delattr, owner, name) if old is None else stack.callback(setattr, owner, name, old)


def _replace_item(stack: contextlib.ExitStack, owner: MutableMapping[str, Any], name: str, value: Any) -> None:
    if name in owner:
        stack.callback(owner.__setitem__, name, owner[name])
    else:
        stack.callback(owner.__delitem__, name)
    owner[name] = value


def _tap_caches(stack: contextlib.ExitStack, running: list[_Running], sink: Sink) -> None:
    from transformers.cache_utils import Cache

    inside = [False]  # a cache's update may call the update of its base class

    def tap(update: Callable[..., Any]) -> Callable[..., Any]:
        def tapped_update(self: Any, key_states: Any, value_states: Any, layer_idx: int, *rest: Any, **named: Any) -> Any:
            if inside[0] or not running:
                return update(self, key_states, value_states, layer_idx, *rest, **named)
            sink.entries(layer_idx, key_states, value_states, self)
            inside[0] = True
            try:
                result = update(self, key_states, value_states, layer_idx, *rest, **named)
            finally:
                inside[0] = False
            sink.attended(layer_idx, result[0].shape[2])
            return result

        return tapped_update

    pending = [Cache]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if "update" in vars(kind):
            _replace_attribute(stack, kind, "update", tap(vars(kind)["update"]))


def _tap_functions(
    stack: contextlib.ExitStack,
    modules: dict[int, Any],
    spaces: list[dict[str, Any]],
    running: list[_Running],
    sink: Sink,
) -> None:
    """transformers 4.48 and later: one table of attention functions, and each model file's own eager
    one."""

    def tap(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def tapped_function(module: Any, query: Any, key: Any, value: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
            if running and running[-1].module is module:
                sink.queries(running[-1].layer, query, declared_rule(module, name, query.shape[-1], named), mask, name)
            return function(module, query, key, value, mask, *rest, **named)

        return tapped_function

    for space in spaces:
        if "eager_attention_forward" in space:
            _replace_item(stack, space, "eager_attention_forward", tap(space["eager_attention_forward"], "eager"))
    used = {module.config._attn_implementation for module in modules.values()} - {"eager", None}
    for table in {id(space["ALL_ATTENTION_FUNCTIONS"]): space["ALL_ATTENTION_FUNCTIONS"] for space in spaces}.values():
        # In later versions of transformers a table's own entries override the shared ones.
        own = getattr(table, "_local_mapping", table)
        for name in used & set(table.keys()):
            _replace_item(stack, own, name, tap(table[name], name))


def _tap_rotations(
    stack: contextlib.ExitStack,
    modules: dict[int, Any],
    spaces: list[dict[str, Any]],
    running: list[_Running],
    sink: Sink,
) -> None:
    """Before transformers 4.48: the query is complete once it is rotated."""

    def found(query: Any) -> None:
        layer, module, named = running[-1]
        # If probabilities are requested, other implementations fall back to the eager one.
        name = "eager" if named.get("output_attentions") else module.config._attn_implementation
        rule = declared_rule(module, name, query.shape[-1], {"head_mask": named.get("head_mask")})
        sink.queries(layer, query, rule, named.get("attention_mask"), name)

    def tap(function: Callable[..., Any]) -> Callable[..., Any]:
        def tapped_function(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            if running:
                found(result[0])
            return result

        return tapped_function

    whole = [module for module in modules.values() if hasattr(module, "_attn_projections_and_rope")]
    for module in whole:  # GPT-NeoX rotates a part of each head and appends the rest afterwards
        _replace_attribute(stack, module, "_attn_projections_and_rope", tap(module._attn_projections_and_rope))
    if whole:
        return
    for space in spaces:
        if "apply_rotary_pos_emb" not in space:
            raise CaptureError(
                f"{space['__name__']}: this version of transformers shows no rotated queries of this model; use 4.48 or later"
            )
        _replace_item(stack, space, "apply_rotary_pos_emb", tap(space["apply_rotary_pos_emb"]))
