# SPDX-License-Identifier: Apache-2.0
"""Real snapshots, from the repository's test data."""

import pathlib

import pytest

DATA = pathlib.Path(__file__).resolve().parents[3] / "testdata"


@pytest.fixture
def data():
    return DATA


@pytest.fixture
def state():
    """A state of llama.cpp: 4 layers, 96 tokens, 2 heads of 64, f16, with positions and token ids."""
    return DATA / "trace" / "kjv3m.seq0.bin"
