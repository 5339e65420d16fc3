# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Figures of plans, compared with loops that follow their definitions, and with the program."""

import json
import math

import numpy as np
import pytest
from loop_runs import DIM, KV_HEADS, LAYERS, QUERY_HEADS, change, random_run
from test_loop_plan import document as plan_document

from kvtool import _loop_figures, _loop_measure, _loop_plan, _loop_run, _safetensors


@pytest.fixture
def run(tmp_path):
    return _loop_run.Run(random_run(tmp_path / "run"))


def some_plan(run, policy="h2o", budget="0.5", **options):
    wanted = _loop_measure.Wanted(policy, budget)
    return _loop_measure.make_case(run, wanted, str(run.path), **options).plan


def spelled_out(run, plan):
    """Returns error, cosine, mass and nats of a plan."""
    first, tokens = run.shape.prompt_tokens, run.shape.tokens
    error2 = norm2 = mass = cosines = 0.0
    inner = np.zeros((len(run.gradients(0)), tokens - first))
    caches = run.caches()
    for layer in range(LAYERS):
        keys, values = caches[layer]
        rule, queries, gradients = run.rule(layer), run.queries(layer), run.gradients(layer)
        seen = plan.mask(layer, first, tokens)
        for row in range(tokens - first):
            outputs = np.zeros((2, QUERY_HEADS, DIM))
            for head in range(QUERY_HEADS):
                kv = head // (QUERY_HEADS // KV_HEADS)
                weights = []
                for j in range(first + row + 1):
                    score = float(queries[row, head].astype(float) @ keys[j, kv].astype(float)) * rule.scale
                    if rule.softcap:
                        score = rule.softcap * math.tanh(score / rule.softcap)
                    near = rule.window is None or j > first + row - rule.window
                    weights.append(math.exp(score) if near else 0.0)
                kept = [weight if seen[kv, row, j] else 0.0 for j, weight in enumerate(weights)]
                mass += sum(kept) / sum(weights)
                for side, of in enumerate((weights, kept)):
                    for j, weight in enumerate(of):
                        outputs[side, head] += weight / sum(of) * values[j, kv].astype(float)
            a, b = outputs[0].ravel(), outputs[1].ravel()
            error2 += ((b - a) ** 2).sum()
            norm2 += (a**2).sum()
            cosines += a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            for sample in range(len(inner)):
                inner[sample, row] += gradients[sample, row].astype(float).ravel() @ (b - a)
    rows = LAYERS * (tokens - first)
    return {
        "output_error": math.sqrt(error2 / norm2),
        "cosine_loss": 1 - cosines / rows,
        "lost_mass": 1 - mass / rows / QUERY_HEADS,
        "predicted_kl": (inner**2).mean() / 2,
        "basis": "recorded",
    }


RULES = [{}, {"scale": "0.5", "softcap": "2", "softcap.1": "0"}, {"window.1": "20", "scale.2": "0.2"}]


@pytest.mark.parametrize("metadata", RULES)
def test_figures_are_what_they_say(tmp_path, metadata):
    run = _loop_run.Run(random_run(tmp_path / "run", tokens=40, prompt=28, metadata=metadata))
    plan = some_plan(run, "random", "0.4")
    figures = _loop_figures.open_loop(run, [plan])[0].document()
    expected = spelled_out(run, plan)
    assert figures.pop("basis") == expected.pop("basis")
    assert figures == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("granularity", ["layer", "kv-head"])
@pytest.mark.parametrize("policy", ["h2o", "streaming", "knorm"])
def test_figures_are_the_program_s(run, tmp_path, policy, granularity):
    path = tmp_path / "plan.json"
    options = {"granularity": granularity, "no_quality": False, "quality_rows": 0}
    replayed = _loop_measure.replay(run, policy, "0.5", path, **options)["runs"][0]
    told = replayed["attention"]
    figures = _loop_figures.open_loop(run, [_loop_plan.read_plan(path, run.shape)])[0].document()
    assert figures["output_error"] == pytest.approx(told["output_error"]["frobenius"], rel=1e-5)
    assert figures["cosine_loss"] == pytest.approx(1 - told["output_cosine"]["mean"], rel=1e-4)
    assert figures["lost_mass"] == pytest.approx(1 - told["mass"]["mean"], rel=1e-5)
    assert figures["predicted_kl"] == pytest.approx(replayed["predicted_kl"]["nats"], rel=1e-5)


def test_plans_priced_together_cost_what_they_cost_alone(run):
    whole = some_plan(run)
    plans = [whole, whole.on_layers([1]), _loop_plan.keep_all(run.shape), whole.on_layers([0, 2])]
    together = [figures.document() for figures in _loop_figures.open_loop(run, plans)]
    assert together == [_loop_figures.open_loop(run, [plan])[0].document() for plan in plans]
    assert together[2]["output_error"] == together[2]["predicted_kl"] == 0
    assert max(abs(together[2][name]) for name in ("cosine_loss", "lost_mass")) < 1e-6
    # Effects of evictions in separate layers add up.
    assert together[1]["lost_mass"] + together[3]["lost_mass"] == pytest.approx(together[0]["lost_mass"], rel=1e-6)


def test_a_query_that_sees_nothing_but_itself(run):
    events = [
        {"token": token, "layer": 0, "kv_head": None, "kept": [], "length_before": 1}
        for token in range(run.shape.prompt_tokens - 1, run.shape.tokens)
    ]
    plan = _loop_plan.plan_of(plan_document(events), run.shape)
    assert (plan.mask(0, 64, 96).sum(2) == 1).all()
    figures = _loop_figures.open_loop(run, [plan])[0].document()
    assert figures.pop("basis") == "recorded" and all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("evicted, basis", [(0, "recorded"), (3, "both"), (4, "evicted")])
def test_samples_at_evicted_states_weigh_two_thirds_as_in_the_program(tmp_path, evicted, basis):
    run = _loop_run.Run(random_run(tmp_path / "run", samples=4, metadata={"g_evicted": str(evicted)}))
    path = tmp_path / "plan.json"
    options = {"granularity": "kv-head", "no_quality": False, "quality_rows": 0}
    told = _loop_measure.replay(run, "h2o", "0.5", path, **options)["runs"][0]["predicted_kl"]
    plan = _loop_plan.read_plan(path, run.shape)
    figures = _loop_figures.open_loop(run, [plan])[0]
    halves = figures.inner**2 / 2
    parts = [half.mean() for half in (halves[: 4 - evicted], halves[4 - evicted :]) if len(half)]
    expected = (parts[0] + 2 * parts[1]) / 3 if len(parts) == 2 else parts[0]
    assert figures.gradient_kl() == (pytest.approx(expected), basis)
    assert told["basis"] == basis and told["nats"] == pytest.approx(expected, rel=1e-5)
    case = _loop_measure.Case("h2o", "0.5", plan)
    banded = _loop_measure.expected(_loop_measure.predict(run, [plan])[0], case)
    quantiles = tuple(told["calibration"][name] for name in ("p10", "median", "p90"))
    assert quantiles == _loop_measure.CALIBRATIONS[basis, False]
    assert banded == {name: pytest.approx(told[name], rel=1e-5) for name in banded}
    of_types = figures.gradient_kl(recorded_only=True)
    assert of_types == ((None, None) if evicted == 4 else (pytest.approx(parts[0]), "recorded"))


@pytest.mark.parametrize("text", ["5", "-1", "x", "1.5"])
def test_marks_of_evicted_states_that_do_not_match_are_refused(tmp_path, text):
    run = _loop_run.Run(random_run(tmp_path / "run", samples=4, metadata={"g_evicted": text}))
    with pytest.raises(ValueError, match="g_evicted"):
        _loop_measure.predict(run, [_loop_plan.keep_all(run.shape)])


def test_rows_that_are_not_finite_leave_the_mean(run):
    figures = _loop_figures.open_loop(run, [some_plan(run)])[0]
    kept = 0.5 * float((figures.inner[:, 1:] ** 2).mean())
    figures.inner[0, 0] = math.nan
    assert figures.gradient_kl() == (pytest.approx(kept), "recorded")
    figures.inner[:] = math.inf
    assert figures.gradient_kl() == (None, None)


def test_without_gradients_no_nats(tmp_path):
    run = _loop_run.Run(random_run(tmp_path / "run", samples=0))
    figures = _loop_measure.predict(run, [some_plan(run)])[0]
    assert figures["predicted_kl"] is None and figures["weighted_kl"] is None and figures["output_error"] > 0


def test_weights_of_layers(tmp_path):
    path = random_run(tmp_path / "run")
    layers = [{"layer": layer, "kl": 0.01 * (layer + 1)} for layer in range(LAYERS)]
    (path / "sensitivity.json").write_text(json.dumps({"schema": "kvtool.sensitivity/1", "noise": 0.5, "layers": layers}))
    files = json.loads((path / "run.json").read_text())["files"]
    change(path, files={**files, "sensitivity": "sensitivity.json"})
    run = _loop_run.Run(path)
    assert _loop_measure.layer_weights(run) == pytest.approx([0.04, 0.08, 0.12])
    plan = some_plan(run)
    parts = [_loop_measure.predict(run, [plan.on_layers([layer])])[0] for layer in range(LAYERS)]
    expected = sum(0.04 * (layer + 1) * 2 * LAYERS * part["cosine_loss"] for layer, part in enumerate(parts))
    assert _loop_measure.predict(run, [plan])[0]["weighted_kl"] == pytest.approx(expected, rel=1e-6)
    silent = {"schema": "kvtool.sensitivity/1", "noise": 0, "layers": layers}
    for text in ("{", "[]", '{"schema": "kvtool.sensitivity/2"}', json.dumps(silent)):
        (path / "sensitivity.json").write_text(text)
        with pytest.raises(ValueError, match="sensitivity.json"):
            _loop_measure.layer_weights(run)


@pytest.mark.parametrize(
    "keys, reason",
    [
        ({"schema": "kvtool.run/2"}, "schema"),
        ({"tokens": 95}, "no 95 token ids"),
        ({"tokens": 64}, "nothing was decoded"),
        ({"tokens": "96"}, "not a whole number"),
        ({"prompt_tokens": 0}, "0 is not in 1 to"),
        ({"geometry": {"layers": 3}}, "not of schema"),
        ({"geometry": {"layers": 3, "query_heads": 4, "kv_heads": 3, "head_dim": 8}}, "4 query heads of 3 kv heads"),
        ({"files": {"snapshot": "../elsewhere", "trace": "trace"}}, "points outside the folder"),
        ({"files": {"snapshot": "/etc/passwd", "trace": "trace"}}, "points outside the folder"),
        ({"files": {"snapshot": None, "trace": "trace"}}, "the run has no snapshot"),
        ({"files": []}, "not of schema"),
    ],
)
def test_what_is_no_run(tmp_path, keys, reason):
    path = random_run(tmp_path / "run")
    change(path, **keys)
    with pytest.raises(ValueError) as error:
        _loop_run.Run(path)
    assert reason in str(error.value)


def test_unfinished_and_other_folders(tmp_path):
    with pytest.raises(ValueError, match="not finished"):
        _loop_run.Run(tmp_path)
    with pytest.raises(FileNotFoundError):
        _loop_run.Run(tmp_path / "none")


@pytest.mark.parametrize("metadata", [{"g_start": "65"}, {"g_start": "-1"}, {"q_start": "1"}, {"g_start": "9" * 5000}])
def test_rows_that_are_not_where_they_should_be(tmp_path, metadata):
    run = _loop_run.Run(random_run(tmp_path / "run", metadata=metadata))
    plan = _loop_plan.keep_all(run.shape)
    with pytest.raises(ValueError):
        _loop_figures.open_loop(run, [plan])


@pytest.mark.parametrize("cut", [0, 7, 8, 40, 400, -1])
def test_cut_files(tmp_path, cut):
    path = random_run(tmp_path / "run")
    file = path / "trace" / "q.1.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match="q.1.safetensors"):
        _loop_run.Run(path)


def test_hostile_headers(tmp_path):
    def file(header, data=b"12345678"):
        text = json.dumps(header).encode() if not isinstance(header, bytes) else header
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert _safetensors.read(file({"a": good}))[0]["a"].shape == (2,)
    changes = [
        {"shape": [3]}, {"shape": [-2]}, {"shape": [1 << 40, 1 << 40]}, {"shape": 2}, {"dtype": "F33"}, {"data_offsets": [0, 9]},
        {"data_offsets": [8, 0]}, {"data_offsets": [-8, 0]}, {"data_offsets": [0]}, {"shape": [True, 2]}, {"dtype": []},
    ]  # fmt: skip
    for change_ in changes:
        with pytest.raises(ValueError, match="x.safetensors"):
            _safetensors.read(file({"a": {**good, **change_}}))
    for header in (b"[]", b"{", b"\xff\xff", b"[" * 5000, b'{"__metadata__": {"a": 1}}', b'{"__metadata__": 7}', b'{"a": 7}'):
        with pytest.raises(ValueError, match="x.safetensors"):
            _safetensors.read(file(header))
