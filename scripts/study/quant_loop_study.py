#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of quantised caches in docs/closed-loop.md: the predictions of replay-quant and the real losses of
models.

  quant_loop_study.py weights MODEL.gguf WORK   # the same weights widened to F32: WORK/model.gguf
  quant_loop_study.py capture WORK --program kvtool-capture-llama   # runs of texts, with gradients of every row
  quant_loop_study.py llama WORK --engine DIR   # llama.cpp with -ctk and -ctv on the same tokens
  quant_loop_study.py torch WORK                # types that it lacks: dequantised values in the model's own attention
  quant_loop_study.py report WORK docs/closed-loop --kvtool PROGRAM   # predictions, tables and picture

The weights are F32 because with quantised weights llama.cpp rounds activations to 8 bits, and that noise hides the
effect of q8_0 on a cache. DIR holds the libraries of @node-llama-cpp/linux-x64, as for llama_restore.py. Existing
files in WORK are not made again. Needs torch, transformers, gguf, safetensors and an installed kvtool. --texts names
some of closed_loop_study.py's texts.
"""
import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

TEXTS = ["gpl", "python", "pydoc", "perldiag"]
TOKENS, SAMPLES = 1024, 4
FIRST_ROWS = {"decoded": 512, "all": 1}  # first measured row: 0, or that of a decode after a prompt
BLOCKS = {"bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20}  # ggml's numbers
LLAMA = [pair for kind in BLOCKS for pair in ((kind, "f16"), ("f16", kind))]
LLAMA += [(kind, kind) for kind in ("q8_0", "q5_1", "q4_0")] + [("q8_0", "q4_0"), ("q5_1", "q4_0")]
TORCH = ["fp8_e4m3", "fp8_e5m2", "kivi4", "kivi2", "turboquant_4bit_nc", "turboquant_3bit_nc", "k16v8"]
HADAMARD_OFF = "LLAMA_ATTN_ROT_DISABLE"


def run_folder(work, name, engine):
    return work / "runs" / f"{name}-{engine}"


def tokens_of(work, name):
    from kvtool._loop_run import open_tensors
    return open_tensors(run_folder(work, name, "llama") / "trace")[0]["tokens"].ravel().tolist()


class Losses:
    """KL of each row, by types, for one text in one engine: WORK/real/NAME-ENGINE.npz, written after each type."""

    def __init__(self, work, name, engine):
        self.path = work / "real" / f"{name}-{engine}.npz"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = dict(np.load(self.path)) if self.path.exists() else {}

    def has(self, key):
        return f"{key}/kl" in self.rows

    def add(self, key, full, changed, tokens):
        """Adds the log probabilities of all rows without and with the change."""
        kl = np.empty(len(full))
        for at in range(0, len(full), 64):
            a, b = full[at:at + 64].astype(np.float64), changed[at:at + 64].astype(np.float64)
            kl[at:at + 64] = (np.exp(a) * (a - b)).sum(1)
        following = np.arange(len(tokens) - 1), np.asarray(tokens[1:])
        self.rows |= {f"{key}/kl": kl, f"{key}/same": full.argmax(1) == changed.argmax(1),
                      f"{key}/dnll": full[following] - changed[following]}
        np.savez(self.path, **self.rows)
        print(f"{self.path.stem} {key}: {kl[1:].mean():.5g} nats, same top {self.rows[f'{key}/same'].mean():.4f}", flush=True)


def log_softmax(logits):
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def weights(source, work):
    """Writes a copy of a GGUF file with all weights in F32."""
    import gguf
    work.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(work / "model.gguf", "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type",
                                                            "general.quantization_version"):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def capture(work, names, program):
    """Makes a run in llama.cpp and one in torch of the same tokens, with the gradients of all rows but the first, in
    both."""
    import torch
    from safetensors.numpy import save_file

    from closed_loop_study import texts
    from kvtool import _capture_fisher, _capture_model
    from kvtool import capture as capture_module
    from kvtool._capture_taps import attention_modules

    model = None
    for name in names:
        llama, torch_run = run_folder(work, name, "llama"), run_folder(work, name, "torch")
        llama.parent.mkdir(parents=True, exist_ok=True)
        if not llama.exists():
            text = work / "texts" / f"{name}.txt"
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(texts()[name])
            subprocess.run([program, "-m", work / "model.gguf", "-f", text, "--prompt-tokens", "1", "-n", str(TOKENS - 1),
                            "--flash", "on", "--no-hash", "-o", llama], check=True)
        missing = not (llama / "trace/g.0.safetensors").exists()
        if model is None and (missing or not torch_run.exists()):
            model = _capture_model.load(str(work / "model.gguf"), "f32")[0]
        tokens = tokens_of(work, name)
        if not torch_run.exists():
            with capture_module.record(model, torch_run, prompt_tokens=1) as _:
                capture_module.teacher_force(model, tokens, 1)
        if missing:
            found = {}
            _capture_fisher.gradients(
                model, attention_modules(model), tokens, 1, samples=SAMPLES, seed=0,
                heads=model.config.num_attention_heads,
                take=lambda layer, rows: found.setdefault(layer, []).append(rows.float().numpy().copy()))
            for layer, rows in sorted(found.items(), reverse=True):
                # The first row is not measured and has no gradients.
                whole = np.pad(np.stack(rows), ((0, 0), (1, 0), (0, 0), (0, 0)))
                save_file({f"g.{layer}": whole}, llama / f"trace/g.{layer}.safetensors")
            del found
        for file in (llama / "trace").glob("g.*.safetensors"):
            link = torch_run / "trace" / file.name
            if not link.exists():
                os.link(file, link)
        print(name, "captured", flush=True)
        del tokens
    torch.set_grad_enabled(True)


def measure_llama(work, names, folder, threads):
    import llama_restore
    from large_states import BATCH, Reader

    llama_restore.TYPES.update(BLOCKS)
    engine = llama_restore.Engine(str(folder))
    model = engine.model(str(work / "model.gguf"))

    def read(tokens, k, v, step=BATCH):
        setup = llama_restore.Setup(k=k, v=v, cells=-(-len(tokens) // 256) * 256, threads=threads)
        with Reader(engine, model, setup) as reader:
            parts = []
            for at in range(0, len(tokens), step):
                part = tokens[at:at + step]
                parts.append(log_softmax(reader.feed(part, range(at, at + len(part)), [0] * len(part), True)))
        return np.concatenate(parts)

    for name in names:
        tokens, losses = tokens_of(work, name), Losses(work, name, "llama")
        wanted = [pair for pair in LLAMA if not losses.has(":".join(pair))]
        unrotated = [(kind, side) for kind in ("q8_0", "q4_0") for side in "kv" if not losses.has(f"{kind}-plain-{side}")]
        if not wanted and not unrotated and losses.has("floor"):
            continue
        full = read(tokens, "f16", "f16")
        for k, v in wanted:
            losses.add(f"{k}:{v}", full, read(tokens, k, v), tokens)
        os.environ[HADAMARD_OFF] = "1"  # the engine reads it whenever it makes a context
        for kind, side in unrotated:
            k, v = (kind, "f16") if side == "k" else ("f16", kind)
            losses.add(f"{kind}-plain-{side}", full, read(tokens, k, v), tokens)
        del os.environ[HADAMARD_OFF]
        if not losses.has("floor"):  # floor: the loss of decoding one token at a time with an unchanged cache
            losses.add("floor", full, read(tokens, "f16", "f16", 1), tokens)


def measure_torch(work, names, threads):
    import torch
    from transformers import AttentionInterface

    import quant_loop_types
    from kvtool import _capture_model

    torch.set_num_threads(threads)
    model = _capture_model.load(str(work / "model.gguf"), "f32")[0]
    stored = quant_loop_types.StoredAttention(model.config.num_hidden_layers)
    AttentionInterface.register("kvtool_stored", stored)
    model.set_attn_implementation("kvtool_stored")

    def read(tokens, kind, side):
        """Returns log probabilities of all rows; for types that keep the prompt in full precision, those of the
        prompt are unchanged."""
        ids, cache = torch.tensor([tokens]), _capture_model.new_cache()
        late = kind is not None and quant_loop_types.TYPES[kind].has_tail
        bounds = [0, FIRST_ROWS["decoded"], len(tokens)] if late else [0, len(tokens)]
        parts = []
        with torch.inference_mode():
            for begin, end in zip(bounds, bounds[1:]):
                stored.choose(None if late and begin == 0 else kind, side)
                positions = torch.arange(begin, end)[None]
                logits = model(ids[:, begin:end], past_key_values=cache, use_cache=True, position_ids=positions).logits[0]
                parts.append(logits.log_softmax(-1).numpy())
        return np.concatenate(parts)

    for name in names:
        tokens, losses = tokens_of(work, name), Losses(work, name, "torch")
        wanted = [(kind, side) for kind in TORCH for side in ("v" if kind == "k16v8" else "kv")]
        wanted = [pair for pair in wanted if not losses.has("-".join(pair))]
        full = read(tokens, None, "") if wanted else None
        for kind, side in wanted:
            losses.add(f"{kind}-{side}", full, read(tokens, kind, side), tokens)


def main():
    for folder in ("make", "check", "study"):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / folder))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("weights")
    verb.add_argument("model")
    verb.add_argument("work", type=pathlib.Path)
    for name in ("capture", "llama", "torch", "report"):
        verb = verbs.add_parser(name)
        verb.add_argument("work", type=pathlib.Path)
        verb.add_argument("--texts", nargs="+", default=TEXTS, help=f"some of them ({' '.join(TEXTS)})")
        verb.add_argument("--threads", type=int, default=2)
        if name == "capture":
            verb.add_argument("--program", default="kvtool-capture-llama", help="kvtool-capture-llama")
        if name == "llama":
            verb.add_argument("--engine", type=pathlib.Path, required=True, help="folder with the engine's libraries")
        if name == "report":
            verb.add_argument("out", type=pathlib.Path)
            verb.add_argument("--kvtool", default="kvtool", help="the program")
    arguments = parser.parse_args()
    if arguments.verb == "weights":
        weights(arguments.model, arguments.work)
    elif arguments.verb == "capture":
        capture(arguments.work, arguments.texts, arguments.program)
    elif arguments.verb == "llama":
        measure_llama(arguments.work, arguments.texts, arguments.engine, arguments.threads)
    elif arguments.verb == "torch":
        measure_torch(arguments.work, arguments.texts, arguments.threads)
    else:
        import quant_loop_report
        quant_loop_report.report(arguments)


if __name__ == "__main__":
    main()
