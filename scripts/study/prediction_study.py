#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/closed-loop.md on texts that no formula was fitted to: gradients at recorded and at evicted states.

  prediction_study.py texts                        # the texts that the seed chooses, with their files
  prediction_study.py measure MODEL.gguf WORK      # captures, plans, real losses: WORK/predictions.jsonl
  prediction_study.py small DATA_DIR WORK          # the same with three tiny models, also on their own output
  prediction_study.py report WORK docs/closed-loop # predictions.csv and predictions.json from the records

A random choice with a fixed seed takes the texts from a Debian 12 system and from this repository, by kind of text.
DATA_DIR holds models/*.gguf, as for scripts/check/llama_restore.py. Measurements continue after an interruption.
"""
import argparse
import csv
import gzip
import hashlib
import json
import pathlib
import random
import re
import tempfile
import time

import numpy

SEED = 20261130
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = pathlib.Path("/usr")
KINDS = {
    "prose": [(SYSTEM, "share/doc/*/README*"), (SYSTEM, "share/doc/*/*.txt*"), (REPOSITORY, "docs/engines/*.md")],
    "code": [(SYSTEM, "lib/python3.11/*.py"), (SYSTEM, "share/perl/5.36/*.pm"), (SYSTEM, "include/*.h"),
             (REPOSITORY, "lib/core/*/*.cc")],
    "dialogue": [(SYSTEM, "share/doc/*/FAQ*")],
    "list": [(SYSTEM, "share/doc/*/changelog.gz"), (SYSTEM, "share/i18n/locales/*"), (SYSTEM, "share/zoneinfo/*.tab")],
    "language": [(SYSTEM, f"share/man/{tongue}/man[178]/*.gz") for tongue in ("de", "fr", "es", "pl", "it", "ru")],
}
TEXTS_OF_A_KIND = {"prose": 3, "code": 3, "dialogue": 2, "list": 2, "language": 2}
LEAST_CHARACTERS, MOST_CHARACTERS = 6000, 12000

POLICIES = ["h2o", "snapkv", "streaming", "tova", "keydiff"]
BUDGETS = ["0.5", "0.25", "0.125"]
PARTS, PART_GROUPS = [("h2o", "0.25"), ("streaming", "0.25")], 3
RECORDED, EVICTED = 4, 8
LENGTHS = {"smollm2": (512, 96), "stories260K-f32": (192, 64), "kjv3m-f16": (192, 64), "baby105-f32": (128, 64)}
OWN_OUTPUTS, OWN_START = 4, "Once upon a time"
CALIBRATING_MODELS = ("smollm2", "stories260K-f32")
SHOWN = ["plans", "texts", "in_band", "median_factor", "within_1.5", "within_2", "off_by_3", "spearman", "least_spearman_of_a_text"]
BASES = ["recorded", "evicted", "both"]


def read(path):
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    if "man" in path.parts:  # only the sentences of a manual page, without its markup
        lines = [line for line in text.splitlines() if not line.startswith((".", "'"))]
        text = re.sub(r"\\f.|\\[&|^]|\\\(..|\\", "", "\n".join(lines))
    # Long runs of spaces are too easy to predict.
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+", " ", text)).strip()[:MOST_CHARACTERS] + "\n"


def texts():
    """Returns the chosen texts by name: their kind, file and contents."""
    found = {}
    for kind, patterns in KINDS.items():
        chooser = random.Random(f"{SEED} {kind}")
        groups = [sorted(root.glob(pattern)) for root, pattern in patterns]
        chooser.shuffle(groups)
        count = 0
        for turn in range(1000):
            group = groups[turn % len(groups)]
            path = group.pop(chooser.randrange(len(group))) if group else None
            if path is None or not path.is_file() or len(text := read(path)) < LEAST_CHARACTERS or "\ufffd" in text:
                continue
            found[f"{kind}{count}"] = (kind, path, text)
            count += 1
            if count == TEXTS_OF_A_KIND[kind]:
                break
    # One text of each kind comes first, so that an interrupted measurement has all kinds.
    return dict(sorted(found.items(), key=lambda entry: (entry[0][-1], entry[0])))


class Records:
    """Appends a JSON line for each plan once it is measured."""

    def __init__(self, path):
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done = {self.key(row) for row in self.rows}

    @staticmethod
    def key(row):
        return row["model"], row["text"], row["policy"], row["budget"], tuple(row["layers"] or ())

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


def nats_by_basis(inner, evicted):
    """Returns half the mean square of [sample, row], of which the last samples are at evicted states."""
    from kvtool._loop_figures import EVICTED_SHARE

    rows = 0.5 * numpy.square(inner)
    recorded, at_evicted = rows[: len(rows) - evicted].mean(0), rows[len(rows) - evicted :].mean(0)
    both = (1 - EVICTED_SHARE) * recorded + EVICTED_SHARE * at_evicted
    top = numpy.sort(both)[::-1][:4].sum() / max(both.sum(), 1e-300)
    nats = {"recorded": recorded.mean(), "evicted": at_evicted.mean(), "both": both.mean()}
    half = [rows[len(rows) - evicted :][part].mean() for part in (slice(0, evicted // 2), slice(evicted // 2, None))]
    return {name: float(value) for name, value in nats.items()}, float(top), [float(value) for value in half]


def plans(run):
    """Yields policy, budget, layers and plan, one policy at a time."""
    from kvtool import _loop_measure

    layers = run.shape.layers
    bounds = [layers * i // PART_GROUPS for i in range(PART_GROUPS + 1)]
    for policy in POLICIES:
        for budget in BUDGETS:
            with tempfile.TemporaryDirectory(prefix="kvtool-study-") as folder:
                wanted = _loop_measure.Wanted(policy, budget)
                whole = _loop_measure.make_case(run, wanted, folder, after_prompt="hold").plan
            yield policy, budget, None, whole
            if (policy, budget) in PARTS and layers > 2 * PART_GROUPS:
                for begin, end in zip(bounds, bounds[1:]):
                    yield policy, budget, [begin, end - 1], whole.on_layers(range(begin, end))


def measure_run(model, run, facts, records):
    from kvtool import _loop_figures, _loop_torch

    wanted = [entry for entry in plans(run)
              if (facts["model"], facts["text"], entry[0], entry[1], tuple(entry[2] or ())) not in records.done]
    reader = _loop_torch.Reader(model, run)
    for policy, budget, layers, plan in wanted:
        began = time.monotonic()
        figures = _loop_figures.open_loop(run, [plan])[0]
        nats, top, halves = nats_by_basis(figures.inner, EVICTED)
        real = reader.read(plan)
        kl = real.kl.double()
        records.add({**facts, "policy": policy, "budget": budget, "layers": layers, "kept_share": plan.kept_share(), "nats": nats,
                     "halves": halves, "top4": top, "real": float(kl.mean()), "real_top4": float(kl.topk(4).values.sum() / kl.sum())})
        print(*facts.values(), policy, budget, layers or "", " ".join(f"{name} {nats[name]:.4f}" for name in BASES),
              f"real {float(kl.mean()):.4f} {time.monotonic() - began:.1f} s", flush=True)


def capture(model, tokens, prompt, path):
    from kvtool import capture as capture_module
    from kvtool._loop_run import Run

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with capture_module.record(model, path, prompt_tokens=prompt, fisher=RECORDED, fisher_evicted=EVICTED):
            capture_module.teacher_force(model, tokens, prompt)
    return Run(path)


def measure(path, name, work, own_outputs):
    """Measures all texts with one model; also texts that the model wrote itself, if `own_outputs`."""
    from kvtool import _capture_model

    import closed_loop_study

    records = Records(work / "predictions.jsonl")
    model, tokenizer = _capture_model.load(str(path), "f32")
    prompt, decoded = LENGTHS[name]
    sources = {text: (kind, tokenizer(contents).input_ids) for text, (kind, _, contents) in texts().items()}
    for seed in range(own_outputs):
        start = tokenizer(OWN_START).input_ids
        sources[f"own{seed}"] = ("own output", closed_loop_study.sampled(model, start, prompt + decoded, SEED + seed))
    for text, (kind, tokens) in sources.items():
        if len(tokens) < prompt + decoded:
            print(f"{name} {text}: only {len(tokens)} tokens", flush=True)
            continue
        began = time.monotonic()
        run = capture(model, tokens[: prompt + decoded], prompt, work / "runs" / f"{name}-{text}")
        print(f"{name} {text}: captured in {time.monotonic() - began:.0f} s", flush=True)
        measure_run(model, run, {"model": name, "text": text, "kind": kind}, records)


def earlier_band():
    """Returns the band of gradients at the recorded state, from the studies before this one."""
    from kvtool._loop_measure import CALIBRATIONS

    return CALIBRATIONS["recorded", False]


def is_calibrating(row):
    """True for the texts that limits of bands come from; the others, and the other models, are held out."""
    return row["model"] in CALIBRATING_MODELS and row["text"].endswith("0")


def quantiles(rows, basis):
    """Returns the 10th percentile, median and 90th percentile of predicted over real loss."""
    return [float(value) for value in numpy.percentile([row["nats"][basis] / row["real"] for row in rows], [10, 50, 90])]


def judge(rows, basis, band):
    """Returns how well expected losses and their bands hold on some rows."""
    from kvtool._loop_statistics import spearman

    low, middle, high = band
    quotients = numpy.array([row["nats"][basis] / middle / row["real"] for row in rows])
    off = numpy.exp(numpy.abs(numpy.log(quotients)))
    inside = [row["nats"][basis] / high <= row["real"] <= row["nats"][basis] / low for row in rows]
    runs = list(dict.fromkeys((row["model"], row["text"]) for row in rows))
    pairs = {run: [(row["nats"][basis], row["real"]) for row in rows if (row["model"], row["text"]) == run] for run in runs}
    within = [spearman(*zip(*of_run)) for of_run in pairs.values()]
    known = [value for value in within if value is not None]
    return {"plans": len(rows), "texts": len(runs), "in_band": float(numpy.mean(inside)), "median_factor": float(numpy.median(off)),
            "within_1.5": float((off < 1.5).mean()), "within_2": float((off < 2).mean()), "off_by_3": int((off >= 3).sum()),
            "spearman": spearman([row["nats"][basis] for row in rows], [row["real"] for row in rows]),
            "least_spearman_of_a_text": min(known, default=None),
            "mean_spearman_of_a_text": float(numpy.mean(known)) if known else None,
            "quotient": quantiles(rows, basis)}


def parts(rows):
    """Yields the sets of rows that the report judges, by name."""
    held_out = [row for row in rows if not is_calibrating(row)]
    yield "calibrating", [row for row in rows if is_calibrating(row)]
    yield "held out", held_out
    for key in ("model", "kind", "policy"):
        for value in dict.fromkeys(row[key] for row in held_out):
            yield f"held out, {value}", [row for row in held_out if row[key] == value]
    yield "held out, some layers", [row for row in held_out if row["layers"]]
    yield "held out, below 0.2 nats", [row for row in held_out if row["real"] < 0.2]


def left_out_in_turn(rows, model):
    """Judges each calibrating text of a model by the band that the other calibrating texts give."""
    judged = {}
    calibrating = [row for row in rows if is_calibrating(row)]
    for text in dict.fromkeys(row["text"] for row in calibrating if row["model"] == model):
        of_text = [row for row in calibrating if row["model"] == model and row["text"] == text]
        others = [row for row in calibrating if row["text"] != text]
        judged[text] = {basis: judge(of_text, basis, quantiles(others, basis)) for basis in BASES}
        judged[text]["recorded, earlier band"] = judge(of_text, "recorded", earlier_band())
    return judged


def write_rows(path, rows):
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        head = ["model", "text", "kind", "policy", "budget", "first_layer", "last_layer", "kept_share"]
        table.writerow([*head, *BASES, "top4", "real", "real_top4"])
        for row in rows:
            figures = [row["kept_share"], *(row["nats"][basis] for basis in BASES), row["top4"], row["real"], row["real_top4"]]
            table.writerow([row["model"], row["text"], row["kind"], row["policy"], row["budget"], *(row["layers"] or ("", "")),
                            *(f"{value:.4g}" for value in figures)])


def report(work, out):
    rows = Records(work / "predictions.jsonl").rows
    calibrating = [row for row in rows if is_calibrating(row)]
    bands = {"recorded, earlier band": ("recorded", earlier_band())}
    bands |= {basis: (basis, [round(value, 2) for value in quantiles(calibrating, basis)]) for basis in BASES}
    document = {"seed": SEED, "recorded_samples": RECORDED, "evicted_samples": EVICTED, "lengths": LENGTHS,
                "texts": {name: hashlib.sha256(text.encode()).hexdigest() for name, (_, _, text) in texts().items()},
                "bands": {name: band for name, (_, band) in bands.items()}, "judged": {}}
    for part, of_part in parts(rows):
        if of_part:  # a measurement that was interrupted may lack some parts
            document["judged"][part] = {name: judge(of_part, basis, band) for name, (basis, band) in bands.items()}
    document["left_out_in_turn"] = left_out_in_turn(rows, CALIBRATING_MODELS[0])
    tops = [(row["real_top4"], row["top4"]) for row in rows]
    document["top_4_rows"] = {"share_of_real": float(numpy.median([top[0] for top in tops])),
                              "share_of_predicted": float(numpy.median([top[1] for top in tops]))}
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "predictions.csv", rows)
    (out / "predictions.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["bands"]), json.dumps(document["top_4_rows"]))
    for part, judged in {**document["judged"], **document["left_out_in_turn"]}.items():
        for name, found in judged.items():
            figures = ["-" if found[key] is None else f"{found[key]:.3g}" for key in SHOWN]
            print(f"| {part} | {name} | {' | '.join(figures)} | {' '.join(f'{value:.2f}' for value in found['quotient'])} |")


def show_texts():
    for name, (_, path, text) in texts().items():
        print(f"{name:10} sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]} {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("texts")
    verb = verbs.add_parser("measure")
    verb.add_argument("model", type=pathlib.Path)
    verb.add_argument("work", type=pathlib.Path)
    verb = verbs.add_parser("small")
    verb.add_argument("data", type=pathlib.Path)
    verb.add_argument("work", type=pathlib.Path)
    verb = verbs.add_parser("report")
    verb.add_argument("work", type=pathlib.Path)
    verb.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.verb == "texts":
        show_texts()
    elif arguments.verb == "measure":
        measure(arguments.model, "smollm2", arguments.work, 0)
    elif arguments.verb == "small":
        for name in LENGTHS:
            if name != "smollm2":
                measure(arguments.data / "models" / f"{name}.gguf", name, arguments.work, OWN_OUTPUTS)
    else:
        report(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
