# SPDX-License-Identifier: Apache-2.0
"""Writes a cache with every fault that doctor looks for, a sound one, and one too large to be checked as a
whole."""
import numpy as np

random = np.random.default_rng(0)


def layers(count, tokens):
    names = {}
    for i in range(count):
        for which in ("key", "value"):
            names[f"past_key_values.{i}.{which}"] = random.normal(size=(1, 4, tokens, 32)).astype("f2")
    return names


fine = layers(4, 64)
np.savez("fine.npz", **fine)
fine["past_key_values.0.key"][0, 0, 0, 0] = np.nan
fine["past_key_values.0.value"][0, 0, 3, 0] = np.inf
fine["past_key_values.2.key"] = fine["past_key_values.1.key"]
fine["past_key_values.3.value"][:] = 0
np.savez("wrong.npz", **fine)
np.savez("large.npz", **layers(2, 20000))
