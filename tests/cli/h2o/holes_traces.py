# SPDX-License-Identifier: Apache-2.0
"""Writes 16.npz and 40.npz, traces of that many positions: holes_traces.py TRACE."""
import sys

import numpy as np
from made_up import save_trace

for rows in (16, 40):
    save_trace(f"{rows}.npz", {0: np.load(f"{sys.argv[1]}-L0-Q.npy")[:rows]}, prompt_tokens=8, kv_heads=4)
