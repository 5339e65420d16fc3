# SPDX-License-Identifier: Apache-2.0
"""Archives in the loop: a model continues from the result of decompress as from the original cache. Imports
torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from . import _files
from ._capture_model import new_cache, with_cache
from ._loop_run import Run, as_f32
from ._snapshot import open_snapshot

LEVELS = ("fast", "default", "high", "max")
TOKENS = 64


def lossless(model: Any, run: Run) -> Iterator[dict[str, Any]]:
    """Returns for each level whether the next tokens and all their logits equal those of the run's own
    cache."""
    if run.document["engine"]["name"] != "transformers":
        raise ValueError(f"{run.path}: a cache of {run.document['engine']['name']}: that engine must go on from it")
    source = run.snapshot_path
    tokens, logits = go_on(model, run, source)
    with tempfile.TemporaryDirectory(prefix="kvtool-lossless-") as folder:
        archive, restored = os.path.join(folder, "a.kvz"), os.path.join(folder, "restored" + os.path.splitext(source)[1])
        for level in LEVELS:
            packed = _files.compress(source, archive, level=level, force=True)
            _files.decompress(archive, restored, force=True)
            again_tokens, again_logits = go_on(model, run, restored)
            yield {
                "run": run.name,
                "level": level,
                "ratio": packed["ratio"],
                "tokens": TOKENS,
                "tokens_equal": again_tokens == tokens,
                "logits_equal": torch.equal(again_logits, logits),
            }


def go_on(model: Any, run: Run, snapshot: str) -> tuple[list[int], Any]:
    """Returns the next tokens, chosen greedily, and their logits, from a cache in a file.

    The run's last token is read again, so that the first choice also depends on the file.
    """
    last = run.shape.tokens - 1
    cache = new_cache()
    with open_snapshot(snapshot) as opened:
        for number, layer in enumerate(opened.layers):
            keys, values = (_entry(array, last, model) for array in (layer.k, layer.v))
            cache.update(keys, values, number)
    token = int(run.tokens[last])
    tokens, rows = [], []
    with torch.inference_mode():
        for _ in range(TOKENS):
            ids = torch.tensor([[token]], device=model.device)
            logits = model(ids, **with_cache(model, cache)).logits[0, -1]
            token = int(logits.argmax())
            tokens.append(token)
            rows.append(logits.cpu())
    return tokens, torch.stack(rows)


def _entry(array: Any, count: int, model: Any) -> Any:
    """Converts [position, head, dim] of a file to a layer of a cache: [1, head, position, dim]."""
    rows = torch.from_numpy(as_f32(array)[:count].copy())
    return rows.to(device=model.device, dtype=model.dtype).transpose(0, 1)[None].contiguous()
