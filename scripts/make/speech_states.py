#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes real KV caches of a speech decoder: Moonshine tiny listens to WAV files through ONNX Runtime.

For each clip of up to 30 seconds it writes two safetensors files with every layer as [token, head, dim], which kvtool
reads without options: NAME-cross-f16.safetensors, the cross attention (one row per audio frame, 41 a second, no RoPE,
smooth in time), and NAME-self-f16.safetensors, the decoder's own tokens; both also rounded to bf16. The printed
transcript shows that the model understood.

  pip install onnxruntime numpy
  npm pack @moonshine-ai/moonshine-js@0.1.29                  # the model, in dist/model/tiny/quantized
  pip download --no-deps moonshine-voice                      # English speech, in moonshine_voice/assets
  speech_states.py OUT --model DIR --tokenizer TOKENIZER.json two_cities.wav beckett.wav

The tokenizer (for example that of useful-moonshine-onnx) is needed only for the transcript. The same versions on the
same kind of processor give the same bytes. Exit status: 0 done, 77 no ONNX Runtime or no model.
"""
import argparse
import json
import pathlib
import struct
import sys
import wave

import numpy as np

SKIP = 77
RATE = 16000  # sample rate of the model
SECONDS = 30  # longest clip
LAYERS, HEADS, HEAD_DIM = 6, 8, 36
BEGIN, END = 1, 2
TOKENS_PER_SECOND = 6.5  # a decoder that exceeds this produces nonsense


def listen(path):
    """Returns a mono 16-bit WAV as float32 at the model's rate: averaged for whole ratios, otherwise interpolated."""
    with wave.open(str(path)) as clip:
        if clip.getnchannels() != 1 or clip.getsampwidth() != 2:
            raise SystemExit(f"{path}: one channel of 16 bits is expected")
        rate, data = clip.getframerate(), clip.readframes(clip.getnframes())
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    whole = rate // RATE
    if whole > 1:  # a box filter against aliasing
        samples = samples[:len(samples) // whole * whole].reshape(-1, whole).mean(1)
        rate /= whole
    at = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


def decode(encoder, decoder, audio):
    """Returns the tokens of a clip and the caches after them: name -> [1, heads, tokens, dim] float32."""
    frames = encoder.run(None, {"input_values": audio[None]})[0]
    cache = {f"past_key_values.{layer}.{side}.{part}": np.zeros((0, HEADS, 1, HEAD_DIM), np.float32)
             for layer in range(LAYERS) for side in ("decoder", "encoder") for part in ("key", "value")}
    tokens = [BEGIN]
    for step in range(int(len(audio) / RATE * TOKENS_PER_SECOND)):
        logits, *present = decoder.run(None, dict(
            input_ids=[[tokens[-1]]], encoder_hidden_states=frames, use_cache_branch=[step > 0], **cache))
        for name, value in zip(cache, present):
            if step == 0 or "decoder" in name:
                cache[name] = value
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == END:
            break
    return tokens, cache


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(path, arrays, dtype):
    """Writes arrays [token, head, dim] as safetensors, with the order of the axes in kvtool's metadata."""
    header, at = {"__metadata__": {"kvtool.layout": "token,head,dim"}}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            out.write(np.ascontiguousarray(array).tobytes())


def transcript(tokenizer, tokens):
    with open(tokenizer, encoding="utf-8") as text:
        names = {number: name for name, number in json.load(text)["model"]["vocab"].items()}
    return "".join(names.get(token, "") for token in tokens[1:-1]).replace("\u2581", " ").strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("wav", type=pathlib.Path, nargs="+")
    parser.add_argument("--model", metavar="DIR", type=pathlib.Path, required=True,
                        help="folder with encoder_model.onnx and decoder_model_merged.onnx")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json, to print what was understood")
    arguments = parser.parse_args()
    try:
        import onnxruntime
    except ImportError:
        print("skipped: no ONNX Runtime")
        return SKIP
    if not (arguments.model / "encoder_model.onnx").exists():
        print("skipped: no model")
        return SKIP
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    encoder, decoder = (onnxruntime.InferenceSession(str(arguments.model / f"{name}.onnx"), options)
                        for name in ("encoder_model", "decoder_model_merged"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in arguments.wav:
        audio = listen(path)
        for clip in range(-(-len(audio) // (SECONDS * RATE))):
            piece = audio[clip * SECONDS * RATE:(clip + 1) * SECONDS * RATE]
            if len(piece) < RATE:
                continue
            tokens, cache = decode(encoder, decoder, piece)
            for side, name in (("encoder", "cross"), ("decoder", "self")):
                arrays = {f"{part[0]}_{layer}": cache[f"past_key_values.{layer}.{side}.{part}"][0].transpose(1, 0, 2)
                          for layer in range(LAYERS) for part in ("key", "value")}
                stem = f"moonshine-{path.stem}{clip}-{name}"
                half = {key: array.astype(np.float16) for key, array in arrays.items()}
                write(arguments.out / f"{stem}-f16.safetensors", half, "F16")
                brain = {key: bf16(array) for key, array in arrays.items()}
                write(arguments.out / f"{stem}-bf16.safetensors", brain, "BF16")
                print(f"{stem}: {LAYERS} layers, {len(half['k_0'])} x {HEADS} x {HEAD_DIM}")
            if arguments.tokenizer:
                print(f"  {transcript(arguments.tokenizer, tokens)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
