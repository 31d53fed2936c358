"""A loop over equal blocks that is traced block by block is answered with what a stack would save. (rule ST14)"""

import warnings

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import UnrolledLoopWarning
from plait.observing import module_names, unrolled_loops
from tests.sampling import slow_but

X = jnp.ones((2, 4))


class Block(plait.Module):
    def __init__(self, rngs, features=4):
        self.linear = plait.Linear(features, features, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.linear(x))


class Other(Block):
    pass


class Net(plait.Module):
    def __init__(self, blocks, step=lambda block, x: block(x)):
        self.blocks = blocks
        self.step = step

    def __call__(self, x):
        for block in self.blocks:
            x = self.step(block, x)
        return x


class Experts(Net):
    def __call__(self, x):
        return sum(self.step(block, x) for block in self.blocks)


def blocks_of(count, kinds=(Block,)):
    rngs = plait.Rngs(0)
    return [kinds[number % len(kinds)](rngs) for number in range(count)]


def forward(model, x):
    return model(x)


def loss(model, x):
    return model(x).sum()


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch):
    monkeypatch.setattr(unrolled_loops, "_said", set())
    monkeypatch.delenv(unrolled_loops.SETTING, raising=False)


def said(run):
    """What is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    assert {each.category for each in caught} <= {UnrolledLoopWarning}
    assert {each.filename for each in caught} <= {__file__}
    return [str(each.message) for each in caught]


SAID = {
    # what runs → the path, how many blocks, how many a stack holds, and what to write
    "a list": (lambda: plait.jit(forward)(Net(blocks_of(8)), X), "blocks", 8, 1, "as_stack(model, 'blocks')"),
    "a tuple": (lambda: plait.jit(forward)(Net((*blocks_of(8),)), X), "blocks", 8, 1, "as_stack(model, 'blocks')"),
    "a gradient": (
        lambda: plait.jit(plait.value_and_grad(loss))(Net(plait.List(blocks_of(9))), X),
        "blocks", 9, 1, "as_stack(model, 'blocks')",
    ),
    "remat of each": (
        lambda: plait.jit(plait.grad(loss))(Net(blocks_of(8), plait.remat(Block.__call__)), X),
        "blocks", 8, 1, "as_stack(model, 'blocks')",
    ),
    "a part of one of two models": (
        lambda: plait.jit(lambda first, second, x: plait.grad(loss)(second["net"], first["x"] * x))(
            plait.Dict(x=plait.Param(1.0)), plait.Dict(net=Net(blocks_of(8))), X
        ),
        "second.net.blocks", 8, 1, "as_stack(model, '**.blocks')",
    ),
    "a pattern": (
        lambda: plait.jit(forward)(Net(blocks_of(17, (Block, Other))), X),
        "blocks", 17, 3, "as_stack(model, 'blocks')",
    ),
    "a list that is the argument": (
        lambda: plait.jit(lambda layers, x: Net.__call__(Net(layers), x))(plait.List(blocks_of(8)), X),
        "the list", 8, 1, "model = plait.Stack(model)",
    ),
    "a plain list that is the argument": (
        lambda: plait.jit(lambda layers, x: Net.__call__(Net(layers), x))(blocks_of(8), X),
        "layers", 8, 1, "layers = plait.Stack(layers)",
    ),
    "a loop of plait's": (
        lambda: plait.jit(forward)(plait.Dict(body=plait.Sequential(*blocks_of(8))).body, X),
        "layers", 8, 1, "plait.Stack(list(model.layers)) instead of the Sequential",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", slow_but(lambda case: case not in ("a part of one of two models", "remat of each"), SAID)
)
def test_a_loop_over_equal_blocks_is_named_with_what_to_write(case):
    run, path, count, traced, cure = SAID[case]
    [message] = said(run)
    assert f"at        {path} ({count} of " in message
    assert f"about {traced}/{count} of that" in message
    blocks = "equal blocks" if traced == 1 else "blocks that repeat with period 2"
    assert f"a loop over {count} {blocks} was traced" in message
    assert cure in message


def narrowing(block, x):
    return block(x)[: x.shape[0] - 1]


def tied():
    blocks = blocks_of(8)
    blocks[5].linear = blocks[2].linear
    return blocks


def in_a_table(model, x):
    for block in model.blocks:
        x = block({int: x, "rate": 2.0})
    return x


class Reading(Block):
    def __call__(self, table):
        return super().__call__(table[int]) * table["rate"]


UNSAID = {
    "inputs that are not pytrees": lambda: plait.jit(in_a_table)(Net(blocks_of(9, (Reading,))), X),
    "seven blocks": lambda: plait.jit(forward)(Net(blocks_of(7)), X),
    "a stack": lambda: plait.jit(plait.grad(loss))(Net(plait.Stack(blocks_of(16))), X),
    "a stack that is called": lambda: plait.jit(forward)(plait.Stack(blocks_of(16), remat=True), X),
    "blocks that differ": lambda: plait.jit(forward)(Net([*blocks_of(8), Other(plait.Rngs(0))]), X),
    "blocks that come in pairs": lambda: plait.jit(forward)(Net(blocks_of(14, (Block, Other))), X),
    "blocks of different settings": lambda: plait.jit(forward)(
        Net([plait.Dropout(number / 10, deterministic=True) for number in range(9)]), X
    ),
    "one block again and again": lambda: plait.jit(forward)(Net(blocks_of(1) * 9), X),
    "blocks that share a layer": lambda: plait.jit(forward)(Net(tied()), X),
    "functions among them": lambda: plait.jit(forward)(plait.Sequential(*blocks_of(8), jnp.tanh), X),
    "experts side by side": lambda: plait.jit(forward)(Experts(blocks_of(9)), X),
    "shapes that change": lambda: plait.jit(forward)(Net(blocks_of(8), narrowing), jnp.ones((9, 4))),
    "some of them": lambda: plait.jit(lambda model, x: Net.__call__(Net(model.blocks[:8]), x))(Net(blocks_of(9)), X),
    "eager": lambda: forward(Net(blocks_of(8)), X),
    "an eager gradient": lambda: plait.grad(loss)(Net(blocks_of(8)), X),
    "without compiling": lambda: jax.disable_jit()(plait.jit(forward))(Net(blocks_of(8)), X),
    "a table": lambda: plait.tabulate(Net(blocks_of(8)), X, compute_flops=True, compute_vjp_flops=True),
    "a report of costs": lambda: plait.cost(forward, Net(blocks_of(8)), X, compile=False),
    "debug_nans": lambda: plait.debug_nans()(plait.jit(forward))(Net(blocks_of(8)), X),
}


@pytest.mark.parametrize("case", slow_but(lambda case: case not in ("a stack", "an eager gradient", "a table"), UNSAID))
def test_nothing_is_said_where_no_stack_fits_or_nothing_is_traced(case):
    assert said(UNSAID[case]) == []


def test_it_is_said_once():
    def again():
        for _ in range(2):
            plait.jit(lambda model, x: model(x))(Net(blocks_of(8)), X)

    assert len(said(again)) == 1
    assert len(said(lambda: plait.jit(forward)(Net(blocks_of(9)), X))) == 1  # another model


@pytest.mark.parametrize("way", ["setting", "filter"])
def test_it_can_be_silenced(way, monkeypatch):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "setting":
            monkeypatch.setenv(unrolled_loops.SETTING, "0")
        else:
            warnings.filterwarnings("ignore", category=UnrolledLoopWarning)
        plait.jit(forward)(Net(blocks_of(8)), X)
    assert caught == []


def test_a_compiled_step_does_not_look(monkeypatch):
    looks = []
    monkeypatch.setattr(module_names, "advise_stacks", lambda *given: looks.append(given))
    step, model = plait.jit(forward), Net(blocks_of(8))
    step(model, X)
    traced = len(looks)
    assert traced
    for _ in range(3):
        step(model, X)
    assert len(looks) == traced


def test_an_error_in_the_loop_stays_the_error():
    def fail(block, x):
        block(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plait.jit(forward)(Net(blocks_of(8), fail), X)
