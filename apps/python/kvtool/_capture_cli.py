# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The command line of kvtool.capture."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from . import capture
from ._capture_model import without_bars
from ._run_folder import refuse_what_is_there

OK, USAGE, INVALID, INPUT_OUTPUT, UNSUPPORTED, INTERRUPTED = 0, 2, 3, 4, 5, 130


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m kvtool.capture",
        description="Record a run of a transformers model: KV cache, queries, tokens, logits. `kvtool replay-h2o RUN` reads it.",
    )
    result.add_argument("model", help="a model's folder, a GGUF file, or a name that transformers knows")
    result.add_argument("--prompt", required=True, metavar="FILE", help="text that the run begins with; - is standard input")
    result.add_argument("-o", "--output", required=True, metavar="RUN", help="folder to write")
    result.add_argument("-n", "--tokens", type=_positive, metavar="N", help="tokens to decode (default: 256; with --forced: the rest)")
    result.add_argument(
        "--prompt-tokens", type=_positive, metavar="P", help="the prompt is the first P tokens of the text (default: all of them)"
    )
    result.add_argument("--forced", action="store_true", help="decode the text's own tokens after the first P, not the model's")
    result.add_argument(
        "--fisher", type=_positive, default=0, metavar="K", help="K samples of gradients, from which replays predict the loss in nats"
    )
    result.add_argument(
        "--fisher-evicted",
        type=_positive,
        default=0,
        metavar="K",
        help="K samples of gradients at states with randomly evicted keys, which predict the loss of evictions better (8)",
    )
    result.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32", help="type that the model computes in (default: f32)")
    result.add_argument("--trace-dtype", choices=("f32", "bf16", "f16"), help="type that queries are stored in (default: the model's)")
    result.add_argument("--top-k", type=_positive, default=20, metavar="K", help="logits kept of each decoded row (default: 20)")
    result.add_argument("--seed", type=int, default=0, help="seed of the samples of gradients (default: 0)")
    result.add_argument("--attention", metavar="NAME", help="transformers' attn_implementation: sdpa, eager, ...")
    result.add_argument("--threads", type=_positive, metavar="N", help="threads of torch")
    result.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    result.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return result


def _progress(what: str, quiet: bool) -> Callable[[int, int], object] | None:
    """A progress bar of tqdm (a dependency of transformers) if the output is a terminal."""
    if quiet or not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    bar = tqdm(desc=what, unit="tok" if what != "gradients" else "sample", leave=False)

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return show


def _read_tokens(path: str, tokenizer: Any) -> list[int]:
    if path == "-":
        text = sys.stdin.read()
    else:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    tokens = [int(token) for token in tokenizer(text).input_ids]
    if not tokens:
        raise ValueError(f"{path}: holds no text")
    return tokens


def _split(arguments: argparse.Namespace, tokens: list[int]) -> tuple[int, int]:
    """Returns the numbers of prompt tokens and of decoded tokens."""
    prompt, count = arguments.prompt_tokens, arguments.tokens
    if not arguments.forced:
        prompt = prompt or len(tokens)
        if prompt > len(tokens):
            raise ValueError(f"--prompt-tokens {prompt}: the text has {len(tokens)} tokens")
        return prompt, count or 256
    if prompt is None and count is None:
        raise ValueError("--forced needs --prompt-tokens or -n, which say where decoding begins")
    prompt = prompt or len(tokens) - count
    count = count or len(tokens) - prompt
    if prompt < 1 or count < 1 or prompt + count > len(tokens):
        raise ValueError(f"a prompt of {prompt} and {count} decoded tokens, but the text has {len(tokens)} tokens")
    return prompt, count


def _stop_tokens(model: Any) -> set[int]:
    ids = getattr(model.generation_config, "eos_token_id", None)
    return set(ids) if isinstance(ids, list) else {ids} if ids is not None else set()


def _record(arguments: argparse.Namespace) -> None:
    without_bars(arguments.quiet)
    refuse_what_is_there(arguments.output, arguments.force)  # before the model is loaded, which takes long
    model, tokenizer = capture.load(arguments.model, arguments.dtype, arguments.attention)
    tokens = _read_tokens(arguments.prompt, tokenizer)
    prompt, count = _split(arguments, tokens)
    context = capture.context_length(model)
    if context is not None and prompt + count > context:
        print(f"kvtool.capture: warning: {prompt + count} tokens, but the model's context is {context}", file=sys.stderr)
    began = time.monotonic()
    with capture.record(
        model,
        arguments.output,
        prompt_tokens=prompt,
        trace_dtype=arguments.trace_dtype,
        top_k=arguments.top_k,
        file=arguments.model if os.path.exists(arguments.model) else None,
        force=arguments.force,
    ) as recorder:
        show = _progress("forced" if arguments.forced else "decode", arguments.quiet)
        if arguments.forced:
            capture.teacher_force(model, tokens[: prompt + count], prompt, progress=show)
        else:
            capture.generate(model, tokens[:prompt], count, stop=_stop_tokens(model), progress=show)
        if arguments.fisher or arguments.fisher_evicted:
            show = _progress("gradients", arguments.quiet)
            draw = {"samples": arguments.fisher, "evicted": arguments.fisher_evicted, "seed": arguments.seed}
            recorder.add_gradients(**draw, progress=show)
    if not arguments.quiet:
        decoded = len(recorder.tokens) - prompt
        print(
            f"{arguments.output}: {len(recorder.modules)} layers, {prompt} + {decoded} tokens,"
            f" {time.monotonic() - began:.1f} s",
            file=sys.stderr,
        )


def main(words: list[str] | None = None) -> int:
    """Run the command line and return its exit status, numbered as kvtool's own."""
    arguments = parser().parse_args(words)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        _record(arguments)
    except KeyboardInterrupt:
        print("kvtool.capture: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except UnicodeDecodeError as error:
        return _say(f"{arguments.prompt}: not UTF-8 text ({error})", INVALID)
    except (FileExistsError, ValueError) as error:
        return _say(error, USAGE)
    except OSError as error:
        return _say(error, INPUT_OUTPUT)
    except (capture.CaptureError, NotImplementedError) as error:
        return _say(error, UNSUPPORTED)
    return OK


def _say(error: BaseException | str, status: int) -> int:
    print(f"kvtool.capture: {error}", file=sys.stderr)
    return status
