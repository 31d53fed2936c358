"""Which checkpoints stay."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from plait.checkpoint import Keep, Saved
from plait.errors import ArgumentError

rules = st.builds(
    Keep,
    last=st.none() | st.integers(1, 5),
    best=st.integers(0, 4),
    metric=st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    every=st.none() | st.integers(1, 7),
    hours=st.none() | st.sampled_from([0.5, 1.0, 24.0]),
)
scores = st.one_of(st.none(), st.floats(), st.integers(-3, 3), st.just("not a number"))


def test_rules_do_not_change_and_equal_ones_are_equal():
    assert {Keep(last=2), Keep(last=2), Keep(last=3)} == {Keep(last=3), Keep(last=2)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Keep(last=2).last = 3  # type: ignore[misc]


@st.composite
def runs(draw):
    steps = sorted(draw(st.sets(st.integers(0, 60), max_size=15)))
    gaps = draw(st.lists(st.floats(0, 7200), min_size=len(steps), max_size=len(steps)))
    found, now = [], 1.7e9
    for step, gap in zip(steps, gaps, strict=True):
        now += gap
        score = draw(scores)
        found.append(Saved(Path(str(step)), step, {} if score is None else {"loss": score}, now))
    return found


@given(rules, runs())
def test_each_rule_names_its_own_and_nothing_else_stays(keep, saved):
    stay = keep.chosen(saved)
    newest = sorted(saved, key=lambda each: each.step)
    named = set(newest if keep.last is None else newest[-keep.last :])
    if keep.every:
        named |= {each for each in saved if each.step % keep.every == 0}
    sign = 1 if keep.mode == "min" else -1
    scored = [each for each in saved if isinstance(each.metrics.get("loss"), (int, float))]
    scored = [each for each in scored if not math.isnan(each.metrics["loss"])]
    for each in scored:
        better = [o for o in scored if (sign * o.metrics["loss"], o.step) < (sign * each.metrics["loss"], each.step)]
        if len(better) < keep.best:
            named.add(each)
    if keep.hours:
        span = [math.floor(each.time / 3600 / keep.hours) for each in newest]
        named |= {each for i, each in enumerate(newest) if span[i] not in span[:i]}
    assert stay == named


@pytest.mark.parametrize("hours", [0.5, 1, 24])
def test_a_period_begins_at_full_hours_and_its_first_checkpoint_stays(hours):
    """Not counted from the first checkpoint: a run that is resumed keeps the same ones."""
    day = 20_000 * 24 * 3600.0
    times = [day - 1, day, day + hours * 3600 - 1, day + hours * 3600, day + hours * 3600 + 1]
    saved = [Saved(Path(str(step)), step, {}, time) for step, time in enumerate(times)]
    assert sorted(each.step for each in Keep(last=1, hours=hours).chosen(saved)) == [0, 1, 3, 4]


def test_the_last_three_stay_unless_said_otherwise():
    saved = [Saved(Path(str(step)), step, {}, 0.0) for step in range(5)]
    assert sorted(each.step for each in Keep().chosen(saved)) == [2, 3, 4]


def test_of_the_same_step_the_later_one_is_newer():
    """In whatever order they are given."""
    first, second = (Saved(Path(name), 7, {}, time) for name, time in (("a", 1.0), ("b", 2.0)))
    assert Keep(last=1).chosen([second, first]) == Keep(last=1).chosen([first, second]) == {second}


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_the_same_score_the_one_of_fewer_steps_is_better(mode):
    first, second = (Saved(Path(str(step)), step, {"loss": 0.5}, 0.0) for step in (1, 2))
    keep = Keep(best=1, metric="loss", mode=mode)
    assert keep.ranked([second, first]) == keep.ranked([first, second]) == [first, second]


@given(rules, runs())
def test_dropping_after_each_save_leaves_what_the_rule_says_of_all_but_the_best_of_those_dropped(keep, saved):
    """A rule applied again and again drops no more than it does in the end."""
    there = []
    for each in saved:
        there = [old for old in (*there, each) if old in keep.chosen([*there, each])]
    assert keep.chosen(saved) <= set(there)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"last": 0}, "last"),
        ({"last": 1.5}, "last"),
        ({"best": -1, "metric": "loss"}, "best"),
        ({"best": 1}, "metric"),
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"hours": 0}, "hours"),
        ({"hours": math.nan}, "hours"),
        ({"mode": "least"}, "mode"),
    ],
    ids=str,
)
def test_a_rule_that_makes_no_sense_is_refused_at_once(options, place):
    with pytest.raises(ArgumentError) as caught:
        Keep(**options)
    assert caught.value.parts["at"] == place
    rule = caught.value.parts["do"].removeprefix("for example plait.checkpoint.")
    eval(rule, {"Keep": Keep})
