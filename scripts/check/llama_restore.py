#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that llama.cpp itself reads what kvtool wrote: a real build of the engine restores states before and after a
conversion by kvtool, and its continuations are compared.

For each case the engine restores the original state, drops the last token, decodes it again and continues greedily;
then it does the same with the converted file. Tokens and every bit of the logits must be equal, and the engine, asked
to save what it restored, must write kvtool's file again byte for byte. Archives of every level are tried with the next
64 tokens.

With older engines, whose states kvtool writes too, the newest state is written for that build (--target-version) and
must continue with the tokens that the engine finds by reading the prompt itself.

Quantised caches (replay-quant --output) must continue nearly as the engine does with that type; not exactly, because
in the engine each layer's values are computed from layers that are already quantised.

Lossy archives (compress --transform) must continue nearly as their originals: stories that the engine tells teach a
transform, and the state of another story is approximated at the ratio 12.

Caches of transformers (transformers_cache.py computes them without kvtool) are written as states: the newest engine
must continue as after its own reading of the prompt, which it does not if K is not reordered.

  llama_restore.py build/release/bin/kvtool --fetch ENGINES
  llama_restore.py build/release/bin/kvtool --fetch ENGINES --release all --data DATA_DIR
  llama_restore.py build/release/bin/kvtool --engine ENGINES/3.22.1 --data DATA_DIR

Each engine folder holds the prebuilt CPU libraries of one release of the npm package @node-llama-cpp/linux-x64; --fetch
has npm download those that ENGINES lacks (some 11 MB each), of the newest release or of each --release. DATA_DIR holds
models/*.gguf and llamacpp/states/*.bin; cases whose model or state is missing are skipped and named. Without --data it
is $LLAMA_DATA or testdata, which has one model, stories260K. Exit status: 0 all equal, 1 something differs, 77 no
engine or no data.
"""
import argparse
import ctypes
import glob
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

import numpy as np

import transformers_cache

PACKAGE = "@node-llama-cpp/linux-x64"
# Releases of the npm package; their builds of llama.cpp are v0.5.0, b10361, b8352, b6673, b6122, b5640 and b4753.
RELEASES = ["3.22.1", "3.20.0", "3.18.0", "3.14.0", "3.12.0", "3.10.0", "3.6.0"]
TOKENS = 16  # decoded after each restore
LONG_TOKENS = 64  # tokens decoded from a file that a conversion must not change
LEVELS = ["compat", "fast", "default", "high", "max"]
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20}  # ggml's numbers
NEAR = 1e-4  # limit of the KL in nats, beyond the type's own loss
# The transform is learnt from all stories but one, and tested on that one.
STORIES, STORY_TOKENS, NEXT_TOKENS = 8, 400, 64
LOSSY_RATIO, LOSSY_NATS, LOSSY_SIZE = 12, 0.03, 5  # measured: 0.0045 nats, 5.99 times smaller
SKIP = 77
# testdata has one small model and some of its states.
DATA = os.environ.get("LLAMA_DATA") or str(pathlib.Path(__file__).resolve().parents[2] / "testdata")


class Params(ctypes.Structure):
    """A parameter struct of the C API, as words. It is larger than the real one, of which the engine reads a prefix.
    Defaults come from the engine; the few fields that are set are found by their offset, which `check` verifies by
    their expected defaults."""

    _fields_ = [("words", ctypes.c_int32 * 64)]


# Offsets of fields in llama_context_params, by build: word offset and the default that must be there. `flash` is a word
# (-1 automatic, 0, 1) or, before late 2025, the offset of a bool; `unified` is a bool.
LAYOUTS = [
    {"n_ctx": (0, 512), "n_seq_max": (3, 1), "n_threads": (7, 4), "n_threads_batch": (8, 4), "flash": (13, -1),
     "type_k": (26, 1), "type_v": (27, 1), "unified": 133},
    {"n_ctx": (0, 512), "n_seq_max": (3, 1), "n_threads": (4, 4), "n_threads_batch": (5, 4), "flash": (9, -1),
     "type_k": (22, 1), "type_v": (23, 1), "unified": 117},
    {"n_ctx": (0, 512), "n_seq_max": (3, 1), "n_threads": (4, 4), "n_threads_batch": (5, 4), "flash": 114,
     "type_k": (22, 1), "type_v": (23, 1), "unified": 118, "flags": (24, 0)},
    {"n_ctx": (0, 512), "n_seq_max": (3, 1), "n_threads": (4, 4), "n_threads_batch": (5, 4), "flash": 99,
     "type_k": (22, 1), "type_v": (23, 1), "flags": (24, 0x10000)},
]
OLD_NAMES = {"memory_seq_pos_max": "kv_cache_seq_pos_max", "memory_seq_rm": "kv_cache_seq_rm"}


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32)] + [
        (name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]


class Engine:
    """The public C API of llama.cpp through ctypes. Large structs are returned through a hidden pointer."""

    def __init__(self, folder):
        def load(pattern):
            return ctypes.CDLL(glob.glob(os.path.join(folder, pattern))[0], ctypes.RTLD_GLOBAL)

        with open(os.path.join(folder, "_nlcBuildMetadata.json"), encoding="utf-8") as text:
            self.version = json.load(text)["buildOptions"]["llamaCpp"]["release"]
        load("libggml-base.so")
        ggml = load("libggml.*so")
        self.lib = load("libllama.*so")
        pointer, i32, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t
        for name, result, *arguments in [
                ("model_default_params", None, pointer), ("context_default_params", None, pointer),
                ("model_load_from_file", pointer, ctypes.c_char_p, Params),
                ("init_from_model", pointer, pointer, Params), ("free", None, pointer),
                ("model_get_vocab", pointer, pointer), ("vocab_n_tokens", i32, pointer),
                ("batch_get_one", Batch, pointer, i32), ("decode", i32, pointer, Batch),
                ("get_logits_ith", pointer, pointer, i32), ("get_memory", pointer, pointer),
                ("memory_seq_pos_max", i32, pointer, i32), ("memory_seq_rm", ctypes.c_bool, pointer, i32, i32, i32),
                ("state_seq_load_file", size, pointer, ctypes.c_char_p, i32, pointer, size, pointer),
                ("state_seq_save_file", size, pointer, ctypes.c_char_p, i32, pointer, size),
                ("vocab_bos", i32, pointer), ("vocab_is_eog", ctypes.c_bool, pointer, i32),
                ("tokenize", i32, pointer, ctypes.c_char_p, i32, pointer, i32, ctypes.c_bool, ctypes.c_bool),
                ("state_load_file", ctypes.c_bool, pointer, ctypes.c_char_p, pointer, size, pointer),
                ("state_save_file", ctypes.c_bool, pointer, ctypes.c_char_p, pointer, size),
                ("log_set", None, pointer, pointer)]:
            if name == "get_memory" and not hasattr(self.lib, "llama_get_memory"):
                self.get_memory = lambda context: context  # older versions pass the context instead
                continue
            if not hasattr(self.lib, "llama_" + name):
                function = getattr(self.lib, "llama_" + OLD_NAMES[name])
            else:
                function = getattr(self.lib, "llama_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.quiet = ctypes.CFUNCTYPE(None, i32, ctypes.c_char_p, pointer)(lambda *_: None)
        self.log_set(self.quiet, None)
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(os.fsencode(folder))
        self.models = {}

    def model(self, path):
        if path not in self.models:
            params = Params()
            self.model_default_params(ctypes.byref(params))
            self.models[path] = self.model_load_from_file(os.fsencode(path), params)
            if not self.models[path]:
                raise SystemExit(f"the engine does not load {path}")
        return self.models[path]

    def context(self, model, setup):
        params = Params()
        self.context_default_params(ctypes.byref(params))
        layout = next((layout for layout in LAYOUTS if all(
            params.words[at[0]] == at[1] for at in layout.values() if isinstance(at, tuple))), None)
        if layout is None:
            raise SystemExit(f"the parameters of llama.cpp {self.version} lie elsewhere than this script knows")
        flags = ctypes.cast(ctypes.byref(params), ctypes.POINTER(ctypes.c_uint8))
        wanted = {"n_ctx": setup.cells, "n_threads": setup.threads, "n_threads_batch": setup.threads, "flash": int(setup.flash),
                  "type_k": TYPES[setup.k], "type_v": TYPES[setup.v], "n_seq_max": setup.sequences}
        for name, value in wanted.items():
            if isinstance(layout[name], tuple):
                params.words[layout[name][0]] = value
            else:
                flags[layout[name]] = value
        if setup.sequences > 1:
            flags[layout["unified"]] = 1
        context = self.init_from_model(model, params)
        if not context:
            raise SystemExit("the engine makes no context")
        return context

    def step(self, context, token, vocabulary):
        """Decodes a token and returns the log-probabilities of the next one."""
        token = ctypes.c_int32(token)
        if self.decode(context, self.batch_get_one(ctypes.byref(token), 1)) != 0:
            raise SystemExit("the engine does not decode")
        logits = np.frombuffer(ctypes.string_at(self.get_logits_ith(context, -1), 4 * vocabulary), np.float32)
        logits = logits.astype(np.float64) - logits.max()
        return logits - np.log(np.exp(logits).sum())


class Setup:
    """Settings of the engine for a state."""

    def __init__(self, model="stories260K-f32", flash=True, k="f16", v="f16", sequences=1, cells=2048, threads=1):
        self.model, self.flash, self.k, self.v = model, flash, k, v
        self.sequences, self.cells, self.threads = sequences, cells, threads


class Run:
    """The engine's output for one file or, without a file, for a prompt."""

    def __init__(self, engine, models, setup, path, folder, prompt=None, count=TOKENS):
        self.count = count
        model = engine.model(str(models / (setup.model + ".gguf")))
        context = engine.context(model, setup)
        ids, stored = (ctypes.c_int32 * 4096)(), ctypes.c_size_t()
        self.tokens, self.logits, self.saved_same, self.prompt = [], b"", False, prompt
        if path is None:
            whole = (ctypes.c_int32 * len(prompt))(*prompt)
            self.loaded = engine.decode(context, engine.batch_get_one(ctypes.byref(whole), len(prompt))) == 0
            self.go_on(engine, context, model, prompt)
            engine.free(context)
            return
        data = path.read_bytes()
        session = data[:4] == b"nsgg"
        name = os.fsencode(path)
        if session:
            self.loaded = engine.state_load_file(context, name, ids, 4096, ctypes.byref(stored))
        else:
            self.loaded = engine.state_seq_load_file(context, name, 0, ids, 4096, ctypes.byref(stored)) > 0
        if self.loaded:
            self.prompt = list(ids[:stored.value]) or prompt
            again = folder / "saved.bin"
            if session:
                engine.state_save_file(context, os.fsencode(again), ids, stored)
            else:
                engine.state_seq_save_file(context, os.fsencode(again), 0, ids, stored)
            self.saved_same = again.read_bytes() == data
            self.go_on(engine, context, model, self.prompt)
        engine.free(context)

    def go_on(self, engine, context, model, prompt):
        vocabulary = engine.vocab_n_tokens(engine.model_get_vocab(model))
        memory = engine.get_memory(context)
        last = engine.memory_seq_pos_max(memory, 0)
        engine.memory_seq_rm(memory, 0, last, -1)
        token = ctypes.c_int32(prompt[last])
        for _ in range(self.count):
            if engine.decode(context, engine.batch_get_one(ctypes.byref(token), 1)) != 0:
                raise SystemExit("the engine does not decode")
            logits = ctypes.string_at(engine.get_logits_ith(context, -1), 4 * vocabulary)
            values = memoryview(logits).cast("f")
            token = ctypes.c_int32(max(range(vocabulary), key=values.__getitem__))
            self.tokens.append(token.value)
            self.logits += logits


class Checker:
    def __init__(self, arguments):
        self.kvtool = os.path.abspath(arguments.kvtool)
        self.states = pathlib.Path(arguments.data) / "llamacpp/states"
        self.models = pathlib.Path(arguments.data) / "models"
        self.engine = Engine(arguments.engine)
        self.failures, self.tried, self.left_out = 0, 0, set()

    def lacks(self, setup, state):
        """Returns True, and prints what is missing, if the model or the state does not exist."""
        model = self.models / (setup.model + ".gguf")
        missing = tuple(path.name for path in (model, state) if not path.exists())
        if missing and missing not in self.left_out:
            print(f"left out: --data lacks {' and '.join(missing)}")
        self.left_out.add(missing)
        self.tried += not missing
        return bool(missing)

    def tool(self, *arguments):
        subprocess.run([self.kvtool, *map(str, arguments), "-qq"], check=True)

    def trip(self, state, way, folder, *final):
        """Returns the state after conversion to a format and back, as llama.cpp reads it."""
        back = folder / f"{way}.bin"
        source = state
        if way == "archive":  # compress and decompress
            self.tool("compress", state, "-o", folder / "a.kvz")
            self.tool("decompress", folder / "a.kvz", "-o", back)
            return back
        if way == "kvz":
            source = folder / "b.kvz"
            self.tool("compress", state, "-o", source)
        elif way != "direct":
            heads = {"s260k": 4, "kjv3m": 2}[state.name.split("-")[0]]
            source = folder / f"c.{way}"
            self.tool("convert", state, "--to", way, "--kv-heads", heads, "-o", source)
        session = state.name.endswith(".session.bin") and not final
        self.tool("convert", source, "--to", "llama-session" if session else "llama-state", *final, "-o", back)
        return back

    def compare(self, name, setup, state, ways, *final, other=None, exact=True):
        """Compares two continuations. `other` is the engine's set-up for the converted file, if it differs from the
        original's."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            original = Run(self.engine, self.models, setup, state, folder)
            for way in ways:
                back = self.trip(state, way, folder, *final)
                run = Run(self.engine, self.models, other or setup, back, folder)
                good = original.loaded and run.loaded and run.saved_same and run.tokens == original.tokens
                good = good and (not exact or run.logits == original.logits)
                self.failures += not good
                if not run.loaded:
                    text = "the engine refuses it"
                else:
                    far = "equal" if run.logits == original.logits else f"up to {distance(run, original):.2g} apart"
                    text = (f"{TOKENS} tokens {'equal' if run.tokens == original.tokens else 'DIFFER'}, logits {far}, "
                            f"saved again {'equal' if run.saved_same else 'DIFFERENT'}")
                print(f"{'ok  ' if good else 'FAIL'} {name}, {way}: {text}")

    def levels(self, setup, state):
        """Checks an archive of every level: it restores the same file, and the engine continues with the same bits."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            original = Run(self.engine, self.models, setup, state, folder, count=LONG_TOKENS)
            for level in LEVELS:
                archive, back = folder / f"{level}.kvz", folder / f"{level}.bin"
                self.tool("compress", state, "--level", level, "-o", archive)
                self.tool("decompress", archive, "-o", back)
                run = Run(self.engine, self.models, setup, back, folder, count=LONG_TOKENS)
                same = back.read_bytes() == state.read_bytes()
                good = same and original.loaded and run.loaded and run.tokens == original.tokens
                good = good and len(run.tokens) == LONG_TOKENS and run.logits == original.logits
                self.failures += not good
                ratio = state.stat().st_size / archive.stat().st_size
                print(f"{'ok  ' if good else 'FAIL'} {self.engine.version}: {state.name}, level {level} ({ratio:.2f}x): file "
                      f"{'equal' if same else 'DIFFERENT'}, {LONG_TOKENS} tokens and logits {'equal' if good else 'DIFFER'}")

    def control(self, setup, state):
        """Checks that the comparison detects a difference: one flipped bit of the first K."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            data = bytearray(state.read_bytes())
            data[len(data) // 4] ^= 0x40
            damaged = folder / "damaged.bin"
            damaged.write_bytes(data)
            runs = [Run(self.engine, self.models, setup, path, folder) for path in (state, damaged)]
            good = runs[1].loaded and runs[0].logits != runs[1].logits
            self.failures += not good
            print(f"{'ok  ' if good else 'FAIL'} control, one bit of K turned: logits "
                  f"{'up to %.2g apart' % distance(*runs) if good else 'EQUAL'}")

    def older(self, setup, state, *final):
        """Compares the newest engine's state, written for this older engine, with this engine's own reading of the
        prompt."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            back = self.trip(state, "safetensors", folder, "--target-version", self.engine.version, *final)
            run = Run(self.engine, self.models, setup, back, folder)
            own = Run(self.engine, self.models, setup, None, folder, run.prompt) if run.loaded else None
            good = run.loaded and run.saved_same and run.tokens == own.tokens
            self.failures += not good
            text = "the engine refuses it" if not run.loaded else (
                f"{TOKENS} tokens {'equal' if run.tokens == own.tokens else 'DIFFER'}, logits up to "
                f"{distance(run, own):.2g} apart, saved again {'equal' if run.saved_same else 'DIFFERENT'}")
            print(f"{'ok  ' if good else 'FAIL'} {self.engine.version}: SEQ f16 written for it by --target-version, V in "
                  f"{'rows' if setup.flash else 'columns'}, against its own reading of the prompt: {text}")

    def transformers(self, setup, state):
        """Converts a cache that transformers computed: the engine must continue as after its own reading of the
        prompt, and must differ if K stays in the order of transformers. Also checks the conversion
        back."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            model, made = self.models / (setup.model + ".gguf"), folder / "hf.npz"
            tokens = transformers_cache.prompt_of(state)
            transformers_cache.write(transformers_cache.Gguf(model), tokens, made)
            prompt = tokens.tolist()
            own = Run(self.engine, self.models, setup, None, folder, prompt)
            self.tool("convert", made, "--to", "torch", "-o", folder / "hf.pt")
            for pairs in ([], ["--rope-pairs", "keep"]):
                back = folder / "taken.bin"
                self.tool("convert", folder / "hf.pt", "--to", "llama-state", "--gguf", model, *pairs, "-f", "-o", back)
                run = Run(self.engine, self.models, setup, back, folder, prompt)
                same = run.loaded and run.tokens == own.tokens
                good = run.loaded and same != bool(pairs)
                self.failures += not good
                print(f"{'ok  ' if good else 'FAIL'} {setup.model}, K of transformers {'left as it is (control)' if pairs else 'reordered'}"
                      f": {TOKENS} tokens {'equal' if same else 'DIFFER'}, logits up to {distance(run, own):.2g} apart")
            self.tool("convert", state, "--to", "torch", "--gguf", model, "-o", folder / "back.pt")
            there = subprocess.run([self.kvtool, "diff", folder / "back.pt", made, "--atol", "0.05", "-qq"]).returncode
            self.failures += there != 0
            print(f"{'ok  ' if there == 0 else 'FAIL'} {setup.model}, the engine's state as transformers' cache: "
                  f"{'as' if there == 0 else 'NOT as'} transformers computes it, to 0.05")

    def quantised(self, model, state):
        """Compares the full cache in each type, as `replay-quant --output` writes it, with the engine's own reading of
        the prompt with -ctk and -ctv. The two are near, not equal: the engine computes a layer from states that the
        types of earlier layers have changed. A cache written for another rotation would be noise to the engine."""
        if self.lacks(Setup(model), state):
            return
        vocabulary = self.engine.vocab_n_tokens(self.engine.model_get_vocab(self.engine.model(str(self.models / f"{model}.gguf"))))
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            full = Run(self.engine, self.models, Setup(model), state, folder, count=1)
            heads = len(full.prompt), 4, 64  # queries may have any values, because the state does not depend on them
            np.savez(folder / "trace.npz", **{"q.0": np.ones(heads, np.float32)})
            for kind in TYPES:
                if kind == "f32":
                    continue
                setup, runs = Setup(model, k=kind, v=kind), {}
                for rotated in ("yes", "no"):
                    back = folder / f"{kind}-{rotated}.bin"
                    self.tool("replay-quant", state, "--trace", folder / "trace.npz", "--k", kind, "--v", kind,
                              "--kv-heads", 2, "--hadamard", rotated, "-o", back, "-f", "--json-out", folder / "quant.json")
                    runs[rotated] = Run(self.engine, self.models, setup, back, folder, count=1)
                own = Run(self.engine, self.models, setup, None, folder, full.prompt, count=1)
                near, wrong = (divergence(own, runs[rotated], vocabulary) for rotated in ("yes", "no"))
                lost = divergence(full, own, vocabulary)
                is_block = kind not in ("f16", "bf16")
                good = runs["yes"].loaded and runs["yes"].saved_same and near < NEAR + lost
                good = good and (not is_block or wrong > 10 * near)
                self.failures += not good
                print(f"{'ok  ' if good else 'FAIL'} {model}, replay-quant -o in {kind}: the next token {near:.2g} nats from the engine's "
                      f"own -ctk {kind} -ctv {kind}, which is {lost:.2g} from f16" +
                      (f"; not rotated, {wrong:.2g}" if is_block else ""))

    def tell(self, setup, path, seed):
        """Samples a story, saves the state after STORY_TOKENS tokens, and returns all tokens."""
        model = self.engine.model(str(self.models / (setup.model + ".gguf")))
        vocabulary = self.engine.vocab_n_tokens(self.engine.model_get_vocab(model))
        context, random, tokens = self.engine.context(model, setup), np.random.default_rng(seed), [1]
        for count in range(1, STORY_TOKENS + NEXT_TOKENS):
            logits = self.engine.step(context, tokens[-1], vocabulary)
            if count == STORY_TOKENS:
                ids = (ctypes.c_int32 * count)(*tokens)
                self.engine.state_seq_save_file(context, os.fsencode(path), 0, ids, count)
            chances = np.exp(logits)
            tokens.append(int(random.choice(vocabulary, p=chances / chances.sum())))
        self.engine.free(context)
        return tokens

    def hear(self, setup, path, tokens):
        """Returns log-probabilities after the state's last token and after each of those that follow."""
        model = self.engine.model(str(self.models / (setup.model + ".gguf")))
        vocabulary = self.engine.vocab_n_tokens(self.engine.model_get_vocab(model))
        context, ids, stored = self.engine.context(model, setup), (ctypes.c_int32 * 4096)(), ctypes.c_size_t()
        if not self.engine.state_seq_load_file(context, os.fsencode(path), 0, ids, 4096, ctypes.byref(stored)):
            raise SystemExit(f"the engine does not load {path}")
        self.engine.memory_seq_rm(self.engine.get_memory(context), 0, STORY_TOKENS - 1, -1)
        logits = [self.engine.step(context, token, vocabulary) for token in tokens[STORY_TOKENS - 1:]]
        self.engine.free(context)
        return np.array(logits)

    def lossy(self, setup, state):
        """Compares the engine's next tokens after a state with those after its approximation."""
        if self.lacks(setup, state):
            return
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            paths = [folder / f"{seed}.bin" for seed in range(STORIES)]
            tokens = [self.tell(setup, path, seed) for seed, path in enumerate(paths)][-1]
            rope = ["--kv-heads", 4, "--head-dim", 8, "--rope-base", 10000, "--rope-style", "gptj"]
            self.tool("train", *paths[:-1], "--transform", "kvtc", "--keep-last", 16, "--ratio", LOSSY_RATIO, *rope,
                      "-o", folder / "model.kvx")
            archive, back = folder / "a.lossy.kvz", folder / "back.bin"
            self.tool("compress", paths[-1], "--transform", folder / "model.kvx", "--ratio", LOSSY_RATIO, *rope, "-o", archive)
            self.tool("decompress", archive, "-o", back)
            full, near = self.hear(setup, paths[-1], tokens), self.hear(setup, back, tokens)
            nats = float((np.exp(full) * (full - near)).sum(axis=1).mean())
            smaller = paths[-1].stat().st_size / archive.stat().st_size
            good = back.stat().st_size == paths[-1].stat().st_size and nats < LOSSY_NATS and smaller > LOSSY_SIZE
            self.failures += not good
            print(f"{'ok  ' if good else 'FAIL'} a lossy archive, {smaller:.2f} times smaller: {nats:.2g} nats at the next "
                  f"{len(full)} tokens, {100 * (full.argmax(1) == near.argmax(1)).mean():.0f} % with the same first choice")

    def all(self):
        rows, columns = Setup(), Setup(flash=False)
        state = self.states / "s260k-v050-f16.seq0.bin"
        self.older(rows, state, "--v-order", "rows")
        self.older(columns, state, "--v-order", "transposed")
        if self.engine.version != "v0.5.0":
            return self.failures
        self.levels(rows, state)
        self.levels(Setup("kjv3m-f16"), self.states / "kjv3m-v050-f16.seq0.bin")
        self.levels(Setup("kjv3m-f16", k="q8_0", v="q8_0"), self.states / "kjv3m-v050-q8_0-rotated.seq0.bin")
        self.compare("SEQ f16, V in rows", rows, state,
                     ["direct", "archive", "kvz", "safetensors", "npz", "npy", "torch-dict"])
        self.compare("SEQ f16, V turned for an engine without flash attention", rows, state, ["safetensors"],
                     "--v-order", "transposed", other=columns, exact=False)
        self.compare("SEQ f32, V transposed", Setup(flash=False, k="f32", v="f32"),
                     self.states / "s260k-v050-f32-vtrans.seq0.bin", ["direct", "archive", "kvz", "npz", "torch-dict"])
        session = self.states / "s260k-v050-f16-vtrans.session.bin"
        self.compare("SESSION f16, V transposed", columns, session, ["direct", "archive", "kvz", "safetensors"])
        self.compare("SESSION to SEQ, V transposed", columns, session, ["npz"], "--sequence", "0")
        self.compare("SESSION to SEQ, V in rows", columns, session, ["direct"], "--sequence", "0", "--v-order", "rows",
                     other=rows, exact=False)
        two = Setup(flash=False, sequences=2)
        self.compare("SESSION of two sequences", two, self.states / "s260k-v050-2seq-unified.session.bin",
                     ["direct", "archive", "safetensors"])
        self.compare("SEQ q8_0, Hadamard-rotated", Setup("kjv3m-f16", k="q8_0", v="q8_0"),
                     self.states / "kjv3m-v050-q8_0-rotated.seq0.bin", ["direct", "archive", "safetensors", "torch-dict"])
        self.compare("SEQ q8_0 K, f16 V transposed", Setup("kjv3m-f16", flash=False, k="q8_0"),
                     self.states / "kjv3m-v050-kq8_0-vf16-vtrans.seq0.bin", ["direct", "npz"])
        self.transformers(rows, state)
        self.transformers(Setup("kjv3m-f16"), self.states / "kjv3m-v050-f16.seq0.bin")
        self.control(rows, state)
        self.lossy(rows, state)
        self.quantised("kjv3m-f16", self.states / "kjv3m-v050-f16.seq0.bin")
        return self.failures


def divergence(a, b, vocabulary):
    """Returns the KL of the first distribution after a restore, in nats."""
    x, y = (np.frombuffer(run.logits, np.float32, vocabulary).astype(np.float64) for run in (a, b))
    x, y = (logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()) for logits in (x, y))
    return float((np.exp(x) * (x - y)).sum())


def distance(a, b):
    """Returns the largest difference between the logits of two runs."""
    return max(abs(x - y) for x, y in zip(memoryview(a.logits).cast("f"), memoryview(b.logits).cast("f")))


def pack(package, folder):
    """Returns the archive of an npm package, through npm as the machine has configured it. Ends the script as skipped
    if npm fails."""
    if not shutil.which("npm"):
        skip(f"npm, which would fetch {package}, is not installed")
    done = subprocess.run(["npm", "pack", package, "--pack-destination", folder, "--prefer-offline", "--fetch-retries=1",
                           "--fetch-timeout=60000", "--loglevel=error"], capture_output=True, text=True)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if " code " not in line and line.startswith("npm")]
        skip(f"npm pack {package}: {max(said, key=len, default='failed')}")
    return pathlib.Path(folder, done.stdout.split()[-1])


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def fetch(folder, releases):
    """Unpacks the libraries of each release into its own folder, unless that exists."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        skip(f"{PACKAGE} has libraries for Linux on x86-64 alone")
    engines = [os.path.join(folder, release) for release in releases]
    os.makedirs(folder, exist_ok=True)
    for release, target in zip(releases, engines):
        if os.path.isdir(target):
            continue
        with tempfile.TemporaryDirectory(dir=folder) as work:
            archive = pack(f"{PACKAGE}@{release}", work)
            print(f"{PACKAGE}@{release}: sha256 {hashlib.sha256(archive.read_bytes()).hexdigest()}")
            unpacked = os.path.join(work, release)
            os.mkdir(unpacked)
            with tarfile.open(archive) as package:
                for member in package.getmembers():
                    name = os.path.basename(member.name)
                    if member.isfile() and (name.endswith(".so") or name == "_nlcBuildMetadata.json"):
                        with package.extractfile(member) as data, open(os.path.join(unpacked, name), "wb") as out:
                            shutil.copyfileobj(data, out)
            try:
                os.rename(unpacked, target)
            except OSError:
                if not os.path.isdir(target):  # another process may have created it
                    raise
    return engines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvtool")
    parser.add_argument("--engine", metavar="DIR", action="append", default=[], help="folder with an engine's libraries")
    parser.add_argument("--fetch", metavar="DIR", help="download engines below this folder first")
    parser.add_argument("--release", action="append", choices=["all", *RELEASES], help=f"of --fetch (default: {RELEASES[0]})")
    parser.add_argument("--data", metavar="DIR", default=DATA, help="folder with models/ and llamacpp/states/")
    arguments = parser.parse_args()
    releases = arguments.release or RELEASES[:1]
    engines = list(arguments.engine)
    if arguments.fetch:
        engines += fetch(arguments.fetch, RELEASES if "all" in releases else releases)
    if not engines or not all(glob.glob(os.path.join(engine, "libllama.*so")) for engine in engines):
        skip("no engine")
    if len(engines) == 1:
        arguments.engine = engines[0]
        checker = Checker(arguments)
        failures = checker.all()
        if not checker.tried:
            skip(f"{arguments.data} has no state together with its model")
        return 1 if failures else 0
    # One process per release, because two builds of a library cannot share one.
    return max(subprocess.run([sys.executable, __file__, arguments.kvtool, "--engine", engine, "--data",
                               arguments.data]).returncode for engine in engines)


if __name__ == "__main__":
    sys.exit(main())
