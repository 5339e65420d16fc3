# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Snapshots, archives and replays: the commands, called from Python."""

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import kvtool
import numpy as np
import pytest


def run(*words):
    """The installed program, as a user runs it."""
    return subprocess.run([sys.executable, "-m", "kvtool", *map(str, words)], capture_output=True, timeout=120)


def big_cache(path, tokens=4096, layers=4):
    """A safetensors file that takes some time at level max."""
    rng = np.random.default_rng(5)
    values = [rng.standard_normal((tokens, 8, 128)).astype(np.float16) for _ in range(2)]
    kvtool.save(path, layers=[(values[0], values[1])] * layers)


def test_open(state):
    with kvtool.open(state, kv_heads=2) as snapshot:
        assert (snapshot.format, snapshot.engine, len(snapshot), len(snapshot.layers)) == (
            "llama-state", "llama.cpp", 4, 4)
        layer = snapshot.layers[1]
        assert layer.k_info == ("f16", 96, 2, 64, True) and layer.index == 1
        k = layer.k
        assert k.shape == (96, 2, 64) and k.dtype == np.float16
        # Returns a view of the mapped file: nothing is copied, and the view is read-only.
        assert not k.flags.writeable and not k.flags.owndata
        assert (snapshot.positions == np.arange(96)).all() and snapshot.tokens.shape == (96,)
        described = kvtool.inspect(state, kv_heads=2)
        assert {key: described[key] for key in snapshot.describe()} == snapshot.describe()
        part = k[10:20]
        assert np.shares_memory(part, k)
    with pytest.raises(ValueError, match="closed"):
        snapshot.layers[0].k
    # Arrays keep the file mapped.
    assert np.isfinite(part.astype(np.float32)).all()


def test_views_outlive_everything(state):
    def values():
        return kvtool.open(state, kv_heads=2).layers[0].v

    v = values()
    copy = v.copy()
    assert (v == copy).all()


def test_values_are_the_archive_s(state, tmp_path):
    archive = tmp_path / "state.kvz"
    document = kvtool.compress(state, archive, kv_heads=2, level="high")
    assert document["inputs"] and document["ratio"] > 1
    plain, packed = kvtool.open(state, kv_heads=2), kvtool.open(archive, kv_heads=2)
    for a, b in zip(plain.layers, packed.layers):
        assert (a.k == b.k).all() and (a.v == b.v).all()
    assert kvtool.open(state, kv_heads=2, dtype="f32").layers[0].k.dtype == np.float32


def test_compress_verify_decompress(state, tmp_path):
    archive, restored = tmp_path / "a.kvz", tmp_path / "restored.bin"
    calls = []
    kvtool.compress(state, archive, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (os.path.getsize(state),) * 2
    assert kvtool.verify(archive)["verdict"] == "intact"
    assert kvtool.verify(archive, against=state)["verdict"] == "identical"
    kvtool.decompress(archive, restored)
    assert restored.read_bytes() == state.read_bytes()
    with pytest.raises(kvtool.IoError) as raised:
        kvtool.compress(state, archive)
    assert raised.value.finding == 104 and isinstance(raised.value, OSError)
    kvtool.compress(state, archive, force=True, check=False, level="fast")
    part = tmp_path / "part.npz"
    kvtool.decompress(archive, part, to="npz", layers=[0, 2], tokens=range(8, 24), kv_heads=2)
    assert kvtool.open(part).layers[0].k.shape == (16, 2, 64)


def test_joined_layers(state, tmp_path):
    sizes = []
    for layers in (None, 1):
        document = kvtool.compress(state, tmp_path / f"{layers}.kvz", level="max", joined_layers=layers)
        assert document["params"]["joined_layers"] == (layers or 8)
        sizes.append(document["archive_bytes"])
        assert kvtool.verify(tmp_path / f"{layers}.kvz", against=state)["verdict"] == "identical"
    assert sizes[0] <= sizes[1]
    with pytest.raises(kvtool.Error):
        kvtool.compress(state, tmp_path / "no.kvz", level="max", joined_layers=17)


def test_archives_beside_other_caches(state, tmp_path):
    (tmp_path / "a,b").mkdir()
    (tmp_path / "archives").mkdir()
    base, archive = tmp_path / "a,b" / "early.bin", tmp_path / "archives" / "state.kvz"
    kvtool.convert(state, base, to="llama-state", tokens=range(0, 80), kv_heads=2)
    other = tmp_path / "other.npz"
    kvtool.convert(state, other, kv_heads=2, tokens=range(40, 60), layers=[1])
    alone = kvtool.compress(state, tmp_path / "alone.kvz")["archive_bytes"]
    assert kvtool.compress(state, archive, base=[other, base])["archive_bytes"] < alone / 2
    plain = kvtool.open(state, kv_heads=2)
    kvtool.compress(base, tmp_path / "early.kvz")
    for given in (base, [base], [str(other), base], tmp_path / "early.kvz"):
        assert kvtool.verify(archive, against=state, base=given)["verdict"] == "identical"
        opened = kvtool.open(archive, base=given, kv_heads=2)
        for a, b in zip(plain.layers, opened.layers):
            assert (a.k == b.k).all() and (a.v == b.v).all()
    restored = tmp_path / "restored.bin"
    kvtool.decompress(archive, restored, base=base)
    assert restored.read_bytes() == state.read_bytes()
    # Reading metadata needs no base, and diff uses the base that the snapshot was opened with.
    assert len(kvtool.open(archive)) == 4
    assert kvtool.diff(kvtool.open(archive, base=base, kv_heads=2), state)["equal"]
    for wrong, finding in ((None, 1107), (other, 1108)):
        for call in (lambda: kvtool.verify(archive, base=wrong), lambda: kvtool.decompress(archive, tmp_path / "wrong.bin", base=wrong),
                     lambda: kvtool.open(archive, base=wrong).layers[0].k):
            with pytest.raises(kvtool.Error) as raised:
                call()
            assert raised.value.finding == finding


def test_verify_raises(state, data, tmp_path):
    archive = tmp_path / "a.kvz"
    kvtool.compress(state, archive)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.verify(archive, against=data / "trace" / "s260k.seq0.bin")
    assert raised.value.finding == 1105 and raised.value.document["verdict"] == "different"
    damaged = bytearray(archive.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.verify(archive)
    assert raised.value.document["verdict"] == "damaged" and raised.value.fault == "data"


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        kvtool.open(tmp_path / "nothing.bin")
    error = raised.value
    assert isinstance(error, kvtool.Error) and error.finding == 101
    assert error.errno == 2 and error.filename == str(tmp_path / "nothing.bin")
    noise = tmp_path / "noise.bin"
    noise.write_bytes(b"nothing that a reader knows" * 100)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.inspect(noise)
    assert raised.value.finding == 3 and raised.value.file == str(noise) and raised.value.hint
    with pytest.raises(kvtool.Error) as raised:
        kvtool.inspect(noise, no_such_option=3)
    assert raised.value.finding == 1 and raised.value.fault == "caller"
    # Names of files may begin with a dash.
    with pytest.raises(FileNotFoundError):
        kvtool.inspect("--help")
    with pytest.raises(FileNotFoundError):
        kvtool.inspect("-")


def test_errors_travel(tmp_path):
    """Errors can be pickled, as pools of processes need."""
    for call in (lambda: kvtool.open(tmp_path / "nothing"), lambda: kvtool.decode(b"nothing")):
        with pytest.raises(kvtool.Error) as raised:
            call()
        error = pickle.loads(pickle.dumps(raised.value))
        assert type(error) is type(raised.value) and str(error) == str(raised.value)
        assert (error.finding, error.fault) == (raised.value.finding, raised.value.fault)


def test_save_and_diff(state, tmp_path):
    snapshot = kvtool.open(state, kv_heads=2)
    for name in ("x.safetensors", "x.npz", "x.pt"):
        path = tmp_path / name
        kvtool.save(path, layers=snapshot.layers, positions=snapshot.positions, tokens=snapshot.tokens)
        again = kvtool.open(path)
        for a, b in zip(snapshot.layers, again.layers):
            assert (a.k == b.k).all() and (a.v == b.v).all()
    again = kvtool.open(tmp_path / "x.safetensors")
    assert (again.positions == snapshot.positions).all()
    assert kvtool.diff(snapshot, again, from_b="safetensors")["equal"]
    k = np.ascontiguousarray(snapshot.layers[0].k).copy()
    k[3, 1, 5] += 1
    layers = [(k, snapshot.layers[0].v), *[(layer.k, layer.v) for layer in snapshot.layers[1:]]]
    kvtool.save(tmp_path / "y.safetensors", layers=layers)
    document = kvtool.diff(again, tmp_path / "y.safetensors")
    assert not document["equal"] and document["different_count"] == 1
    with pytest.raises(kvtool.Error) as raised:
        kvtool.save(tmp_path / "x.npz", layers=layers)
    assert raised.value.finding == 104
    with pytest.raises(ValueError, match="format"):
        kvtool.save(tmp_path / "x.unknown", layers=layers)
    with pytest.raises(ValueError, match="one for each token"):
        kvtool.save(tmp_path / "z.npz", layers=layers, positions=[1, 2])
    with pytest.raises(ValueError, match="token"):
        kvtool.save(tmp_path / "z.npz", layers=[(k[0], None)])
    assert not (tmp_path / "z.npz").exists()


def test_save_bf16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4).astype(ml_dtypes.bfloat16)
    kvtool.save(tmp_path / "x.safetensors", layers=[(values, values)])
    k = kvtool.open(tmp_path / "x.safetensors").layers[0].k
    assert k.dtype == ml_dtypes.bfloat16 and (k == values).all() and not k.flags.owndata


def test_convert(state, tmp_path):
    document = kvtool.convert(state, tmp_path / "x.npz", kv_heads=2, layers=[1, 2], dtype="f32")
    assert document["output"] == str(tmp_path / "x.npz")
    assert kvtool.open(tmp_path / "x.npz").layers[0].k.dtype == np.float32


def test_analyze_and_bench(state):
    snapshot = kvtool.open(state, kv_heads=2)
    assert kvtool.analyze(snapshot, deterministic=True) == kvtool.analyze(state, kv_heads=2, deterministic=True)
    assert kvtool.bench(snapshot, rounds=1, levels=["fast"])["contestants"]


@pytest.mark.parametrize("command", ["inspect", "analyze"])
def test_documents_are_the_program_s(command, state):
    """The same keys and figures, to the byte, as the command line prints."""
    result = run(command, state, "--kv-heads", "2", "--json", "--deterministic")
    assert result.returncode == 0, result.stderr
    assert getattr(kvtool, command)(state, kv_heads=2, deterministic=True) == json.loads(result.stdout)["results"][0]


def test_any_command(data):
    document = kvtool.run("weights inspect", data / "golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin")
    assert document["inputs"] and document["format"]
    assert kvtool.run("trace inspect", data / "trace" / "kjv3m")["level"] == "queries"
    states = [data / "trace" / f"{name}.seq0.bin" for name in ("kjv3m", "s260k")]
    assert [each["inputs"][0]["file"] for each in kvtool.run("inspect", *states)] == [str(state) for state in states]
    with pytest.raises(kvtool.Error) as raised:
        kvtool.run("no-such-command")
    assert raised.value.finding == 1


def queries(data):
    return {layer: np.load(data / "trace" / f"kjv3m-L{layer}-Q.npy") for layer in (0, 3)}


def test_replay(state, data, caplog):
    snapshot = kvtool.open(state, kv_heads=2)
    with caplog.at_level(logging.WARNING, logger="kvtool"):
        document = kvtool.replay_evict(
            snapshot, queries=queries(data), policy="h2o", budget=0.5, prompt_tokens=64)
    assert "no rows of layers 1, 2" in caplog.text
    assert document["runs"][0]["policy"] == "h2o"
    event = document["plan"]["events"][0]
    assert event["kept"].dtype == np.int64 and event["kept"].shape[1] == 2
    # At the end of the prompt, half of the final number of tokens stays.
    assert event["length_before"] == 64 and event["kept"][:, 1].sum() <= 48
    by_file = kvtool.replay_evict(
        snapshot, trace=data / "trace" / "kjv3m", policy="h2o", budget=0.5, prompt_tokens=64)
    assert document["runs"] == by_file["runs"]
    # Half of the two layers with rows is kept; the other two keep everything.
    assert document["runs"][0]["ratio"] == pytest.approx(4 / 3, rel=0.01)
    assert kvtool.replay_h2o is kvtool.replay_evict
    several = kvtool.replay_evict(
        snapshot, queries=queries(data), policy=["h2o", "streaming"], target_ratio=2, prompt_tokens=64)
    assert "plan" not in several and len(several["runs"]) == 2
    with pytest.raises(ValueError, match="queries"):
        kvtool.replay_evict(snapshot)
    with pytest.raises(kvtool.Error):
        kvtool.replay_evict(snapshot, queries={0: queries(data)[0][:, :, :32]}, prompt_tokens=64)


def test_progress_can_stop(tmp_path):
    big_cache(tmp_path / "big.safetensors")
    seen = []

    def stop(done, total):
        seen.append((done, total))
        return done == 0

    with pytest.raises(kvtool.Error) as raised:
        kvtool.compress(tmp_path / "big.safetensors", level="max", progress=stop, threads=1)
    assert raised.value.finding == 8 and raised.value.fault == "stopped" and seen
    assert os.listdir(tmp_path) == ["big.safetensors"]


def test_a_callback_that_raises(tmp_path):
    big_cache(tmp_path / "big.safetensors")

    def fail(done, total):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kvtool.compress(tmp_path / "big.safetensors", level="max", progress=fail, threads=1)
    assert os.listdir(tmp_path) == ["big.safetensors"]


def test_interrupt(tmp_path):
    """Ctrl-C ends a long call with KeyboardInterrupt and leaves nothing behind."""
    big_cache(tmp_path / "big.safetensors", layers=8)
    code = (
        "import kvtool, sys\n"
        "try:\n"
        "    print('begin', flush=True)\n"
        f"    kvtool.compress({str(tmp_path / 'big.safetensors')!r}, level='max', threads=1)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begin\n"
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "interrupted\n" and process.returncode == 0
    assert time.monotonic() - begin < 20
    assert os.listdir(tmp_path) == ["big.safetensors"]


def test_interrupt_of_a_frame():
    code = (
        "import kvtool\n"
        "data = bytes(range(256)) * (1 << 18)\n"
        "print('begin', flush=True)\n"
        "try:\n"
        "    while True: kvtool.encode(data, level='max')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begin\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


def test_commands_from_threads(state, tmp_path):
    """Commands may run on any thread, several at once."""
    failures = []

    def work(number):
        try:
            copy = tmp_path / f"{number}.bin"
            shutil.copy(state, copy)
            kvtool.compress(copy)
            kvtool.verify(f"{copy}.kvz", against=copy)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_program_is_inside(state):
    result = run("--version")
    assert result.returncode == 0 and kvtool.__version__ in result.stdout.decode()
    assert run("inspect", "/nonexistent").returncode == 4
    assert run("no-such-command").returncode == 2
    assert b"kvtool.inspect/2" in run("inspect", state, "--kv-heads", "2", "--json").stdout


def test_interrupt_of_the_program(tmp_path):
    """Like the program: exit status 130 at once, and nothing is left behind."""
    big_cache(tmp_path / "big.safetensors", layers=8)
    words = ["compress", str(tmp_path / "big.safetensors"), "--level", "max", "-T", "1", "--progress", "json"]
    process = subprocess.Popen([sys.executable, "-m", "kvtool", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("{")  # it has begun
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert os.listdir(tmp_path) == ["big.safetensors"]


def test_import_is_light():
    """Expensive modules are imported only when needed."""
    code = "import sys, kvtool; print(*sorted({'numpy', 'torch', 'ml_dtypes', 'pyarrow'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "\n", result


@pytest.mark.parametrize("line", ["kvtool.capture x --prompt y -o z", "kvtool.closed_loop a --model x --policy h2o"])
def test_programs_that_need_torch_say_so(line, tmp_path):
    """5 is the program's status for what it cannot do here; 1 is a negative verdict."""
    code = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module(sys.argv.pop(1), run_name='__main__')"
    words = [sys.executable, "-W", "ignore", "-c", code, *line.split()]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 5 and "pip install torch" in result.stderr, result


def test_layers_of_an_archive_are_those_of_its_source(data, tmp_path):
    """Each layer is decoded separately, in every format, also with heads from a model file."""
    sources = [
        (data / "trace" / "kjv3m.seq0.bin", {"gguf": data / "llamacpp" / "kjv3m-header.gguf"}),
        (data / "golden" / "infinilm" / "dump_kv", {}),
    ]
    for number, (source, options) in enumerate(sources):
        archive = tmp_path / f"{number}.kvz"
        kvtool.compress(source, archive)
        plain, packed = kvtool.open(source, **options), kvtool.open(archive, **options)
        assert len(plain) == len(packed) > 0
        for a, b in zip(reversed(plain.layers), reversed(packed.layers)):
            assert a.k_info == b.k_info and (a.index, a.label) == (b.index, b.label)
            assert a.k.shape == b.k.shape and a.k.tobytes() == b.k.tobytes()
            assert a.v.tobytes() == b.v.tobytes()


def test_every_golden_archive_opens(data):
    """Archives of every version and format: if one opens, its values have the stated shape."""
    seen = 0
    for path in sorted((data / "archives").rglob("*.kvz")):
        try:
            snapshot = kvtool.open(path)
            arrays = [(layer.k_info, layer.k) for layer in snapshot.layers]
        except kvtool.Error as error:
            assert error.fault in ("data", "unsupported", "caller"), error
            continue
        for info, array in arrays:
            assert array.shape[:2] == (info.tokens, info.heads) and array.size >= 0
            seen += 1
    assert seen > 5


def test_errors_are_pythons_own_too(state, tmp_path):
    """They also derive from kvtool.Error."""
    existing = tmp_path / "there.kvz"
    existing.write_bytes(b"x")
    for kind, call in (
        (FileExistsError, lambda: kvtool.compress(state, existing)),
        (FileNotFoundError, lambda: kvtool.compress(state, tmp_path / "no" / "folder.kvz")),
        (TypeError, lambda: kvtool.inspect(state, no_such=1)),
        (ValueError, lambda: kvtool.inspect(state, kv_heads="many")),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, kvtool.Error) and "--" not in str(caught.value).replace("--help", "")
    with pytest.raises(kvtool.ExistsError, match="force=True") as exists:
        kvtool.compress(state, existing)
    assert exists.value.filename == str(existing) and existing.read_bytes() == b"x"
    with pytest.raises(kvtool.Error, match="kv_heads=H or head_dim=D"):
        kvtool.convert(state, tmp_path / "x.npz")


def test_progress_can_stop_a_short_call(state, tmp_path):
    with pytest.raises(kvtool.Error, match="KV0008"):
        kvtool.compress(state, tmp_path / "a.kvz", progress=lambda done, total: False)
    assert list(tmp_path.iterdir()) == []
    calls = []
    kvtool.compress(state, tmp_path / "a.kvz", progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 0) and calls[-1][0] == calls[-1][1] > 0


def test_save_refuses_what_is_no_cache(tmp_path):
    k = np.zeros((4, 2, 8), np.float32)
    with pytest.raises(ValueError, match="different numbers of tokens"):
        kvtool.save(tmp_path / "x.npz", layers=[(k, k), (k, k[:3])])
    for dtype in (">f4", ">f2"):
        with pytest.raises(TypeError, match="big-endian"):
            kvtool.save(tmp_path / "x.npz", layers=[(k.astype(dtype), k)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.kvz", "x.safetensors"])
def test_caches_are_streamed(tmp_path, name):
    rows = np.random.default_rng(0).standard_normal((2, 2, 60, 4, 16)).astype(np.float16)
    with kvtool.open(tmp_path / name, "wb") as out:
        for begin in range(0, 60, 20):
            for layer in range(2):
                out.write(*rows[layer, :, begin : begin + 20], layer=layer)
        assert "2 layers" in repr(out) and not (tmp_path / name).exists()
    snapshot = kvtool.open(tmp_path / name)
    for layer, (k, v) in zip(snapshot.layers, rows):
        assert (layer.k == k).all() and (layer.v == v).all()
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(FileExistsError), kvtool.open(tmp_path / name, "xb") as out:
        out.write(rows[0, 0])
    with kvtool.open(tmp_path / name, "wb") as out:  # K alone
        out.write(rows[0, 0].view(np.uint16))
    assert kvtool.open(tmp_path / name).layers[0].k_info.dtype == "bf16"
    with pytest.raises(RuntimeError), kvtool.open(tmp_path / "y.kvz", "wb", level="high") as out:
        out.write(rows[0, 0])
        raise RuntimeError
    with pytest.raises(ValueError, match="closed"):
        out.write(rows[0, 0])
    assert os.listdir(tmp_path) == [name]


def test_what_is_not_streamed(tmp_path):
    k = np.zeros((4, 2, 8), np.float32)
    with kvtool.open(tmp_path / "x.kvz", "wb") as out:
        out.write(k, k)
        for kind, rows in ((ValueError, (k, k[:3])), (TypeError, (k.astype(">f4"),)), (TypeError, (k[0],)),
                           (TypeError, (k.astype("f8"),))):
            with pytest.raises(kind):
                out.write(*rows)
        with pytest.raises(ValueError, match="layer 3"):
            out.write(k, layer=3)
        with pytest.raises(ValueError, match="after rows of"):
            out.write(k[:, :1], layer=0)
    for wrong in (("x.npz", "wb"), ("x.kvz", "ab")):
        with pytest.raises(ValueError):
            kvtool.open(tmp_path / wrong[0], wrong[1])
    with pytest.raises(TypeError):
        kvtool.open(tmp_path / "x.safetensors", "wb", level="high")
    for kind, options in ((ValueError, {"level": "best"}), (TypeError, {"levle": "high"}), (TypeError, {"force": True}),
                          (FileNotFoundError, {"profile": tmp_path / "none.kvp"})):
        with pytest.raises(kind):
            kvtool.open(tmp_path / "y.kvz", "wb", **options)
    assert os.listdir(tmp_path) == ["x.kvz"], "wrong options are refused before there are rows"
