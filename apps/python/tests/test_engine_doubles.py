# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""kvtool.Codec behind the published interfaces of five engines (tests/engines/doubles.py): each must get back what it
stored."""

import importlib.util

import pytest
from conftest import ROOT
from kv_data import noise, plane

from kvtool import Codec, PageLayout

SPEC = importlib.util.spec_from_file_location("doubles", ROOT / "tests/engines/doubles.py")
doubles = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(doubles)

LAYOUT = PageLayout("bf16", (64, 4, 32))
RAW = 64 * 4 * 32 * 2
PAGES = [plane(64, 4, 32, seed).tobytes() for seed in range(4)]
NOISE = [noise(RAW, seed).tobytes() for seed in range(4)]


def codec_of(revision="1", level="fast"):
    return Codec(level, layout=LAYOUT, identity={"model": "toy", "revision": revision})


@pytest.fixture(params=doubles.ENGINES, ids=lambda engine: engine.__name__)
def engine(request):
    return request.param


@pytest.mark.parametrize("level", ("fast", "default"))
def test_pages_come_back_and_are_smaller(engine, level):
    with codec_of(level=level) as codec:
        double = engine(codec, RAW)
        sizes = double.store(PAGES)
        assert all(0 < size < 0.9 * RAW for size in sizes)
        assert double.restore() == PAGES


def test_the_declared_size_holds_every_page(engine):
    with codec_of() as codec:
        double = engine(codec, RAW)
        sizes = double.store(NOISE)
        if engine is doubles.FlexKvStrategy:
            assert sizes == [None] * 4, "these slots have the size of a page, and such pages lie there as they are"
        else:
            assert sizes == [codec.max_encoded_bytes(RAW)] * 4
        assert double.restore() == NOISE


def test_a_room_that_is_too_small_is_refused(engine):
    with codec_of() as codec:
        double = engine(codec, RAW, room=RAW * 9 // 10)
        assert double.store([PAGES[0], NOISE[0], PAGES[1], NOISE[1]])[1::2] == [None, None]
        assert all(size < 0.9 * RAW for size in double.store(PAGES))
        assert double.restore() == PAGES, "a refusal leaves nothing behind"


def test_a_damaged_blob_is_one_miss(engine):
    with codec_of() as codec:
        double = engine(codec, RAW)
        size = double.store(PAGES)[2]
        double.stored[2][size // 2] ^= 1
        assert double.restore() == [*PAGES[:2], None, PAGES[3]]


def test_blobs_of_another_fingerprint_are_misses(engine):
    """Another revision of the weights: keys and sizes are the same, and every byte of the blobs is sound."""
    with codec_of() as codec, codec_of("2") as other:
        double = engine(codec, RAW)
        double.store(PAGES)
        assert codec.fingerprint != other.fingerprint
        double.codec = other
        assert double.restore() == [None] * 4


def test_a_page_under_another_key_is_a_miss(engine):
    with codec_of() as codec:
        double = engine(codec, RAW)
        sizes = double.store([PAGES[0]] * 4)
        assert len(set(sizes)) == 1
        double.stored[0][: sizes[0]] = bytes(double.stored[1][: sizes[0]])
        assert double.restore() == [None, *[PAGES[0]] * 3]
