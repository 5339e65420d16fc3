# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The Python code in the documents runs as printed."""

import re
import runpy
import shutil

import pytest

SLOT = "llamacpp/states/s260k-v050-f16.seq0.bin"


@pytest.fixture
def workplace(data, tmp_path, monkeypatch):
    """A folder with the files that the documents use: slot0.bin, a state of llama.cpp, and its
    trace."""
    shutil.copy(data / SLOT, tmp_path / "slot0.bin")
    shutil.copytree(data / "trace", tmp_path / "trace")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", ["docs/python.md"])
def test_blocks(document, root, workplace):
    """The blocks of a document share one namespace, in their order."""
    blocks = re.findall(r"^```python\n(.*?)^```", (root / document).read_text(), re.M | re.S)
    assert blocks
    if "tqdm" in "".join(blocks):
        pytest.importorskip("tqdm")
    space = {"__name__": document}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{document}, block {number}", "exec"), space)


def test_tour(root, workplace, capsys):
    runpy.run_path(str(root / "docs" / "examples" / "tour.py"), run_name="__main__")
    assert "the very same bytes" in capsys.readouterr().out
