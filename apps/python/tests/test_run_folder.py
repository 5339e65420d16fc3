# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Run folders and their safetensors files, as they are written. test_capture.py tests them with
torch."""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest

import kvtool
from kvtool._run_folder import RunFolder
from kvtool._safetensors import RowFile, Tensor, write

TOKENS, LAYERS, HEADS, DIM = 12, 2, 2, 8


def read(path):
    """Returns ({name: array}, metadata) of a safetensors file, without kvtool's own reader."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end
        end = stop
        arrays[name] = np.frombuffer(data[8 + size + begin : 8 + size + stop], kinds[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + size + end == len(data)
    return arrays, metadata


def rows(seed, count=TOKENS, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((count, HEADS, DIM)).astype(dtype)


def fill(folder, parts=(5, 6, 1)):
    """Queries, keys and values in pieces, as a model passes them; returns what was written, by
    name."""
    made = {f"{name}{layer}": rows(3 * layer + place) for layer in range(LAYERS) for place, name in enumerate(("q.", "k_", "v_"))}
    begin = 0
    for part in parts:
        for name, values in made.items():
            folder.append(name, "F32", (HEADS, DIM), values[begin : begin + part].tobytes())
        begin += part
    return made


def commit(folder, **changes):
    folder.commit(
        **{
            "tokens": list(range(100, 100 + TOKENS)),
            "prompt_tokens": 5,
            "layers": list(range(LAYERS)),
            "trace_metadata": {"kv_heads": str(HEADS), "scale": "0.25", "window.1": "4"},
            "snapshot_metadata": {"kvtool.key_rotation": "rotated"},
            "logits": [Tensor("nll", "F32", (1,), np.ones(1, np.float32).tobytes())],
            "document": {"tokens": TOKENS, "nll": None},
            **changes,
        }
    )


def test_rows_come_in_pieces_and_the_header_comes_last(tmp_path):
    values = rows(0)
    file = RowFile(str(tmp_path / "q"), "q.0", "F32", (HEADS, DIM))
    for part in np.split(values, [1, 1, 7]):
        file.append(part.tobytes())
    file.append(b"")
    before = (tmp_path / "q").stat().st_size
    file.complete()
    assert (tmp_path / "q").stat().st_size in (before, file.data_begin + values.nbytes)
    arrays, _ = read(tmp_path / "q")
    assert np.array_equal(arrays["q.0"], values)
    assert file.data_begin % 8 == 0


def test_a_file_without_rows_is_complete_too(tmp_path):
    file = RowFile(str(tmp_path / "q"), "q.0", "BF16", (HEADS, DIM))
    file.complete()
    arrays, _ = read(tmp_path / "q")
    assert arrays["q.0"].shape == (0, HEADS, DIM)


def test_the_header_has_room_for_any_number_of_rows(tmp_path):
    file = RowFile(str(tmp_path / "q"), "name", "F16", (1,))
    file.append(bytes(2))
    file.rows = (1 << 62) - 1  # as if that many rows had been appended
    file.complete()
    (size,) = struct.unpack_from("<Q", (tmp_path / "q").read_bytes())
    assert 8 + size == file.data_begin


def test_half_a_row_is_refused(tmp_path):
    file = RowFile(str(tmp_path / "q"), "q.0", "F32", (HEADS, DIM))
    with pytest.raises(ValueError, match="63 bytes are not a whole number of rows of 64"):
        file.append(bytes(63))
    with pytest.raises(ValueError, match="has no bytes"):
        RowFile(str(tmp_path / "e"), "q.0", "F32", (0, DIM))


def test_write_checks_sizes_and_names(tmp_path):
    with pytest.raises(ValueError, match="x: 4 bytes, expected 8"):
        write(str(tmp_path / "a"), [Tensor("x", "F32", (2,), bytes(4))])
    with pytest.raises(ValueError, match="x: named twice"):
        write(str(tmp_path / "b"), [Tensor("x", "F32", (1,), bytes(4))] * 2)
    with pytest.raises(FileExistsError):
        write(str(tmp_path / "a"), [])


def test_a_run_is_what_was_handed_over(tmp_path):
    folder = RunFolder(tmp_path / "run")
    made = fill(folder)
    assert not (tmp_path / "run").exists()  # the folder appears only when it is complete
    commit(folder)
    assert os.listdir(tmp_path) == ["run"]
    run = tmp_path / "run"
    assert sorted(os.listdir(run)) == [
        "logits.safetensors", "prefill.safetensors", "run.json", "snapshot.safetensors", "trace",
    ]
    document = json.loads((run / "run.json").read_text())
    assert document["schema"] == "kvtool.run/1"
    assert document["files"] == {
        "snapshot": "snapshot.safetensors",
        "prefill": "prefill.safetensors",
        "trace": "trace",
        "logits": "logits.safetensors",
        "sensitivity": None,
    }
    for layer in range(LAYERS):
        queries, _ = read(run / "trace" / f"q.{layer}.safetensors")
        assert np.array_equal(queries[f"q.{layer}"], made[f"q.{layer}"])
    tokens, metadata = read(run / "trace" / "trace.safetensors")
    assert tokens["tokens"].tolist() == list(range(100, 112))
    assert metadata == {
        "kvtool.trace": "1", "prompt_tokens": "5", "q_start": "0", "kv_heads": "2", "scale": "0.25", "window.1": "4",
    }


def test_kvtool_reads_the_snapshots(tmp_path):
    folder = RunFolder(tmp_path / "run")
    made = fill(folder)
    commit(folder)
    for name, count in (("snapshot", TOKENS), ("prefill", 5)):
        with kvtool.open(tmp_path / "run" / f"{name}.safetensors") as snapshot:
            assert len(snapshot) == LAYERS
            assert snapshot.positions.tolist() == list(range(count))
            assert snapshot.tokens.tolist() == list(range(100, 100 + count))
            for layer in range(LAYERS):
                assert np.array_equal(snapshot.layers[layer].k, made[f"k_{layer}"][:count])
                assert np.array_equal(snapshot.layers[layer].v, made[f"v_{layer}"][:count])


def test_a_run_without_a_decode_has_no_prefill(tmp_path):
    folder = RunFolder(tmp_path / "run")
    fill(folder)
    commit(folder, prompt_tokens=TOKENS, logits=[])
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["files"]["prefill"] is None and document["files"]["logits"] is None
    assert not (tmp_path / "run" / "prefill.safetensors").exists()


def test_memory_does_not_grow_with_the_run(tmp_path):
    folder, piece, pieces = RunFolder(tmp_path / "run"), bytes(1 << 20), 48
    tracemalloc.start()
    for _ in range(pieces):
        for name in ("q.0", "k_0", "v_0"):
            folder.append(name, "F32", (HEADS, DIM), piece)
    tokens = pieces * len(piece) // (4 * HEADS * DIM)
    while_running = tracemalloc.get_traced_memory()[1]
    commit(folder, layers=[0], tokens=[7] * tokens, prompt_tokens=tokens // 2)
    assert os.path.getsize(tmp_path / "run" / "snapshot.safetensors") > 2 * pieces * len(piece)
    assert while_running < 1 << 20
    # A commit copies in chunks; its positions and tokens, 24 bytes each, are in memory at once.
    assert tracemalloc.get_traced_memory()[1] < (20 << 20) + 24 * tokens
    tracemalloc.stop()


def test_an_unfinished_run_leaves_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    fill(folder)
    folder.discard()
    assert os.listdir(tmp_path) == []


def test_a_failing_commit_leaves_no_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    fill(folder)
    with pytest.raises(ValueError):
        commit(folder, document={"nll": float("nan")})  # not JSON
    assert not (tmp_path / "run").exists()
    folder.discard()
    assert os.listdir(tmp_path) == []


def test_a_run_is_replaced_only_by_force_and_at_once(tmp_path):
    first = RunFolder(tmp_path / "run")
    fill(first)
    commit(first)
    with pytest.raises(FileExistsError, match="-f"):
        RunFolder(tmp_path / "run")
    second = RunFolder(tmp_path / "run", force=True)
    fill(second, parts=(12,))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tokens"] == TOKENS  # the tokens of the old run
    commit(second, document={"tokens": 7})
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tokens"] == 7
    assert os.listdir(tmp_path) == ["run"]


def test_force_replaces_nothing_but_runs(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not a recorded run"):
        RunFolder(tmp_path / "run", force=True)
    (tmp_path / "run" / "run.json").write_text('{"schema": "other/1"}')
    with pytest.raises(FileExistsError, match="not a recorded run"):
        RunFolder(tmp_path / "run", force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="not a recorded run"):
        RunFolder(tmp_path / "file", force=True)
    with pytest.raises(FileNotFoundError):
        RunFolder(tmp_path / "missing" / "run")
    assert sorted(os.listdir(tmp_path)) == ["file", "run"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    fill(folder)
    commit(folder)
    assert (tmp_path / "run" / "run.json").exists()


def test_someone_else_may_have_taken_the_name_meanwhile(tmp_path):
    folder = RunFolder(tmp_path / "run", force=True)
    fill(folder)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        commit(folder)
    folder.discard()
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == ["thesis.txt"]


def test_rows_of_a_tensor_have_one_shape(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.append("q.0", "F32", (HEADS, DIM), rows(0).tobytes())
    with pytest.raises(ValueError, match="q.0: rows of F16"):
        folder.append("q.0", "F16", (HEADS, DIM), b"")
    folder.discard()
