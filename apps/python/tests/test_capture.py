# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""kvtool.capture on small models: the files must hold what the model computed attention from."""

import contextlib
import inspect
import json
import os
import re

import numpy as np
import pytest

tiny_models = pytest.importorskip("tiny_models", reason="torch and transformers are not installed")
import torch  # noqa: E402
import transformers  # noqa: E402
from test_run_folder import read  # noqa: E402
from tiny_models import FAMILIES, WINDOW, make, release, tokens  # noqa: E402

import kvtool  # noqa: E402
from kvtool import _capture_fisher, capture  # noqa: E402
from kvtool._capture_cli import main  # noqa: E402
from kvtool._capture_fisher import KEPT_SHARES, evicted_masks  # noqa: E402
from kvtool._capture_rules import Masks  # noqa: E402
from kvtool._capture_taps import attention_modules, output_projection  # noqa: E402

PROMPT, DECODE = 14, 10
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Outputs:
    """Outputs of every layer's attention before the output projection: the oracle."""

    def __init__(self, model):
        self.rows = {}
        self._handles = []
        for layer, module in attention_modules(model).items():
            hook = lambda _, given, layer=layer: self.rows.setdefault(layer, []).append(given[0][0].detach().float())  # noqa: E731
            self._handles.append(output_projection(module).register_forward_pre_hook(hook))

    def of(self, layer):
        for handle in self._handles:
            handle.remove()
        return torch.cat(self.rows[layer]).double().numpy()


def floats(array):
    """Arrays of a run as doubles; bf16 is read as bits and converted."""
    return (array.astype(np.uint32) << 16).view(np.float32).astype(float) if array.dtype == np.uint16 else array.astype(float)


class Run:
    """A run folder, read by the tests' own reader."""

    def __init__(self, path):
        self.path = path
        self.document = json.loads((path / "run.json").read_text())
        self.snapshot, self.snapshot_metadata = read(path / "snapshot.safetensors")
        self.trace, self.metadata = read(path / "trace" / "trace.safetensors")
        for file in path.glob("trace/*.*.safetensors"):
            self.trace.update(read(file)[0])
        self.logits = read(path / "logits.safetensors")[0] if (path / "logits.safetensors").exists() else None

    def rule(self, layer, key):
        text = self.metadata.get(f"{key}.{layer}", self.metadata.get(key))
        return None if text is None else float(text)

    def attention(self, layer):
        """Probabilities [heads, rows, keys] and outputs [rows, heads * dim], computed from the folder
        alone."""
        queries = floats(self.trace[f"q.{layer}"])
        keys, values = (floats(self.snapshot[f"{name}_{layer}"]) for name in "kv")
        group = queries.shape[1] // keys.shape[1]
        keys, values = (np.repeat(array, group, 1) for array in (keys, values))
        logits = np.einsum("qhd,khd->hqk", queries, keys) * self.rule(layer, "scale")
        softcap, window = self.rule(layer, "softcap"), self.rule(layer, "window")
        if softcap:
            logits = softcap * np.tanh(logits / softcap)
        behind = np.arange(len(queries))[:, None] - np.arange(len(keys))
        logits[:, (behind < 0) | ((behind >= window) if window else False)] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return weights, np.einsum("hqk,khd->qhd", weights, values).reshape(len(queries), -1)


def decode(model, count=DECODE, prompt=PROMPT, **options):
    """A call that a user makes; generate() creates the cache that it prefers."""
    ids = tokens(prompt)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count + 1,  # the model does not process the last one
        min_new_tokens=count + 1,
        do_sample=False,
        **options,
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_follows_from_the_run(family, attention, tmp_path):
    model = make(family, attention)
    oracle = Outputs(model)
    with capture.record(model, tmp_path / "run"):
        made = decode(model)
    run = Run(tmp_path / "run")
    assert run.trace["tokens"].tolist() == made[0, :-1].tolist()
    assert run.document["tokens"] == PROMPT + DECODE and run.document["prompt_tokens"] == PROMPT
    for layer in range(4):
        assert run.trace[f"q.{layer}"].shape[0] == PROMPT + DECODE
        assert np.allclose(run.attention(layer)[1], oracle.of(layer), atol=TOLERANCE[torch.float32]), layer


@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_are_those_of_eager_attention(family, tmp_path):
    model = make(family, "eager")
    with torch.no_grad(), capture.record(model, tmp_path / "run"):
        output = model(tokens(PROMPT), use_cache=True, output_attentions=True)
    run = Run(tmp_path / "run")
    for layer, probabilities in enumerate(output.attentions):
        assert np.allclose(run.attention(layer)[0], probabilities[0].double().numpy(), atol=3e-6), layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision(family, dtype, tmp_path):
    model = make(family, "sdpa", dtype)
    oracle = Outputs(model)
    with capture.record(model, tmp_path / "run"):
        decode(model)
    run = Run(tmp_path / "run")
    kind = {torch.bfloat16: np.uint16, torch.float16: np.float16}[dtype]
    assert all(run.trace[f"q.{layer}"].dtype == kind for layer in range(4))
    assert all(run.snapshot[f"{name}_{layer}"].dtype == kind for layer in range(4) for name in "kv")
    for layer in range(4):
        assert np.allclose(run.attention(layer)[1], oracle.of(layer), atol=TOLERANCE[dtype]), layer


@pytest.mark.parametrize("family, windows", [("gemma2", {0: 8, 2: 8}), ("gemma3", {0: 8, 2: 8}), ("mistral", None)])
def test_windows_are_named_by_layer(family, windows, tmp_path):
    model = make(family, "eager")
    with capture.record(model, tmp_path / "run"):
        decode(model)
    run = Run(tmp_path / "run")
    if windows is None:
        assert run.metadata["window"] == str(WINDOW) and "window.0" not in run.metadata
        assert run.document["attention"]["window"] == WINDOW
    else:
        found = {int(key[7:]): int(value) for key, value in run.metadata.items() if key.startswith("window.")}
        assert found == windows and "window" not in run.metadata
        assert run.document["attention"]["window"] is None


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox", "gemma3"])
def test_static_caches_hand_over_the_same_rows(family, tmp_path):
    if family == "gpt_neox" and release() < (4, 48):
        pytest.skip("GPT-NeoX of transformers 4.46 itself fails with a static cache")
    model = make(family)
    oracle = Outputs(model)
    with capture.record(model, tmp_path / "run"):
        decode(model, cache_implementation="static")
    run = Run(tmp_path / "run")
    for layer in range(4):
        assert run.snapshot[f"k_{layer}"].shape[0] == PROMPT + DECODE
        assert np.allclose(run.attention(layer)[1], oracle.of(layer), atol=TOLERANCE[torch.float32]), layer


def test_a_model_without_rotary_embedding(tmp_path):
    if release() < (4, 48):
        pytest.skip("transformers before 4.48 shows no queries of GPT-2")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=97, n_positions=64, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    oracle = Outputs(model)
    with capture.record(model, tmp_path / "run"):
        decode(model)
    run = Run(tmp_path / "run")
    assert run.document["rope"] is None and "kvtool.key_rotation" not in run.snapshot_metadata
    for layer in range(2):
        assert np.allclose(run.attention(layer)[1], oracle.of(layer), atol=3e-6)


def test_rope_of_neighbouring_dims(tmp_path):
    config = transformers.CohereConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=97
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with capture.record(model, tmp_path / "run"):
        decode(model)
    assert Run(tmp_path / "run").document["rope"]["style"] == "neighbour"


def test_attention_sinks_are_refused(tmp_path):
    if not hasattr(transformers, "GptOssConfig"):
        pytest.skip(f"transformers {transformers.__version__} has no GptOssConfig")
    config = transformers.GptOssConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_local_experts=2, num_experts_per_tok=1, vocab_size=97, attn_implementation="eager", rope_scaling=None,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with pytest.raises(capture.CaptureError, match="attention sinks"):
        with capture.record(model, tmp_path / "run"):
            decode(model)


def test_masks_that_are_more_than_masks_are_refused():
    causal = torch.full((1, 2, 4, 4), torch.finfo(torch.float32).min).triu(1)
    assert Masks().visible(causal, "eager", 4).tolist() == [1, 2, 3, 4]
    assert Masks().visible(causal == 0, "sdpa", 4).tolist() == [1, 2, 3, 4]
    assert Masks().visible(causal, "flash_attention_2", 4) is None
    bias = causal + torch.arange(4.0)
    with pytest.raises(capture.CaptureError, match="adds a bias"):
        Masks().visible(bias, "eager", 4)
    by_head = causal.clone()
    by_head[0, 1, 3, 0] = torch.finfo(torch.float32).min
    with pytest.raises(capture.CaptureError, match="differs from head to head"):
        Masks().visible(by_head, "eager", 4)


def test_a_softcap_that_sdpa_does_not_apply_is_not_in_the_run(tmp_path):
    for attention, softcap in (("eager", "0.5"), ("sdpa", None)):
        model = make("gemma2", attention)
        with capture.record(model, tmp_path / attention):
            decode(model)
        assert Run(tmp_path / attention).metadata.get("softcap") == softcap


def test_the_snapshot_is_the_models_own_cache(tmp_path):
    model = make("llama")
    with torch.no_grad(), capture.record(model, tmp_path / "run"):
        output = model(tokens(PROMPT), use_cache=True)
        prefill = [layer_of(output.past_key_values, layer) for layer in range(4)]
        output = model(tokens(3), past_key_values=output.past_key_values, use_cache=True)
    for file, cache in (
        ("prefill", prefill),
        ("snapshot", [layer_of(output.past_key_values, layer) for layer in range(4)]),
    ):
        with kvtool.open(tmp_path / "run" / f"{file}.safetensors") as snapshot:
            for layer, (key, value) in zip(snapshot.layers, cache):
                assert np.array_equal(layer.k, key) and np.array_equal(layer.v, value)


def layer_of(cache, layer):
    pair = (cache.layers[layer].keys, cache.layers[layer].values) if hasattr(cache, "layers") else cache[layer][:2]
    return [part[0].transpose(0, 1).clone().numpy() for part in pair]


def test_logits(tmp_path):
    model = make("qwen2")
    ids = tokens(PROMPT + DECODE)[0].tolist()
    with capture.record(model, tmp_path / "run", prompt_tokens=PROMPT, top_k=7):
        capture.teacher_force(model, ids, PROMPT)
    run = Run(tmp_path / "run")
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    rows = run.logits["positions"]
    assert rows.tolist() == list(range(PROMPT - 1, PROMPT + DECODE))
    top = expected[rows.tolist()].topk(7, -1)
    assert np.array_equal(run.logits["top_ids"], top.indices.numpy())
    assert np.allclose(run.logits["top_logprobs"], top.values.numpy(), atol=1e-5)
    nll = [-float(expected[row, ids[row + 1]]) for row in rows[:-1]]
    assert np.allclose(run.logits["nll"][:-1], nll, atol=1e-5) and np.isnan(run.logits["nll"][-1])
    assert run.document["nll"] == pytest.approx(np.mean(nll), abs=1e-5)


def test_one_token_at_a_time_or_many_is_the_same_run(tmp_path):
    model = make("gemma3" if release() >= (4, 50) else "llama", "sdpa")
    ids = tokens(PROMPT + DECODE)[0].tolist()
    runs = []
    for chunk in (1, 3, 512):
        with capture.record(model, tmp_path / str(chunk), prompt_tokens=PROMPT):
            capture.teacher_force(model, ids, PROMPT, chunk=chunk)
        runs.append(Run(tmp_path / str(chunk)))
    for run in runs[1:]:
        assert run.metadata == runs[0].metadata
        for name, values in runs[0].trace.items():
            assert np.allclose(values, run.trace[name], atol=2e-5), name
        assert np.allclose(runs[0].logits["nll"], run.logits["nll"], atol=2e-5, equal_nan=True)


def test_generate_is_greedy_and_runs_every_token(tmp_path):
    model = make("llama")
    with capture.record(model, tmp_path / "run", prompt_tokens=PROMPT):
        made = capture.generate(model, tokens(PROMPT)[0].tolist(), DECODE, chunk=5)
    expected = decode(model)[0, PROMPT:-1].tolist()
    assert made == expected
    assert Run(tmp_path / "run").trace["tokens"].tolist() == tokens(PROMPT)[0].tolist() + made


def sampled_gradients(model, ids):
    """Two samples of g by layer, and the tokens drawn for each."""
    found = {}
    capture.gradients(
        model,
        attention_modules(model),
        ids,
        PROMPT,
        samples=2,
        seed=3,
        heads=4,
        take=lambda layer, g: found.setdefault(layer, []).append(g),
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        probabilities = decode_rows(model, ids).float().exp()
    return found, [torch.multinomial(probabilities, 1, generator=generator) for _ in range(2)]


def decode_rows(model, ids):
    """Log-probabilities of the decode rows, from one pass without a cache."""
    return model(torch.tensor([ids]), use_cache=False).logits[0, PROMPT:].log_softmax(-1)


@contextlib.contextmanager
def moved(model, by):
    """While active, adds {layer: [rows, values]} to the attention outputs of the decode rows."""
    handles = []
    for layer, amount in by.items():

        def hook(_, given, amount=amount):
            return (torch.cat([given[0][:, :PROMPT], given[0][:, PROMPT:] + amount], 1), *given[1:])

        handles.append(output_projection(attention_modules(model)[layer]).register_forward_pre_hook(hook))
    yield
    for handle in handles:
        handle.remove()


def refuse_broken_windows(family):
    if release() < (4, 48) and family == "gemma2":
        pytest.skip("transformers 4.46 does not keep to Gemma 2's window with this cache")


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_of_every_rows_output(family):
    """Compares with the gradients of one pass without a cache, with respect to a change of 0 in all layers."""
    refuse_broken_windows(family)
    model = make(family, "eager").double()
    ids = tokens(PROMPT + DECODE)[0].tolist()
    found, drawn = sampled_gradients(model, ids)
    for sample, picked in enumerate(drawn):
        by = {layer: torch.zeros_like(found[layer][0].flatten(1)).requires_grad_(True) for layer in range(4)}
        with moved(model, by):
            decode_rows(model, ids).gather(1, picked).sum().backward()
        for layer in range(4):
            expected = by[layer].grad
            assert expected.abs().max() > 1e-4
            # Models compute norms and softmax in f32 even if their weights are doubles.
            assert torch.allclose(found[layer][sample].flatten(1), expected, atol=2e-5 * float(expected.abs().max())), layer


def test_gradients_are_differences():
    """If outputs change a little in every layer and row, the sum of log p changes by g times that."""
    model = make("llama", "eager").double()
    ids = tokens(PROMPT + DECODE)[0].tolist()
    found, drawn = sampled_gradients(model, ids)
    generator = torch.Generator().manual_seed(4)
    for sample, picked in enumerate(drawn):
        way = {layer: torch.randn(DECODE, 32, dtype=torch.float64, generator=generator) for layer in range(4)}
        expected = sum(float((found[layer][sample].flatten(1) * way[layer]).sum()) for layer in range(4))
        step, sums = 1e-3, []
        for sign in (1, -1):
            with torch.no_grad(), moved(model, {layer: sign * step * by for layer, by in way.items()}):
                sums.append(float(decode_rows(model, ids).gather(1, picked).sum()))
        assert abs(expected) > 0.01
        assert (sums[0] - sums[1]) / (2 * step) == pytest.approx(expected, rel=0.02)


def test_gradients_in_a_run(tmp_path):
    model = make("llama")
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    with capture.record(model, tmp_path / "run", fisher=3, seed=7):
        decode(model)
    run = Run(tmp_path / "run")
    assert run.metadata["g_start"] == str(PROMPT)
    assert all(run.trace[f"g.{layer}"].shape == (3, DECODE, 4, 8) for layer in range(4))
    assert all(np.isfinite(run.trace[f"g.{layer}"]).all() and run.trace[f"g.{layer}"].any() for layer in range(4))
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable
    with capture.record(model, tmp_path / "again", fisher=3, seed=7):
        decode(model)
    assert all(np.array_equal(run.trace[f"g.{layer}"], Run(tmp_path / "again").trace[f"g.{layer}"]) for layer in range(4))


def hidden_rows(model, ids, visible):
    """Log-probabilities of the decode rows from one pass without a cache, in which they see only `visible` positions."""
    lowest = torch.finfo(torch.float64).min
    whole = torch.ones(len(ids), len(ids)).tril().bool()
    with contextlib.ExitStack() as stack:
        for layer, module in attention_modules(model).items():
            seen = torch.stack([torch.cat([whole[:PROMPT], rows]) for rows in visible[layer]]).repeat_interleave(2, 0)[None]

            def hide(_, given, named, seen=seen):
                return given, {**named, "attention_mask": torch.zeros(seen.shape).double().masked_fill(~seen, lowest)}

            stack.callback(module.register_forward_pre_hook(hide, with_kwargs=True).remove)
        return model(torch.tensor([ids]), use_cache=False).logits[0, PROMPT:].log_softmax(-1)


def test_evicted_states_hide_keys_and_gradients_are_taken_there(monkeypatch):
    """Compares with one pass without a cache whose decode rows are masked."""
    monkeypatch.setattr(_capture_fisher, "KEPT_RECENT", 2)  # otherwise so short a run would keep nearly everything
    model = make("llama", "eager").double()
    ids = tokens(PROMPT + DECODE)[0].tolist()
    found = {}
    draw = {"samples": 1, "evicted": 5, "seed": 3, "heads": 4}
    modules = attention_modules(model)
    capture.gradients(model, modules, ids, PROMPT, **draw, take=lambda layer, g: found.setdefault(layer, []).append(g))
    assert all(len(samples) == 6 for samples in found.values())
    alone = {}
    draw["samples"] = 0
    capture.gradients(model, modules, ids, PROMPT, **draw, take=lambda layer, g: alone.setdefault(layer, []).append(g))
    assert all(torch.equal(a, b) for layer in range(4) for a, b in zip(alone[layer], found[layer][1:]))
    generator = torch.Generator().manual_seed(4)
    for sample in range(5):
        visible = evicted_masks(modules, 2, PROMPT, len(ids), sample, generator)
        with torch.no_grad():
            picked = torch.multinomial(hidden_rows(model, ids, visible).float().exp(), 1, generator=generator)
        by = {layer: torch.zeros_like(found[layer][0].flatten(1)).requires_grad_(True) for layer in range(4)}
        with moved(model, by):
            hidden_rows(model, ids, visible).gather(1, picked).sum().backward()
        for layer in range(4):
            expected = by[layer].grad
            assert torch.allclose(alone[layer][sample].flatten(1), expected, atol=2e-5 * float(expected.abs().max())), layer


def test_evicted_masks_keep_sinks_recent_positions_and_a_share_of_the_rest():
    generator = torch.Generator().manual_seed(0)
    prompt, end = 4000, 4010
    for sample, share in enumerate((*KEPT_SHARES, KEPT_SHARES[0])):
        masks = evicted_masks({0: None, 2: None}, 2, prompt, end, sample, generator)
        assert sorted(masks) == [0, 2] and masks[0].shape == (2, 10, end)
        assert not torch.equal(masks[0], masks[2]) and not torch.equal(masks[0][0], masks[0][1])
        for row in range(10):
            seen = masks[0][1, row]
            position = prompt + row
            assert bool(seen[:4].all()) and bool(seen[position - 15 : position + 1].all()) and not bool(seen[position + 1 :].any())
            assert abs(float(seen[4 : position - 15].double().mean()) - share) < 0.03
            assert torch.equal(seen[4:3900], masks[0][1, 0, 4:3900])  # one draw for all rows


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_samples_at_evicted_states_are_marked(family, tmp_path):
    refuse_broken_windows(family)
    model = make(family)
    with capture.record(model, tmp_path / "run", fisher=2, fisher_evicted=3, seed=7):
        decode(model)
    run = Run(tmp_path / "run")
    assert run.metadata["g_evicted"] == "3" and run.trace["g.1"].shape[:3] == (5, DECODE, 4)
    with capture.record(model, tmp_path / "before", fisher=2, seed=7):
        decode(model)
    before = Run(tmp_path / "before")
    assert "g_evicted" not in before.metadata
    assert all(np.array_equal(run.trace[f"g.{layer}"][:2], before.trace[f"g.{layer}"]) for layer in range(4))


def test_evicted_states_need_a_mask(tmp_path):
    model = make("llama")
    ids = tokens(PROMPT + DECODE)[0].tolist()
    modules = attention_modules(model)
    named = {"samples": 0, "evicted": 1, "seed": 0, "heads": 4, "take": lambda layer, g: None}
    with pytest.raises(capture.CaptureError, match="attention in every layer"):
        capture.gradients(model, {layer: module for layer, module in modules.items() if layer != 1}, ids, PROMPT, **named)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(capture.CaptureError, match="pass --attention sdpa"):
        capture.gradients(model, modules, ids, PROMPT, **named)


def test_trace_dtype(tmp_path):
    model = make("llama")
    with capture.record(model, tmp_path / "run", trace_dtype="f16"):
        decode(model)
    run = Run(tmp_path / "run")
    assert run.trace["q.0"].dtype == np.float16 and run.snapshot["k_0"].dtype == np.float32
    with pytest.raises(ValueError, match="trace_dtype"):
        with capture.record(model, tmp_path / "other", trace_dtype="f8"):
            pass


def test_queries_beyond_f16_are_refused(tmp_path):
    model = make("llama")
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight.mul_(1e6)
    with pytest.raises(capture.CaptureError, match=r"q\.2: values beyond the range of f16"):
        with capture.record(model, tmp_path / "run", trace_dtype="f16"):
            decode(model)
    assert os.listdir(tmp_path) == []


def test_run_json(tmp_path):
    model = make("gpt_neox")
    with capture.record(model, tmp_path / "run", name="tiny"):
        decode(model)
    document = Run(tmp_path / "run").document
    assert document["engine"] == {"name": "transformers", "build": transformers.__version__}
    assert document["tool"] == {"name": "kvtool.capture", "version": kvtool.__version__}
    assert document["model"]["name"] == "tiny" and document["model"]["architecture"] == "GPTNeoXForCausalLM"
    assert document["model"]["context_length"] == 128
    assert document["geometry"] == {"layers": 4, "query_heads": 4, "kv_heads": 4, "head_dim": 8}
    assert document["rope"]["style"] == "half" and document["rope"]["dims"] == 4
    assert document["attention"]["scale"] == pytest.approx(8**-0.5)


def test_rope_with_a_base_for_local_layers(tmp_path):
    model = make("gemma3")
    with capture.record(model, tmp_path / "run"):
        decode(model)
    rope = Run(tmp_path / "run").document["rope"]
    assert (rope["base"], rope["local_base"], rope["scaling"]) == (1e6, 1e4, None)


REFUSED = {
    "a batch of 2": lambda model: model(tokens(4).repeat(2, 1), use_cache=True),
    "without input_ids": lambda model: model(inputs_embeds=torch.zeros(1, 4, 32), use_cache=True),
    "training mode": lambda model: model.train()(tokens(4), use_cache=True),
    "hides keys": lambda model: model(tokens(4), attention_mask=torch.tensor([[0, 1, 1, 1]]), use_cache=True),
    "use_cache=True": lambda model: model(tokens(4), use_cache=False),
    "from its first token on": lambda model: [model(tokens(4), use_cache=True) for _ in range(2)],
    "nothing to record": lambda model: None,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_by_name(reason, tmp_path):
    model = make("llama")
    with pytest.raises(capture.CaptureError, match=reason):
        with torch.no_grad(), capture.record(model, tmp_path / "run"):
            REFUSED[reason](model)
    assert os.listdir(tmp_path) == []


def test_a_cache_that_holds_an_older_run_is_refused(tmp_path):
    model = make("llama")
    with torch.no_grad():
        cache = model(tokens(4), use_cache=True).past_key_values
        with pytest.raises(capture.CaptureError, match="holds 4 tokens, but 0 were recorded"):
            with capture.record(model, tmp_path / "run"):
                model(tokens(1), past_key_values=cache, use_cache=True)


def test_prompt_tokens_must_fit(tmp_path):
    model = make("llama")
    with pytest.raises(capture.CaptureError, match="prompt_tokens is 99, but 24 tokens ran"):
        with capture.record(model, tmp_path / "run", prompt_tokens=99):
            decode(model)


def test_a_model_without_attention_is_refused(tmp_path):
    with pytest.raises(capture.CaptureError, match="no attention modules"):
        with capture.record(torch.nn.Linear(2, 2), tmp_path / "run"):
            pass


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_nothing(raised, tmp_path):
    model = make("llama")
    with pytest.raises(raised):
        with capture.record(model, tmp_path / "run"):
            decode(model)
            raise raised
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_nothing_stays_behind_in_the_model(attention, tmp_path):
    from transformers.cache_utils import DynamicCache

    def seen(model):
        space = inspect.unwrap(type(model.model.layers[0].self_attn).forward).__globals__
        table = space.get("ALL_ATTENTION_FUNCTIONS", {})
        found = [space.get("eager_attention_forward"), space["apply_rotary_pos_emb"], DynamicCache.update]
        hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
        return found, dict(table), dict(getattr(table, "_local_mapping", {})), hooks, decode(model).tolist()

    model = make("llama", attention)
    before = seen(model)
    with capture.record(model, tmp_path / "run"):
        decode(model)
    assert seen(model) == before
    with pytest.raises(RuntimeError):
        with capture.record(model, tmp_path / "other"):
            raise RuntimeError
    assert seen(model) == before


def test_another_model_in_the_block_is_not_recorded(tmp_path):
    model, other = make("llama", seed=1), make("llama", seed=2)
    with capture.record(model, tmp_path / "run"):
        decode(other, count=3)
        decode(model)
        decode(other, count=3)
    with capture.record(model, tmp_path / "alone"):
        decode(model)
    runs = [Run(tmp_path / name) for name in ("run", "alone")]
    assert all(np.array_equal(values, runs[1].trace[name]) for name, values in runs[0].trace.items())


def kept_outputs(run, layer, events):
    """Attention outputs if rows after an event at token t see the keys that it kept of those up to t, and all later
    keys."""
    weights, _ = run.attention(layer)
    values = np.repeat(floats(run.snapshot[f"v_{layer}"]), 2, 1)
    visible = np.ones(weights.shape[1:], bool)
    for event in events:
        last, kept = event["token"], np.zeros(weights.shape[2], bool)
        for begin, count in event["kept"]:
            kept[begin : begin + count] = True
        visible[last + 1 :, : last + 1] &= kept[: last + 1]
    weights = weights * visible
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values).reshape(len(visible), -1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "phi3_window"])
def test_a_replay_predicts_by_the_gradients(family, tmp_path):
    """Recomputes the predicted KL of kvtool's replay from the files and the plan: half the mean of (sum of g .
    change)^2."""
    refuse_broken_windows(family)
    model = make(family)
    with capture.record(model, tmp_path / "run", fisher=2):
        decode(model, count=40)
    run = Run(tmp_path / "run")
    result = kvtool.replay_evict(tmp_path / "run", policy="streaming", budget=0.5, sink=2, recent=4)
    events = result["plan"]["events"]
    change = np.zeros(run.trace["g.0"].shape[:2])
    for layer in range(4):
        moved_by = kept_outputs(run, layer, [event for event in events if event["layer"] == layer]) - run.attention(layer)[1]
        gradients = run.trace[f"g.{layer}"]
        change += (gradients.reshape(*gradients.shape[:2], -1) * moved_by[PROMPT:]).sum(-1)
    expected = 0.5 * (change**2).mean()
    assert expected > 0
    assert result["runs"][0]["predicted_kl"]["nats"] == pytest.approx(expected, rel=1e-3)


def test_the_code_in_the_documents_runs(root, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (root / "docs/engines/transformers.md").read_text(), re.M | re.S)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    space = {}
    for block in blocks:
        exec(block, space)
    assert Run(tmp_path / "run").document["tokens"] == 63 and Run(tmp_path / "forced").document["tokens"] == 40


# The command line, on a model in a folder.


@pytest.fixture
def folder(tmp_path):
    """A model and a tokenizer of single words, in the form that save_pretrained writes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = make("llama")
    model.save_pretrained(tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "model")
    (tmp_path / "prompt.txt").write_text(" ".join(f"w{3 + number % 90}" for number in range(40)))
    return tmp_path


def command(folder, *words, output="run"):
    return main([str(folder / "model"), "--prompt", str(folder / "prompt.txt"), "-q", "-o", str(folder / output), *words])


def test_command_decodes(folder):
    assert command(folder, "-n", "6", "--prompt-tokens", "9") == 0
    run = Run(folder / "run")
    ran = run.trace["tokens"].tolist()
    assert ran[:9] == list(range(3, 12)) and run.document["prompt_tokens"] == 9
    assert len(ran) == 15 or ran[-1] == 2  # it stops at the end of the text
    with torch.no_grad():
        best = make("llama")(torch.tensor([ran])).logits[0].argmax(-1).tolist()
    assert best[8:-1] == ran[9:]
    assert run.document["model"]["name"] == "model" and run.document["model"]["bytes"] > 1000


@pytest.mark.parametrize(
    "words, prompt, decoded",
    [
        (["--prompt-tokens", "9"], 9, 31),
        (["-n", "7"], 33, 7),
        (["--prompt-tokens", "9", "-n", "7"], 9, 7),
    ],
)
def test_command_forces_the_text(words, prompt, decoded, folder):
    assert command(folder, "--forced", "--fisher", "1", "--fisher-evicted", "1", "--dtype", "bf16", "--trace-dtype", "f32", *words) == 0
    run = Run(folder / "run")
    assert run.document["prompt_tokens"] == prompt and run.document["tokens"] == prompt + decoded
    assert run.trace["tokens"].tolist() == list(range(3, 3 + prompt + decoded))
    assert run.trace["g.3"].shape == (2, decoded, 4, 8)
    assert run.trace["q.0"].dtype == np.float32 and run.snapshot["k_0"].dtype == np.uint16


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["--forced"], 2, "--forced needs --prompt-tokens or -n"),
        (["--forced", "--prompt-tokens", "40"], 2, "has 40 tokens"),
        (["--forced", "-n", "40"], 2, "has 40 tokens"),
        (["--prompt-tokens", "41"], 2, "has 40 tokens"),
        (["--prompt", "missing.txt"], 4, "missing.txt"),
    ],
)
def test_command_refuses(words, status, said, folder, capsys):
    assert command(folder, *words) == status
    assert said in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_command_refuses_what_is_not_text(folder, capsys):
    (folder / "prompt.txt").write_bytes(b"w3 \xff\xfe")
    assert command(folder) == 3
    assert "not UTF-8" in capsys.readouterr().err


def test_command_warns_beyond_the_context(folder, capsys):
    assert command(folder, "--prompt-tokens", "9", "-n", "120") == 0
    assert "129 tokens, but the model's context is 128" in capsys.readouterr().err


def test_command_replaces_only_by_force(folder, capsys):
    assert command(folder, "-n", "2") == 0
    assert command(folder, "-n", "3") == 2
    assert "-f" in capsys.readouterr().err
    assert command(folder, "-n", "3", "-f") == 0


def test_command_interrupted(folder, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(capture, "generate", interrupt)
    assert command(folder, "-n", "3") == 130
    assert "nothing was written" in capsys.readouterr().err
    assert sorted(os.listdir(folder)) == ["model", "prompt.txt"]
