# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""A host process may have called setlocale: it must not change how numbers are read and written."""

import os
import shutil
import subprocess
import sys

import pytest

import conftest

# Runs in another process, because a locale applies to a whole process. Prints only differences.
SCRIPT = r"""
import json, locale, pathlib, sys, zipfile
import numpy as np
import kvtool

data, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
state, trace = data / "trace" / "kjv3m.seq0.bin", data / "trace" / "kjv3m"

# A sound pickle with a number as text, which it throws away: F (float), 0 (pop).
page = np.arange(64, dtype=np.float16).reshape(4, 2, 8)
kvtool.save(folder / "plain.pt", layers=[(page, page)])
with zipfile.ZipFile(folder / "plain.pt") as plain, zipfile.ZipFile(folder / "number.pt", "w") as number:
    for name in plain.namelist():
        content = plain.read(name)
        if name.endswith("data.pkl"):
            assert content[:1] == b"\x80"
            content = content[:2] + b"F1.5\n0" + content[2:]
        number.writestr(name, content)

def gate():
    text = (data / "gate" / "pass.json").read_text()
    text = text.replace("../trace", str(data / "trace")).replace('"limit": 1.8}', '"limit": 2.36}')
    assert "2.36" in text
    (folder / "gate.json").write_text(text)
    return kvtool.run("gate", folder / "gate.json", deterministic=True)

def rounded(document):
    # Without what a clock says.
    drop = ("seconds", "_us", "_ms", "_s", "time", "date", "mb_s", "path", "command")
    if isinstance(document, dict):
        return {k: rounded(v) for k, v in document.items() if not k.endswith(drop)}
    if isinstance(document, list):
        return [rounded(entry) for entry in document]
    return document

def replay(**options):
    return lambda: kvtool.replay_evict(state, trace=trace, kv_heads=2, policy="h2o", prompt_tokens=64, **options)["runs"]

CALLS = {
    "target ratio": replay(target_ratio=1.5),
    "target ratio as text": replay(target_ratio="1.5,2.25"),
    "budget": replay(budget=0.55),
    "pickle": lambda: kvtool.open(folder / "number.pt").layers[0].k.tolist(),
    "lossless": lambda: rounded(kvtool.run("replay-lossless", state, kv_heads=2, mode="full", trace=trace, prompt_tokens=64, deterministic=True)),
    "quantisers": lambda: rounded(kvtool.run("replay-quant", state, kv_heads=2, trace=trace)),
    "analysis": lambda: rounded(kvtool.analyze(state, kv_heads=2)),
    "gate": lambda: rounded(gate()),
}

def run_all():
    results = {}
    for name, call in CALLS.items():
        try:
            results[name] = call()
        except (kvtool.Error, ValueError) as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results

before = run_all()
failed = {name: result for name, result in before.items() if isinstance(result, str)}
assert not failed, failed
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
after = run_all()
different = [name for name in before if before[name] != after[name]]
print(*different, sep="\n")
sys.exit(1 if different else 0)
"""


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    """LOCPATH with de_DE.UTF-8, which few containers have."""
    if shutil.which("localedef") is None:
        pytest.skip("localedef is not installed, so no locale with a decimal comma can be made")
    folder = tmp_path_factory.mktemp("locales")
    made = subprocess.run(
        ["localedef", "--no-archive", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")],
        capture_output=True, text=True,
    )  # fmt: skip
    if not (folder / "de_DE.UTF-8" / "LC_NUMERIC").exists():
        pytest.skip(f"localedef could not make de_DE.UTF-8: {made.stderr.strip()}")
    return folder


def test_a_decimal_comma_changes_no_number(german, tmp_path):
    environment = {**os.environ, "LOCPATH": str(german), "LC_ALL": "C"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(conftest.ROOT / "testdata"), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, f"other results under de_DE.UTF-8:\n{run.stdout}{run.stderr}"
