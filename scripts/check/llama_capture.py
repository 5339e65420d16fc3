#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves with a real build of llama.cpp that kvtool-capture-llama records what the engine computes, and that plans
have the described effect in the engine.

* Runs recorded with and without flash attention replay alike: mass and output error of the same policies.
* The callback changes nothing: without it the engine computes the recorded nll.
* A plan that keeps everything gives KL 0 exactly, by seq_rm and by hidden scores; where both apply they agree.
* The example in docs/examples removes the tokens that plans evict, and none for a plan that keeps everything.
* A full disk, an interrupt and non-empty folders end the program as documented and leave nothing behind.

  llama_capture.py build/release/bin/kvtool --fetch ENGINES
  llama_capture.py build/release/bin/kvtool --engine ENGINES/3.22.1 --sources LLAMA_CPP --data DATA_DIR
  llama_capture.py build/release/bin/kvtool --engine ENGINES/3.22.1 --program kvtool-capture-llama --data DATA_DIR

--engine is a folder of prebuilt libraries; --sources a checkout of the same release, from which the program and the
example are built as apps/capture-llama/README.md says; --program and --example name built ones. --fetch has npm
download libraries and sources, as llama_restore.py does. DATA_DIR holds models/kjv3m-f16.gguf and
llamacpp/prompt-p0.txt, or else models/stories260K-f32.gguf, as testdata does (the default after $LLAMA_DATA), and the
text is the beginning of LICENSE; --model and --text name others. Exit status: 0 everything passed, 1 something
failed, 77 no engine or no data.
"""
import argparse
import ctypes
import glob
import json
import math
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

from llama_restore import DATA, Engine, Setup, fetch, pack, skip

RELEASE = "3.22.1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT, DECODED = 600, 64
POLICIES = "streaming,window,h2o,tova"


def unpack_sources(folder):
    """Unpacks the source of the release that RELEASE was built from, out of npm's
    node-llama-cpp."""
    target = os.path.join(folder, f"{RELEASE}-sources")
    if not os.path.isdir(target):
        with tempfile.TemporaryDirectory(dir=folder) as work:
            bundle, sources = "package/llama/gitRelease.bundle", os.path.join(work, "sources")
            subprocess.run(["tar", "-xzf", pack(f"node-llama-cpp@{RELEASE}", work), "-C", work, bundle], check=True)
            subprocess.run(["git", "-c", "advice.detachedHead=false", "clone", "--quiet", os.path.join(work, bundle), sources],
                           check=True)
            os.rename(sources, target)
    return target


def build(sources, libraries, folder):
    """Builds the program by the line in the README, word for word, and the example."""
    page = (ROOT / "apps/capture-llama/README.md").read_text(encoding="utf-8")
    line = re.search(r"^g\+\+ .*?-o kvtool-capture-llama$", page, re.M | re.S)[0]
    program, example = (os.path.join(folder, name) for name in ("kvtool-capture-llama", "example"))
    for command in (line.replace("-o kvtool-capture-llama", f"-o {program}"),
                    re.sub("apps/capture-llama/.*cc", "docs/examples/apply_plan_llama.cc", line).replace(
                        "-o kvtool-capture-llama", f"-o {example}")):
        subprocess.run(command, shell=True, check=True, cwd=ROOT, env={**os.environ, "LLAMA": sources, "LIBS": libraries})
    return program, example


def tensors(path):
    """Returns the tensors of a safetensors file as lists, for the types that runs have."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            out[name] = list(memoryview(data)[8 + size + begin:8 + size + end].cast({"I32": "i", "F32": "f"}[tensor["dtype"]]))
    return out


class Checker:
    def __init__(self, arguments, folder):
        self.kvtool, self.program = os.path.abspath(arguments.kvtool), os.path.abspath(arguments.program)
        self.engine, self.folder = os.path.abspath(arguments.engine), folder
        data = pathlib.Path(arguments.data)
        self.model = arguments.model or first(data / "models/kjv3m-f16.gguf", data / "models/stories260K-f32.gguf")
        excerpt = folder / "excerpt.txt"
        excerpt.write_text((ROOT / "LICENSE").read_text(encoding="utf-8")[:2000], encoding="utf-8")
        self.text = arguments.text or first(data / "llamacpp/prompt-p0.txt", excerpt)
        self.failures = 0

    def say(self, good, text):
        self.failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)

    def capture(self, run, *more, **how):
        command = [self.program, "-m", self.model, "-f", self.text, "--prompt-tokens", PROMPT, "-n", DECODED, "-t", 1,
                   "--backends", self.engine, "-o", self.folder / run, *more]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, **how)

    def replay(self, run, *more):
        name = self.folder / f"{run}.json"
        subprocess.run([self.kvtool, "replay-h2o", self.folder / run / "snapshot.bin", "--trace", self.folder / run / "trace",
                        "--gguf", self.model, "--target-ratio", "2", "--json-out", name, "-f", "-qq", *map(str, more)],
                       check=True, stdout=subprocess.DEVNULL)
        return json.loads(name.read_text())

    def confirm(self, run, by, *plans):
        command = [self.program, "--confirm", self.folder / run, "--backends", self.engine, "-t", "1", "--by", by, "--plan", *plans]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def record(self):
        for run, flash in (("on", "on"), ("off", "off")):
            done = self.capture(run, "--flash", flash)
            if done.returncode != 0:
                self.say(False, f"flash attention {flash}: {done.stderr.strip()}")
                sys.exit(1)
            facts = json.loads((self.folder / run / "run.json").read_text())
            self.say(facts["attention"]["flash"] == (flash == "on") and facts["tokens"] == PROMPT + DECODED,
                     f"flash attention {flash}: {done.stdout.strip()}")
            self.nll(run, facts, flash == "on")
        figures = {run: list(numbers(self.replay(run, "--policy", POLICIES)["results"][0]["runs"])) for run in ("on", "off")}
        far = max((abs(a[1] - b[1]), a[0]) for a, b in zip(figures["on"], figures["off"]))
        same = [a[0] for a in figures["on"]] == [b[0] for b in figures["off"]]
        self.say(same and figures["on"] and far[0] < 0.01,
                 f"flash on and off replay alike: {len(figures['on'])} masses and errors of {POLICIES}, at most {far[0]:.2g} apart")

    def nll(self, run, facts, flash):
        """Computes the NLL by driving the engine through its C API without a callback, with the same batches, in its
        own process."""
        job = [sys.executable, __file__, "--drive", self.engine, self.model, str(self.folder / run), str(int(flash))]
        own = json.loads(subprocess.run(job, check=True, capture_output=True, text=True).stdout)
        recorded = tensors(self.folder / run / "logits.safetensors")["nll"][:-1]
        far = max(abs(a - b) for a, b in zip(own, recorded))
        good = len(own) == len(recorded) == DECODED and far < 1e-5
        good = good and abs(facts["nll"] - sum(own) / len(own)) < 1e-5
        self.say(good, f"nll without the callback: {sum(own) / len(own):.6f}, each token's at most {far:.1g} from the recorded")

    def plans(self):
        layers = json.loads((self.folder / "off/run.json").read_text())["geometry"]["layers"]
        everything = {"schema": "kvtool.h2o-plan/1", "events": [
            {"token": token, "layer": layer, "kv_head": None, "kept": [[0, token + 1]], "length_before": token + 1}
            for token in (PROMPT // 2, PROMPT - 1, PROMPT + 5) for layer in range(layers)]}
        keep = self.folder / "keep.json"
        keep.write_text(json.dumps(everything))
        plan, by_head = self.folder / "streaming.json", self.folder / "h2o.json"
        self.replay("off", "--policy", "streaming", "--plan-out", plan)
        self.replay("off", "--policy", "h2o", "--granularity", "kv-head", "--plan-out", by_head)
        removed, hidden = self.confirm("off", "seq_rm", keep, plan), self.confirm("off", "mask", keep, plan, by_head)
        for way in (removed, hidden):
            self.say(way[0]["kl"] == 0 and way[0]["delta_nll"] == 0 and way[0]["agreement"] == 1 and way[0]["rows"] == DECODED,
                     f"keep-all by {way[0]['by']}: KL {way[0]['kl']}")
        far = abs(removed[1]["kl"] - hidden[1]["kl"])
        self.say(removed[1]["kl"] > 0 and far < 0.01,
                 f"streaming 2x: KL {removed[1]['kl']:.4f} by seq_rm, {hidden[1]['kl']:.4f} by mask")
        self.say(hidden[2]["kl"] > 0, f"h2o 2x for each kv head, by mask: KL {hidden[2]['kl']:.4f}")

    def example(self, program):
        """Checks docs/examples/apply_plan_llama.cc: without events, keeping everything, and with evictions."""
        none = self.folder / "none.json"
        none.write_text(json.dumps({"schema": "kvtool.h2o-plan/1", "events": []}))
        said = [subprocess.run([program, self.model, self.text, str(PROMPT), str(self.folder / plan)], check=True, text=True,
                               capture_output=True, env={**os.environ, "GGML_BACKEND_DIR": self.engine}).stdout.strip()
                for plan in ("none.json", "keep.json", "streaming.json")]
        cells = [int(re.search(r"(\d+) cells", text)[1]) for text in said]
        self.say(said[0] == said[1] and cells[2] < cells[0], f"the example: {said[0]}; keep-all the same; streaming 2x: {said[2]}")

    def ends(self):
        """Checks that failures end as documented, and that nothing is left behind."""
        def left():
            return sorted(path.name for path in self.folder.iterdir() if path.name.startswith((".", "bad")))

        # RLIMIT_FSIZE makes writes fail; restore_signals=False leaves SIGXFSZ ignored, as Python sets it. The
        # lower limit stops the queries; the higher one lets them pass and stops the larger state.
        queries, state = ((self.folder / "on" / name).stat().st_size for name in ("trace/q.0.safetensors", "prefill.bin"))
        for size, what in ((queries // 2, "queries"), ((queries + state) // 2, "state")):
            full = self.capture("bad", restore_signals=False,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
            self.say(full.returncode == 4 and not left(), f"no room for the {what}: status {full.returncode}, {full.stderr.strip()}")
        command = [self.program, "-m", self.model, "-f", self.text, "-n", "100000", "--ignore-eos", "-t", "1", "--backends",
                   self.engine, "-o", str(self.folder / "bad")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not left() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            process.wait(60)
        self.say(process.returncode == 130 and not left(), f"an interrupt: status {process.returncode}")
        for text, more, status in (("a run that is there", [], 4), ("no such text", ["-f", "/no/such"], 4),
                                   ("too short a text", ["--prompt-tokens", "100000"], 3), ("no such option", ["--x"], 2)):
            done = self.capture("on" if status == 4 and not more else "bad", *more)
            self.say(done.returncode == status and not left(), f"{text}: status {done.returncode}, {done.stderr.strip()}")

    def all(self, example):
        self.record()
        self.plans()
        if example:
            self.example(example)
        self.ends()
        return self.failures


def first(*paths):
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        skip(f"none of {', '.join(map(str, paths))} exists")
    return str(found)


def numbers(value, name=""):
    """Yields masses and output errors of a report, with their paths."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from numbers(member, f"{name}.{key}")
    elif isinstance(value, list):
        for i, member in enumerate(value):
            yield from numbers(member, f"{name}[{i}]")
    elif isinstance(value, float) and re.search(r"\.(mass|output_error)\.mean$", name):
        yield name, value


def drive(engine_folder, model_file, run, flash):
    engine = Engine(engine_folder)
    model = engine.model(model_file)
    tokens = tensors(os.path.join(run, "trace/trace.safetensors"))["tokens"]
    prompt = json.loads(pathlib.Path(run, "run.json").read_text())["prompt_tokens"]
    context = engine.context(model, Setup(flash=flash == "1", cells=len(tokens)))
    words = engine.vocab_n_tokens(engine.model_get_vocab(model))
    whole = (ctypes.c_int32 * len(tokens))(*tokens)
    out, at = [], 0
    while at + 1 < len(tokens):
        count = min(512, prompt - at) if at < prompt else 1
        if engine.decode(context, engine.batch_get_one(ctypes.byref(whole, 4 * at), count)) != 0:
            raise SystemExit("the engine does not decode")
        at += count
        if at >= prompt:
            row = memoryview(ctypes.string_at(engine.get_logits_ith(context, -1), 4 * words)).cast("f")
            most = max(row)
            out.append(most + math.log(sum(math.exp(x - most) for x in row)) - row[tokens[at]])
    print(json.dumps(out))


def main():
    if sys.argv[1:2] == ["--drive"]:
        return drive(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvtool")
    parser.add_argument("--fetch", metavar="DIR", help="download engine and sources below this folder first")
    parser.add_argument("--engine", metavar="DIR", help="folder with the engine's libraries")
    parser.add_argument("--sources", metavar="DIR", help="checkout of the same release, to build the programs with")
    parser.add_argument("--program", metavar="FILE", help="kvtool-capture-llama, built for this engine")
    parser.add_argument("--example", metavar="FILE", help="docs/examples/apply_plan_llama.cc, built for this engine")
    parser.add_argument("--data", metavar="DIR", default=DATA, help="folder with models/ and llamacpp/")
    parser.add_argument("--model", metavar="FILE")
    parser.add_argument("--text", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.fetch:
        arguments.engine, arguments.sources = fetch(arguments.fetch, [RELEASE])[0], unpack_sources(arguments.fetch)
    if not arguments.engine or not glob.glob(os.path.join(arguments.engine, "libllama.*so")):
        skip("no engine")
    if not arguments.sources and not arguments.program:
        skip("neither sources nor a program")
    with tempfile.TemporaryDirectory(prefix="kvtool-capture-") as folder:
        if arguments.sources:
            places = (os.path.abspath(place) for place in (arguments.sources, arguments.engine))
            arguments.program, arguments.example = build(*places, folder)
        runs = pathlib.Path(folder, "runs")
        runs.mkdir()
        return 1 if Checker(arguments, runs).all(arguments.example) else 0


if __name__ == "__main__":
    sys.exit(main())
