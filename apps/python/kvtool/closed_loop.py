# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Confirms offline predictions in a model: applies plans to a recorded run and reads its tokens again.

    python -m kvtool.closed_loop run/ --model MODEL --policy h2o,snapkv --budget 0.5,0.25 --html-out page.html
    python -m kvtool.closed_loop run/ --model MODEL --plan plan.json --quant-plan types.json
    python -m kvtool.closed_loop run/ --model MODEL --k q8_0,q4_0 --v q8_0
    python -m kvtool.closed_loop run/ --engine llama --llama build/bin/kvtool-capture-llama --plan plan.json
    python -m kvtool.closed_loop run/ --model MODEL --cache run/prefill.lossy.kvz
    python -m kvtool.closed_loop run/ --model MODEL --lossless

The model reads the run's own tokens twice, in full and under the plan, with K and V in the given types. The KL
divergence of the two distributions of the next token, in nats, is the cost. Needs torch and transformers, or
llama.cpp with kvtool-capture-llama. docs/closed-loop.md is the manual, and says how accurate predictions are.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from . import _errors, _loop_document, _loop_page
from ._loop_llama import PROGRAM, EngineError, LlamaEngine
from ._loop_measure import Wanted, measure
from ._loop_run import Run
from ._loop_types import Types, read_types, uniform

DONE, NEGATIVE, USAGE, INVALID, INPUT_OUTPUT, UNSUPPORTED, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 70, 130
_STATUS = {"caller": USAGE, "data": INVALID, "io": INPUT_OUTPUT, "unsupported": UNSUPPORTED, "stopped": INTERRUPTED}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m kvtool.closed_loop",
        description="Apply keep plans to captured runs in a model: predicted losses beside real ones.",
    )
    add = result.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of kvtool.capture or kvtool-capture-llama")
    add("--model", metavar="MODEL", help="a model's folder, a GGUF file, or a name that transformers knows")
    add("--engine", choices=("torch", "llama"), default="torch", help="engine that applies the plans (default: torch)")
    add("--llama", metavar="PROGRAM", default=PROGRAM, help=f"kvtool-capture-llama, for --engine llama ({PROGRAM})")
    add("--plan", nargs="+", action="extend", default=[], metavar="FILE", help="plans of replay evict --plan-out")
    add("--policy", dest="policies", type=_list, default=[], metavar="A,B", help="make plans with these policies of replay evict")
    add("--budget", dest="budgets", type=_list, default=["0.5", "0.25"], metavar="X,Y", help="what may stay: 0.5, 512t (0.5,0.25)")
    add("--k", type=_list, default=[], metavar="A,B", help="types of K for all layers, each combined with every --v (torch)")
    add("--v", type=_list, default=[], metavar="A,B", help="types of V for all layers")
    add("--quant-plan", nargs="+", action="extend", default=[], metavar="FILE", help="types of advise --quant-plan-out, each with its --plan (torch)")
    add("--cache", dest="caches", nargs="+", action="extend", default=[], metavar="FILE", help="caches of the prompt to continue from, as a lossy archive (torch)")
    add("--granularity", choices=("kv-head", "layer"), default="kv-head", help="unit that chooses its own tokens (default: kv-head)")
    add("--with", dest="options", type=_option, action="append", default=[], metavar="NAME=VALUE", help="option of replay evict")
    add("--iterate", action="store_true", help="replay on the evicted run's own states, until plans repeat (torch)")
    add("--lossless", action="store_true", help="compress, restore and continue at every level, and compare the logits (torch)")
    add("-T", "--threads", type=int, metavar="N", help="threads of the engine (default: the engine's choice)")
    add("-o", "--output", metavar="FILE", help="write the document (JSON)")
    add("--html-out", dest="html", metavar="FILE", help="write a self-contained page")
    add("-f", "--force", action="store_true", help="overwrite outputs")
    add("-q", "--quiet", action="store_true", help="no table")
    # Older names, which help does not show.
    for older, dest, kind in (("--policies", "policies", _list), ("--budgets", "budgets", _list), ("--html", "html", str)):
        add(older, dest=dest, type=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return result


def _list(text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise argparse.ArgumentTypeError("an empty list")
    return entries


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name.lstrip("-").replace("-", "_"), value if equals else True


def check(arguments: argparse.Namespace, usage: argparse.ArgumentParser) -> None:
    """Refuses contradictory options, and outputs that must not be overwritten, before anything is
    computed."""
    has_types = bool(arguments.k or arguments.v or arguments.quant_plan or arguments.caches)
    if not any((arguments.plan, arguments.policies, arguments.lossless, has_types)):
        usage.error("nothing to do: give --plan, --policy, --k and --v, --quant-plan, --cache or --lossless")
    if bool(arguments.k) != bool(arguments.v):
        usage.error("--k and --v belong together")
    _check_engine(arguments, has_types, usage)
    if len(arguments.quant_plan) > 1 and len(arguments.plan) not in (0, len(arguments.quant_plan)):
        usage.error(f"--quant-plan: {len(arguments.quant_plan)} files for {len(arguments.plan)} of --plan; give one, or one for each")
    if (arguments.plan or arguments.caches) and len(arguments.runs) > 1:
        usage.error("--plan and --cache: a plan or a cache belongs to one run; give one RUN, or --policy")
    if arguments.iterate and not arguments.policies:
        usage.error("--iterate: makes plans anew, and needs --policy")
    for path in (arguments.output, arguments.html):
        if path:
            _loop_document.refuse_existing(path, arguments.force)


def _check_engine(arguments: argparse.Namespace, has_types: bool, usage: argparse.ArgumentParser) -> None:
    if arguments.engine == "llama" and has_types:
        usage.error("--k, --v, --quant-plan and --cache are for --engine torch")
    if arguments.engine == "torch" and not arguments.model:
        usage.error("--model: give the model that the run was captured from")
    if arguments.engine == "llama" and (arguments.iterate or arguments.lossless):
        usage.error("--iterate and --lossless are for --engine torch")


def confirm(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the document: every plan on every run, then the summary that the page shows."""
    model = None
    if arguments.engine == "torch":
        model = _load_model(arguments)
        from ._loop_torch import iterate, lossless
    options = {"granularity": arguments.granularity, **dict(arguments.options)}
    runs, records, archives = [], [], []
    table = _loop_document.Table(arguments.quiet)
    for path in arguments.runs:
        run = Run(path)
        wanted = _wanted(run, arguments)
        runs.append(_loop_document.run_entry(run))
        if wanted:
            engine = _engine(run, model, arguments)
            runs[-1]["keep_all_kl"] = engine.keep_all_kl()
            for case, row in measure(run, wanted, engine, **options):
                if model is not None and arguments.iterate and case.budget is not None:
                    row["passes"] = list(iterate(engine, case, **options))
                records.append(row)
                table.show(row)
        if model is not None and arguments.lossless:
            for entry in lossless(model, run):
                archives.append(entry)
                table.show_archive(entry)
    return _loop_document.document(arguments.engine, runs, records, archives)


def _wanted(run: Run, arguments: argparse.Namespace) -> list[Wanted]:
    """Returns every plan on the command line. Plans of types are combined with those of positions in order, as advise
    intended; a single one is combined with each."""
    wanted = [Wanted(policy, budget) for policy in arguments.policies for budget in arguments.budgets]
    files = arguments.quant_plan
    types = [read_types(path, run.shape) for path in files]
    if arguments.plan:
        each: list[Types | None] = [*types] or [None]
        each *= len(arguments.plan) // len(each)
        wanted += [Wanted(path, None, path, kinds) for path, kinds in zip(arguments.plan, each)]
    else:
        wanted += [Wanted(path, None, types=kinds) for path, kinds in zip(files, types)]
    wanted += [Wanted(path, None, cache=path) for path in arguments.caches]
    return wanted + [Wanted(f"{k}/{v}", None, types=uniform(k, v, run.shape)) for k in arguments.k for v in arguments.v]


def _load_model(arguments: argparse.Namespace) -> Any:
    """Loads the model in f32, whatever its weights are, because rounding to bf16 would hide a small loss."""
    from . import capture  # noqa: F401  says which of torch and transformers is missing
    import torch

    from ._capture_model import load_model, without_bars

    without_bars(arguments.quiet)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    return load_model(arguments.model, "f32")


def _engine(run: Run, model: Any, arguments: argparse.Namespace) -> Any:
    if model is None:
        return LlamaEngine(run, arguments.llama, arguments.model, arguments.threads)
    from ._loop_torch import Reader

    return Reader(model, run)


def main(words: list[str] | None = None) -> int:
    """Run the command line and return its exit status, numbered as kvtool's own."""
    usage = parser()
    arguments = usage.parse_args(words)
    try:
        check(arguments, usage)
        document = confirm(arguments)
        if arguments.output:
            _loop_document.write(arguments.output, _loop_document.text(document), arguments.force)
        if arguments.html:
            command = shlex.join(["python", "-m", "kvtool.closed_loop", *(sys.argv[1:] if words is None else words)])
            inputs = [str(Run(path).snapshot_path) for path in arguments.runs] + arguments.plan + arguments.caches
            _loop_document.write(arguments.html, _loop_page.page(document, command, inputs), arguments.force)
        return _loop_document.verdict(document)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except _errors.Error as error:
        return _say(error, _STATUS.get(error.fault, INTERNAL))
    except EngineError as error:
        return _say(error, error.status)
    except (ImportError, NotImplementedError) as error:
        return _say(error, UNSUPPORTED)
    except OSError as error:
        return _say(error, INPUT_OUTPUT)
    except ValueError as error:
        return _say(error, INVALID)


def _say(error: object, status: int) -> int:
    print(f"kvtool.closed_loop: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
