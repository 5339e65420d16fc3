#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/closed-loop.md: how well offline figures predict what eviction costs a model.

  closed_loop_study.py measure MODEL.gguf WORK      # texts, captures, plans, real losses: WORK/records.jsonl
  closed_loop_study.py samples MODEL.gguf WORK # predictions from four times as many gradients, for measured plans
  closed_loop_study.py small DATA_DIR WORK # the same with three tiny models and their own texts
  closed_loop_study.py report WORK docs/closed-loop # tables and pictures from the records

DATA_DIR holds models/*.gguf, as for scripts/check/llama_restore.py. All but report continue after an interruption.
WORK takes some 400 MB per text. It needs an installed kvtool, torch and transformers, and Debian 12's files:
base-files, tzdata, zlib1g-dev, perl-modules, Python's own.
"""
import argparse
import csv
import hashlib
import heapq
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from pydoc_data.topics import topics

import numpy
import torch

from kvtool import _capture_fisher, _capture_model, _loop_measure, _loop_torch
from kvtool import capture as capture_module
from kvtool._capture_taps import attention_modules
from kvtool._loop_page import CHART_STYLE, Point, scatter
from kvtool._loop_run import Run
from kvtool._loop_statistics import summary

POLICIES = ["h2o", "streaming", "tova", "snapkv", "knorm", "keydiff", "block", "random"]
BUDGETS = ["0.75", "0.5", "0.25", "0.125"]
# Plans on six layers in turn, because the choice of layers matters more than the number of tokens.
PARTS = [("h2o", "0.25"), ("streaming", "0.25"), ("keydiff", "0.5"), ("snapkv", "0.125")]
PART_GROUPS = 6
PROMPT, DECODED, SAMPLES, MORE_SAMPLES = 1792, 256, 4, 16
# Prompt and decoded tokens of tiny models, which read their own output, within the length that they were trained at.
SMALL = {"stories260K-f32": (256, 256), "kjv3m-f16": (256, 256), "baby105-f32": (128, 128)}
SMALL_TEXTS, SMALL_START = 4, "Once upon a time"


def texts():
    """Returns six kinds of text: licence, reference, program, header with comments, table, list of messages."""
    perl = sorted(pathlib.Path("/usr/share/perl").glob("5.*/pod/perldiag.pod"))[0]
    found = {
        "gpl": pathlib.Path("/usr/share/common-licenses/GPL-3").read_text(),
        "python": pathlib.Path(heapq.__file__).read_text(),
        "pydoc": "\n".join(topics[name] for name in ("with", "class", "exceptions", "import", "objects")),
        "zlib": pathlib.Path("/usr/include/zlib.h").read_text(),
        "zones": pathlib.Path("/usr/share/zoneinfo/zone1970.tab").read_text(),
        "perldiag": perl.read_text(errors="replace"),
    }
    # Indentation and centred titles are long runs of spaces, which are too easy to predict.
    return {name: (re.sub(r"[ \t]+", " ", text).strip() + "\n")[:20000] for name, text in found.items()}


def capture(model, work, name, text):
    """Returns the run of a text, with gradients; it is made if it does not exist."""
    file, run = work / "texts" / f"{name}.txt", work / "runs" / name
    for folder in (file.parent, run.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if not run.exists():
        file.write_text(text)
        print(f"{name}: sha256 of its text {hashlib.sha256(text.encode()).hexdigest()[:16]}", flush=True)
        subprocess.run([sys.executable, "-m", "kvtool.capture", model, "--prompt", file, "--prompt-tokens", str(PROMPT),
                        "-n", str(DECODED), "--forced", "--fisher", str(SAMPLES), "-q", "-o", run], check=True)
    return run


class Records:
    """Appends a JSON line for each plan once it is measured."""

    def __init__(self, path):
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done = {self.key(row) for row in self.rows}

    @staticmethod
    def key(row):
        return row["run"], row["policy"], row["budget"], tuple(row["layers"] or ())

    def add(self, row):
        self.rows.append(row)
        self.done.add(self.key(row))
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


def groups(layers):
    """Returns equal parts of the layers, (first, last)."""
    bounds = [layers * i // PART_GROUPS for i in range(PART_GROUPS + 1)]
    return [(begin, end - 1) for begin, end in zip(bounds, bounds[1:]) if end > begin]


def measure(model_path, work, names):
    records = Records(work / "records.jsonl")
    model = _capture_model.load(model_path, "f32")[0]
    for name in names:
        run = Run(capture(model_path, work, name, texts()[name]))
        measure_run(model, run, records, PARTS)


class MoreGradients(Run):
    """A run with gradients of more samples than its folder has."""

    def __init__(self, path, model):
        super().__init__(path)
        self.more = {}
        _capture_fisher.gradients(
            model, attention_modules(model), self.tokens.tolist(), self.shape.prompt_tokens, samples=MORE_SAMPLES, seed=1,
            heads=self.query_heads, take=lambda layer, rows: self.more.setdefault(layer, []).append(rows.float().numpy().copy()))

    def gradients(self, layer):
        return numpy.stack(self.more[layer])


def more_samples(model_path, work, names):
    """Writes predictions from more samples, beside the known costs of plans: WORK/records-samples.jsonl."""
    measured = {Records.key(row): row for row in Records(work / "records.jsonl").rows if row["policy"] in POLICIES}
    records = Records(work / "records-samples.jsonl")
    model = _capture_model.load(model_path, "f32")[0]
    for name in names:
        todo = [row for key, row in measured.items() if key[0] == name and key not in records.done]
        plans = sorted({(row["policy"], row["budget"]) for row in todo}, key=lambda plan: (plan not in PARTS, plan))
        run = MoreGradients(work / "runs" / name, model) if plans else None
        for policy, budget in plans:
            with tempfile.TemporaryDirectory(prefix="kvtool-study-") as folder:
                whole = _loop_measure.make_case(run, _loop_measure.Wanted(policy, budget), folder, after_prompt="hold").plan
            rows = [row for row in todo if (row["policy"], row["budget"]) == (policy, budget)]
            layers = [range(row["layers"][0], row["layers"][1] + 1) if row["layers"] else range(run.shape.layers) for row in rows]
            for row, predicted in zip(rows, _loop_measure.predict(run, [whole.on_layers(of) for of in layers])):
                # The plan must keep the same states, otherwise the measured loss would belong to another one.
                assert abs(predicted["output_error"] - row["predicted"]["output_error"]) < 1e-6
                records.add({**row, "predicted": predicted})
            print(name, policy, budget, len(rows), flush=True)


def measure_run(model, run, records, parts):
    """Measures every plan of a run that is not in the records yet."""
    reader = None
    for policy in POLICIES:
        wanted = [(budget, part) for budget in BUDGETS
                  for part in [(), *(groups(run.shape.layers) if (policy, budget) in parts else [])]
                  if (run.name, policy, budget, part) not in records.done]
        if not wanted:
            continue
        reader = reader or _loop_torch.Reader(model, run)
        began = time.monotonic()
        cases = []
        for budget, part in wanted:
            if not cases or cases[-1].budget != budget:
                with tempfile.TemporaryDirectory(prefix="kvtool-study-") as folder:
                    whole = _loop_measure.make_case(run, _loop_measure.Wanted(policy, budget), folder, after_prompt="hold")
            layers = range(part[0], part[1] + 1) if part else range(run.shape.layers)
            cases.append(whole._replace(plan=whole.plan.on_layers(layers), layers=part or None))
        figures = _loop_measure.predict(run, [case.plan for case in cases])
        for case, predicted, real in zip(cases, figures, reader.read_all(cases)):
            records.add(_loop_measure.record(run, case, predicted, real))
            print(run.name, policy, case.budget, case.layers or "all layers", f"predicted {predicted['predicted_kl']:.4f}",
                  f"real {real['kl']:.4f}, {time.monotonic() - began:.0f} s", flush=True)


def sampled(model, start, count, seed):
    """Returns tokens that a model continues with, drawn from its own distribution."""
    generator = torch.Generator().manual_seed(seed)
    tokens, cache = list(start), _capture_model.new_cache()
    given = tokens
    with torch.no_grad():
        while len(tokens) < count:
            logits = model(torch.tensor([given]), past_key_values=cache, use_cache=True).logits[0, -1]
            given = torch.multinomial(logits.softmax(-1), 1, generator=generator).tolist()
            tokens += given
    return tokens


def small(data, work):
    """Runs tiny models, which are cheap enough for four texts each and have other depths and widths of heads."""
    records = Records(work / "records-small.jsonl")
    for stem, (prompt, decoded) in SMALL.items():
        model, tokenizer = _capture_model.load(str(data / "models" / f"{stem}.gguf"), "f32")
        for seed in range(SMALL_TEXTS):
            path = work / "small" / f"{stem}-{seed}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                tokens = sampled(model, tokenizer(SMALL_START).input_ids, prompt + decoded, seed)
                with capture_module.record(model, path, prompt_tokens=prompt, fisher=SAMPLES) as _:
                    capture_module.teacher_force(model, tokens, prompt)
            measure_run(model, Run(path), records, [])


def rounded(value):
    return "" if value is None else f"{value:.5g}"


def write_plans(path, rows):
    """Writes the records, one line each."""
    head = ["run", "policy", "budget", "first_layer", "last_layer", "kept_share"]
    figures = [("predicted", name) for name in ("output_error", "cosine_loss", "lost_mass", "predicted_kl")]
    figures += [("real", name) for name in ("kl", "kl_standard_error", "delta_nll", "agreement")]
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head + [name for _, name in figures])
        for row in rows:
            first, last = row["layers"] or ("", "")
            cells = [row["run"], row["policy"], row["budget"], first, last, rounded(row["kept_share"])]
            table.writerow(cells + [rounded(row[side][name]) for side, name in figures])


def facts(work, names):
    """Returns a description of the study: model and engine, texts and their likelihood for the
    model."""
    texts_, engine, model = {}, None, None
    for name in names:
        run = json.loads((work / "runs" / name / "run.json").read_text())
        engine, model = run["engine"], run["model"]
        text = (work / "texts" / f"{name}.txt").read_bytes()
        texts_[name] = {"sha256": hashlib.sha256(text).hexdigest(), "nll": run["nll"]}
    return {"model": model, "engine": engine, "prompt_tokens": PROMPT, "decoded_tokens": DECODED, "gradient_samples": SAMPLES,
            "texts": texts_}


def picture(rows):
    """Returns a picture of predicted and real KL of all plans, with a mark for each text, as SVG."""
    points = [Point(row["predicted"]["predicted_kl"], row["real"]["kl"], row["run"] + (", some layers" if row["layers"] else ""),
                    f"{row['run']} {row['policy']} {row['budget']} {row['layers'] or ''}") for row in rows]
    svg = scatter(points, "Predicted and real KL", "predicted KL, nats", "real KL, nats", diagonal=True)
    first, rest = svg.split(">", 1)
    return f"{first}>\n<style>\n{CHART_STYLE}</style>{rest}\n"


def whole_texts(rows):
    """Returns the rows of finished texts, and these texts; others would count only with some policies."""
    whole = len(POLICIES) * len(BUDGETS) + len(PARTS) * PART_GROUPS
    rows = [row for row in rows if row["policy"] in POLICIES]
    names = [name for name in texts() if sum(row["run"] == name for row in rows) == whole]
    return sorted((row for row in rows if row["run"] in names), key=lambda row: names.index(row["run"])), names


def by_layers(rows):
    """Returns the plans on all layers, and those on some."""
    return [row for row in rows if row["layers"] is None], [row for row in rows if row["layers"] is not None]


def in_nats(rows):
    """Returns how well nats are predicted, for plans on all layers and on some."""
    summaries = [summary(part) for part in by_layers(rows)]
    return {name: {key: found[key]["predicted_kl"] for key in found} for name, found in zip(("uniform", "some_layers"), summaries)}


def report(work, out):
    rows, names = whole_texts(Records(work / "records.jsonl").rows)
    uniform, parts = by_layers(rows)
    tiny = Records(work / "records-small.jsonl").rows
    out.mkdir(parents=True, exist_ok=True)
    write_plans(out / "plans.csv", rows)
    write_plans(out / "plans-small.csv", tiny)
    document = {**facts(work, names), "uniform": summary(uniform), "some_layers": summary(parts), "all": summary(rows)}
    more, more_names = whole_texts(Records(work / "records-samples.jsonl").rows)
    fewer = [row for row in rows if row["run"] in more_names]
    document["samples"] = {"texts": more_names, str(SAMPLES): in_nats(fewer), str(MORE_SAMPLES): in_nats(more)} if more else None
    document["small_models"] = {stem: summary([row for row in tiny if row["run"].startswith(stem)]) for stem in SMALL}
    (out / "summary.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "predicted.svg").write_text(picture(rows))
    for title, found in (("all layers", document["uniform"]), ("some layers", document["some_layers"])):
        for name, entry in found["correlations"].items():
            inside = entry["within_run_and_policy"]
            print(f"{title}, {name}: pooled {entry['pooled']}, small {entry['small']}, within {inside}")
        print(title, json.dumps(found["sizes"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("measure", "samples"):
        verb = verbs.add_parser(name)
        verb.add_argument("model")
        verb.add_argument("work", type=pathlib.Path)
        verb.add_argument("--texts", nargs="+", choices=list(texts()), default=list(texts()), help="some of them (all)")
    verb = verbs.add_parser("small")
    verb.add_argument("data", type=pathlib.Path)
    verb.add_argument("work", type=pathlib.Path)
    verb = verbs.add_parser("report")
    verb.add_argument("work", type=pathlib.Path)
    verb.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.verb == "measure":
        measure(arguments.model, arguments.work, arguments.texts)
    elif arguments.verb == "samples":
        more_samples(arguments.model, arguments.work, arguments.texts)
    elif arguments.verb == "small":
        small(arguments.data, arguments.work)
    else:
        report(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
