# SPDX-License-Identifier: Apache-2.0
"""Writes queries.npz, the queries of layers 0 and 3: rotated_queries.py TRACE."""
import sys

import numpy as np
from made_up import save_trace

queries = {layer: np.load(f"{sys.argv[1]}-L{layer}-Q.npy") for layer in (0, 3)}
save_trace("queries.npz", queries, prompt_tokens=48, kv_heads=2)
