"""What views of a stack sow, against the blocks of a list: programs that hold, call and transform them. (rule ST8)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree import leaves_with_path
from jax.tree_util import keystr

import plait
from plait import Intermediate, Perturbation, StateAxes
from plait.errors import GraphError, TraceContextError
from tests.sampling import slow_but

FEATURES = 3
X = jnp.linspace(-1.0, 1.0, 2 * FEATURES).reshape(2, FEATURES)
KINDS = (Intermediate, Perturbation)


class Inner(plait.Module):
    def __init__(self, rngs: plait.Rngs) -> None:
        self.linear = plait.Linear(FEATURES, FEATURES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.linear(x)
        self.sow(Intermediate, "deep", y)
        return y


class Block(plait.Module):
    def __init__(self, rngs: plait.Rngs) -> None:
        self.inner = Inner(rngs)

    def __call__(self, x: Any) -> Any:
        y = jnp.tanh(self.inner(x))
        self.sow(Intermediate, "largest", y.max())
        return x + y

    def perturbed(self, x: Any) -> Any:
        return self(self.perturb("before", 2 * x))

    def other(self, x: Any) -> Any:
        self.sow(Intermediate, "other", 2 * x)
        return self(x)


class Wider(Block):
    """Another class."""


class Net(plait.Module):
    """A model that calls its blocks one after the other, or their stack."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks

    def __call__(self, x: Any) -> Any:
        if isinstance(self.blocks, plait.Stack):
            return self.blocks(x)
        return in_turn(self.blocks, x)


def in_turn(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


def first_of(block: Any) -> Any:
    """A block, or the first of those that it holds."""
    return block.blocks[0] if isinstance(block, Net) else block


def pair(period: int = 1) -> tuple[Net, Net]:
    """A model with a list, and the same with a stack."""
    blocks = [[(Block, Wider)[i % period](rngs) for i in range(5)] for rngs in (plait.Rngs(0), plait.Rngs(0))]
    return Net(plait.List(blocks[0])), Net(plait.Stack(blocks[1], period=period))


def nested() -> tuple[Net, Net]:
    """Lists in a list, and stacks in a stack."""
    pairs = [pair(2) for _ in range(3)]
    return Net(plait.List([looped for looped, _ in pairs])), Net(plait.Stack([stacked for _, stacked in pairs]))


MODELS = {"one period": pair, "a remainder": lambda: pair(2), "stacks in a stack": nested}


def call(block: Any, x: Any) -> Any:
    return block(x)


jitted = plait.jit(call)
jitted_in_turn = plait.jit(in_turn)
along = StateAxes({KINDS: 0, ...: None})  # type: ignore[dict-item]


def captured(f: Any, model: Any, **options: Any) -> Any:
    return plait.capture(f, *KINDS, **options)(model, X)


# Inside a capture of the whole model ---------------------------------------------------------------------------------


def in_a_loop(model: Any, x: Any) -> Any:
    return in_turn(model.blocks, x)


def in_slices(model: Any, x: Any) -> Any:
    return in_turn(model.blocks[::-1], in_turn(model.blocks[1:3], x))


def one_view_twice(model: Any, x: Any) -> Any:
    block = model.blocks[1]
    return block(block(x))


def two_views_of_a_layer(model: Any, x: Any) -> Any:
    return model.blocks[1](model.blocks[1](x))


def held_around_the_model(model: Any, x: Any) -> Any:
    blocks = [*model.blocks]
    x = in_turn(blocks, model(in_turn(blocks, x)))
    return blocks[2](model(x))


def held_around_a_transform(model: Any, x: Any) -> Any:
    """The transform gives the model values for which there was no place before."""
    blocks = [*model.blocks]
    x = jitted(model, x)
    x = in_turn(blocks, x)
    return in_turn(blocks, plait.remat(call)(model, x))


def jitted_views(model: Any, x: Any) -> Any:
    for block in [*model.blocks, *model.blocks]:
        x = jitted(block, x)
    return x


def a_held_view_jitted(model: Any, x: Any) -> Any:
    block = model.blocks[1]
    x = block(jitted(block, block(jitted(block, x))))
    return model(model.blocks[1](x))


def a_list_of_views_jitted(model: Any, x: Any) -> Any:
    return jitted_in_turn(model.blocks[:2], jitted_in_turn([*model.blocks], x))


def one_view_given_twice(model: Any, x: Any) -> Any:
    block = model.blocks[1]
    return plait.jit(lambda first, second, x: second(first(x)))(block, block, x)


def recomputed_views(model: Any, x: Any) -> Any:
    for block in model.blocks:
        x = plait.remat(call)(block, x)
    return x


def a_view_under_vmap(model: Any, x: Any) -> Any:
    return plait.vmap(call, in_axes=(along, 0))(model.blocks[1], x)


def a_view_under_scan(model: Any, x: Any) -> Any:
    return plait.scan(call, in_axes=(along, 0), out_axes=0)(model.blocks[1], x)


def a_view_under_grad(model: Any, x: Any) -> Any:
    return plait.grad(lambda x, block: (block(x) ** 2).sum())(x, model.blocks[1])


def views_in_a_module(model: Any, x: Any) -> Any:
    sequential = plait.Sequential(*model.blocks[1:3])
    return jitted(sequential, sequential(x))


def jit_in_jit(model: Any, x: Any) -> Any:
    return plait.jit(jitted_views)(model, x)


def a_part_of_a_view(model: Any, x: Any) -> Any:
    part = first_of(model.blocks[1]).inner
    return jitted(part, part(x))


def a_capture_inside(model: Any, x: Any) -> Any:
    y, *seen = plait.capture(model.blocks[1], *KINDS)(x)
    return model.blocks[2](y), seen


def a_capture_of_all_inside(model: Any, x: Any) -> Any:
    blocks = [*model.blocks]
    y, *seen = plait.capture(in_turn, *KINDS)(blocks, x)
    z, *again = plait.capture(model, *KINDS)(in_turn(blocks, y))
    return in_turn(blocks, z), seen, again


INSIDE = [
    in_a_loop, in_slices, one_view_twice, two_views_of_a_layer, held_around_the_model, held_around_a_transform,
    jitted_views, a_held_view_jitted, a_list_of_views_jitted, one_view_given_twice, recomputed_views, a_view_under_vmap,
    a_view_under_scan, a_view_under_grad, views_in_a_module, jit_in_jit, a_part_of_a_view, a_capture_inside,
    a_capture_of_all_inside,
]  # fmt: skip


# Captures of views ---------------------------------------------------------------------------------------------------


def of_a_view(model: Any) -> Any:
    return plait.capture(model.blocks[1], *KINDS)(X)


def of_a_method(model: Any) -> Any:
    return plait.capture(first_of(model.blocks[1]).other, *KINDS)(X)


def of_views(model: Any) -> Any:
    return captured(in_turn, [*model.blocks]), captured(in_turn, model.blocks[1:3])


def of_a_jitted_view(model: Any) -> Any:
    """Traced before the capture, in it, and after it."""
    block, f = model.blocks[1], plait.jit(lambda block, x: block(x))
    plait.capture(f, Perturbation)(block, X)
    plait.jit(lambda block, x: block.linear(x))(first_of(block).inner, X)
    return captured(f, block), captured(f, block), captured(f, model.blocks[1])


def of_outputs(model: Any) -> Any:
    look = {"method_outputs": Intermediate, "only": "**.linear"}
    return captured(call, model.blocks[1], **look), captured(in_a_loop, model, **look)


def of_gradients(model: Any) -> Any:
    block = first_of(model.blocks[1])
    _, probes = plait.capture(block.perturbed, Perturbation)(X)
    probes = jax.tree.map(lambda x: x + 1.0, probes)

    def loss(probes: Any, block: Any) -> Any:
        y, seen = plait.capture(block.perturbed, Intermediate, init=probes)(X)
        return (y**2).sum(), seen

    return plait.grad(loss, has_aux=True)(probes, block)


def of_gradients_of_some_layers(model: Any) -> Any:
    """What a capture returned for two layers is given back as ``init``."""

    def run(model: Any, x: Any) -> Any:
        for block in model.blocks[1:3]:
            x = jitted(block, first_of(block).perturbed(x))
        return x

    _, probes = plait.capture(run, Perturbation)(model, X)
    probes = jax.tree.map(lambda x: x + 1.0, probes)

    def loss(probes: Any, model: Any) -> Any:
        y, seen = plait.capture(run, Intermediate, init=probes)(model, X)
        return (y**2).sum(), seen

    return plait.grad(loss, has_aux=True)(probes, model)


def with_a_view_from_before(model: Any) -> Any:
    block, blocks = model.blocks[1], model.blocks[1:3]
    jitted(first_of(block).inner.linear, X)

    def run(model: Any, x: Any) -> Any:
        return jitted(block, in_turn(blocks, model(block(x))))

    return captured(run, model)


def with_a_view_for_after(model: Any) -> Any:
    """A view keeps no record: the second capture begins with none, and nothing is sown outside of it."""
    held: list[Any] = []

    def run(model: Any, x: Any) -> Any:
        held.extend(model.blocks)
        return in_turn(held, x)

    first = captured(run, model)
    assert not any("_pytree__sown" in vars(node) for block in held for _, node in plait.iter_modules(block))
    return first, captured(call, held[1]), captured(in_turn, held[:3])


def with_a_module_of_another(model: Any) -> Any:
    class Other(plait.Module):
        def __init__(self, block: Any) -> None:
            self.block, self.own = block, Inner(plait.Rngs(1))

        def __call__(self, x: Any) -> Any:
            return self.own(self.block(x))

    return captured(jitted, Other(model.blocks[1]))


OUTSIDE = [
    of_a_view, of_a_method, of_views, of_a_jitted_view, of_outputs, of_gradients, of_gradients_of_some_layers,
    with_a_view_from_before, with_a_view_for_after, with_a_module_of_another,
]  # fmt: skip
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    **{f.__name__: lambda model, f=f: captured(f, model) for f in INSIDE},
    **{f.__name__: f for f in OUTSIDE},
}
CASES = [(name, kind) for name in PROGRAMS for kind in MODELS]
FAST = [
    ("a_held_view_jitted", "a remainder"),
    ("held_around_a_transform", "one period"),
    ("held_around_the_model", "stacks in a stack"),
    ("a_capture_of_all_inside", "one period"),
    ("of_views", "stacks in a stack"),
    ("of_a_jitted_view", "one period"),
    ("of_gradients_of_some_layers", "one period"),
    ("with_a_view_from_before", "a remainder"),
    ("with_a_view_for_after", "one period"),
]


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = ({keystr(path): leaf for path, leaf in leaves_with_path(tree)} for tree in (ours, theirs))
    assert [*ours] == [*theirs]
    for path, value in ours.items():
        np.testing.assert_allclose(value, theirs[path], rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(("program", "kind"), slow_but(FAST, CASES))
def test_views_sow_what_the_blocks_of_a_list_sow(program: str, kind: str) -> None:
    looped, stacked = MODELS[kind]()
    theirs, ours = PROGRAMS[program](looped), PROGRAMS[program](stacked)
    assert jax.tree.leaves(theirs)
    assert_same(ours, theirs)
    for _, module in plait.iter_modules(stacked):
        assert "_pytree__sown" not in vars(module)


class Plain(plait.Module):
    def __call__(self, x: Any) -> Any:
        self.sow(Intermediate, "x", x)
        return x


@pytest.mark.parametrize("kind", [plait.List, plait.Stack])
def test_a_captured_view_of_another_trace_does_not_sow(kind: Any) -> None:
    model = Net(kind([Plain() for _ in range(3)]))
    with pytest.raises(TraceContextError, match="Plain"):
        plait.capture(lambda model, x: plait.jit(lambda x: model.blocks[1](x))(x), Intermediate)(model, X)


def test_a_view_that_a_transform_changes_in_structure_is_an_error() -> None:
    """ST3: inside a capture too; nothing is changed."""
    model = pair()[1]

    @plait.jit
    def grow(block: Any) -> None:
        block.inner.extra = plait.Param(jnp.zeros(()))

    def run(model: Any, x: Any) -> Any:
        grow(model.blocks[1])

    before = plait.graphdef(model)
    for go in (lambda: grow(model.blocks[1]), lambda: captured(run, model)):
        with pytest.raises(GraphError, match="set the attribute 'extra' of an Inner of one layer"):
            go()
    assert plait.graphdef(model) == before
