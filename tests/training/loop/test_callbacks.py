"""Early stopping at its limits, and the names by which checkpoints know the states of callbacks."""

import json
import math

import pytest

from plait.training import EarlyStop
from plait.training.loop.callbacks import CallbackInfo, restore_states, states_of


def after(values, **options):
    """The reasons with which it stops, one for each of these values of its metric (or ``None``: another metric)."""
    stop, reasons = EarlyStop("loss", **options), []
    for step, value in enumerate(values):
        info = CallbackInfo(step, {"other": 0.0} if value is None else {"loss": value}, {}, reasons.append)
        stop(info)
    return stop, reasons


TWICE = "no lower loss 2 times"
SEQUENCES = {
    "better each time": ([3, 2, 1], {}, []),
    "not better once": ([3, 3, 2, 2], {}, []),
    "not better twice": ([3, 3, 3], {}, [TWICE]),
    "the first counts": ([math.inf, math.inf], {}, [TWICE]),
    "another metric does not count": ([3, None, None, 3], {}, []),
    "higher is better": ([1, 2, 3, 3, 2.5], {"mode": "max"}, ["no higher loss 2 times"]),
    "higher is worse": ([1, 2, 3], {}, [TWICE]),
    "by just enough": ([3, 2.4], {"by": 0.5, "patience": 1}, []),
    "by exactly that": ([3, 2.5], {"by": 0.5, "patience": 1}, ["no lower loss 1 times"]),
    "small steps are measured from the best": ([3, 2.8, 2.6], {"by": 0.5}, [TWICE]),
    "nan is not better": ([3, math.nan, math.nan], {}, [TWICE]),
    "it says so each time": ([3, 3, 3, 3], {}, [TWICE, TWICE]),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_early_stopping_counts_what_does_not_improve_in_a_row(name):
    values, options, reasons = SEQUENCES[name]
    assert after(values, **{"patience": 2, **options})[1] == reasons


def test_its_state_is_the_best_value_and_the_count():
    fresh = EarlyStop("loss", patience=1)
    assert (fresh.get_state(), fresh.stopped) == ({"best": None, "worse": 0}, None)
    stop, _ = after([3, 4, 5], patience=2, mode="max")
    assert stop.get_state() == {"best": -5, "worse": 0}
    stop, _ = after([3, 4, 5], patience=2)
    assert stop.get_state() == {"best": 3, "worse": 2}
    fresh.set_state({"best": 3.0, "worse": 1})
    assert (fresh.best, fresh.worse, fresh.stopped) == (3.0, 1, "no lower loss 1 times")
    fresh.set_state({"best": None, "worse": 0})
    assert (fresh.best, fresh.stopped) == (math.inf, None)


@pytest.mark.parametrize("value", [-math.inf, math.inf, 3.0])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_best_value_that_is_not_finite_is_kept_as_text(value, mode):
    """One of minus infinity was forgotten, so a resumed run went on where the unbroken one ended."""
    whole, _ = after([value, 1.0], patience=9, mode=mode)
    resumed = EarlyStop("loss", patience=9, mode=mode)
    resumed.set_state(json.loads(json.dumps(whole.get_state(), allow_nan=False)))
    assert (resumed.best, resumed.worse) == (whole.best, whole.worse)


class Kept:
    def __init__(self, value, name=None):
        self.value, self.name = value, name

    def get_state(self):
        return self.value

    def set_state(self, state):
        self.value = state


def test_states_go_by_class_and_name_and_equal_ones_are_numbered():
    callbacks = [Kept(1), print, Kept(2, "loss"), Kept(3), Kept(4, "loss"), Kept(5, 7)]
    states = states_of(callbacks)
    assert states == {"Kept": 1, "Kept of loss": 2, "Kept 2": 3, "Kept of loss 2": 4, "Kept 3": 5}
    others = [Kept(0, "loss"), Kept(0), Kept(0, "new")]
    restore_states(others, states)
    assert [each.value for each in others] == [2, 1, 0]  # the last one was not saved
