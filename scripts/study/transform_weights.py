#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of weights in docs/quantisation.md: bytes of transforms at equal loss of the real model.

  transform_weights.py MODEL.gguf --ratios 4,8,16 [--json-out FILE]

The model generates its own texts. K and V of the middle tokens are coded by kvtc with DEFLATE, and by kvtc_rans with
weights from the gradients of decoded rows; the loss is the KL divergence of the next token in the model itself. Needs
torch, transformers and gguf; small models only, since all features form one basis. Not kvtool's code: a second
implementation of formats/kvx/FORMAT.md's formulas, for sizes and losses.
"""
import argparse
import json
import math
import pathlib
import zlib

import torch

TOKENS, DECODED, FIRST, LAST = 320, 64, 4, 64
LEARN, HELD_OUT, TEST, SAMPLES = 27, 5, 10, 4
SIZES, TYPES = (16, 64, 256, 1024), {"int2": (2, 32), "int4": (4, 32), "int8": (8, 32), "fp8": (8, 16)}
MOST, ESCAPE_BITS, PSEUDO = 63, 16, 40


class Model:
    def __init__(self, path):
        from transformers import AutoModelForCausalLM
        path = pathlib.Path(path)
        self.net = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
        self.net.requires_grad_(False)
        config = self.net.config
        self.layers, self.heads = config.num_hidden_layers, config.num_key_value_heads
        self.dim = config.hidden_size // config.num_attention_heads
        base = (getattr(config, "rope_parameters", None) or {}).get("rope_theta") or config.rope_theta
        angles = torch.arange(FIRST, TOKENS - LAST)[:, None] * base**(-torch.arange(0, self.dim, 2).double() / self.dim)
        self.cosines, self.sines = angles.cos().float()[:, None, None], angles.sin().float()[:, None, None]

    def cache(self, k=None, v=None):
        from transformers import DynamicCache
        cache = DynamicCache()
        for layer in range(0 if k is None else self.layers):
            cache.update(k[layer][None], v[layer][None], layer)
        return cache

    def generate(self, count):
        texts, cache = torch.ones(count, 1, dtype=torch.long), self.cache()
        with torch.inference_mode():
            for _ in range(TOKENS + DECODED):
                logits = self.net(texts[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1].float()
                texts = torch.cat((texts, torch.multinomial(logits.softmax(-1), 1)), 1)
        return texts

    def prefill(self, text):
        cache = self.cache()
        with torch.no_grad():
            self.net(text[None, :TOKENS], past_key_values=cache, use_cache=True)
        return [torch.stack([getattr(layer, side)[0] for layer in cache.layers]).half().float()
                for side in ("keys", "values")]

    def decode(self, text, k, v):
        logits = self.net(text[None, TOKENS:TOKENS + DECODED], past_key_values=self.cache(k, v), use_cache=True,
                          position_ids=torch.arange(TOKENS, TOKENS + DECODED)[None]).logits[0]
        return torch.log_softmax(logits.float(), -1)

    def turn(self, rows, sign):
        a, b = rows.chunk(2, -1)
        return torch.cat((a * self.cosines - sign * b * self.sines, b * self.cosines + sign * a * self.sines), -1)

    def rows(self, values, is_key):
        """Returns the middle tokens as rows of features, keys (or gradients of keys) without rotation."""
        rows = values.permute(2, 0, 1, 3)[FIRST:TOKENS - LAST]
        return (self.turn(rows, -1) if is_key else rows).reshape(len(rows), -1)

    def put(self, values, rows, is_key):
        rows = rows.reshape(-1, self.layers, self.heads, self.dim)
        values = values.clone()
        values[:, :, FIRST:TOKENS - LAST] = (self.turn(rows, 1) if is_key else rows).half().float().permute(1, 2, 0, 3)
        return values

    def gradients(self, text, k, v):
        k, v = k.clone().requires_grad_(), v.clone().requires_grad_()
        logits = self.decode(text, k, v)
        for sample in range(SAMPLES):
            drawn = torch.multinomial(logits.detach().exp(), 1)
            of_k, of_v = torch.autograd.grad(logits.gather(1, drawn).sum(), (k, v), retain_graph=sample < SAMPLES - 1)
            yield self.rows(of_k, True), self.rows(of_v, False)


def factors(model, fisher, kind):
    """Returns the roots of a side's weights and their inverses, each as [layer, head, dim, dim]."""
    diagonal = torch.diagonal(fisher, dim1=-2, dim2=-1)
    if kind == "matrix":
        mean = diagonal.mean(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(fisher + 0.01 * mean * torch.eye(model.dim))
        return [(vectors * values.pow(power)[..., None, :]) @ vectors.transpose(-1, -2) for power in (0.5, -0.5)]
    weights = {"none": torch.ones_like(diagonal), "layer": diagonal.mean((1, 2), keepdim=True),
               "feature": diagonal}[kind].expand_as(diagonal)
    return [torch.diag_embed(weights.pow(power)) for power in (0.5, -0.5)]


def apply(model, rows, factor):
    heads = rows.reshape(-1, model.layers, model.heads, model.dim)
    return torch.einsum("tlhi,lhij->tlhj", heads, factor).reshape(len(rows), -1)


def store(group, kind):
    """Returns codes, scales and stored values of a group of components, as kvtc has them."""
    if kind == "fp8":
        scale = (group.abs().amax(-1, keepdim=True) / 448).half().float().clamp_min(6e-8)
        codes = (group / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes.view(torch.uint8), [scale], codes.float() * scale
    most = 2**TYPES[kind][0] - 1
    least = group.amin(-1, keepdim=True)
    step = ((group.amax(-1, keepdim=True) - least) / most).half().float()
    least = least.half().float()
    codes = torch.where(step > 0, ((group - least) / step.clamp_min(1e-30)).round().clamp(0, most), 0 * group)
    return codes.to(torch.uint8), [least, step], codes * step + least


def fit_groups(held_out, budget):
    """Chooses groups and types by a Lagrangian search over errors on held-out rows, as kvtool train does."""
    units, errors = held_out.shape[1] // 16, {}
    for size in SIZES:
        for at in range(0, units * 16 - size + 1, 16):
            for kind in TYPES:
                group = held_out[:, at:at + size]
                errors[at // 16, size, kind] = float(((store(group, kind)[2] - group)**2).sum(-1).mean())
    energy = [float((held_out[:, 16 * u:16 * u + 16]**2).sum(-1).mean()) for u in range(units)]

    def choose(price):
        best, last = [0.0], [None]
        for end in range(1, units + 1):
            options = [(best[end - 1] + energy[end - 1], 16, "none")]
            options += [(best[end - size // 16] + errors[end - size // 16, size, kind] + price * (size * bits + scale),
                         size, kind) for size in SIZES if size <= 16 * end for kind, (bits, scale) in TYPES.items()]
            cost, size, kind = min(options, key=lambda option: option[0])
            best.append(cost)
            last.append((size, kind))
        groups, end = [], units
        while end > 0:
            groups.insert(0, last[end])
            end -= last[end][0] // 16
        return groups, sum(size * TYPES[kind][0] + TYPES[kind][1] for size, kind in groups if kind != "none")

    low, high, chosen = 1e-12, 1e6, None
    for _ in range(26):
        price = math.sqrt(low * high)
        groups, bits = choose(price)
        chosen, low, high = (groups, low, price) if bits <= budget else (chosen, price, high)
    return chosen


def code_groups(rows, groups):
    """Returns bits after DEFLATE of 128 tokens at a time, and stored values."""
    out, parts, at = torch.zeros_like(rows), [], 0
    for size, kind in groups:
        if kind != "none":
            codes, scales, out[:, at:at + size] = store(rows[:, at:at + size], kind)
            parts += [scale.half().view(torch.uint8) for scale in scales]
            bits = TYPES[kind][0]
            codes = codes.reshape(len(rows), -1, 8 // bits).int() << torch.arange(0, 8, bits)
            parts.append(codes.sum(-1).to(torch.uint8))
        at += size
    stored = torch.cat(parts, 1).numpy()
    return 8 * sum(len(zlib.compress(stored[t:t + 128].tobytes(), 6)) for t in range(0, len(stored), 128)), out


def symbol_bits(learn, step):
    """Returns the bits of the symbols of each component: counts and a prior, as in steps.cc."""
    symbols = (learn / step).round().clamp(-MOST - 1, MOST + 1).long() + MOST + 1
    counts = torch.zeros(learn.shape[1], 2 * MOST + 3)
    counts.scatter_add_(1, symbols.T.contiguous(), torch.ones(symbols.shape[1], symbols.shape[0]))
    edges = torch.arange(-MOST - 1.5, MOST + 2)[None]
    deviation = (learn.std(0).clamp_min(1e-9) / step)[:, None]
    laplace = edges / (deviation / math.sqrt(2))
    below = 0.5 * (0.5 + 0.5 * torch.erf(edges / deviation / math.sqrt(2)))
    below = below + 0.5 * torch.where(edges < 0, 0.5 * laplace.clamp_max(0).exp(), 1 - 0.5 * (-laplace.abs()).exp())
    prior = below.diff(dim=1) + 1e-5
    counts += PSEUDO * prior / prior.sum(1, keepdim=True)
    return -torch.log2(counts / counts.sum(1, keepdim=True))


def code_steps(rows, step, bits):
    symbols = (rows / step).round()
    places = symbols.clamp(-MOST - 1, MOST + 1).long() + MOST + 1
    escapes = int((symbols.abs() > MOST).sum())
    return float(bits.gather(1, places.T.contiguous()).sum()) + ESCAPE_BITS * escapes, symbols * step


def fit_step(learn, held_out, budget):
    low, high = 1e-7, 1e4
    for _ in range(20):
        step = math.sqrt(low * high)
        fits = code_steps(held_out, step, symbol_bits(learn, step))[0] <= budget * len(held_out)
        low, high = (low, step) if fits else (step, high)
    return high, symbol_bits(learn, high)


class Study:
    def __init__(self, model):
        torch.manual_seed(7)
        self.model = model
        shape = (model.layers, model.heads, model.dim)
        self.fisher = [torch.zeros(*shape, model.dim) for _ in "kv"]
        sides, self.tests = [[], []], []
        for place, text in enumerate(model.generate(LEARN + HELD_OUT + TEST)):
            k, v = model.prefill(text)
            rows = model.rows(k, True), model.rows(v, False)
            if place >= LEARN + HELD_OUT:
                self.tests.append((text, k, v, rows, model.decode(text, k, v)))
                continue
            for side in (0, 1):
                sides[side].append(rows[side])
            if place >= LEARN:
                continue
            for gradients in model.gradients(text, k, v):
                for side in (0, 1):
                    heads = gradients[side].reshape(-1, *shape)
                    self.fisher[side] += torch.einsum("tlhi,tlhj->lhij", heads, heads) / (LEARN * SAMPLES * DECODED)
        self.learn = [torch.cat(rows[:LEARN]) for rows in sides]
        self.held_out = [torch.cat(rows[LEARN:]) for rows in sides]

    def measure(self, form, kind, ratio):
        """Returns bits per value, the real loss, and the loss that the weights expect."""
        restored, bits, expected = [[], []], 0.0, 0.0
        for side in (0, 1):
            forth, back = factors(self.model, self.fisher[side], kind)
            mean = self.learn[side].mean(0)
            learn = apply(self.model, self.learn[side] - mean, forth)
            held_out = apply(self.model, self.held_out[side] - mean, forth)
            basis = torch.linalg.eigh((learn.T @ learn).double())[1].flip(1).float()
            learn, held_out, budget = learn @ basis, held_out @ basis, 16 * learn.shape[1] / ratio
            code = fit_groups(held_out[::8], budget) if form == "kvtc" else fit_step(learn[::4], held_out, budget)
            for _, _, _, rows, _ in self.tests:
                values = apply(self.model, rows[side] - mean, forth) @ basis
                size, stored = code_groups(values, code) if form == "kvtc" else code_steps(values, *code)
                bits += size / (2 * len(self.tests) * values.numel())
                expected += float(((stored - values)**2).sum(-1).mean()) / 2 / len(self.tests)
                restored[side].append(apply(self.model, stored @ basis.T, back) + mean)
        loss = 0.0
        with torch.inference_mode():
            for place, (text, k, v, _, full) in enumerate(self.tests):
                put_k, put_v = [self.model.put(values, restored[side][place], side == 0)
                                for side, values in enumerate((k, v))]
                changed = self.model.decode(text, put_k, put_v)
                loss += float((full.exp() * (full - changed)).sum(-1).mean()) / len(self.tests)
        return bits, loss, expected if kind != "none" else None


def bits_at(points, loss):
    """Interpolates the bits at a loss on logarithmic scales, beyond the ends by the last two points."""
    points = sorted((math.log(kl), math.log(bits)) for bits, kl, _ in points)
    at = max(0, min(len(points) - 2, sum(kl < math.log(loss) for kl, _ in points) - 1))
    (x, y), (x2, y2) = points[at], points[at + 1]
    return math.exp(y + (y2 - y) * (math.log(loss) - x) / (x2 - x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ratios", default="4,8,16")
    parser.add_argument("--json-out")
    flags = parser.parse_args()
    ratios = [float(ratio) for ratio in flags.ratios.split(",")]
    study, found = Study(Model(flags.model)), {}
    for form, kind in [("kvtc", "none")] + [("rans", kind) for kind in ("none", "layer", "feature", "matrix")]:
        for ratio in ratios:
            bits, loss, expected = study.measure(form, kind, ratio)
            found.setdefault(f"{form} {kind}", []).append((bits, loss, expected))
            print(f"{form} {kind} at {ratio:g}: {bits:.3f} bits, {loss:.3g} nats, expected {expected}", flush=True)
    for bits, loss, _ in found["kvtc none"]:
        print(f"{bits:.2f} bits, {loss:.2g} nats:", *(f"{name} {bits_at(points, loss) / bits:.2f}"
                                                      for name, points in found.items()))
    if flags.json_out:
        pathlib.Path(flags.json_out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
