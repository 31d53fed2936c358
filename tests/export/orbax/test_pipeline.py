"""The order of steps that are connected by keys, and what flows between them."""

import random

import pytest
from hypothesis import given, strategies as st

from plait.export.data_processors import DataProcessor
from plait.export.orbax.pipeline import by_key, connected, named_outputs, run_in_a_row, run_steps
from plait.export.orbax.typing import ApplyFnInfo


class Step(DataProcessor):
    """A step that tells what it was made of."""

    def __call__(self, *values):
        made = f"{self.name}({','.join(values)})"
        return [f"{made}.{key}" for key in self.output_keys] if len(self.output_keys) > 1 else made


def step(name, inputs, outputs):
    return Step(name, tuple(inputs), tuple(outputs))


METHOD = ApplyFnInfo(lambda p, x: x, ("ids", "mask"), ("logits", "state"))
SIGNATURE = [{"text": None, "length": None}]


def names(steps):
    return [each.name for each in steps]


def test_e15_steps_are_ordered_by_the_values_that_they_need():
    """E15."""
    before = [
        step("pad", ["raw"], ["ids"]),
        step("mask", ["raw", "length"], ["mask"]),
        step("split", ["text"], ["raw"]),
    ]
    after = [step("best", ["p"], ["label"]), step("softmax", ["logits"], ["p"]), step("echo", ["text"], ["echo"])]
    pipeline = connected(SIGNATURE, before, METHOD, after)
    assert (names(pipeline.before), names(pipeline.after)) == (["split", "pad", "mask"], ["softmax", "best", "echo"])
    assert pipeline.outputs == ("state", "label", "echo")
    values = by_key(pipeline, [{"length": "3", "text": "a b"}])
    values |= run_steps(pipeline.before, values)
    assert (values["ids"], values["mask"]) == ("pad(split(a b))", "mask(split(a b),3)")
    values |= {"logits": "L", "state": "S"}
    assert run_steps(pipeline.after, values) == {
        "p": "softmax(L)",
        "label": "best(softmax(L))",
        "echo": "echo(a b)",
    }


@given(st.integers(1, 8), st.randoms(use_true_random=False))
def test_e15_any_order_of_a_chain_gives_the_chain(length, shuffler: random.Random):
    """E15: the order of the arguments does not matter where keys decide."""
    steps = [step(f"s{i}", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    shuffled = shuffler.sample(steps, length)
    method = ApplyFnInfo(lambda p, x: x, (f"v{length}",), ("y",))
    assert connected([{"v0": None}], shuffled, method, []).before == tuple(steps)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            [],
            [],
            r"the method takes an unknown value\n +found +.*'ids', 'mask'\n +expected +.*'text', 'length'\n"
            r" +do +add it to the input signature, or to the output_keys of an earlier step$",
        ),
        (
            [step("a", ["ids"], ["mask"]), step("b", ["mask"], ["ids"])],
            [],
            r"depend on each other in a cycle\n.*'a' needs 'ids'; 'b'",
        ),
        ([step("a", ["text", "x"], ["ids", "mask"])], [], r"'a' takes an unknown value\n +found +.*'x'"),
        (
            [step("a", ["text"], ["text"])],
            [],
            r"same key\n.*\n +found +'text', of the input signature and of 'a'",
        ),
        ([step("a", ["text"], ["ids", "mask"])], [step("b", ["logits"], ["ids"])], r"'ids', of 'a' and of 'b'"),
        ([step("a", ["logits"], ["ids", "mask"])], [], r"'a' takes an unknown value\n +found +.*'logits'"),
    ],
)
def test_e15_keys_that_do_not_connect_are_named(before, after, message):
    """E15: missing, doubled and circular keys."""
    with pytest.raises(ValueError, match=message):
        connected(SIGNATURE, before, METHOD, after)


class Named:
    def __init__(self, name):
        self.name = name


def test_e15_inputs_are_named_by_one_dictionary_or_by_their_specs():
    """E15."""
    method = ApplyFnInfo(lambda p, x: x, ("a",), ("y",))
    pipeline = connected([Named("a"), Named("b")], [], method, [])
    assert by_key(pipeline, [1, 2]) == {"a": 1, "b": 2}
    for signature in ([Named(None)], [Named("a"), Named("a")], [{3: None}]):
        with pytest.raises(ValueError, match="the inputs of a pipeline need names"):
            connected(signature, [], method, [])


@pytest.mark.parametrize(
    ("keys", "outputs", "expected"),
    [
        (("a",), 3, {"a": 3}),
        (("a",), [3], {"a": 3}),
        (("a",), {"a": 3}, {"a": 3}),
        (("a", "b"), (3, 4), {"a": 3, "b": 4}),
        (("a", "b"), {"b": 4, "a": 3}, {"a": 3, "b": 4}),
        (("a", "b"), (3,), None),
        (("a", "b"), {"a": 3}, None),
        (("a",), {"b": 3}, None),
        (("a",), [3, 4], None),
    ],
)
def test_e15_outputs_fit_their_keys(keys, outputs, expected):
    """E15: by key, by position, or as the one value."""
    if expected is None:
        with pytest.raises(ValueError, match="'step' does not return the values of its output_keys"):
            named_outputs(keys, outputs, "'step'")
    else:
        assert named_outputs(keys, outputs, "'step'") == expected


def test_e15_steps_without_keys_run_in_a_row():
    """E15."""
    assert run_in_a_row([step("f", [], []), step("g", [], [])], "x", "y") == "g(f(x,y))"


@pytest.mark.parametrize("keys", ["ids", [""], ["a", "a"], [3], 3])
def test_e15_keys_are_names(keys):
    """E15."""
    with pytest.raises(ValueError, match="input_keys"):
        Step("s", keys, ("a",))
    with pytest.raises(ValueError, match="output_keys"):
        ApplyFnInfo(lambda p, x: x, ("a",), keys)


def test_e15_a_method_takes_and_gives_something():
    """E15."""
    with pytest.raises(ValueError, match=r"input_keys=\(\)"):
        ApplyFnInfo(lambda p, x: x, (), ("y",))
