# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Profiles: learnt from files, passed to contexts, required to decode."""

import os
import pathlib

import kvtool
import numpy as np
import pytest

ROOT = pathlib.Path(os.environ.get("KVTOOL_ROOT", pathlib.Path(__file__).resolve().parents[3]))
TESTDATA = ROOT / "testdata"


@pytest.fixture
def model():
    return kvtool.Profile((TESTDATA / "profiles/s260k.kvp").read_bytes())


def test_a_context_codes_with_a_profile(model):
    page = np.frombuffer((TESTDATA / "profiles/page.f16").read_bytes(), "<f2").reshape(-1, 4, 8)
    plain, coder = kvtool.Context(), kvtool.Context(profile=model)
    frame, other = coder.encode(page, role="k"), plain.encode(page, role="k")
    assert len(frame) < len(other)
    assert kvtool.frame_info(frame)["profile"] == model.hash
    assert kvtool.frame_info(other)["profile"] is None
    assert coder.decode(frame) == coder.decode(other) == page.tobytes()
    for call in (plain.decode, kvtool.decode, plain.verify_frame):
        with pytest.raises(kvtool.Error) as caught:
            call(frame)
        assert caught.value.finding == 1109
    batch = coder.encode_batch([page, page], role="k")
    assert batch.ok and kvtool.frame_info(batch.objects[1])["profile"] == model.hash
    assert coder.decode_batch(batch.objects).objects == [page.tobytes()] * 2


def test_train_and_archives(tmp_path):
    state = TESTDATA / "llamacpp/states/s260k-v050-f16.seq0.bin"
    learnt = kvtool.train(state, tmp_path / "model.kvp", name="stories")
    assert learnt["profile"]["name"] == "stories"
    profile = kvtool.Profile((tmp_path / "model.kvp").read_bytes())
    assert profile.hash.hex() == learnt["profile"]["hash"]
    kvtool.train([state, state], tmp_path / "model.kvp", force=True)
    document = kvtool.compress(state, tmp_path / "a.kvz", profile=tmp_path / "model.kvp")
    assert document["profile"]["chunks"] > 0
    (tmp_path / "away").mkdir()
    archive = (tmp_path / "a.kvz").rename(tmp_path / "away/a.kvz")
    with pytest.raises(kvtool.Error, match="KV1109"):
        kvtool.verify(archive)
    kvtool.verify(archive, against=state, profile=tmp_path / "model.kvp")
    with kvtool.open(archive, profile=[tmp_path / "model.kvp"]) as cache:
        assert cache.layers


def test_what_is_no_profile():
    with pytest.raises(kvtool.Error, match="KV1003"):
        kvtool.Profile(bytes(100))
    with pytest.raises(TypeError):
        kvtool.Context(profile="model.kvp")
