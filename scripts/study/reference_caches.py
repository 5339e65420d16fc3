# SPDX-License-Identifier: Apache-2.0
"""Makes real caches of one model under slightly different conditions, which reference_study.py measures.

A plain forward pass of a Llama model (GGUF, any quantisation) in torch, which keeps K and V of every layer as a cache
stores them: after RoPE, rounded to f16 or bf16. Weights can be rounded further, and arithmetic can be bf16.
"""
import struct

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

QUANTISED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Model:
    """Weights as float32, and the model's shape from the GGUF."""

    def __init__(self, path):
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
        self.layers = fields["llama.block_count"]
        self.heads = fields["llama.attention.head_count"]
        self.kv_heads = fields["llama.attention.head_count_kv"]
        self.epsilon = fields["llama.attention.layer_norm_rms_epsilon"]
        self.width = fields["llama.embedding_length"]
        self.head_dim = self.width // self.heads
        self.base = fields.get("llama.rope.freq_base", 10000.0)
        self.weights = {t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), np.float32)
                                                 .reshape([int(n) for n in reversed(t.shape)]))
                        for t in reader.tensors}
        vocabulary = reader.fields["tokenizer.ggml.tokens"].contents()
        merges = [tuple(m.split(" ", 1)) for m in reader.fields["tokenizer.ggml.merges"].contents()]
        self.tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()

    def tokens(self, text):
        return self.tokenizer.encode(text).ids

    def rounded(self, bits):
        """Returns the same model with weights of `bits` bits in groups of 32 with one scale, as quantisers round them."""
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__)
        most = 2 ** (bits - 1) - 1
        other.weights = dict(self.weights)
        for name, weight in self.weights.items():
            if name.split(".")[-2] in QUANTISED:
                groups = weight.reshape(-1, 32)
                scale = groups.abs().amax(1, keepdim=True).clamp_min(1e-30) / most
                other.weights[name] = ((groups / scale).round() * scale).reshape(weight.shape)
        return other


@torch.inference_mode()
def run(model, tokens, arithmetic=torch.float32, first=0, batch=None):
    """Returns K and V [layers][tokens, channels] as float32, for tokens read in batches at positions from `first`."""
    weights = {name: weight.to(arithmetic) for name, weight in model.weights.items()}
    dim, kv, heads = model.head_dim, model.kv_heads, model.heads
    keys = [torch.empty(0, kv, dim, dtype=arithmetic) for _ in range(model.layers)]
    values = [torch.empty(0, kv, dim, dtype=arithmetic) for _ in range(model.layers)]

    def norm(x, weight):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + model.epsilon)).to(arithmetic) * weight

    def turn(x, positions):
        angles = positions[:, None].double() * model.base ** (-torch.arange(0, dim, 2).double() / dim)
        cos, sin = angles.cos().to(arithmetic)[:, None], angles.sin().to(arithmetic)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]  # in a GGUF of this architecture, a pair is two neighbouring dims
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    step = batch or len(tokens)
    for begin in range(0, len(tokens), step):
        ids = torch.tensor(tokens[begin:begin + step])
        positions = first + begin + torch.arange(len(ids))
        x = weights["token_embd.weight"][ids]
        for layer in range(model.layers):
            w = lambda name: weights[f"blk.{layer}.{name}.weight"]
            h = norm(x, w("attn_norm"))
            q = turn((h @ w("attn_q").T).view(-1, heads, dim), positions)
            k = turn((h @ w("attn_k").T).view(-1, kv, dim), positions)
            v = (h @ w("attn_v").T).view(-1, kv, dim)
            keys[layer], values[layer] = torch.cat([keys[layer], k]), torch.cat([values[layer], v])
            many = lambda t: t.repeat_interleave(heads // kv, 1).transpose(0, 1)
            mask = torch.ones(len(ids), begin + len(ids), dtype=torch.bool).tril(begin)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(0, 1), many(keys[layer]), many(values[layer]), attn_mask=mask)
            x = x + mixed.transpose(0, 1).reshape(len(ids), -1) @ w("attn_output").T
            h = norm(x, w("ffn_norm"))
            x = x + (torch.nn.functional.silu(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T
    flat = lambda t: t.float().flatten(1).numpy()
    return [(flat(k), flat(v)) for k, v in zip(keys, values)]


def halves(values, kind):
    """Returns float32 as the bytes of f16 or bf16, rounded to nearest even."""
    if kind == "f16":
        return np.ascontiguousarray(values.astype("<f2")).tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def q8_0(values):
    blocks = values.reshape(-1, 32)
    step = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    inverse = 1 / np.where(step == 0, 1, step).astype(np.float32)
    quants = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8).view(np.uint8)
    return np.concatenate([step.view(np.uint8).reshape(len(blocks), 2), quants], axis=1).tobytes()


GGML = {"f16": (1, 2, 1, lambda v: halves(v, "f16")), "bf16": (30, 2, 1, lambda v: halves(v, "bf16")),
        "q8_0": (8, 34, 32, q8_0)}


def save(path, cache, tokens, kind, first=0):
    """Writes a llama.cpp sequence state (SEQ 2) with its token ids."""
    number, block, per, encode = GGML[kind]
    count = len(tokens)
    with open(path, "wb") as out:
        out.write(struct.pack("<III", 0x67677371, 2, count) + np.asarray(tokens, "<i4").tobytes())
        out.write(struct.pack("<I", 1))  # one stream
        out.write(struct.pack("<I", count))
        for i in range(count):
            out.write(struct.pack("<iIi", first + i, 1, 0))
        out.write(struct.pack("<II", 0, len(cache)))  # V in rows; layers
        for which in (0, 1):
            for layer in cache:
                row = layer[which].shape[1] // per * block
                out.write(struct.pack("<iQ", number, row) + encode(layer[which]))
