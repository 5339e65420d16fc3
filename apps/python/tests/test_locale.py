# SPDX-License-Identifier: Apache-2.0
"""Numbers are the same in a program that called setlocale: de_DE has a comma as its decimal point."""

import json
import os
import shutil
import subprocess
import sys

import pytest

NAME = "de_DE.UTF-8"
# Timings and the command line are left out of what is compared.
PROGRAM = """
import json, locale, sys
import kvtool
root, config, name = sys.argv[1:]
locale.setlocale(locale.LC_ALL, name)
state, trace = root + "/testdata/trace/kjv3m.seq0.bin", root + "/testdata/trace/kjv3m"
replay = kvtool.replay_h2o(state, trace=trace, kv_heads=2, prompt_tokens=64, policy="mnn", target_ratio="1.5,2.25",
                           h2o_ema_alpha=0.75, rope_base=10000.5)
gate = kvtool.run("gate", config=config)
point = kvtool.run("inspect", state, kv_heads=2, stats=True)
print(json.dumps([replay["runs"], gate["cases"], point["layers"]], sort_keys=True))
"""


@pytest.fixture
def locales(tmp_path):
    """A folder with the locale, which machines seldom have."""
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("no localedef to make the locale with")
    made = subprocess.run([localedef, "-i", "de_DE", "-f", "UTF-8", tmp_path / NAME], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"localedef makes no {NAME}: {made.stderr}")
    return tmp_path


def test_numbers_do_not_depend_on_the_locale(locales, root, tmp_path):
    config = tmp_path / "gate.json"
    config.write_text(json.dumps({"schema": "kvtool.gate-config/1"}))

    def run(name):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, root, config, name], capture_output=True, text=True,
            env=os.environ | {"LOCPATH": str(locales)})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run(NAME) == run("C")
