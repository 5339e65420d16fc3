#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that llama.cpp itself takes what kvtool wrote: restores states before and after a trip through
kvtool with a real build of the engine and compares how it goes on.

For each case the engine restores the original state, drops the last token, decodes it again and goes on
greedily; the same with the file that came back. Tokens and every bit of the logits must be equal, and the
engine, asked to save what it restored, must write our file again byte for byte.

  check_llama_restore.py build/release/bin/kvtool --fetch ENGINE_DIR --data DATA_DIR
  check_llama_restore.py build/release/bin/kvtool --engine ENGINE_DIR --data DATA_DIR

ENGINE_DIR holds (or gets, with --fetch, 11 MB from the npm registry) the prebuilt CPU libraries of
@node-llama-cpp/linux-x64 3.22.1, which are llama.cpp v0.5.0. DATA_DIR holds models/*.gguf and
llamacpp/states/*.bin. Exit status: 0 all equal, 1 something differs, 77 no engine or no data.
"""
import argparse
import ctypes
import glob
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

PACKAGE = "https://registry.npmjs.org/@node-llama-cpp/linux-x64/-/linux-x64-3.22.1.tgz"
TOKENS = 16  # decoded after each restore
TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
SKIP = 77


class Params(ctypes.Structure):
    """A parameter struct of the C API, as words: larger than the real one, which the engine reads a prefix
    of. Defaults come from the engine; the few fields set here are found by their offset, which `check`
    compares with the defaults that they must have."""

    _fields_ = [("words", ctypes.c_int32 * 64)]


# Fields of llama_context_params in v0.5.0: offset in words, default.
FIELDS = {"n_ctx": (0, 512), "n_batch": (1, 2048), "n_seq_max": (3, 1), "n_threads": (7, 4),
          "n_threads_batch": (8, 4), "flash_attn": (13, -1), "type_k": (26, 1), "type_v": (27, 1)}
UNIFIED_BYTE = 133  # bool kv_unified


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32)] + [
        (name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]


class Engine:
    """The public C API of llama.cpp through ctypes. Large structs are returned through a hidden pointer."""

    def __init__(self, folder):
        def load(pattern):
            return ctypes.CDLL(glob.glob(os.path.join(folder, pattern))[0], ctypes.RTLD_GLOBAL)

        load("libggml-base.so")
        ggml = load("libggml.v*.so")
        self.lib = load("libllama.v*.so")
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
                ("state_load_file", ctypes.c_bool, pointer, ctypes.c_char_p, pointer, size, pointer),
                ("state_save_file", ctypes.c_bool, pointer, ctypes.c_char_p, pointer, size),
                ("log_set", None, pointer, pointer)]:
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
        for name, (word, default) in FIELDS.items():
            if params.words[word] != default:
                raise SystemExit(f"{name} is {params.words[word]} by default, {default} in v0.5.0: another engine")
        wanted = {"n_ctx": 2048, "n_threads": 1, "n_threads_batch": 1, "flash_attn": int(setup.flash),
                  "type_k": TYPES[setup.k], "type_v": TYPES[setup.v], "n_seq_max": setup.sequences}
        for name, value in wanted.items():
            params.words[FIELDS[name][0]] = value
        if setup.sequences > 1:
            ctypes.cast(ctypes.byref(params), ctypes.POINTER(ctypes.c_uint8))[UNIFIED_BYTE] = 1
        context = self.init_from_model(model, params)
        if not context:
            raise SystemExit("the engine makes no context")
        return context


class Setup:
    """How the engine is set up for a state."""

    def __init__(self, model="stories260K-f32", flash=True, k="f16", v="f16", sequences=1):
        self.model, self.flash, self.k, self.v, self.sequences = model, flash, k, v, sequences


class Run:
    """What the engine made of one file."""

    def __init__(self, engine, models, setup, path, folder, prompt=None):
        model = engine.model(str(models / (setup.model + ".gguf")))
        context = engine.context(model, setup)
        ids, count = (ctypes.c_int32 * 4096)(), ctypes.c_size_t()
        data = path.read_bytes()
        session = data[:4] == b"nsgg"
        name = os.fsencode(path)
        if session:
            self.loaded = engine.state_load_file(context, name, ids, 4096, ctypes.byref(count))
        else:
            self.loaded = engine.state_seq_load_file(context, name, 0, ids, 4096, ctypes.byref(count)) > 0
        self.tokens, self.logits, self.saved_same = [], b"", False
        if self.loaded:
            again = folder / "saved.bin"
            if session:
                engine.state_save_file(context, os.fsencode(again), ids, count)
            else:
                engine.state_seq_save_file(context, os.fsencode(again), 0, ids, count)
            self.saved_same = again.read_bytes() == data
            self.go_on(engine, context, model, prompt or list(ids[:count.value]))
        engine.free(context)

    def go_on(self, engine, context, model, prompt):
        vocabulary = engine.vocab_n_tokens(engine.model_get_vocab(model))
        memory = engine.get_memory(context)
        last = engine.memory_seq_pos_max(memory, 0)
        engine.memory_seq_rm(memory, 0, last, -1)
        token = ctypes.c_int32(prompt[last])
        for _ in range(TOKENS):
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
        self.failures = 0

    def tool(self, *arguments):
        subprocess.run([self.kvtool, *map(str, arguments), "-qq"], check=True)

    def trip(self, state, way, folder, *final):
        """The state after a trip through a format, as llama.cpp reads it."""
        back = folder / f"{way}.bin"
        source = state
        if way == "archive":  # what compress and decompress make of it
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

    def compare(self, name, setup, state, ways, *final, other=None, exact=True, prompt=None):
        """`other`: the engine's set-up for the file that came back, where it is not that of the original."""
        with tempfile.TemporaryDirectory(prefix="kvtool-engine-") as folder:
            folder = pathlib.Path(folder)
            original = Run(self.engine, self.models, setup, state, folder, prompt)
            for way in ways:
                back = self.trip(state, way, folder, *final)
                run = Run(self.engine, self.models, other or setup, back, folder, prompt)
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

    def control(self, setup, state):
        """That the comparison sees a difference: one bit of the first K turned."""
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

    def all(self):
        rows, columns = Setup(), Setup(flash=False)
        state = self.states / "s260k-v050-f16.seq0.bin"
        self.compare("SEQ f16, V in rows", rows, state,
                     ["direct", "archive", "kvz", "safetensors", "npz", "npy", "torch"])
        self.compare("SEQ f16, V turned for an engine without flash attention", rows, state, ["safetensors"],
                     "--v-order", "transposed", other=columns, exact=False)
        self.compare("SEQ f32, V transposed", Setup(flash=False, k="f32", v="f32"),
                     self.states / "s260k-v050-f32-vtrans.seq0.bin", ["direct", "archive", "kvz", "npz", "torch"])
        session = self.states / "s260k-v050-f16-vtrans.session.bin"
        self.compare("SESSION f16, V transposed", columns, session, ["direct", "archive", "kvz", "safetensors"])
        self.compare("SESSION to SEQ, V transposed", columns, session, ["npz"], "--sequence", "0")
        self.compare("SESSION to SEQ, V in rows", columns, session, ["direct"], "--sequence", "0", "--v-order", "rows",
                     other=rows, exact=False)
        two = Setup(flash=False, sequences=2)
        self.compare("SESSION of two sequences", two, self.states / "s260k-v050-2seq-unified.session.bin",
                     ["direct", "archive", "safetensors"])
        self.compare("SEQ q8_0, Hadamard-rotated", Setup("kjv3m-f16", k="q8_0", v="q8_0"),
                     self.states / "kjv3m-v050-q8_0-rotated.seq0.bin", ["direct", "archive", "safetensors", "torch"])
        self.compare("SEQ q8_0 K, f16 V transposed", Setup("kjv3m-f16", flash=False, k="q8_0"),
                     self.states / "kjv3m-v050-kq8_0-vf16-vtrans.seq0.bin", ["direct", "npz"])
        self.control(rows, state)
        return self.failures


def distance(a, b):
    """The largest difference between the logits of two runs."""
    return max(abs(x - y) for x, y in zip(memoryview(a.logits).cast("f"), memoryview(b.logits).cast("f")))


def fetch(folder):
    """Unpacks the libraries of the package into `folder`."""
    with urllib.request.urlopen(PACKAGE, timeout=60) as answer:
        archive = answer.read()
    print(f"{PACKAGE}: {len(archive)} bytes, sha256 {hashlib.sha256(archive).hexdigest()}")
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for member in package.getmembers():
            if member.isfile() and member.name.endswith(".so"):
                target = os.path.join(folder, os.path.basename(member.name))
                with package.extractfile(member) as data, open(target, "wb") as out:
                    out.write(data.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvtool")
    parser.add_argument("--engine", metavar="DIR", help="folder with the engine's libraries")
    parser.add_argument("--fetch", metavar="DIR", help="download them into this folder first")
    parser.add_argument("--data", metavar="DIR", required=True, help="folder with models/ and llamacpp/states/")
    arguments = parser.parse_args()
    if arguments.fetch:
        fetch(arguments.fetch)
        arguments.engine = arguments.fetch
    if not arguments.engine or not glob.glob(os.path.join(arguments.engine, "libllama.v*.so")):
        print("skipped: no engine")
        return SKIP
    if not os.path.isdir(os.path.join(arguments.data, "llamacpp/states")):
        print("skipped: no states")
        return SKIP
    return 1 if Checker(arguments).all() else 0


if __name__ == "__main__":
    sys.exit(main())
