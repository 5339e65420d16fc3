#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the golden tests on variants of the repository's set whose manifest and files disagree: each must fail in the
test that reads it, and none may crash the program, whatever the arrays hold. Consistent sets with another trace,
another layer or fewer areas must pass.

  variants.py GOLDEN_TESTS [--all] --all: damages every array of the quantisers in four ways
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SET = ROOT / "testdata/golden"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def rewrite(change):
    """Replaces the header of an npy file and resizes the data to match it."""
    def spoil(path):
        data = path.read_bytes()
        size = struct.unpack("<H", data[8:10])[0]
        header = eval(data[10:10 + size], {})  # noqa: S307: a file of the repository
        shape, kind = change(header["shape"], header["descr"])
        count = int(kind[2:])
        for extent in shape:
            count *= extent
        text = repr({"descr": kind, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
        body = (data[10 + size:] * (1 + count // max(1, len(data) - 10 - size)))[:count]
        path.write_bytes(data[:8] + struct.pack("<H", len(text)) + text.encode() + body)
    return spoil


SPOILS = {
    "cut": truncate,
    "one row less": rewrite(lambda shape, kind: ((shape[0] - 1, *shape[1:]), kind)),
    "flat": rewrite(lambda shape, kind: ((shape[0] // 2,), kind)),
    "bytes": rewrite(lambda shape, kind: (shape, "|u1" if kind != "|u1" else "<f4")),
}


def edit(name, **changes):
    """Sets members of a vector, or as "expect.KEY" members of its first expectation; None removes one."""
    def spoil(folder):
        path = folder / "quant/manifest.json"
        manifest = json.loads(path.read_text())
        vector = next(vector for vector in manifest["vectors"] if vector["name"] == name)
        for key, value in changes.items():
            item = vector["expect"][0] if key.startswith("expect_") else vector
            item[key.removeprefix("expect_")] = value
        path.write_text(json.dumps(manifest))
    return spoil


def conversion(name, expects):
    """Sets what kvtool does with a checkpoint: `product_expects` of its first conversion."""
    def spoil(folder):
        path = folder / "infinilm/manifest.json"
        manifest = json.loads(path.read_text())
        next(item for item in manifest["conversions"] if item["input"] == name)["product_expects"] = expects
        path.write_text(json.dumps(manifest))
    return spoil


def source(name, **changes):
    return edit(name, source={"trace": "kjv3m", "layer": 0, "tokens": [0, 48]} | changes)


VARIANTS = {
    "another layer": source("vllm/fp8-a", layer=3),
    "more tokens than the trace has": source("vllm/fp8-a", tokens=[0, 1 << 20]),
    "tokens from the end to the beginning": source("kivi/a-2bit-R32", tokens=[96, 0]),
    "fewer tokens than were quantised": source("kivi/a-2bit-R32", tokens=[0, 8]),
    "no source": edit("hf/quanto-a", source={}),
    "another code": edit("fp8/f16-to-e4m3fn", code="e5m2"),
    "a code that does not exist": edit("fp8/decode-e4m3fn", code="e3m4"),
    "another element type": edit("fp8/f16-to-e4m3fn", dtype="bf16"),
    "another kind": edit("hadamard/n64", kind="fp8_table"),
    "an unknown kind": edit("hadamard/n64", kind="octonion"),
    "an unknown type": edit("ggml/edge-a", expect_type="q9_9"),
    "a type of other blocks": edit("ggml/edge-a", expect_type="q4_0"),
    "an unknown rounding": edit("ggml/edge-a", expect_variant="upward"),
    "pieces that do not divide rows": edit("engine/v0.5.0-q8_0-k0", n_rot=128),
    "an odd number of bits": edit("kivi/a-2bit-R32", expect_bits=3),
    "groups that do not divide heads": edit("hf/quanto-a", expect_group=48),
    "an unknown side": edit("vllm/fp8-a", expect_side="q"),
    "nothing expected": edit("hadamard/n64", expect=[]),
    "no manifest of the quantisers": lambda folder: (folder / "quant/manifest.json").unlink(),
    "no vectors": lambda folder: (folder / "quant/manifest.json").write_text('{"vectors": []}'),
    "no manifest of the weights": lambda folder: (folder / "infinilm/manifest.json").unlink(),
    "a conversion that gives another file": conversion("pth/proto4.pth", "bin/special_f2_as_fp16.bin"),
    "a conversion that gives another conversion": conversion("pth/proto4.pth", "identical to that of pth/full_f5_fp32_flat.pth"),
    "a conversion that is no refusal": conversion("pth/proto4.pth", "error: storage 0 has fewer bytes than needed"),
    "a conversion that gives what nothing reads": conversion("pth/proto4.pth", "as you like"),
    "an absent array": lambda folder: (folder / "quant/vllm/i8-a-k.codes.npy").unlink(),
}


def rename_trace(folder):
    """Takes the vectors from a trace of another name and layer."""
    path = folder / "quant/manifest.json"
    manifest = json.loads(path.read_text())
    for vector in manifest["vectors"]:
        if "source" in vector:
            vector["source"] |= {"trace": f"{vector['source']['trace']}-again", "layer": vector["source"]["layer"] + 7}
    path.write_text(json.dumps(manifest))
    traces = folder.parent / "data/llamacpp/trace"
    traces.mkdir(parents=True)
    for array in (ROOT / "testdata/trace").glob("*-L*-?.npy"):
        name, layer, side = array.stem.rsplit("-", 2)
        shutil.copy(array, traces / f"{name}-again-L{int(layer[1:]) + 7}-{side}.npy")


SOUND = {
    "the same vectors": lambda folder: None,
    "quantisers alone": lambda folder: shutil.rmtree(folder / "infinilm"),
    "weights alone": lambda folder: shutil.rmtree(folder / "quant"),
    "a trace of another name and layer": rename_trace,
    "another spelling of a code": edit("fp8/f16-to-e4m3fn", code="e4m3"),
    "a conversion that gives this file": conversion("pth/full_f5_fp32_flat.pth", "identical bytes to bin/full_f5_textonly_export_as_fp32.bin"),
}


def spoil_array(name, spoil):
    return lambda folder: spoil(folder / "quant" / name)


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    variants = dict(VARIANTS)
    arrays = sorted(path for path in (SET / "quant").rglob("*.npy"))
    for place, path in enumerate(arrays):
        name = str(path.relative_to(SET / "quant"))
        for turn, (what, spoil) in enumerate(SPOILS.items()):
            if "--all" in sys.argv or place % 28 == 7 * turn:
                variants[f"{name}: {what}"] = spoil_array(name, spoil)
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "golden"
        for what, spoil in [*SOUND.items(), *variants.items()]:
            shutil.rmtree(pathlib.Path(work) / "data", ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            for area in ("quant", "infinilm"):
                shutil.copytree(SET / area, folder / area)
            spoil(folder)
            done = subprocess.run([program], capture_output=True, text=True, errors="replace", timeout=300, cwd=ROOT,
                                  env=os.environ | {"KVTOOL_GOLDEN_DIR": str(folder)})
            # Catch's status is the number of failed assertions; a signal gives a negative status, and Catch names it.
            crashed = done.returncode < 0 or "fatal error condition" in done.stdout or "terminate" in done.stderr
            if crashed or (done.returncode == 0) != (what in SOUND):
                wrong += 1
                print(f"{what}: {'crashed' if crashed else 'refused' if done.returncode else 'passed'}\n"
                      f"{done.stdout[-800:]}{done.stderr[-400:]}")
    print(f"{len(SOUND)} sound variants, {len(variants)} others, {wrong} not as they should")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
