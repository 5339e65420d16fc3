# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Models of transformers: loads them, and describes them for run.json."""

from __future__ import annotations

import functools
import glob
import importlib
import inspect
import os
import sys
from typing import Any

import torch
import transformers

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CHUNK = 512  # prompt tokens per forward pass; more need more memory for masks and logits


def without_bars(quiet: bool) -> None:
    """Disables tqdm in this process, for -q and without a terminal: transformers draws its bars for GGUF files whatever
    its own settings say."""
    if quiet or not sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)


def engine() -> dict[str, str]:
    return {"name": "transformers", "build": transformers.__version__}


def load(path: str, dtype: str, attention: str | None = None) -> tuple[Any, Any]:
    """Returns model and tokenizer of a folder, a name that transformers knows, or a GGUF file; on the CPU, in
    evaluation mode."""
    place, source = _place_of(path)
    return load_model(path, dtype, attention), transformers.AutoTokenizer.from_pretrained(place, **source)


def load_model(path: str, dtype: str, attention: str | None = None) -> Any:
    """Returns the model alone, for callers that have token ids and need no tokenizer."""
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    options: dict[str, Any] = {"dtype" if release >= (4, 56) else "torch_dtype": DTYPES[dtype]}
    if attention:
        options["attn_implementation"] = attention
    place, source = _place_of(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(place, **options, **source)
    if source and not model.config.tie_word_embeddings and _lacks_output_embedding(path):
        # transformers 4.46 does not load the output projection of such a file.
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model.eval()


def _place_of(path: str) -> tuple[str, dict[str, str]]:
    """Returns the arguments that from_pretrained takes for a path."""
    if not path.lower().endswith(".gguf"):
        return path, {}
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    return os.path.dirname(os.path.abspath(path)), {"gguf_file": os.path.basename(path)}


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """Returns the arguments of a pass with a cache, which versions of transformers before 5.24 call
    past_key_values."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {name: cache, "use_cache": True}


def _lacks_output_embedding(path: str) -> bool:
    """True if a GGUF file has no output.weight: its model uses the token embedding for both."""
    gguf = importlib.import_module("gguf")
    return all(tensor.name != "output.weight" for tensor in gguf.GGUFReader(path).tensors)


def facts(model: Any, modules: dict[int, Any], name: str | None, file: str | None) -> dict[str, Any]:
    """Returns the keys `model` and `rope` of run.json. file: the source of the weights, if
    known."""
    config = text_config(model)
    source = file or getattr(model.config, "_name_or_path", "") or ""
    bytes_of_weights = _weight_bytes(source)
    return {
        "model": {
            "name": name or (os.path.basename(os.path.normpath(source)) if source else type(model).__name__),
            "file": os.path.basename(source) if os.path.isfile(source) else None,
            "bytes": bytes_of_weights,
            "xxh3": None,
            "architecture": type(model).__name__,
            "context_length": context_length(model),
        },
        "rope": rope(config, modules),
    }


def context_length(model: Any) -> int | None:
    """Returns the number of tokens that the model was made for, if the model states it."""
    length = getattr(text_config(model), "max_position_embeddings", None)
    return int(length) if length else None


def text_config(model: Any) -> Any:
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _weight_bytes(source: str) -> int | None:
    if os.path.isfile(source):
        return os.path.getsize(source)
    files = glob.glob(os.path.join(glob.escape(source), "*.safetensors")) if os.path.isdir(source) else []
    return sum(os.path.getsize(file) for file in files) or None


def rope(config: Any, modules: dict[int, Any]) -> dict[str, Any] | None:
    """Returns the rotated dims of a head and their frequencies; None for a model without rotary
    embedding."""
    space = inspect.unwrap(type(next(iter(modules.values()))).forward).__globals__
    if "apply_rotary_pos_emb" not in space:
        return None
    stated, local = _rope_parameters(config)
    base = stated.get("rope_theta", getattr(config, "rope_theta", getattr(config, "rotary_emb_base", None)))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    part = getattr(config, "partial_rotary_factor", getattr(config, "rotary_pct", None))
    part = stated.get("partial_rotary_factor", 1.0 if part is None else part)
    scaling = {key: value for key, value in stated.items() if key not in ("rope_theta", "partial_rotary_factor")}
    return {
        "style": _rope_style(space),
        "base": None if base is None else float(base),
        **({} if local is None else {"local_base": float(local)}),
        "dims": int(head_dim * part),
        "scaling": scaling if scaling.get("rope_type", scaling.get("type", "default")) != "default" else None,
    }


def _rope_parameters(config: Any) -> tuple[dict[str, Any], float | None]:
    """Returns the parameters of layers with full attention, and the base of windowed layers if it differs (Gemma 3)."""
    stated = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "full_attention" in stated:  # transformers 5 states one entry per kind of layer
        return stated["full_attention"], stated.get("sliding_attention", {}).get("rope_theta")
    return stated, getattr(config, "rope_local_base_freq", None)


def _rope_style(space: dict[str, Any]) -> str | None:
    """Returns "half" if the model's own function rotates dims i and i + n/2 together, "neighbour" for 2i and 2i + 1."""
    rotate = space.get("rotate_half")
    if rotate is None:
        return None
    turned = rotate(torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]])).flatten().tolist()
    return {(-2.0, -3.0, 0.0, 1.0): "half", (-1.0, 0.0, -3.0, 2.0): "neighbour"}.get(tuple(turned))


def rope_text(rope: dict[str, Any]) -> str:
    """Returns the RoPE as one line of a trace's metadata."""
    return ", ".join(f"{key} {value}" for key, value in rope.items() if value is not None and not isinstance(value, dict))


def new_cache() -> Any:
    """A cache in which every layer keeps every token."""
    from transformers.cache_utils import DynamicCache

    return DynamicCache()


def cache_entries(cache: Any, layers: int) -> list[tuple[Any, Any]]:
    """Returns K and V of each layer, [1, kv head, position, dim], in any version of
    transformers."""
    if hasattr(cache, "layers"):
        return [(cache.layers[layer].keys, cache.layers[layer].values) for layer in range(layers)]
    return [(cache.key_cache[layer], cache.value_cache[layer]) for layer in range(layers)]


def fill_cache(cache: Any, entries: list[tuple[Any, Any]]) -> Any:
    """Returns the cache, which was empty, with K and V of each layer."""
    for layer, (keys, values) in enumerate(entries):
        cache.update(keys, values, layer)
    return cache


def last_logits_only(model: Any) -> dict[str, int]:
    """Returns the argument that avoids computing the logits of all rows of a long prompt."""
    known = inspect.signature(model.forward).parameters
    return next(({name: 1} for name in ("logits_to_keep", "num_logits_to_keep") if name in known), {})


def read_prompt(model: Any, ids: Any, cache: Any, chunk: int = CHUNK) -> Any:
    """The output of the last pass over a prompt, `chunk` tokens at a time, with the logits of its last row."""
    few, output = last_logits_only(model), None
    for begin in range(0, ids.shape[1], chunk):
        output = model(ids[:, begin : begin + chunk], **with_cache(model, cache), **few)
    return output
