#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the drop-in converter on every golden conversion: same bytes, same line, same exit status, nothing left behind.

Usage: converter_golden.py SCRIPT GOLDEN
"""
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import re
import sys
import types

sys.dont_write_bytecode = True


def load(path):
    spec = importlib.util.spec_from_file_location("converter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, args):
    """Calls the script's main in this process: starting Python for each would cost more than the
    conversions."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv, status = [script.main.__code__.co_filename, *args], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            script.main()
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
            print(leaving.code, file=sys.stderr)
    return types.SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def same_reason(error, stderr):
    """Returns True if the original's reason is given in the same words. Python 3.13 lists choices without quotes."""
    if ": " not in error or "RuntimeError" in error:
        return True
    reason = error.split(": ", 1)[1].strip("'").split(" <class")[0].split("error: ")[-1]
    return reason.replace("'", "") in stderr.replace("'", "")


def agrees(item, golden, done, name):
    """Returns True if a conversion gave the original's result or, where the manifest allows it, a refusal or a better
    file."""
    product = item.get("product_expects", "")
    refused = product.startswith(("refuse", "error: "))
    weights = re.search(r"bin/\S+", product)
    twin = golden / weights[0] if weights and not refused else None
    expected = 1 if refused else 0 if twin else item["exit"]
    # "pth/" means the output of that checkpoint's conversion, whose hash the manifest has, too.
    known = not product or refused or twin or "pth/" in product
    if not known or done.returncode != expected or os.path.exists(name) != (expected == 0):
        return False
    if expected != 0:
        return refused or same_reason(item.get("error", ""), done.stderr)
    written = pathlib.Path(name).read_bytes()
    os.unlink(name)
    if twin:
        return written == twin.read_bytes()
    return done.stdout.strip() == item["stdout"] and hashlib.sha256(written).hexdigest() == item["sha256"]


def main():
    script, golden = load(sys.argv[1]), pathlib.Path(sys.argv[2]) / "infinilm"
    manifest = json.loads((golden / "manifest.json").read_text())
    wrong = checked = 0
    for item in manifest.get("conversions", []):
        source = golden / item["input"]
        if not source.exists():
            continue
        name = pathlib.Path(item.get("output", "out.bin")).name
        done = run(script, ["--input", str(source), "--output", name, *item["args"]])
        if not agrees(item, golden, done, name) or os.listdir("."):
            wrong += 1
            print(f"{item['input']} {item['args']}: exit {done.returncode}\n{done.stdout}{done.stderr}{os.listdir('.')}")
        checked += 1
    print(f"{'all' if not wrong else wrong} conversions {'as the original' if not wrong else 'differ'}")
    return 1 if wrong or not checked else 0


sys.exit(main())
