"""Outlines from leaves alone, and two of them put together. (W10, W12)"""

import pytest

from plait.inspect.explore.outline import LEAF, LINK, Entry, outline_of_leaves, put_together


def outline(leaves, *, has_objects=False, target=None):
    """An outline of arrays, of which each is given by its dotted path and its shape."""
    entries = {
        tuple(name.split(".")): Entry(tuple(name.split(".")), LEAF, shape=shape) for name, shape in leaves.items()
    }
    made = outline_of_leaves("file", "checkpoint", entries, {"step": "3"})
    made.has_objects = has_objects
    if target:
        made.entries.append(Entry(("link",), LINK, target=target))
    return made


def paths(outline):
    return [".".join(entry.path) for entry in outline.entries]


MODEL = {"up.kernel": (4, 8), "up.bias": (8,), "down.kernel": (8, 2)}
RUN = {f"{where}.{name}": shape for where in ("opt.0.mu", "model", "opt.0.nu") for name, shape in MODEL.items()}


@pytest.mark.parametrize("swapped", [False, True])
def test_a_model_is_moved_to_its_arrays_in_a_checkpoint_of_its_run(swapped):
    """Not to the moments, which have the same names and shapes at longer paths."""
    run, model = outline(RUN), outline(MODEL, target=("up", "kernel"))
    put_together(*((model, run) if swapped else (run, model)))
    assert paths(run) == paths(outline(RUN))
    assert paths(model) == [
        "", "model", "model.up", "model.up.kernel", "model.up.bias", "model.down", "model.down.kernel", "model.link",
    ]  # fmt: skip
    assert model.entries[-1].target == ("model", "up", "kernel")
    assert model.facts == {"step": "3", "shown at": "model"}
    assert run.facts == {"step": "3"}


HALF = {"model.up.kernel": (4, 8), "model.up.bias": (8,), "model.down.kernel": (9, 9), "other": (1,)}
STAYS = {
    "half of the arrays": (outline(HALF), outline({**MODEL, "more": (1, 1)})),
    "an array in common": (outline({**RUN, "up.bias": (1,)}), outline(MODEL)),
    "two models": (outline(RUN, has_objects=True), outline(MODEL, has_objects=True)),
    "nothing in common": (outline({"x.y": (1,)}), outline({"z": (1,)})),
    "no arrays": (outline({}), outline({})),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_stays_where_it_is_unless_more_than_half_of_its_arrays_fit(name):
    both = STAYS[name]
    before = [paths(each) for each in both]
    put_together(*both)
    assert [paths(each) for each in both] == before
    assert all("shown at" not in each.facts for each in both)


def test_two_of_three_arrays_are_enough_and_one_side_may_be_a_model():
    run, model = outline(HALF), outline(MODEL, has_objects=True)
    put_together(model, run)
    assert model.facts["shown at"] == "model"
