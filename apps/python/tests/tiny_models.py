# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Random models of the architectures that transformers users run, small enough to be made for each test."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
import torch  # noqa: E402

VOCABULARY, WINDOW = 97, 8
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}
# Name: (configuration, its arguments). Heads of 8 dims, or of 16 where they need not fill the hidden size.
FAMILIES = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {
            **_GROUPED,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 3.0,
            "sliding_window": WINDOW,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    ),
    "gpt_neox": ("GPTNeoXConfig", {**_COMMON, "rotary_pct": 0.5}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": WINDOW}),
    "mistral_full": ("MistralConfig", {**_GROUPED, "sliding_window": None}),
    "phi3": ("Phi3Config", {**_GROUPED, "sliding_window": None}),
    "phi3_window": ("Phi3Config", {**_GROUPED, "sliding_window": WINDOW}),
}


def release():
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def make(family, attention="eager", dtype=torch.float32, seed=1, **changes):
    """Returns the model in evaluation mode. Queries and keys are scaled up, so that attention is not close to
    uniform."""
    name, arguments = FAMILIES[family]
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    if family.startswith("gpt_neox"):
        arguments = {**arguments, "num_key_value_heads": 4}
    config = getattr(transformers, name)(**{**arguments, **changes})
    config._attn_implementation = attention
    torch.manual_seed(seed)
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        pytest.skip(f"transformers {transformers.__version__} has no {attention} for {name}")
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if any(part in key for part in ("q_proj", "k_proj", "qkv_proj", "query_key_value.weight")):
                weight.mul_(12)
            elif "embed" in key:
                weight.mul_(20)
    return model.to(dtype).eval()


def tokens(count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (1, count), generator=generator)
