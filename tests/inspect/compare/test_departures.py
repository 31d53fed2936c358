"""Where two runs depart, from recorded calls: which pair is named, and how inputs are paired."""

import math
from typing import Any

import numpy as np
import pytest

from plait.inspect.compare.calls import Call
from plait.inspect.compare.departures import Judge
from plait.inspect.compare.differences import Difference

F32 = np.float32
WAYS = {"one layout": None, "beside torch": (1, -1)}


def call(path, output, *, given=(1.0,), kind="Layer", times=(0, 1), statics=None, dtype=F32):
    inputs = {str(n): np.asarray(each, dtype) for n, each in enumerate(given)}
    keys = tuple(path.split(".")) if path else ()
    return Call(keys, (keys,), "", kind, None, inputs, statics or {}, {"": np.asarray(output, dtype)}, *times)


def chain(*outputs, whole, start=1.0):
    """A model of layers that follow each other: each is given what the one before returned."""
    calls, given = [], start
    for n, output in enumerate(outputs):
        calls.append(call(f"layer{n}", output, given=(given,), times=(2 * n + 1, 2 * n + 2)))
        given = output
    return [*calls, call("", whole, given=(start,), times=(0, 99))]


def first(ours, theirs, **options):
    return Judge(tuple(zip(ours, theirs, strict=True)), **options).first()


GROWTH = {  # differences in units of the tolerance, from layer to layer, and the layer that is named
    (0, 0.5, 2, 8): "layer1",
    (0.05, 0.1, 0.9, 8): "layer2",
    (0.05, 0.2, 0.8, 3): "layer3",
    (0, 0, 0, 1.5): "layer3",
}


@pytest.mark.parametrize("errors", GROWTH)
def test_a_departure_that_grows_begins_with_a_jump_to_an_eighth_of_the_tolerance(errors):
    unit = 256 * np.finfo(F32).eps
    ours, theirs = chain(*[1] * 4, whole=1), chain(*(1 + unit * each for each in errors), whole=1 + unit * errors[-1])
    assert first(ours, theirs).pair[0].place == GROWTH[errors]
    if errors[1]:  # a tolerance that is asked for is the one that counts
        beyond = next(f"layer{n}" for n, each in enumerate(errors) if each > 1)
        assert first(ours, theirs, tolerance=unit).pair[0].place == beyond


def inputs_of(ours, theirs, *, channels=None, path="layer", kinds=("Layer", "Layer"), statics=({}, {})):
    a, b = (
        Call((path,) if path else (), ((),), "", kind, None, {str(n): each for n, each in enumerate(arrays)}, given,
             {"": np.ones(1)}, 0, 1)
        for arrays, kind, given in zip((ours, theirs), kinds, statics, strict=True)
    )  # fmt: skip
    judge = Judge(((a, b),), channels=channels)
    return judge.paired_inputs((a, b)), judge.inputs((a, b))


def test_inputs_of_one_class_are_paired_in_order_and_those_of_two_by_size_and_kind():
    real, count, mask = np.ones(4, F32), np.ones(4, int), np.ones(4, bool)
    paired: Any
    paired, difference = inputs_of([real, count], [count, real])
    assert [[x is a for x, a in zip(pair, (real, count), strict=True)] for pair in paired] == [
        [True, True],
        [False] * 2,
    ]
    assert difference.largest == 0
    elsewhere = (
        {"kinds": ("Layer", "Other")},
        {"channels": (1, -1)},
        {"path": ""},
    )
    unsigned = np.ones(4, np.uint8)
    for where in elsewhere:
        paired, _ = inputs_of([real, count, mask], [mask, np.ones(3), unsigned, np.ones(4)], **where)
        assert [x.dtype.kind + y.dtype.kind for x, y in paired] == ["ff", "iu", "bb"]
        paired, difference = inputs_of([real], [count], **where)
        assert (paired, difference) == ([], None)
        paired, difference = inputs_of([real, real], [real + 1], **where)  # each is taken once
        assert len(paired) == 1
        assert difference.largest == 1


def test_a_class_that_was_given_more_or_another_number_was_given_something_else():
    more = inputs_of([np.ones(4), np.ones(2)], [np.ones(4)])
    assert more == (None, Difference(math.inf, 0.0, 0.0, shapes=((2, 4), (4,))))
    assert not more[1].is_agreement
    same, other, absent = ({"deterministic": True}, {"deterministic": False}, {})
    x = np.ones(4)
    assert inputs_of([x], [x], statics=(same, other))[1] == Difference(math.inf, 0.0, 0.0)
    for statics in ((same, same), (same, absent), (absent, same)):
        assert inputs_of([x], [x], statics=statics)[1].is_agreement
    assert inputs_of([x], [x], statics=(same, other), channels=(1, -1))[1].is_agreement


@pytest.mark.parametrize("channels", WAYS.values(), ids=WAYS)
def test_of_several_inputs_or_outputs_the_worst_counts(channels):
    near, far, wrong = np.full(4, 1.25), np.full(4, 3.0), np.ones(3)
    _, difference = inputs_of([np.ones(4)] * 3, [np.ones(4), far, near], channels=channels)
    assert difference.largest == 2
    a, b = call("x", 1), call("x", 1)
    for run, outputs in ((a, [np.ones(4)] * 3), (b, [near, far, np.ones(4)])):
        run.outputs.clear()
        run.outputs.update({str(n): each for n, each in enumerate(outputs)})
    judge = Judge(((a, b),), channels=channels)
    assert judge.output((a, b)).largest == 2
    b.outputs["0"] = wrong
    judge = Judge(((a, b),), channels=channels)
    assert judge.output((a, b)).shapes == ((4,), (3,))


def test_an_output_that_is_tiny_beside_its_inputs_may_be_off_by_roundings_of_them():
    """A difference of two large numbers."""

    def run(value):
        return [call("", value, given=(1e4,))]

    allowed = 256 * 2.0**-23 * 1e-4 * 1e4
    assert first(run(0.0), run(0.9 * allowed)) is None
    assert first(run(0.0), run(1.1 * allowed)) is not None
