# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Where the prediction in nats is exact, it equals the model's real loss."""

import json

import pytest

tiny_models = pytest.importorskip("tiny_models", reason="torch and transformers are not installed")
import torch  # noqa: E402
from tiny_models import make, release, tokens  # noqa: E402

import kvtool  # noqa: E402
from kvtool import capture  # noqa: E402

TOKENS, PROMPT, SAMPLES = 96, 48, 32


def log_probabilities(model, ids, mask):
    bias = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        return model(ids, attention_mask=bias, use_cache=False).logits[0].double().log_softmax(-1)


def mask_of(plan):
    """Returns a plan's mask for a whole layer, [query, key]."""
    mask = torch.ones(TOKENS, TOKENS).tril().bool()
    for event in plan["events"]:
        assert event["kv_head"] is None and event["layer"] == 0
        kept = torch.zeros(TOKENS, dtype=torch.bool)
        for begin, count in event["kept"]:
            kept[begin : begin + count] = True
        kept[event["token"] + 1 :] = True
        mask[event["token"] + 1 :] &= kept
    return mask


def test_one_layer_loses_what_is_predicted(tmp_path):
    """With a single layer no later layer reacts to an eviction, so only sampling and terms beyond second order make a
    difference."""
    model = make("llama", num_hidden_layers=1)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.mul_(60)  # makes evictions visible in the logits
    ids = tokens(TOKENS)
    with capture.record(model, tmp_path / "run", prompt_tokens=PROMPT, fisher=SAMPLES):
        capture.teacher_force(model, ids[0].tolist(), PROMPT)
    full = torch.ones(TOKENS, TOKENS).tril().bool()
    before = log_probabilities(model, ids, full)
    for policy, ratio in [("window", 1.5), ("streaming", 2), ("window", 4)]:
        document = kvtool.replay_evict(tmp_path / "run", policy=policy, target_ratio=ratio, seed=1)
        after = log_probabilities(model, ids, mask_of(document["plan"]))
        real = float((before.exp() * (before - after)).sum(-1)[PROMPT:].mean())
        predicted = document["runs"][0]["predicted_kl"]
        assert predicted["rows"] == TOKENS - PROMPT and predicted["samples"] == SAMPLES
        assert abs(predicted["nats"] - real) < 4 * predicted["standard_error"] + 0.1 * real, (policy, ratio)
        assert real > 1e-5
    everything = kvtool.replay_evict(tmp_path / "run", policy="full")
    assert everything["runs"][0]["predicted_kl"]["nats"] == 0


def test_a_run_is_an_input(tmp_path):
    model = make("gemma2" if release() >= (4, 48) else "llama")
    with capture.record(model, tmp_path / "run", fisher=2):
        capture.generate(model, tokens(40)[0].tolist(), 16)
    seen = kvtool.inspect(tmp_path / "run")
    assert seen["run"]["tokens"] == 56 and seen["run"]["prompt_tokens"] == 40
    document = kvtool.replay_evict(tmp_path / "run", policy=["h2o", "tova"], budget=0.5)
    assert all(run["predicted_kl"]["nats"] > 0 for run in document["runs"])
    assert kvtool.analyze(tmp_path / "run")["layers"]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    run["files"]["snapshot"] = "../else.safetensors"
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    with pytest.raises(kvtool.Error, match="outside the folder"):
        kvtool.inspect(tmp_path / "run")
