# SPDX-License-Identifier: Apache-2.0
"""Loads ours.pth in real torch and compares it with the checkpoint: load_in_torch.py CHECKPOINT."""
import sys

import torch

ours = torch.load("ours.pth")
theirs = torch.load(sys.argv[1])["model_state_dict"]["compressor"]
assert len(ours) == sum(not name.startswith("attention") for name in theirs)
assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)
print("equal in torch", torch.__version__)
