# SPDX-License-Identifier: Apache-2.0
"""Writes one cache rotated by each kind of scaled RoPE, with the config.json of such a model."""
import json

import numpy as np

rng = np.random.default_rng(4)
L, T, H, D = 6, 40, 2, 16
def rotated(k, inv, factor=1.0):
    a = np.arange(T)[:, None, None] * np.asarray(inv)
    x, y = k[..., :D // 2].astype(float), k[..., D // 2:].astype(float)
    c, s = np.cos(a) * factor, np.sin(a) * factor
    return np.concatenate([x * c - y * s, y * c + x * s], -1).astype(np.float32)
k = rng.standard_normal((L, T, H, D)).astype(np.float32)
v = rng.standard_normal((L, T, H, D)).astype(np.float32)
def save(name, keys):
    np.savez(name, **{f"k_{i}": keys[i] for i in range(L)}, **{f"v_{i}": v[i] for i in range(L)})
plain = lambda base: base ** (-np.arange(D // 2) * 2 / D)
save("old.npz", k)
# Gemma 3: windowed layers at base 1e4; every sixth at 1e6 and eight times slower.
save("gemma.npz", [rotated(k[i], plain(1e6) / 8 if i == 5 else plain(1e4)) for i in range(L)])
config = dict(model_type="gemma3_text", num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=H, head_dim=D,
              hidden_size=64, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0))
json.dump(config, open("gemma.json", "w"))
# YaRN, written out: pairs are scaled by how often they rotate in 64 tokens; the factor applies to all of them.
pair = lambda turns: D * np.log(64 / (turns * 2 * np.pi)) / (2 * np.log(1e4))
low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), D - 1)
ramp = np.clip((np.arange(D // 2) - low) / (high - low), 0, 1)
save("yarn.npz", [rotated(k[i], plain(1e4) * (1 - ramp) + plain(1e4) / 4 * ramp, 0.1 * np.log(4) + 1) for i in range(L)])
# LongRoPE: this run is longer than the 32 tokens of the original model.
longer = [1 + i for i in range(D // 2)]
save("long.npz", [rotated(k[i], plain(1e4) / longer, np.sqrt(1 + np.log(64 / 32) / np.log(32))) for i in range(L)])
json.dump(dict(config, model_type="phi3", rope_theta=1e4, rope_local_base_freq=None, max_position_embeddings=64, original_max_position_embeddings=32,
               rope_scaling=dict(type="longrope", short_factor=[1.0] * 8, long_factor=[float(x) for x in longer])), open("long.json", "w"))
save("dynamic.npz", [rotated(k[i], plain(1e4 * (2 * T / 32 - 1) ** (D / (D - 2)))) for i in range(L)])
given = rng.uniform(0.01, 1, D // 2)
save("given.npz", [rotated(k[i], given) for i in range(L)])
np.save("given.npy", given)
open("given.txt", "w").write("\n".join(repr(float(x)) for x in given))
json.dump(dict(config, rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3])), open("mrope.json", "w"))
