#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An independent replay of H2O eviction in numpy, with which `kvtool replay-h2o` is compared.

It follows the rules, not the program: token by token, row by row, in double precision, one plain loop per rule.
`make` draws a random snapshot and trace, `plan` prints what each rule keeps, in the form of kvtool.h2o-plan/1's
events, and `compare` reads a plan of kvtool and reports where it differs.

  h2o_oracle.py make --seed 7 --out DIR [--layers 3 --heads 4 --kv-heads 2 --dim 16 --tokens 160 --prompt 64]
  h2o_oracle.py real SNAPSHOT.npz STEM --prompt N --out DIR      a snapshot (kvtool convert --to npz) and STEM-L*-Q.npy
  h2o_oracle.py compare DIR PLAN.json --engine exact|design|mnn|mnn-r6 --policy P [--schedule paper|mnn] [--budget B]
      [--scores exact|flash] [--NAME VALUE ...]
"""
import argparse
import fractions
import json
import math
import os
import sys
import types

import numpy as np

f32 = np.float32

PARAMETERS = {
    "layer_start": 2, "layer_end": -1, "block_tokens": 64, "sink": 32, "recent": 256, "target_ratio": 3.0,
    "ema_alpha": 0.9, "update_interval": 16, "trigger_min": 512,
}
PAPERS = {"snapkv_window": 64, "snapkv_kernel": 5, "pyramid_beta": 20, "sinks": 4, "h2o_heavy": 0.5, "after_prompt": "grow"}


def make(args):
    rng = np.random.default_rng(args.seed)
    os.makedirs(args.out, exist_ok=True)
    snapshot = {"positions": np.arange(args.tokens, dtype=np.int64)}
    trace = {}
    for layer in range(args.layers):
        k = rng.standard_normal((args.tokens, args.kv_heads, args.dim))
        # Some keys attract attention for a while, so that the choice of tokens does not depend on noise.
        k += np.where(rng.random((args.tokens, 1, 1)) < 0.1, 1.5, 0) * rng.standard_normal((1, args.kv_heads, args.dim))
        snapshot[f"k_{layer}"] = k.astype(np.float16)
        snapshot[f"v_{layer}"] = rng.standard_normal(k.shape).astype(np.float16)
        trace[f"q.{layer}"] = (1.5 * rng.standard_normal((args.tokens, args.heads, args.dim))).astype(f32)
    np.savez(os.path.join(args.out, "snapshot.npz"), **snapshot)
    np.savez(os.path.join(args.out, "trace.npz"), **trace)
    probabilities = {f"a.{layer}": full_attention(snapshot, trace, layer) for layer in range(args.layers)}
    np.savez(os.path.join(args.out, "probabilities.npz"), **{n: a.astype(f32) for n, a in probabilities.items()})
    with open(os.path.join(args.out, "shape.json"), "w") as file:
        json.dump({"layers": args.layers, "prompt": args.prompt, "tokens": args.tokens}, file)


def real(args):
    """Renames recorded arrays; layers without queries stay without them."""
    os.makedirs(args.out, exist_ok=True)
    snapshot = dict(np.load(args.snapshot))
    layers = sum(name.startswith("k_") for name in snapshot)
    queries = {layer: f"{args.stem}-L{layer}-Q.npy" for layer in range(layers)}
    np.savez(os.path.join(args.out, "trace.npz"),
             **{f"q.{layer}": np.load(path) for layer, path in queries.items() if os.path.exists(path)})
    np.savez(os.path.join(args.out, "snapshot.npz"), **snapshot)
    with open(os.path.join(args.out, "shape.json"), "w") as file:
        json.dump({"layers": layers, "prompt": args.prompt, "tokens": len(snapshot["k_0"])}, file)


def scores_of(snapshot, trace, layer):
    """Returns logits [head, query, key], not masked."""
    q = trace[f"q.{layer}"].astype(np.float64)
    k = snapshot[f"k_{layer}"].astype(np.float64)
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])


def full_attention(snapshot, trace, layer):
    s = scores_of(snapshot, trace, layer)
    s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    return softmax(s)


def softmax(s):
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def flash(s):
    """Returns exp(s - running maximum over 64-key blocks), neither rescaled nor normalised."""
    out = np.empty_like(s)
    most = np.full(s.shape[:-1], -np.inf)
    for begin in range(0, s.shape[-1], 64):
        part = s[..., begin:begin + 64]
        most = np.maximum(most, part.max(axis=-1))
        out[..., begin:begin + 64] = np.exp(part - most[..., None])
    return out


def decide(p, n, block_scores, keep_floor, wanted=None):
    """Returns the kept blocks, or None if nothing is evicted. `wanted` is a target in tokens instead of a ratio."""
    size = p["block_tokens"]
    blocks = -(-n // size)
    length = [min(n, (b + 1) * size) - b * size for b in range(blocks)]
    keep = {t // size for t in range(0, min(n, p["sink"]), size)}
    keep |= set(range(max(0, n - p["recent"]) // size, blocks))
    floor = sum(length[b] for b in keep)
    if wanted is None:
        wanted = int(math.ceil(f32(f32(1) / f32(p["target_ratio"])) * f32(n)))
    wanted = min(max(wanted, 1), n)
    if floor >= wanted and not keep_floor:
        return None
    quantised = floor
    target = max(wanted, floor)
    if floor < target:
        quantised = min(n, floor + -(-(target - floor) // size) * size)
    kept = floor
    for b in sorted((b for b in range(blocks) if b not in keep), key=lambda b: (-block_scores[b], b)):
        if kept >= quantised:
            break
        keep.add(b)
        kept += length[b]
    return sorted(keep) if kept < n else None


def in_range(p, layer, layers):
    start = min(max(p["layer_start"], 0), layers - 1)
    end = layers - 1 if p["layer_end"] < 0 else min(p["layer_end"], layers - 1)
    return start <= layer <= end


def ranges(positions):
    out = []
    for t in positions:
        if out and out[-1][0] + out[-1][1] == t:
            out[-1][1] += 1
        else:
            out.append([int(t), 1])
    return out


def event(token, layer, head, kept, before):
    return {"token": token, "layer": layer, "kv_head": head, "kept": ranges(kept), "length_before": before}


def schedule(p, layer, shape):
    """Returns (token, length, kept) of every eviction of a layer on the token clock."""
    if not in_range(p, layer, shape["layers"]):
        return []
    out, length, clock, last = [], shape["prompt"], 0, 0
    for token in range(shape["prompt"], shape["tokens"]):
        length += 1
        clock += 1
        if length < p["trigger_min"] or clock - last < p["update_interval"]:
            continue
        last = clock
        blocks = -(-length // p["block_tokens"])
        kept = decide(p, length, [0.0] * blocks, False)
        if kept is not None:
            size = p["block_tokens"]
            keep = sum(min(length, (b + 1) * size) - b * size for b in kept)
            out.append((token, length, keep))
            length = keep
    return out


def block_sums(values, size):
    return np.array([values[b:b + size].sum() for b in range(0, len(values), size)])


def tokens_of(blocks, size, n):
    """Returns the indices of the blocks' tokens in a cache of n."""
    return [t for b in blocks for t in range(b * size, min(n, (b + 1) * size))]


def block_rule(p, shape, snapshot, trace, weights, per_head):
    events = []
    for layer in range(shape["layers"]):
        plan = {token: (length, keep) for token, length, keep in schedule(p, layer, shape)}
        s = scores_of(snapshot, trace, layer)
        kv_heads = snapshot[f"k_{layer}"].shape[1]
        units = kv_heads if per_head else 1
        heads = np.split(np.arange(s.shape[0]), units)
        cache = [list(range(shape["prompt"])) for _ in range(units)]
        ema = [np.zeros(shape["prompt"]) for _ in range(units)]
        for token in range(shape["prompt"], shape["tokens"]):
            for unit in range(units):
                cache[unit].append(token)
                ema[unit] = np.append(ema[unit], 0.0)
                mass = weights(s[heads[unit], token][:, cache[unit]]).mean(axis=0)
                ema[unit] = p["ema_alpha"] * ema[unit] + (1 - p["ema_alpha"]) * mass
            if token not in plan:
                continue
            for unit in range(units):
                n, size = len(cache[unit]), p["block_tokens"]
                index = tokens_of(decide(p, n, block_sums(ema[unit], size), False), size, n)
                cache[unit] = [cache[unit][i] for i in index]
                ema[unit] = ema[unit][index]
                events.append(event(token, layer, unit if per_head else None, cache[unit], n))
    return events


def top(scores, keep, last):
    n = len(scores)
    order = sorted(range(n - last), key=lambda i: (-scores[i], i))[:keep - last]
    return sorted(order) + list(range(n - last, n))


def keydiff(keys):
    """Returns how much each key differs from the mean direction of all."""
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    return -(unit @ unit.sum(axis=0))


# Each rule selects the `keep` tokens that stay in the cache of a kv head; `at` describes that cache of n tokens.
CHOICES = {
    "window": lambda at: list(range(at.n - at.keep, at.n)),
    "streaming": lambda at: list(range(at.sinks)) + list(range(at.n - at.keep + at.sinks, at.n)),
    "h2o": lambda at: top(at.heavy, at.keep, at.keep - at.heavy_tokens),
    "tova": lambda at: top(softmax(at.rows).sum(axis=0), at.keep, 1),
    "knorm": lambda at: top(-np.linalg.norm(at.keys, axis=-1), at.keep, 0),
    "keydiff": lambda at: top(keydiff(at.keys), at.keep, 0),
    "oracle-mass": lambda at: top(at.future, at.keep, 0),
}


class Layer:
    """The caches of a layer's kv heads under a rule that chooses at single steps."""

    def __init__(self, p, name, snapshot, trace, number, weights):
        self.p, self.name, self.number, self.weights = p, name, number, weights
        self.s = scores_of(snapshot, trace, number)
        self.full = full_attention(snapshot, trace, number)
        self.keys = snapshot[f"k_{number}"].astype(np.float64)
        self.heads = np.split(np.arange(self.s.shape[0]), self.keys.shape[1])
        self.shared = name in ("tova", "window", "streaming")
        self.cache = [[] for _ in self.heads]
        self.heavy = [np.zeros(0) for _ in self.heads]  # h2o: sums; block: EMA

    def add(self, token):
        """Adds a token to every cache, and the attention that it pays to the others."""
        for h, group in enumerate(self.heads):
            self.cache[h].append(token)
            self.heavy[h] = np.append(self.heavy[h], 0.0)
            if self.name == "h2o":
                self.heavy[h] += self.weights(self.s[group, token][:, self.cache[h]]).sum(axis=0)

    def choose(self, h, token, keep):
        cache = self.cache[h]
        return CHOICES[self.name](types.SimpleNamespace(
            n=len(cache), keep=keep, sinks=min(self.p["sinks"], keep), heavy=self.heavy[h],
            heavy_tokens=int(self.p["h2o_heavy"] * keep), rows=self.s[:, token][:, cache], keys=self.keys[cache, h],
            future=self.full[self.heads[h], token + 1:].sum(axis=(0, 1))[cache]))

    def evict(self, token, chosen):
        """Keeps the chosen indices of each head and returns the events."""
        before = len(self.cache[0])
        for h, kept in enumerate(chosen):
            self.cache[h] = [self.cache[h][i] for i in kept]
            self.heavy[h] = self.heavy[h][kept]
        return [event(token, self.number, None if self.shared else h, self.cache[h], before)
                for h in range(1 if self.shared else len(self.heads))]


class SnapKvLayer(Layer):
    """SnapKV at any step: the mean attention of the last rows, over what the cache holds then."""

    def choose(self, h, token, keep):
        cache = self.cache[h]
        n = len(cache)
        window = min(64, keep, n)
        sums = np.zeros(n)
        for g in self.heads[h]:
            for t in range(token + 1 - window, token + 1):
                seen = [i for i in range(n) if cache[i] <= t]
                sums[seen] += softmax(self.s[g, t][[cache[i] for i in seen]])
        front = np.pad(sums[:n - window], 2)
        return top(np.array([front[i:i + 5].sum() / 5 for i in range(n - window)] + [0.0] * window), keep, window)


def token_rule(p, shape, snapshot, trace, name):
    """Replays rules that choose single tokens, on the schedule of the block rule."""
    events = []
    for number in range(shape["layers"]):
        layer = (SnapKvLayer if name == "snapkv" else Layer)({**p, **PAPERS}, name, snapshot, trace, number, softmax)
        done = 0
        for token, _, keep in schedule(p, number, shape):
            for t in range(done, token + 1):
                layer.add(t)
            done = token + 1
            events += layer.evict(token, [layer.choose(h, token, keep) for h in range(len(layer.heads))])
    return events


def budget_of(args):
    """Returns a function from tokens seen to tokens that may stay, in exact arithmetic."""
    if args.budget and args.budget.endswith("t"):
        return lambda seen: min(int(args.budget[:-1]), seen)
    share = fractions.Fraction(args.budget) if args.budget else 1 / fractions.Fraction(args.target_ratio_text)
    return lambda seen: max(1, math.floor(share * seen))


def pyramid(p, keep, length, layers):
    """Returns PyramidKV's budgets of all layers; None if its conditions fail."""
    window = min(p["snapkv_window"], length)
    least = keep / p["pyramid_beta"]
    most = 2 * keep - least
    if most >= length - window:
        most = length - window
        least = 2 * keep - most
    if layers < 2 or not length >= most >= least >= window:
        return None
    return [round(most - i * (most - least) / (layers - 1)) for i in range(layers)]


def snapkv_scores(p, s, heads, token, window):
    """Returns the mean attention of the last `window` rows, pooled; the cache must be complete."""
    n = token + 1
    rows = np.zeros(n)
    for g in heads:
        for t in range(n - window, n):
            rows[:t + 1] += softmax(s[g, t, :t + 1]) / window / len(heads)
    half, front = p["snapkv_kernel"] // 2, rows[:n - window]
    padded = np.pad(front, half)
    return {i: padded[i:i + 2 * half + 1].mean() for i in range(n - window)}


class WatchedLayer(Layer):
    """SnapKV and PyramidKV: the scores of the first eviction decide all later ones."""
    looked, own_rows = None, 0

    def choose(self, h, token, keep):
        if self.looked is None:
            self.own_rows = min(self.p["snapkv_window"], keep, len(self.cache[h]))
            self.looked = [snapkv_scores(self.p, self.s, group, token, self.own_rows) for group in self.heads]
        scores = np.array([self.looked[h].get(i, 0.0) for i in self.cache[h]])
        later = sum(i > self.first - self.own_rows for i in self.cache[h])
        return top(scores, keep, min(keep, later))


class BlockLayer(Layer):
    """The block rule, whose heads may choose together."""

    def add(self, token):
        super().add(token)
        rows = [self.weights(self.s[group, token][:, self.cache[h]]) for h, group in enumerate(self.heads)]
        for h, own in enumerate(rows):
            mass = (np.concatenate(rows) if self.shared else own).mean(axis=0)
            self.heavy[h] = self.p["ema_alpha"] * self.heavy[h] + (1 - self.p["ema_alpha"]) * mass

    def choose(self, h, token, keep):
        n, size = len(self.cache[h]), self.p["block_tokens"]
        kept = decide(self.p, n, block_sums(self.heavy[h], size), True, keep)
        return kept and tokens_of(kept, size, n)


def first_eviction(p, shape, budget, once):
    """Returns the token at which a rule first evicts; None if it never does."""
    first = max(shape["prompt"], p["trigger_min"]) - 1
    while not once and first < shape["tokens"] and budget(first + 1) >= first + 1:
        first += 1
    return None if first + 1 >= shape["tokens"] or budget(first + 1) >= first + 1 else first


def paper_rule(p, shape, snapshot, trace, name, budget, weights, per_head):
    """Replays a rule on a budget: at the prompt's end and after every step it keeps as many tokens as the budget
    allows."""
    events = []
    once = name in ("snapkv", "pyramid") and p["after_prompt"] == "grow"
    first = first_eviction(p, shape, budget, once)
    if first is None:
        return events
    evicting = [layer for layer in range(shape["layers"]) if in_range(p, layer, shape["layers"])]
    own = pyramid(p, budget(first + 1), first + 1, len(evicting)) if name == "pyramid" else None
    kind = {"snapkv": WatchedLayer, "pyramid": WatchedLayer, "block": BlockLayer}.get(name, Layer)
    for index, number in enumerate(evicting):
        more = own[index] - budget(first + 1) if own else 0
        layer = kind(p, name, snapshot, trace, number, weights)
        layer.first = first
        if name == "block":
            layer.shared = not per_head
        for token in range(shape["tokens"]):
            layer.add(token)
            n, allowed = len(layer.cache[0]), budget(token + 1) + more
            if token < first or (name != "block" and allowed >= n) or (once and token > first):
                continue
            keep = min(n, max(1, allowed))
            chosen = [layer.choose(h, token, keep) for h in range(len(layer.heads))]
            if chosen[0] is not None:
                events += layer.evict(token, chosen)
    return events


def mnn(p, shape, snapshot, trace, weights, r6):
    """Replays the engine: a clock of layer calls, float32 scores per block, plans applied at the next
    call."""
    layers = shape["layers"]
    cache = [list(range(shape["prompt"])) for _ in range(layers)]
    scores = [np.zeros(0, f32) for _ in range(layers)]
    pending = [None] * layers
    # Layers without queries advance the engine's clock, but which tokens they keep is unknown.
    s = [scores_of(snapshot, trace, layer) if f"q.{layer}" in trace else None for layer in range(layers)]
    heads = next(each for each in s if each is not None).shape[0]
    alpha, size = f32(p["ema_alpha"]), p["block_tokens"]
    calls = last = 0
    events = []
    for token in range(shape["prompt"], shape["tokens"]):
        for layer in range(layers):
            calls += 1
            if pending[layer] is not None:
                cache[layer] = [cache[layer][i] for i in pending[layer]]
                pending[layer] = None
            cache[layer].append(token)
            if not in_range(p, layer, layers):
                continue
            n = len(cache[layer])
            w = np.zeros(n) if s[layer] is None else weights(s[layer][:, token][:, cache[layer]]).sum(axis=0)
            acc = block_sums(w, size).astype(f32)
            slot = 0 if r6 else layer
            old = np.zeros(len(acc), f32)
            old[:min(len(acc), len(scores[slot]))] = scores[slot][:len(acc)]
            scores[slot] = alpha * old + (f32(1) - alpha) * (acc / f32(heads))
            if n < p["trigger_min"] or calls - last < p["update_interval"]:
                continue
            last = calls
            kept = decide(p, n, scores[slot], r6)
            if kept is None:
                continue
            scores[slot] = scores[slot][kept]
            pending[layer] = tokens_of(kept, size, n)
            if s[layer] is not None:
                events.append(event(token, layer, None, [cache[layer][i] for i in pending[layer]], n))
    return events


def design(p, shape, snapshot, trace, weights):
    """Replays the published description: each layer has its own scores and its own clock, which counts decode steps."""
    alpha, size = f32(p["ema_alpha"]), p["block_tokens"]
    events = []
    for layer in range(shape["layers"]):
        if not in_range(p, layer, shape["layers"]) or f"q.{layer}" not in trace:
            continue
        s = scores_of(snapshot, trace, layer)
        cache, ema, plan, last = list(range(shape["prompt"])), np.zeros(0, f32), None, 0
        for step, token in enumerate(range(shape["prompt"], shape["tokens"]), 1):
            if plan is not None:  # from the second step on
                cache, plan = [cache[i] for i in plan], None
            cache.append(token)
            n = len(cache)
            w = weights(s[:, token][:, cache]).sum(axis=0)
            mass = block_sums(w, size).astype(f32) / f32(s.shape[0])
            ema = np.concatenate([ema, np.zeros(len(mass), f32)])[:len(mass)]
            ema = alpha * ema + (f32(1) - alpha) * mass
            if n < p["trigger_min"] or step - last < p["update_interval"]:
                continue
            last = step
            kept = decide(p, n, ema, True)
            if kept is None:
                continue
            ema = ema[kept]
            plan = tokens_of(kept, size, n)
            events.append(event(token, layer, None, [cache[i] for i in plan], n))
    return events


def compare(args, p):
    snapshot = dict(np.load(os.path.join(args.folder, "snapshot.npz")))
    trace = dict(np.load(os.path.join(args.folder, "trace.npz")))
    with open(os.path.join(args.folder, "shape.json")) as file:
        shape = json.load(file)
    with open(args.plan) as file:
        theirs = json.load(file)["events"]
    weights = flash if args.scores == "flash" else softmax
    if args.engine == "design":
        ours = design(p, shape, snapshot, trace, weights)
    elif args.engine != "exact":
        ours = mnn(p, shape, snapshot, trace, weights, args.engine == "mnn-r6")
    elif args.schedule == "paper":
        ours = paper_rule(p, shape, snapshot, trace, args.policy, budget_of(args), weights,
                          args.granularity == "kv-head")
    elif args.policy == "block":
        ours = block_rule(p, shape, snapshot, trace, weights, args.granularity == "kv-head")
    else:
        ours = token_rule(p, shape, snapshot, trace, args.policy)
    order = lambda e: (e["token"], e["layer"], -1 if e["kv_head"] is None else e["kv_head"])
    ours.sort(key=order)
    theirs.sort(key=order)
    for a, b in zip(ours, theirs):
        if a != b:
            sys.exit(f"plans differ:\n  oracle {json.dumps(a)}\n  kvtool {json.dumps(b)}")
    if len(ours) != len(theirs):
        sys.exit(f"the oracle has {len(ours)} events, kvtool {len(theirs)}")
    if not ours:
        sys.exit("nothing was evicted: nothing was compared")
    print(f"{args.engine} {args.policy}: {len(ours)} plans agree")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("--out", required=True)
    for name, value in {"seed": 0, "layers": 3, "heads": 4, "kv-heads": 2, "dim": 16, "tokens": 160, "prompt": 64}.items():
        maker.add_argument(f"--{name}", type=int, default=value)
    reader = commands.add_parser("real")
    reader.add_argument("snapshot")
    reader.add_argument("stem")
    reader.add_argument("--prompt", type=int, required=True)
    reader.add_argument("--out", required=True)
    checker = commands.add_parser("compare")
    checker.add_argument("folder")
    checker.add_argument("plan")
    checker.add_argument("--engine", default="exact")
    checker.add_argument("--policy", default="block")
    checker.add_argument("--scores", default="exact")
    checker.add_argument("--granularity", default="layer")
    checker.add_argument("--schedule", default="paper")
    checker.add_argument("--budget")
    checker.add_argument("--target-ratio", dest="target_ratio_text")
    for name, value in {**PARAMETERS, **PAPERS}.items():
        if name != "target_ratio":
            checker.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    args = parser.parse_args()
    if args.command in ("make", "real"):
        {"make": make, "real": real}[args.command](args)
    else:
        args.target_ratio_text = args.target_ratio_text or ("3.5" if args.engine == "design" else "3")
        args.target_ratio = float(args.target_ratio_text)
        compare(args, {name: getattr(args, name) for name in {**PARAMETERS, **PAPERS}})


if __name__ == "__main__":
    main()
