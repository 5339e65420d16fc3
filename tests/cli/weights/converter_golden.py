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
        # kvtool's result where the original is wrong: a refusal, or the file that a correct reader makes.
        product = item.get("product_expects", "")
        refused = product.startswith(("refuse", "error: "))
        weights = re.search(r"bin/\S+", product)
        twin = golden / weights[0] if weights and not refused else None
        # A checkpoint whose conversion is in this folder, too; the manifest has the hashes of both.
        known = not product or refused or twin or "pth/" in product
        expected = 1 if refused else 0 if twin else item["exit"]
        ok = known and done.returncode == expected and os.path.exists(name) == (expected == 0)
        if ok and expected == 0:
            written = pathlib.Path(name).read_bytes()
            if twin:
                ok = written == twin.read_bytes()
            else:
                ok = done.stdout.strip() == item["stdout"] and hashlib.sha256(written).hexdigest() == item["sha256"]
            os.unlink(name)
        elif expected != 0 and "error" in item and ": " in item["error"] and "RuntimeError" not in item["error"] and not refused:
            # Compares the reasons, whatever text surrounds them. Python 3.13 lists choices without quotes.
            reason = item["error"].split(": ", 1)[1].strip("'").split(" <class")[0].split("error: ")[-1]
            ok = ok and reason.replace("'", "") in done.stderr.replace("'", "")
        if not ok or os.listdir("."):
            wrong += 1
            print(f"{item['input']} {item['args']}: exit {done.returncode}\n{done.stdout}{done.stderr}{os.listdir('.')}")
        checked += 1
    print(f"{'all' if not wrong else wrong} conversions {'as the original' if not wrong else 'differ'}")
    return 1 if wrong or not checked else 0


sys.exit(main())
