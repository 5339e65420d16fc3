# SPDX-License-Identifier: Apache-2.0
"""An independent replay of quantised caches, from the formulas, in double.

  oracle.py make               writes snapshot.npz and trace.npz
  oracle.py compare REPORT.json compares every run of kvtool's report on them
"""
import json
import math
import sys

import numpy as np

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64
TOKENS, PROMPT, G_START, SAMPLES = 160, 20, 24, 3
WINDOW, SOFTCAP = {1: 100}, {1: 30.0}
F32 = np.float32


def make():
    random = np.random.default_rng(11)
    snapshot = {"positions": np.arange(TOKENS, dtype=np.int64)}
    metadata = {"kvtool.trace": "1", "prompt_tokens": str(PROMPT), "kv_heads": str(KV_HEADS), "g_start": str(G_START)}
    metadata.update({f"window.{layer}": str(value) for layer, value in WINDOW.items()})
    metadata.update({f"softcap.{layer}": str(value) for layer, value in SOFTCAP.items()})
    trace = {"__metadata__": np.frombuffer(json.dumps(metadata).encode(), np.uint8)}
    for layer in range(LAYERS):
        k = random.standard_normal((TOKENS, KV_HEADS, DIM))
        k[:, :, 5] *= 9  # makes channel 5 an outlier, as in real keys
        snapshot[f"k_{layer}"] = k.astype(np.float16)
        snapshot[f"v_{layer}"] = random.standard_normal((TOKENS, KV_HEADS, DIM)).astype(np.float16)
        trace[f"q.{layer}"] = random.standard_normal((TOKENS, HEADS, DIM)).astype(np.float32)
        trace[f"g.{layer}"] = (0.05 * random.standard_normal((SAMPLES, TOKENS - G_START, HEADS, DIM))).astype(np.float32)
    np.savez("snapshot.npz", **snapshot)
    np.savez("trace.npz", **trace)


def hadamard(x):
    """Parts of 64 times the orthonormal matrix; exact enough in double."""
    h = np.ones((1, 1))
    while len(h) < 64:
        h = np.block([[h, h], [h, -h]])
    return (x.astype(np.float64).reshape(-1, 64) @ (h / 8)).reshape(x.shape)


def half(x):
    return x.astype(np.float16).astype(F32)


def q8_0(x):
    blocks = x.astype(F32).reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    codes = np.rint(blocks * (F32(127) / amax))
    return (half(amax / F32(127)) * codes).reshape(x.shape)


def q4_1(x):
    blocks = x.astype(F32).reshape(-1, 32)
    least = blocks.min(axis=1, keepdims=True)
    d = (blocks.max(axis=1, keepdims=True) - least) / F32(15)
    codes = np.minimum(15, np.trunc((blocks - least) * (F32(1) / d) + F32(0.5)))
    return (half(d) * codes + half(least)).reshape(x.shape)


def int8_token_head(x):
    vectors = x.astype(F32)
    scale = np.maximum(np.abs(vectors).max(axis=-1, keepdims=True) / F32(127), F32(1e-6))
    y = vectors * (F32(1) / scale)
    return np.clip(np.trunc(np.where(y < 0, y - F32(0.5), y + F32(0.5))), -128, 127) * scale


def kivi2(x, is_key):
    x = x.astype(np.float16)
    groups = np.split(x, TOKENS // 32) if is_key else np.split(x, DIM // 32, axis=2)
    axis, out = (0, []) if is_key else (2, [])
    for group in groups:
        least = group.min(axis=axis, keepdims=True)
        scale = (group.max(axis=axis, keepdims=True) - least) / np.float16(3)
        codes = np.rint(np.clip((group - least) / scale, 0, 3)).astype(np.float16)
        out.append(codes * scale + least)
    return np.concatenate(out, axis=axis).astype(F32)


def stored(name, x, is_key, settings):
    """Returns the values that attention reads, for types with kvtool's rotations and full-precision tails."""
    if name == "f16":
        return x.astype(np.float64)
    if name in ("q8_0", "q4_1"):
        store = q8_0 if name == "q8_0" else q4_1
        return hadamard(store(hadamard(x))) if settings["hadamard"] else store(x).astype(np.float64)
    if name == "int8_per_token_head":
        return int8_token_head(x).astype(np.float64)
    return kivi2(x, is_key).astype(np.float64)


BYTES = {"f16": 2, "q8_0": 34 / 32, "q4_1": 20 / 32, "int8_per_token_head": 1 + 4 / DIM, "kivi2": 2 / 8 + 4 / 32}


def in_full(name, is_key, settings):
    """[query, token]: which tokens a query sees in full."""
    position, token = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None, :]
    full = (token < settings["keep_first"]) | (token + settings["keep_last"] > position)
    if name != "kivi2":
        return full
    seen = position + 1
    return full | (token >= (seen - seen % 128 if is_key else np.maximum(seen - 128, 0)))


def softmax(scores, layer):
    position, token = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None, :]
    if layer in SOFTCAP:
        scores = SOFTCAP[layer] * np.tanh(scores / SOFTCAP[layer])
    visible = (token <= position) & (position - token < WINDOW.get(layer, TOKENS))
    scores = np.where(visible, scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def replay(snapshot, trace, run, settings):
    change, error, kl, moved, cosine = np.zeros((SAMPLES, TOKENS - G_START)), [], [], [], []
    stored_bytes = 0.0
    for layer in range(LAYERS):
        q = trace[f"q.{layer}"]
        k, v = snapshot[f"k_{layer}"].astype(F32), snapshot[f"v_{layer}"].astype(F32)
        k2, v2 = stored(run["k"], k, True, settings), stored(run["v"], v, False, settings)
        q2 = q.astype(np.float64)
        if settings["engine_q"] == "cpu" and run["k"] in ("q8_0", "q4_1"):
            q2 = hadamard(q8_0(hadamard(q))) if settings["hadamard"] else q8_0(q).astype(np.float64)
        k_full, v_full = in_full(run["k"], True, settings), in_full(run["v"], False, settings)
        p, p2, o, o2 = [], [], [], []
        for head in range(HEADS):
            at = head // (HEADS // KV_HEADS)
            scores = q[:, head].astype(np.float64) @ k[:, at].astype(np.float64).T / math.sqrt(DIM)
            changed = np.where(k_full, scores, q2[:, head] @ k2[:, at].T / math.sqrt(DIM))
            p.append(softmax(scores, layer))
            p2.append(softmax(changed, layer))
            o.append(p[-1] @ v[:, at].astype(np.float64))
            o2.append((p2[-1] * v_full) @ v[:, at].astype(np.float64) + (p2[-1] * ~v_full) @ v2[:, at])
        p, p2, o, o2 = (np.stack(x)[:, PROMPT:] for x in (p, p2, o, o2))
        error.append(math.sqrt(((o - o2) ** 2).sum() / (o ** 2).sum()))
        with np.errstate(divide="ignore", invalid="ignore"):
            kl.append(np.where(p > 0, p * np.log(p / p2), 0).sum(axis=-1).mean())
        moved.append(np.abs(p - p2).sum(axis=-1).mean() / 2)
        a, b = (np.moveaxis(x, 0, 1).reshape(TOKENS - PROMPT, -1) for x in (o, o2))
        cosine.append((1 - (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).mean())
        g = trace[f"g.{layer}"].astype(np.float64)
        change += np.einsum("srhd,hrd->sr", g, (o2 - o)[:, G_START - PROMPT:])
        for name, full in ((run["k"], k_full), (run["v"], v_full)):
            share = full[-1].mean()
            stored_bytes += TOKENS * KV_HEADS * DIM * (2 * share + BYTES[name] * (1 - share))
    return {"output_error": np.mean(error), "attention_kl": np.mean(kl), "mass_moved": np.mean(moved),
            "one_minus_cosine": np.mean(cosine), "nats": (change ** 2).mean() / 2, "bytes": stored_bytes}


def compare(report_path):
    report = json.load(open(report_path))["results"][0]
    snapshot, trace = np.load("snapshot.npz"), np.load("trace.npz")
    for run in report["runs"]:
        wanted = replay(snapshot, trace, run, report["settings"])
        said = {**run, "nats": run["predicted_kl"]["nats"]}
        for name, value in wanted.items():
            # If attention hardly changes, the figure is a difference of values near 1.
            close = abs(said[name] - value) <= 2e-3 * abs(value) + (1e-9 if name != "bytes" else 1e-3)
            assert close, (run["k"], run["v"], name, said[name], value)
    print(len(report["runs"]), "runs agree")


if __name__ == "__main__":
    make() if sys.argv[1] == "make" else compare(sys.argv[2])
