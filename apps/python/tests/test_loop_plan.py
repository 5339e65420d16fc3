# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Plans as masks, compared with a cache that is simulated token by token; and invalid plans."""

import json
import random

import numpy as np
import pytest

from kvtool import _loop_plan
from kvtool._loop_plan import Shape

SHAPE = Shape(layers=3, kv_heads=2, tokens=40, prompt_tokens=17)


def ranges(positions):
    """Returns ascending positions as [begin, count]."""
    found = []
    for position in sorted(positions):
        if found and sum(found[-1]) == position:
            found[-1][1] += 1
        else:
            found.append([position, 1])
    return found


def random_plan(seed, shape=SHAPE, whole_layers=False):
    """Caches that lose positions at random, and the plan that describes it."""
    dice = random.Random(seed)
    events = []
    for layer in range(shape.layers):
        for head in [None] if whole_layers else range(shape.kv_heads):
            held = set(range(shape.prompt_tokens))
            for token in range(shape.prompt_tokens - 1, shape.tokens):
                held.add(token)
                if dice.random() < 0.3:
                    before = len(held)
                    held = {position for position in held if dice.random() < 0.8}
                    events.append(
                        {"token": token, "layer": layer, "kv_head": head, "kept": ranges(held), "length_before": before}
                    )
    events.sort(key=lambda event: event["token"])
    return document(events)


def document(events):
    head = {"schema": "kvtool.h2o-plan/1", "policy": "random", "unit": "position", "applied": "before the next token"}
    return {**head, "events": events}


def played(plan, shape):
    """[layer][kv head][row][position]: a cache per head, extended and evicted as the engine
    would."""
    seen = np.zeros((shape.layers, shape.kv_heads, shape.tokens, shape.tokens), dtype=bool)
    for layer in range(shape.layers):
        for head in range(shape.kv_heads):
            cache = []
            for token in range(shape.tokens):
                cache.append(token)
                seen[layer, head, token, cache] = True
                for event in plan["events"]:
                    if event["token"] == token and event["layer"] == layer and event["kv_head"] in (None, head):
                        cache = [begin + i for begin, count in event["kept"] for i in range(count)]
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_masks_are_a_played_cache(seed):
    description = random_plan(seed, whole_layers=seed % 2 == 1)
    plan = _loop_plan.plan_of(description, SHAPE)
    seen = played(description, SHAPE)
    for layer in range(SHAPE.layers):
        for begin, end in ((17, 40), (0, 40), (20, 31), (39, 40)):
            assert (plan.mask(layer, begin, end) == seen[layer, :, begin:end, :end]).all(), (layer, begin, end)
    full = SHAPE.layers * SHAPE.kv_heads * SHAPE.tokens
    assert plan.kept_share() == pytest.approx(seen[:, :, -1].sum() / full)


def test_an_event_is_applied_before_the_next_token():
    events = [{"token": 20, "layer": 1, "kv_head": 0, "kept": [[0, 2], [19, 2]], "length_before": 21}]
    mask = _loop_plan.plan_of(document(events), SHAPE).mask(1, 17, 40)
    assert mask[0, 20 - 17].sum() == 21  # the query at position 20 still sees the evicted tokens
    assert np.flatnonzero(mask[0, 21 - 17]).tolist() == [0, 1, 19, 20, 21]
    assert np.flatnonzero(mask[0, 39 - 17]).tolist() == [0, 1, *range(19, 40)]
    assert mask[1].sum() == sum(range(18, 41))  # the other head keeps all its tokens


def test_an_event_after_the_last_token_costs_nothing():
    events = [{"token": 39, "layer": 0, "kv_head": None, "kept": [], "length_before": 40}]
    plan = _loop_plan.plan_of(document(events), SHAPE)
    assert (plan.mask(0, 17, 40) == _loop_plan.keep_all(SHAPE).mask(0, 17, 40)).all()
    assert plan.kept_share() == 1


def test_keep_all():
    plan = _loop_plan.keep_all(SHAPE)
    assert plan.kept_share() == 1
    assert not any(plan.changes(layer) for layer in range(SHAPE.layers))
    assert (plan.mask(0, 0, 40) == np.tri(40, dtype=bool)).all()
    assert plan.jaccard(_loop_plan.plan_of(document([]), SHAPE)) == 1


def test_on_layers_and_jaccard():
    plan = _loop_plan.plan_of(random_plan(3), SHAPE)
    part = plan.on_layers([1])
    assert part.changes(1) and not part.changes(0) and not part.changes(2)
    assert (part.mask(1, 17, 40) == plan.mask(1, 17, 40)).all()
    assert plan.jaccard(plan) == 1
    a, b = (np.stack([entry.mask(layer, 17, 40) for layer in range(3)]) for entry in (plan, part))
    assert plan.jaccard(part) == pytest.approx((a & b).sum() / (a | b).sum())


def events_of(**changes):
    event = {"token": 20, "layer": 1, "kv_head": 0, "kept": [[0, 2], [19, 2]], "length_before": 21}
    return [{**event, **changes}]


@pytest.mark.parametrize(
    "events, reason",
    [
        (7, "'events' is not a list"),
        ([7], "event 0: no object"),
        (events_of(token=15), "token 15 is not in 16 to 39"),
        (events_of(token=40), "token 40 is not in 16 to 39"),
        (events_of(token=True), "not a whole number"),
        (events_of(token=20.0), "not a whole number"),
        (events_of(layer=3), "layer 3 is not in 0 to 2"),
        (events_of(layer=-1), "layer -1"),
        (events_of(kv_head=2), "kv_head 2 is not in 0 to 1"),
        (events_of(kv_head="0"), "not a whole number"),
        (events_of(kept=None), "'kept' is not a list"),
        (events_of(kept=[[0]]), "not [begin, count]"),
        (events_of(kept=[[0, 1], [2]]), "not [begin, count]"),
        (events_of(kept=[[0, "1"]]), "not [begin, count]"),
        (events_of(kept=[[0, 1.0]]), "not [begin, count]"),
        (events_of(kept=[[[0], [1]]]), "not [begin, count]"),
        (events_of(kept=[[0, 1 << 80]]), "not [begin, count]"),
        (events_of(kept=[[0, (1 << 63) - 1]]), "not within positions 0 to 20"),
        (events_of(kept=[[-1, 1]]), "[-1, 1], which is not within"),
        (events_of(kept=[[0, 0]]), "[0, 0], which is not within"),
        (events_of(kept=[[21, 1]]), "[21, 1], which is not within"),
        (events_of(kept=[[20, 2]]), "[20, 2], which is not within"),
        (events_of(kept=[[4, 2], [3, 1]]), "not ascending"),
        (events_of(kept=[[4, 2], [5, 1]]), "not ascending"),
        (events_of(kept=[[0, 1]] * 22), "22 ranges"),
        (events_of() + events_of(), "it comes after the event at token 20"),
        (events_of() + events_of(token=19, kept=[]), "it comes after the event at token 20"),
        (events_of() + events_of(token=21, kept=[[1, 2]]), "event 1 (layer 1, kv head 0, token 21): it brings back position 2"),
        (events_of() + events_of(token=22, kv_head=None, kept=[[5, 1]]), "it brings back position 5"),
    ],
)
def test_what_is_no_plan(events, reason):
    with pytest.raises(ValueError) as error:
        _loop_plan.plan_of(document(events), SHAPE)
    assert reason in str(error.value)


@pytest.mark.parametrize("key, value", [("schema", "kvtool.h2o-plan/2"), ("unit", "block"), ("applied", "at once")])
def test_another_meaning_is_refused(tmp_path, key, value):
    (tmp_path / "plan.json").write_text(json.dumps({**random_plan(1), key: value}))
    with pytest.raises(ValueError, match=key):
        _loop_plan.read_plan(tmp_path / "plan.json", SHAPE)


def test_files(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(random_plan(2)))
    assert _loop_plan.read_plan(path, SHAPE).policy == "random"
    for text in ("", "[" * 100000, "[]", "{", '{"schema": "kvtool.h2o/1"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="plan.json"):
            _loop_plan.read_plan(path, SHAPE)
    with pytest.raises(FileNotFoundError):
        _loop_plan.read_plan(tmp_path / "none.json", SHAPE)
