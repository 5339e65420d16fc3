# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Records a run of a transformers model: the KV cache, the queries and the tokens, for replays without the model.

    python -m kvtool.capture MODEL --prompt FILE -n 256 -o run/
    kvtool replay-h2o run/

or around your own calls:

    with kvtool.capture.record(model, "run/"):
        model.generate(**inputs, max_new_tokens=256)

MODEL is a folder, a GGUF file, or a name that transformers knows. Needs torch and transformers (4.46 or later), which
kvtool does not install. docs/engines/transformers.md is the manual.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

try:
    import torch
    import transformers  # noqa: F401  the error names which of the two is missing
except ImportError as error:
    hint = f"kvtool.capture needs torch and transformers ({error}): pip install torch transformers"
    if __name__ == "__main__":
        print(hint, file=sys.stderr)
        sys.exit(5)  # the exit status of kvtool for unsupported requests
    raise ImportError(hint) from error

from ._capture_fisher import gradients
from ._capture_model import CHUNK, context_length, last_logits_only, load, new_cache, read_prompt, with_cache
from ._capture_recorder import Recorder
from ._capture_rules import CaptureError
from ._capture_taps import tapped

__all__ = ["CaptureError", "Recorder", "context_length", "generate", "gradients", "load", "record", "teacher_force"]


@contextlib.contextmanager
def record(
    model: Any,
    path: str | os.PathLike[str],
    *,
    prompt_tokens: int | None = None,
    trace_dtype: str | None = None,
    top_k: int = 20,
    fisher: int = 0,
    fisher_evicted: int = 0,
    seed: int = 0,
    name: str | None = None,
    file: str | None = None,
    force: bool = False,
) -> Iterator[Recorder]:
    """Record what `model` computes within the block as the run folder `path`.

    One sequence, from its first token on, in any number of forward passes with a cache. prompt_tokens: where the
    decode begins; by default after the first pass. trace_dtype: type of the queries, "f32", "f16" or "bf16"; by
    default the model's. top_k: number of logits kept for each decode row. fisher: number of gradient samples at the
    end, which predict the loss in nats; fisher_evicted: samples at states that random keys were evicted from, which
    predict the loss of evictions better; seed: their random seed. name, file: those of the model, for run.json. force:
    replace an existing run.

    The folder appears when the block ends. After an exception, or Ctrl-C, there is none.
    """
    recorder = Recorder(
        model,
        path,
        prompt_tokens=prompt_tokens,
        trace_dtype=trace_dtype,
        top_k=top_k,
        name=name,
        file=file,
        force=force,
    )
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(model.register_forward_pre_hook(recorder.before_forward, with_kwargs=True).remove)
            after = model.register_forward_hook(recorder.after_forward, with_kwargs=True, always_call=True)
            stack.callback(after.remove)
            stack.enter_context(tapped(recorder.modules, recorder))
            yield recorder
            if fisher or fisher_evicted:
                recorder.add_gradients(samples=fisher, evicted=fisher_evicted, seed=seed)
        recorder.commit()
    except BaseException:
        recorder.folder.discard()
        raise


def teacher_force(
    model: Any,
    tokens: list[int],
    prompt_tokens: int,
    *,
    chunk: int = CHUNK,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Run given tokens through the model, the prompt and then the rest, and return the cache at the end.

    The decoded rows are the same as one token at a time, but are computed in passes of `chunk`.
    """
    cache = new_cache()
    ids = torch.tensor([tokens], device=next(model.parameters()).device)
    bounds = [*range(0, prompt_tokens, chunk), *range(prompt_tokens, len(tokens), chunk), len(tokens)]
    with torch.no_grad():
        for begin, end in zip(bounds, bounds[1:]):
            few = last_logits_only(model) if end <= prompt_tokens else {}
            model(ids[:, begin:end], **with_cache(model, cache), **few)
            if progress:
                progress(end, len(tokens))
    return cache


def generate(
    model: Any,
    tokens: list[int],
    count: int,
    *,
    stop: set[int] | None = None,
    chunk: int = CHUNK,
    progress: Callable[[int, int], object] | None = None,
) -> list[int]:
    """Decodes greedily after a prompt. Every returned token was processed by the model."""
    cache = new_cache()
    device = next(model.parameters()).device
    made: list[int] = []
    with torch.no_grad():
        output = read_prompt(model, torch.tensor([tokens], device=device), cache, chunk)
        while len(made) < count:
            made.append(int(output.logits[0, -1].argmax()))
            output = model(torch.tensor([made[-1:]], device=device), **with_cache(model, cache))
            if progress:
                progress(len(made), count)
            if stop and made[-1] in stop:
                break
    return made


if __name__ == "__main__":
    from ._capture_cli import main

    sys.exit(main())
