# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Real snapshots, from the repository's test data."""

import os
import pathlib

import pytest

# Tests of an installed wheel run from a copy of this folder.
ROOT = pathlib.Path(os.environ.get("KVTOOL_ROOT", pathlib.Path(__file__).resolve().parents[3]))


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def data():
    return ROOT / "testdata"


@pytest.fixture
def state():
    """A state of llama.cpp: 4 layers, 96 tokens, 2 heads of 64, f16, with positions and token ids."""
    return ROOT / "testdata" / "trace" / "kjv3m.seq0.bin"
