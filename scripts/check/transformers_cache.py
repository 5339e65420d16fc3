#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the KV cache that transformers would have after a prompt, for a small model in a GGUF file.

The converter permutes the rows of Q and K of llama models, so that llama.cpp's RoPE rotates values 2i and 2i + 1;
transformers rotates i and i + dim/2. Here the weights are permuted back and the prompt is read by a plain numpy forward
pass with transformers' own RoPE: an npz of past_key_values.LAYER.key and .value, [1, kv head, token, dim] f16, with the
token ids. The script uses nothing of kvtool, so it shows whether kvtool's order of K is right.

  transformers_cache.py MODEL.gguf STATE.bin OUT.npz [--tokens N]     # the prompt is that of a llama.cpp SEQ file

Models of architecture llama with f32 or f16 tensors.
"""
import argparse
import struct

import numpy as np

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TENSORS = {0: np.float32, 1: np.float16}


class Gguf:
    """Metadata and tensors of a GGUF file, version 2 or 3."""

    def __init__(self, path):
        self.data, self.at = np.memmap(path, np.uint8, "r"), 0
        if bytes(self.data[:4]) != b"GGUF":
            raise SystemExit(f"{path}: not a GGUF file")
        self.at = 8
        tensors, keys = self.scalar("<Q"), self.scalar("<Q")
        self.meta = {}
        for _ in range(keys):
            key = self.text()
            self.meta[key] = self.value(self.scalar("<I"))
        places = {}
        for _ in range(tensors):
            name = self.text()
            shape = [self.scalar("<Q") for _ in range(self.scalar("<I"))]
            places[name] = shape[::-1], self.scalar("<I"), self.scalar("<Q")
        alignment = self.meta.get("general.alignment", 32)
        begin = -(-self.at // alignment) * alignment
        self.tensors = {}
        for name, (shape, kind, offset) in places.items():
            dtype, count = np.dtype(TENSORS[kind]), int(np.prod(shape))
            raw = self.data[begin + offset:begin + offset + count * dtype.itemsize]
            self.tensors[name] = raw.view(dtype).reshape(shape).astype(np.float32)

    def scalar(self, form):
        size = struct.calcsize(form)
        self.at += size
        return struct.unpack(form, bytes(self.data[self.at - size:self.at]))[0]

    def text(self):
        size = self.scalar("<Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def as_transformers(weights, heads):
    """Returns rows of Q or K in the order before the converter: the halves of a head together."""
    rows = weights.shape[0] // heads
    return weights.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(weights.shape)


def rotate_half(values):
    half = values.shape[-1] // 2
    return np.concatenate([-values[..., half:], values[..., :half]], -1)


def caches(model, tokens):
    """Yields keys and values of every layer, [kv head, token, dim], as transformers' LlamaModel computes them."""
    meta, tensor = model.meta, model.tensors
    if meta["general.architecture"] != "llama":
        raise SystemExit("only models of architecture llama")
    heads = meta["llama.attention.head_count"]
    kv_heads = meta.get("llama.attention.head_count_kv", heads)
    dim = meta["llama.embedding_length"] // heads
    epsilon = meta["llama.attention.layer_norm_rms_epsilon"]
    frequencies = meta.get("llama.rope.freq_base", 10000.0) ** (-np.arange(0, dim, 2) / dim)
    angles = np.outer(np.arange(len(tokens)), np.concatenate([frequencies, frequencies]))
    cosine, sine = np.cos(angles), np.sin(angles)

    def norm(rows, weight):
        return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + epsilon) * weight

    def split(rows, count):
        return rows.reshape(len(tokens), count, dim).swapaxes(0, 1)

    hidden = tensor["token_embd.weight"][tokens]
    unseen = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(meta["llama.block_count"]):
        part = {name[len(f"blk.{layer}."):-len(".weight")]: values for name, values in tensor.items()
                if name.startswith(f"blk.{layer}.")}
        rows = norm(hidden, part["attn_norm"])
        query = split(rows @ as_transformers(part["attn_q"], heads).T, heads)
        key = split(rows @ as_transformers(part["attn_k"], kv_heads).T, kv_heads)
        value = split(rows @ part["attn_v"].T, kv_heads)
        query, key = (turned * cosine + rotate_half(turned) * sine for turned in (query, key))
        yield key, value
        group = heads // kv_heads
        scores = query @ key.repeat(group, 0).swapaxes(1, 2) / np.sqrt(dim) + unseen
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        hidden = hidden + (weights @ value.repeat(group, 0)).swapaxes(0, 1).reshape(len(tokens), -1) @ part["attn_output"].T
        rows = norm(hidden, part["ffn_norm"])
        gate = rows @ part["ffn_gate"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (rows @ part["ffn_up"].T)) @ part["ffn_down"].T


def prompt_of(state):
    with open(state, "rb") as data:
        head = data.read(12)
        if head[:4] != b"qsgg":
            raise SystemExit(f"{state}: not a SEQ file")
        count = struct.unpack("<I", head[8:])[0]
        return np.frombuffer(data.read(4 * count), "<i4")


def write(model, tokens, out):
    arrays = {"tokens": tokens.astype(np.int32), "positions": np.arange(len(tokens))}
    for layer, (key, value) in enumerate(caches(model, tokens)):
        arrays[f"past_key_values.{layer}.key"] = key[None].astype(np.float16)
        arrays[f"past_key_values.{layer}.value"] = value[None].astype(np.float16)
    np.savez(out, **arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("state", help="SEQ file whose token ids are the prompt")
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, help="only the first of them")
    arguments = parser.parse_args()
    write(Gguf(arguments.model), prompt_of(arguments.state)[:arguments.tokens], arguments.out)


if __name__ == "__main__":
    main()
