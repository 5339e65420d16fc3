#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how well advice applies to other texts: layers follow the choices of `kvtool advise` for one text, and the
model's own loss is measured on another.

  closed_loop_advice.py MODEL.gguf WORK OUT.csv [--ratio 3]

WORK has the runs of closed_loop_study.py (WORK/runs/NAME). For each text the layers' choices are made on the next
text: RATIO times fewer bytes with the least predicted KL. They are compared with each of the four policies in all
layers, at the same number of tokens. Results in WORK/advice are reused. Needs an installed kvtool, torch and
transformers.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys

TEXTS = ["gpl", "python", "zlib", "pydoc", "zones"]
POLICIES = ["h2o", "tova", "snapkv", "streaming"]


def kvtool(*words):
    subprocess.run([sys.executable, "-m", "kvtool", *map(str, words)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def made(path, make):
    """Returns the JSON of a file, which is made if it is missing."""
    if not path.exists():
        make()
    return json.loads(path.read_text())


def parameter_flags(choice):
    """Returns the flags of replay-h2o for the parameters of a choice of `advise`, such as "window 16"."""
    words = choice["parameters"].replace(",", " ").split()
    if not words:
        return []
    flag = {"window": "--snapkv-window", "recent": "--h2o-heavy", "sinks": "--sinks"}[words[0]]
    return [flag, str(1 - float(words[1])) if words[0] == "recent" else words[1]]


def follow(choices, run, path, scratch):
    """Writes a plan of `run` in which each layer follows its choice."""
    layers_of = {}
    for choice in choices:
        layers_of.setdefault((choice["policy"], choice["budget"], *parameter_flags(choice)), set()).add(choice["layer"])
    events, head = [], None
    for (policy, budget, *flags), layers in layers_of.items():
        kvtool("replay-h2o", run, "--policy", policy, "--budget", budget, *flags, "--after-prompt", "hold", "--no-quality", "--plan-out", scratch, "-f")
        plan = json.loads(scratch.read_text())
        events += [event for event in plan["events"] if event["layer"] in layers]
        head = head or {key: value for key, value in plan.items() if key != "events"}
    scratch.unlink()
    events.sort(key=lambda event: (event["token"], event["layer"]))
    path.write_text(json.dumps({**head, "policy": "mixed", "events": events}))


def kept_share(plan, layers):
    """Returns the share of the tokens of all layers that is left after each layer's last event."""
    last = {event["layer"]: event for event in plan["events"]}
    shares = [sum(count for _, count in event["kept"]) / (event["token"] + 1) for event in last.values()]
    return (sum(shares) + layers - len(last)) / layers


def measure(model, work, text, chosen_on, ratio):
    """Yields rows of the table: the advised plan and the uniform ones for one text."""
    folder, run = work / "advice", work / "runs" / text
    folder.mkdir(exist_ok=True)
    advice_file = folder / f"chosen-on-{chosen_on}-{ratio}.json"
    advice = made(advice_file, lambda: kvtool(
        "advise", work / "runs" / chosen_on, "--min-ratio", ratio, "--policies", ",".join(POLICIES), "--plan-out", advice_file))
    mixed = folder / f"{text}-advised-{ratio}.json"
    plan = made(mixed, lambda: follow(advice["choices"], run, mixed, folder / "scratch.json"))
    share = kept_share(plan, json.loads((run / "run.json").read_text())["geometry"]["layers"])
    plans = {"advised": mixed}
    for policy in POLICIES:
        plans[policy] = folder / f"{text}-{policy}-{ratio}.json"
        made(plans[policy], lambda: kvtool("replay-h2o", run, "--policy", policy, "--budget", f"{share:.4f}", "--no-quality",
                                           "--after-prompt", "hold", "--plan-out", plans[policy]))
    result = folder / f"{text}-{ratio}.real.json"
    document = made(result, lambda: subprocess.run(
        [sys.executable, "-m", "kvtool.closed_loop", run, "--model", model, "--plan", *plans.values(), "-o", result, "-q"],
        check=True))
    for name, row in zip(plans, document["plans"]):
        yield [text, chosen_on if name == "advised" else "", name, f"{row['kept_share']:.4f}",
               f"{row['predicted']['predicted_kl']:.5g}", f"{row['real']['kl']:.5g}", f"{row['real']['kl_standard_error']:.2g}",
               f"{row['real']['delta_nll']:.4g}", f"{row['real']['agreement']:.4g}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ratio", default="3")
    options = parser.parse_args()
    rows = []
    for text, chosen_on in zip(TEXTS, TEXTS[1:] + TEXTS[:1]):
        rows += measure(options.model, options.work, text, chosen_on, options.ratio)
        for row in rows[-1 - len(POLICIES):]:
            print(*row, flush=True)
    with open(options.out, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["text", "chosen_on", "plan", "kept_share", "predicted_kl", "kl", "kl_standard_error", "delta_nll",
                        "agreement"])
        table.writerows(rows)


if __name__ == "__main__":
    main()
