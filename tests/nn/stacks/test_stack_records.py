"""Values sown by the layers of a stack, against those of the list: in every transform around it. (rule ST8)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import Intermediate, Perturbation, StateAxes

FEATURES = 3
X = jnp.linspace(-1.0, 1.0, 6 * 2 * FEATURES).reshape(6, 2, FEATURES)


class Block(plait.Module):
    def __init__(self, rngs: plait.Rngs) -> None:
        self.linear = plait.Linear(FEATURES, FEATURES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.perturb("before", jnp.tanh(self.linear(x)))
        self.sow(Intermediate, "inner", y)
        self.sow(Intermediate, "largest", y.max(-1), reduce_fn=jnp.maximum, init_fn=lambda: -jnp.inf)
        return x + y


class Wider(Block):
    def __init__(self, rngs: plait.Rngs) -> None:
        super().__init__(rngs)
        self.scale = plait.Param(jnp.asarray([0.5, 1.0, 2.0]))

    def __call__(self, x: Any) -> Any:
        return super().__call__(x) * self.scale.value[None]


class Net(plait.Module):
    """A model that calls its blocks one after the other, or their stack, and sows a value of its own."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks

    def __call__(self, x: Any) -> Any:
        x = self.run(x)
        self.sow(Intermediate, "result", x)
        return x

    def run(self, x: Any) -> Any:
        if isinstance(self.blocks, plait.Stack):
            return self.blocks(x)
        for block in self.blocks:
            x = block(x)
        return x


class OneByOne(Net):
    """The views of a stack are called one by one."""

    def run(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Twice(Net):
    def run(self, x: Any) -> Any:
        return super().run(super().run(x))


class FirstAlone(Net):
    """One layer runs by itself before all of them do."""

    def run(self, x: Any) -> Any:
        return super().run(x + self.blocks[1].linear(x))


KINDS = [Block, Wider]


def blocks_of(depth: int, period: int) -> list[Any]:
    rngs = plait.Rngs(depth)
    return [KINDS[i % period](rngs) for i in range(depth)]


def pair(kind: type[Net], depth: int, period: int) -> tuple[Net, Net]:
    """A model with a list, and the same with a stack."""
    return kind(plait.List(blocks_of(depth, period))), kind(plait.Stack(blocks_of(depth, period), period=period))


def nested() -> tuple[Net, Net]:
    """Lists in a list, and stacks in a stack."""
    pairs = [pair(Net, 3, 2) for _ in range(4)]
    return Net(plait.List([looped for looped, _ in pairs])), Net(plait.Stack([stacked for _, stacked in pairs]))


MODELS: dict[str, Callable[[], tuple[Net, Net]]] = {
    "one period": lambda: pair(Net, 4, 1),
    "a period and a remainder": lambda: pair(Net, 5, 2),
    "one layer": lambda: pair(Net, 1, 1),
    "views": lambda: pair(OneByOne, 5, 2),
    "called twice": lambda: pair(Twice, 5, 2),
    "stacks in a stack": nested,
}


def call(model: Any, x: Any) -> Any:
    return model(x)


def along(axis: int, transform: Any, f: Any = call) -> Any:
    """``f`` transformed, with this axis for inputs, sown values and outputs."""
    sown = StateAxes({(Intermediate, Perturbation): axis, ...: None})
    return transform(f, in_axes=(sown, axis), out_axes=axis)


AROUND: dict[str, Callable[..., Any]] = {
    "vmap": along(0, plait.vmap),
    "vmap along the second axis": along(1, plait.vmap),
    "scan": along(0, plait.scan),
    "scan along the second axis": along(1, plait.scan),
    "scan of remat": along(0, plait.scan, plait.remat(call)),
    "vmap in scan in jit": plait.jit(along(0, plait.scan, along(0, plait.vmap))),
    "scan in vmap": along(1, plait.vmap, along(0, plait.scan)),
}


def assert_same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), (_, b) in zip(*map(jax.tree.leaves_with_path, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))


FAST = [("a period and a remainder", "scan along the second axis"), ("one period", "vmap")]
CASES = [("one period", around) for around in AROUND] + [(model, "scan along the second axis") for model in MODELS]
PARAMETERS = [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in dict.fromkeys(CASES)]


@pytest.mark.parametrize(("kind", "around"), PARAMETERS)
def test_a_transform_around_a_stack_does_with_sown_values_what_it_does_around_a_list(kind: str, around: str) -> None:
    looped, stacked = MODELS[kind]()
    run = plait.capture(AROUND[around], Intermediate, Perturbation)
    (y, *theirs), (z, *ours) = run(looped, X), run(stacked, X)
    assert_same(z, y)
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a period and a remainder", "views", "stacks in a stack"])
def test_initial_values_are_given_as_they_are_returned_in_a_transform_too(kind: str) -> None:
    looped, stacked = MODELS[kind]()
    found = []
    for model in (looped, stacked):
        around = along(1, plait.scan)
        _, probes = plait.capture(around, Perturbation)(model, X)
        probes = jax.tree.map(lambda x: x + jnp.arange(x.size).reshape(x.shape) / x.size, probes)

        def loss(probes: Any, model: Any, around: Any = around) -> Any:
            y, sown = plait.capture(around, Intermediate, init=probes)(model, X)
            return (y**2).sum(), sown

        found.append(plait.grad(loss, has_aux=True)(probes, model))
        assert not any("_pytree__sown" in vars(node) for _, node in plait.iter_modules(model))
    assert_same(found[1], found[0])
    assert min(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[1][0])) > 0


def test_a_layer_that_ran_alone_sows_into_the_same_values() -> None:
    looped, stacked = pair(FirstAlone, 4, 1)
    run = plait.capture(call, Intermediate, method_outputs=Intermediate, only="**.linear")
    (y, theirs), (z, ours) = run(looped, X[0]), run(stacked, X[0])
    assert_same((z, ours), (y, theirs))
    assert [len(theirs["blocks"][i]["linear"]["__call__"].value) for i in range(4)] == [1, 2, 1, 1]


def test_a_layer_that_ran_alone_reduces_further() -> None:
    """What a block sows may be anything, also where one of them runs twice."""

    class Alone(Net):
        def run(self, x: Any) -> Any:
            return super().run(self.blocks[1](x))

    (y, theirs), (z, ours) = (plait.capture(model, Intermediate)(X[0]) for model in pair(Alone, 4, 1))
    assert_same((z, ours), (y, theirs))
