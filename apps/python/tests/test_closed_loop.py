# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The command, its document and its page, with a program instead of llama.cpp: torch is not
needed."""

import json
import os
import re
import stat
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy
import pytest
from loop_runs import random_run

import kvtool
from kvtool import (
    _loop_document,
    _loop_measure,
    _loop_page,
    _loop_plan,
    _loop_run,
    _loop_statistics,
    _loop_types,
    closed_loop,
)

# Costs of a plan in a fictitious engine: a tenth of a nat if all positions were evicted.
PROGRAM = """#!{python}
import json, sys
words = sys.argv[1:]
assert words[0] == "--confirm" and words[2] == "-m" and words[4] == "--plan", words
open("calls", "a").write("call\\n")
for path in words[5:]:
    events = json.load(open(path))["events"]
    last = {{(e["layer"], e["kv_head"]): e for e in events if e["token"] < 95}}
    heads = lambda e: 2 if e["kv_head"] is None else 1
    gone = sum(heads(e) * (e["token"] + 1 - sum(n for _, n in e["kept"])) for e in last.values()) / (3 * 2 * 96)
    found = dict(kl=gone / 10, kl_standard_error=0.001, delta_nll=gone, agreement=1 - gone)
    print(json.dumps(dict(plan=path, by="mask", rows=32, **found)))
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Two runs of random values, and the program."""
    for seed, name in enumerate(("a", "b")):
        random_run(tmp_path / name, seed=seed)
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


LLAMA = "--engine llama --llama ./program --model m.gguf".split()


def test_document_and_page(workplace, capsys):
    words = ["a", "b", *LLAMA, "--policy", "streaming,random,knorm", "--budget", "0.75,0.5,0.25"]
    assert closed_loop.main([*words, "-o", "out.json", "--html-out", "page.html"]) == 0
    document = json.loads((workplace / "out.json").read_text())
    assert [(plan["run"], plan["policy"], plan["budget"]) for plan in document["plans"][:4]] == [
        ("a", "streaming", "0.75"), ("a", "streaming", "0.5"), ("a", "streaming", "0.25"), ("a", "random", "0.75"),
    ]  # fmt: skip
    assert [run["keep_all_kl"] for run in document["runs"]] == [0, 0]
    for plan in document["plans"]:
        # The program gets the same plans that the figures describe.
        assert plan["real"]["kl"] == pytest.approx((1 - plan["kept_share"]) / 10)
        assert plan["predicted"]["predicted_kl"] > 0 and plan["predicted"]["weighted_kl"] is None
    assert set(document["correlations"]) == {"predicted_kl", "output_error", "cosine_loss", "lost_mass"}
    mass = document["correlations"]["lost_mass"]
    assert mass["pooled"]["runs"] == 18 and mass["within_run_and_policy"] == {"mean": 1, "min": 1, "groups": 6}
    assert (workplace / "calls").read_text().count("call") == 2 * (1 + 3)  # 2 runs: keep-all, and three batches
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 19 and shown[0].split()[:3] == ["run", "policy", "budget"]
    page = (workplace / "page.html").read_text()
    check_page(page, charts=2)
    assert _loop_document.banded(document["plans"][0]["predicted"]) in page  # as the terminal shows it


def check_page(page, charts):
    """Well-formed, self-contained, and in both light and dark colours."""
    assert page.count("<svg") == charts and "<script" not in page
    assert "prefers-color-scheme:dark" in page
    assert not re.findall(r'(?:href|src)=|url\(', page)
    body = page.replace("<!doctype html>", "").replace('<meta charset="utf-8">', "")
    ElementTree.fromstring(re.sub(r"<meta [^>]*>", "", body))


def test_schema(workplace, root):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((root / "apps/kvtool/documents/schema/closed-loop.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    del schema["$id"]
    assert closed_loop.main(["a", *LLAMA, "--policies", "streaming", "-q", "-o", "out.json"]) == 0
    document = json.loads((workplace / "out.json").read_text())
    document["plans"][0]["passes"] = [{"pass": 1, "jaccard": 0.5, "kl": 0.1}]
    entry = {"run": "a", "level": "max", "ratio": 1.2, "tokens": 64, "tokens_equal": True, "logits_equal": True}
    document["lossless"] = [entry]
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(document)
    assert _loop_document.verdict(document) == 0
    document["lossless"] = [{**entry, "logits_equal": False}]
    assert _loop_document.verdict(document) == 1
    del document["plans"][0]["real"]["kl"]
    assert not validator.is_valid(document)


@pytest.mark.parametrize(
    "words, status",
    [
        (["a", *LLAMA], 2),
        (["a", "b", *LLAMA, "--plan", "plan.json"], 2),
        (["a", "--policies", "h2o"], 2),
        (["a", *LLAMA, "--k", "q8_0", "--v", "q8_0"], 2),
        (["a", "--model", "m", "--k", "q8_0"], 2),
        (["a", *LLAMA, "--plan", "plan.json", "--iterate"], 2),
        (["a", *LLAMA, "--policies", "h2o", "--lossless"], 2),
        (["a", *LLAMA, "--policies", ","], 2),
        (["a", *LLAMA, "--policies", "nothing"], 2),
        (["a", *LLAMA, "--policies", "h2o", "--budgets", "-1"], 2),
        (["a", *LLAMA, "--policies", "h2o", "--with", "no-such-option=1"], 2),
        (["a", *LLAMA, "--plan", "none.json"], 4),
        (["none", *LLAMA, "--policies", "h2o"], 4),
        ([".", *LLAMA, "--policies", "h2o"], 3),
        (["a", *LLAMA, "--plan", "a/run.json"], 3),
        (["a", *LLAMA, "--policies", "streaming", "-o", "a/run.json"], 4),
        (["a", *LLAMA, "--policies", "streaming", "-f", "-o", "a"], 4),
        (["a", *LLAMA, "--policies", "streaming", "-o", "none/out.json"], 4),
        (["a", "--engine", "llama", "--llama", "./none", "--policies", "streaming"], 5),
    ],
)
def test_statuses(workplace, words, status, capsys):
    try:
        found = closed_loop.main(words)
    except SystemExit as error:  # argparse's
        found = error.code
    assert found == status
    assert "kvtool.closed_loop" in capsys.readouterr().err
    assert not [name for name in os.listdir(".") if name.startswith(".")]


@pytest.mark.parametrize(
    "program, status, reason",
    [
        ("exit 5", 5, "no message"),
        ("echo the model is not this one >&2; exit 3", 3, "the model is not this one"),
        ("kill -9 $$", 70, "no message"),
        ("echo '{}'", 70, "not a line of --confirm"),
        ("echo 7", 70, "not a line of --confirm"),
        ("exit 0", 70, "0 lines for 1 plans"),
    ],
)
def test_a_program_that_fails(workplace, program, status, reason, capsys):
    (workplace / "program").write_text(f"#!/bin/sh\n{program}\n")
    assert closed_loop.main(["a", *LLAMA, "--policies", "streaming"]) == status
    assert reason in capsys.readouterr().err


def test_options_of_replays(workplace):
    words = ["a", *LLAMA, "--policies", "streaming", "--budgets", "32t", "-q"]
    assert closed_loop.main([*words, "-o", "few.json"]) == 0
    assert closed_loop.main([*words, "--with", "sinks=16", "--granularity", "layer", "-o", "many.json"]) == 0
    few, many = (json.loads((workplace / name).read_text())["plans"][0] for name in ("few.json", "many.json"))
    assert few["kept_share"] == many["kept_share"] and few["predicted"] != many["predicted"]


def test_force_replaces_files(workplace):
    (workplace / "out.json").write_text("old")
    words = ["a", *LLAMA, "--policies", "streaming", "-q", "-o", "out.json"]
    assert closed_loop.main(words) == 4 and (workplace / "out.json").read_text() == "old"
    assert closed_loop.main([*words, "-f"]) == 0
    assert json.loads((workplace / "out.json").read_text())["schema"] == "kvtool.closed-loop/1"


def row(run, policy, predicted, real):
    figures = {"output_error": predicted, "cosine_loss": None, "lost_mass": None, "weighted_kl": None}
    figures |= {"predicted_kl": predicted / 2, "expected_nats": predicted / 2, "low_nats": 0.0, "high_nats": predicted}
    cost = {"kl": real, "kl_standard_error": 0.0, "delta_nll": 0.0, "agreement": 1.0, "rows": 9, "by": "torch mask"}
    head = {"run": run, "policy": policy, "budget": "1t", "layers": None, "kept_share": 0.5}
    return {**head, "predicted": figures, "real": cost}


def test_summary():
    runs, values = (("a", 1), ("b", 1.5)), (0.1, 0.2, 0.4)
    rows = [row(run, policy, value, value * scale) for run, scale in runs for policy in "xyz" for value in values]
    found = _loop_statistics.summary(rows)
    assert list(found["correlations"]) == ["predicted_kl", "output_error"] and list(found["sizes"]) == ["predicted_kl"]
    order = found["correlations"]["output_error"]
    assert order["per_run"] == {"a": 1, "b": 1} and order["within_run_and_policy"] == {"mean": 1, "min": 1, "groups": 6}
    assert order["pooled"]["runs"] == 18 and order["small"]["runs"] == 6  # 0.1 and 0.15 are below 0.2
    sizes = found["sizes"]["predicted_kl"]
    assert order["within_run_and_budget"]["groups"] == 2  # all layers of a run have one budget here
    assert sizes["factor"] == pytest.approx(2.5)  # 2 in one run, 3 in the other
    assert sizes["calibrated_on_other_runs"]["median_factor"] == pytest.approx(1.5)
    assert _loop_statistics.summary([]) == {"correlations": {}, "sizes": {}}


def test_chart():
    points = [_loop_page.Point(x, x * x, f"s{i}", f"<{i}>") for i, x in enumerate((0.001, 0.02, 0.3, 4.0))]
    svg = ElementTree.fromstring(_loop_page.scatter(points, "t & u", "x", "y", diagonal=True))
    name = "{http://www.w3.org/2000/svg}"
    tips = [path.find(f"{name}title").text for path in svg.iter(f"{name}path") if path.find(f"{name}title") is not None]
    assert tips[0] == "<0>: 0.001, 1e-06" and len(tips) == 4
    width, height = map(float, svg.get("viewBox").split()[2:])
    places = [re.search(r"translate\((\S+) (\S+)\)", path.get("transform")).groups() for path in svg.iter(f"{name}path")]
    assert all(0 < float(x) < width and 0 < float(y) < height for x, y in places) and len(places) == 8
    long = [_loop_page.Point(1, 1, f"a policy of length {i}", "") for i in range(3)]
    texts = ElementTree.fromstring(_loop_page.scatter(long, "t", "x", "y")).iter(f"{name}text")
    key = [text for text in texts if text.text.startswith("a policy")]
    assert [float(text.get("x")) for text in key] == [16, 190, 16] and len({text.get("y") for text in key}) == 2
    lost = ElementTree.fromstring(_loop_page.scatter([*points, _loop_page.Point(0, 1, "s", "")], "t", "x", "y"))
    assert any("1 at or below 0 not shown" in (text.text or "") for text in lost.iter(f"{name}text"))
    near = ElementTree.fromstring(_loop_page.scatter([_loop_page.Point(0.2, 0.3, "s", "")], "t", "x", "y"))
    assert {"0.1", "0.2", "0.5"} <= {text.text for text in near.iter(f"{name}text")}  # also ticks between powers of ten
    assert "<svg" in _loop_page.scatter([], "t", "x", "y")
    assert "<svg" in _loop_page.scatter([_loop_page.Point(1, 1, "s", "t")], "t", "x", "y")


def test_page_of_what_is_not_there(workplace):
    run = _loop_document.run_entry(_loop_run.Run("a"))
    nothing = _loop_document.document("torch", [run], [], [])
    check_page(_loop_page.page(nothing), charts=0)
    run["name"] = "<&>"
    check_page(_loop_page.page(_loop_document.document("torch", [run], [row("<&>", '"', 1.0, 0.0)], [])), charts=2)
    made = _loop_page.page(nothing, "python -m kvtool.closed_loop 'a<b'", [__file__, "gone <&>"])
    check_page(made, charts=0)
    assert "closed_loop &#x27;a&lt;b&#x27;" in made and "gone &lt;&amp;&gt;: can no longer be read" in made
    assert re.search(r"test_closed_loop\.py: [0-9]+ bytes, SHA-256 [0-9a-f]{64}", made)


def test_a_reader_that_has_seen_enough_ends_only_the_table():
    code = (
        "import sys\n"
        "from kvtool import _loop_document\n"
        "table = _loop_document.Table(quiet=False)\n"
        "sys.stdin.readline()  # until nobody reads any more\n"
        "for _ in range(3):\n"
        "    table.show_archive({'run': 'r', 'level': 'fast', 'ratio': 1.5, 'tokens': 64,\n"
        "                        'tokens_equal': True, 'logits_equal': True})\n"
        "print('went on', file=sys.stderr)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    running.stdin.write("\n")
    running.stdin.close()
    errors = running.stderr.read()
    running.stderr.close()
    assert (running.wait(), errors) == (0, "went on\n")


def test_bands_are_the_programs(workplace):
    """Replays and the closed loop use the same calibration, so they print the same quantiles."""
    run = _loop_run.Run("a")
    replayed = _loop_measure.replay(run, "streaming", "0.5", "plan.json", no_quality=False, sample_rows=0)
    evicted = replayed["runs"][0]["predicted_kl"]
    rounded = kvtool.run("replay quant", run.path, k="bf16", v="bf16", kv_heads=2, sample_rows=0)
    (stored,) = [run["predicted_kl"] for run in rounded["runs"] if run["k"] == run["v"] == "bf16"]
    for alone, found in ((False, evicted), (True, stored)):
        calibration = found["calibration"]
        quantiles = tuple(calibration[name] for name in ("p10", "median", "p90"))
        assert quantiles == _loop_measure.CALIBRATIONS["recorded", alone]
    case = _loop_measure.make_case(run, _loop_measure.Wanted("plan", None, "plan.json"), ".")
    predicted = _loop_measure.predict(run, [case.plan])[0]
    banded = _loop_measure.expected(predicted, case)
    assert banded["expected_nats"] == pytest.approx(evicted["expected_nats"], rel=0.02)
    assert banded["low_nats"] == pytest.approx(evicted["low_nats"], rel=0.02)
    types = _loop_types.uniform("bf16", "bf16", run.shape)
    figures = _loop_measure.predict(run, [_loop_plan.keep_all(run.shape)], [types])[0]
    assert figures["predicted_kl"] == pytest.approx(stored["nats"], rel=0.1)


def test_types_with_scales_have_the_programs_errors(workplace):
    """The program's figure is a mean over layers, so the two differ by a few percent for every type, f16 as well."""
    run = _loop_run.Run("a")
    for kind in (*_loop_types.SCALED, "f16"):
        rounded = kvtool.run("replay quant", run.path, k=kind, v=kind, kv_heads=2, sample_rows=0)
        (there,) = [row["output_error"] for row in rounded["runs"] if row["k"] == row["v"] == kind]
        types = _loop_types.uniform(kind, kind, run.shape)
        here = _loop_measure.predict(run, [_loop_plan.keep_all(run.shape)], [types])[0]["output_error"]
        assert here == pytest.approx(there, rel=0.1)


def test_int8_is_within_half_a_step_of_each_token_and_head():
    values = numpy.random.default_rng(3).standard_normal((9, 2, 8)).astype(numpy.float32)
    values[4, 1] = 0
    step = numpy.abs(values).max(-1, keepdims=True) / 127
    error = numpy.abs(_loop_types.stored(values, "int8_per_token_head", True) - values)
    assert (error <= 0.501 * step).all() and (error > 0.4 * step).any()


def test_e4m3_rounds_to_the_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = numpy.random.default_rng(2).standard_normal((8, 500)).astype(numpy.float32)
    values *= numpy.float32(10) ** numpy.arange(-4, 4)[:, None]
    kept = values[numpy.abs(values) < _loop_types.MOST_E4M3]
    exact = kept.astype(ml_dtypes.float8_e4m3fn).astype(numpy.float32)
    assert (_loop_types._e4m3(kept) == exact).all()
    assert _loop_types._e4m3(numpy.float32([1e9, -1e9, 0])).tolist() == [448, -448, 0]
