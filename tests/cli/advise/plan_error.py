# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The cost of a plan, from its definition: relative error of all attention outputs, and bytes kept at the
end."""
import json
import sys

import numpy as np

advice_path, plan_path, cache_path, trace = sys.argv[1:]
advice, plan = (json.load(open(path)) for path in (advice_path, plan_path))
advice = advice["results"][0]
cache = np.load(cache_path)
layers = advice["best"]["choices"][-1]["layer"] + 1
prompt = advice["runs"][0]["prompt_tokens"]
error2 = norm2 = kept_tokens = all_tokens = 0.0
for layer in range(layers):
    queries = np.load(f"{trace}-L{layer}-Q.npy").astype(np.float64)
    if queries.shape[0] != advice["runs"][0]["tokens"]:
        queries = queries.swapaxes(0, 1)
    keys, values = (cache[f"{kind}_{layer}"].astype(np.float64) for kind in "kv")
    tokens, heads, dim = queries.shape
    keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (keys, values))  # removes the batch axis
    if keys.shape[0] != tokens:
        keys, values = keys.swapaxes(0, 1), values.swapaxes(0, 1)
    kv_heads = keys.shape[1]
    events = [e for e in plan["events"] if e["layer"] == layer]
    for head in range(heads):
        unit = head // (heads // kv_heads)
        held = np.ones(tokens, bool)
        todo = [e for e in events if e["kv_head"] in (None, unit)]
        for row in range(prompt - 1, tokens):
            weights = np.exp(queries[row, head] @ keys[: row + 1, unit].T / np.sqrt(dim))
            whole = weights @ values[: row + 1, unit] / weights.sum()
            weights = weights * held[: row + 1]
            if row >= prompt:
                error2 += np.sum((weights @ values[: row + 1, unit] / weights.sum() - whole) ** 2)
                norm2 += np.sum(whole**2)
            while todo and todo[0]["token"] == row:
                keep = np.zeros(tokens, bool)
                keep[row + 1 :] = True
                for begin, count in todo.pop(0)["kept"]:
                    keep[begin : begin + count] = True
                assert not np.any(keep & ~held), "what is gone does not come back"
                held = keep
        if head % (heads // kv_heads) == 0:
            kept_tokens += held.sum()
            all_tokens += tokens
found, said = np.sqrt(error2 / norm2), advice["best"]["loss"]["worst"]
assert abs(found - said) < 2e-4 * said, (found, said)
found, said = all_tokens / kept_tokens, advice["best"]["ratio"]
assert abs(found - said) < 1e-9 * said, (found, said)
print("as promised")
