# SPDX-License-Identifier: Apache-2.0
"""An independent prediction of the loss, from the formulas, in double.

  predicted_kl.py make [EVICTED [nan]] writes snapshot.npz, trace.npz and sensitivity.json; EVICTED samples of the gradients are
                                   of evicted states, and with nan a row of one of them is not a number
  predicted_kl.py compare PLAN.json REPORT.json reads a plan of kvtool and compares kvtool's prediction for it
"""
import json
import math
import sys

import numpy as np

LAYERS, HEADS, KV_HEADS, DIM, V_DIM = 3, 6, 2, 16, 10
TOKENS, PROMPT, G_START, SAMPLES = 120, 60, 64, 3
WINDOW, SOFTCAP, SCALE = {1: 50}, {2: 4.0}, {0: 0.2}


def make(evicted="0", spoiled=None):
    random = np.random.default_rng(5)
    snapshot = {"positions": np.arange(TOKENS, dtype=np.int64)}
    metadata = {"kvtool.trace": "1", "prompt_tokens": str(PROMPT), "kv_heads": str(KV_HEADS), "g_start": str(G_START)}
    if evicted != "0":
        metadata["g_evicted"] = evicted
    for name, values in (("window", WINDOW), ("softcap", SOFTCAP), ("scale", SCALE)):
        metadata.update({f"{name}.{layer}": str(value) for layer, value in values.items()})
    trace = {"__metadata__": np.frombuffer(json.dumps(metadata).encode(), np.uint8)}
    for layer in range(LAYERS):
        snapshot[f"k_{layer}"] = random.standard_normal((TOKENS, KV_HEADS, DIM)).astype(np.float16)
        snapshot[f"v_{layer}"] = random.standard_normal((TOKENS, KV_HEADS, V_DIM)).astype(np.float16)
        trace[f"q.{layer}"] = (1.5 * random.standard_normal((TOKENS, HEADS, DIM))).astype(np.float32)
        g = 0.05 * random.standard_normal((SAMPLES, TOKENS - G_START, HEADS, V_DIM))
        if spoiled and layer == 2:
            g[-1, 5, 3, 7] = np.nan
        trace[f"g.{layer}"] = g.astype(np.float16 if layer == 1 else np.float32)
    np.savez("snapshot.npz", **snapshot)
    np.savez("trace.npz", **trace)
    with open("sensitivity.json", "w") as file:
        layers = [{"layer": layer, "kl": 0.1 + layer} for layer in range(LAYERS)]
        json.dump({"schema": "kvtool.sensitivity/1", "model": "made up", "noise": 0.3, "layers": layers}, file)


def visible(plan, layer):
    """[kv head, query, key]: the keys that the plan lets each query see."""
    seen = np.tril(np.ones((KV_HEADS, TOKENS, TOKENS), bool))
    for event in plan["events"]:
        if event["layer"] != layer:
            continue
        kept = np.zeros(TOKENS, bool)
        for begin, count in event["kept"]:
            kept[begin:begin + count] = True
        kept[event["token"] + 1:] = True
        heads = range(KV_HEADS) if event["kv_head"] is None else [event["kv_head"]]
        for head in heads:
            seen[head, event["token"] + 1:] &= kept
    return seen


def outputs(q, k, v, layer, mask):
    """[head, query, v dim] with the softmax over the keys in `mask`."""
    group = HEADS // KV_HEADS
    scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1)) * SCALE.get(layer, 1 / math.sqrt(DIM))
    if layer in SOFTCAP:
        scores = SOFTCAP[layer] * np.tanh(scores / SOFTCAP[layer])
    age = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :]
    mask = np.repeat(mask, group, axis=0) & (age < WINDOW.get(layer, TOKENS))
    scores = np.where(mask, scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->hqd", p, np.repeat(v, group, axis=1))


def compare(plan_path, report_path):
    plan, report = json.load(open(plan_path)), json.load(open(report_path))["results"][0]
    snapshot, trace = np.load("snapshot.npz"), np.load("trace.npz")
    sensitivity = json.load(open("sensitivity.json"))
    change, weighted = np.zeros((SAMPLES, TOKENS - G_START)), 0.0
    for layer in range(LAYERS):
        q, k, v, g = (array.astype(np.float64) for array in (trace[f"q.{layer}"], snapshot[f"k_{layer}"],
                                                             snapshot[f"v_{layer}"], trace[f"g.{layer}"]))
        full = outputs(q, k, v, layer, np.tril(np.ones((KV_HEADS, TOKENS, TOKENS), bool)))
        kept = outputs(q, k, v, layer, visible(plan, layer))
        change += np.einsum("srhd,hrd->sr", g, (kept - full)[:, G_START:])
        a, b = (np.moveaxis(o, 0, 1)[PROMPT:].reshape(TOKENS - PROMPT, -1) for o in (full, kept))
        cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
        weighted += sensitivity["layers"][layer]["kl"] / sensitivity["noise"] ** 2 * 2 * (1 - cosine.mean())
    said = report["runs"][0]["predicted_kl"]
    evicted = int(json.loads(bytes(trace["__metadata__"])).get("g_evicted", 0))
    halves = [half.mean(0) for half in np.split(change ** 2 / 2, [SAMPLES - evicted]) if len(half)]
    rows = (halves[0] + 2 * halves[1]) / 3 if len(halves) == 2 else halves[0]
    expected = np.nanmean(rows) if said["method"] == "gradients" else weighted
    assert expected > 1e-3, expected
    assert abs(said["nats"] - expected) < 1e-5 * expected, (said["nats"], expected)
    if said["method"] == "gradients":
        order = [G_START + int(row) for row in np.argsort(-rows)[:4]]
        assert said["top_rows"] == order, (said["top_rows"], order)
        assert abs(said["top_share"] - rows[np.array(order) - G_START].sum() / np.nansum(rows)) < 1e-5
    print(said["method"], said["basis"], said["rows"], said["of_rows"], said["samples"])


if __name__ == "__main__":
    (make if sys.argv[1] == "make" else compare)(*sys.argv[2:])
