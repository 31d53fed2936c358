"""``Stack`` against the loop over the list, and as a list. (rules ST1 to ST10)"""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

import plait
from plait.errors import ArgumentError, ArgumentTypeError, FilterError, GraphError, ShapeError, SharingError
from tests.sampling import slow_but

from .stacks import FEATURES, Block, Net, Wider, blocks_of, pair

X = jnp.linspace(-1.0, 2.0, 6 * FEATURES).reshape(6, FEATURES) ** 3


def leaves(model: Any) -> dict[Any, Any]:
    """The values of a model whose stacks are made lists, by path."""
    found = {}
    for path, leaf in plait.to_flat_state(plait.state(plait.as_list(model))):
        value = leaf.get_raw_value()
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        found[path] = np.asarray(jax.random.key_data(value) if is_key else value)
    return found


def assert_same(first: Any, second: Any, rtol: float = 0.0) -> None:
    ours, theirs = leaves(first), leaves(second)
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        assert value.dtype == theirs[path].dtype, path
        np.testing.assert_allclose(value, theirs[path], rtol=rtol, atol=rtol, err_msg=str(path))


def loss(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


def per_layer(grads: Any, stack: plait.Stack) -> Any:
    """Gradients of a stack, as those of a list."""
    model = plait.clone(stack)
    plait.update(model, grads)
    return plait.state(model.to_list(), plait.Param)


OPTIONS = st.sampled_from(
    [
        {},
        {"remat": True},
        {"remat": jax.checkpoint_policies.dots_saveable},
        {"unroll": 2},
    ]
)
WAYS = {"eager": lambda f: f, "jit": plait.jit}


DRAWN = {"depth": st.integers(1, 7), "period": st.integers(1, 3), "options": OPTIONS, "way": st.sampled_from([*WAYS])}


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(**DRAWN)
def test_a_stack_is_the_loop_over_its_list(depth: int, period: int, options: Any, way: str) -> None:
    """ST5: outputs, gradients, dropout masks, statistics and counts, for any depth, period and remainder."""
    check_equal_to_the_loop(depth, period, options, way)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(**DRAWN)
def test_more_stacks_are_the_loop_over_their_list(depth: int, period: int, options: Any, way: str) -> None:
    """ST5."""
    check_equal_to_the_loop(depth, period, options, way)


def check_equal_to_the_loop(depth: int, period: int, options: Any, way: str) -> None:
    """In float64, so that nothing but the mathematics is compared.

    In float32 the entries of a gradient that cancel over the batch carry the rounding errors of the largest ones, which
    differ between two programs, however they are written.
    """
    with jax.enable_x64(True):
        x = X.astype(jnp.float64)
        looped, stacked = map(widened, pair(depth, period, **options))
        found = [WAYS[way](plait.value_and_grad(loss))(model, x) for model in (looped, stacked)]
        (theirs, their_grads), (ours, our_grads) = found
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=EXACT)
        assert_same(stacked, looped, rtol=EXACT)  # counts of dropout among them, which are exact
        ours_listed = plait.to_flat_state(per_layer(our_grads["blocks"], stacked.blocks))
        theirs_listed = plait.to_flat_state(their_grads["blocks"])
        assert ours_listed.paths == theirs_listed.paths
        for path, a, b in zip(ours_listed.paths, ours_listed.leaves, theirs_listed.leaves, strict=True):
            np.testing.assert_allclose(a.value, b.value, rtol=EXACT, atol=0, err_msg=str(path))


EXACT = 1e-9  # the rule says 1e-5


def widened(model: Any) -> Any:
    """The model with its floating-point values in float64."""
    for _, variable in plait.iter_graph(model):
        if isinstance(variable, plait.Variable) and jnp.issubdtype(variable.get_value().dtype, jnp.floating):
            variable.set_raw_value(variable.get_value().astype(jnp.float64))
    return model


def forward(model: Any, x: Any) -> Any:
    return model(x)


TRANSFORMS = {
    "vmap": lambda m, x: plait.vmap(forward, in_axes=(None, 0))(m, jnp.stack([x, x + 1])),
    "grad": lambda m, x: plait.grad(loss, argnums=1)(m, x),
    "remat": lambda m, x: plait.jit(plait.grad(plait.remat(loss), argnums=1))(m, x),
    "eval_shape": lambda m, x: jnp.ones(plait.eval_shape(forward, m, x).shape),
    "jax.jit": lambda m, x: jax.jit(forward)(m, x),
    "scan": lambda m, x: plait.scan(lambda x, m: m(x), in_axes=(plait.Carry, None), out_axes=plait.Carry, length=2)(
        x, m
    ),
}


@pytest.mark.slow
def test_it_is_exported_as_the_loop_is(tmp_path: Path) -> None:
    looped, stacked = pair(5, 2)
    stacked.eval()
    looped.eval()
    plait.export.save(stacked, tmp_path / "saved", inputs=("batch", FEATURES))
    found = plait.export.load(tmp_path / "saved" / "stablehlo")(X)
    np.testing.assert_allclose(found, looped(X), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_it_is_the_loop_under_every_transform(transform: str) -> None:
    looped, stacked = pair(5, 2, remat=True)
    for model in (looped, stacked):
        model.eval()
    theirs, ours = (TRANSFORMS[transform](model, X) for model in (looped, stacked))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=1, deadline=None)
@given(depth=st.integers(2, 4), period=st.integers(1, 2), views=st.booleans())
def test_sown_values_are_those_of_the_list(depth: int, period: int, views: bool) -> None:
    """ST8: by the loop of the stack, and by a Python loop over its views."""
    looped, stacked = pair(depth, period)

    @plait.jit
    def forward(model: Any, x: Any) -> Any:
        if not views:
            return model(x)
        for block in model.blocks:
            x = block(x)
        return x

    call = plait.capture(forward, plait.Intermediate, method_outputs=plait.Intermediate, only="**.linear")
    (y, theirs), (z, ours) = call(looped, X), call(stacked, X)
    np.testing.assert_allclose(z, y, rtol=1e-5)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_captured_gradients_go_back_into_a_stack() -> None:
    looped, stacked = pair(4)
    for model in (looped, stacked):
        model.eval()
    found = []
    for model in (looped, stacked):
        call = plait.capture(model, plait.Perturbation, method_outputs=plait.Perturbation, only="blocks[*].linear")
        _, probes = call(X)

        def perturbed(probes: Any, model: Any) -> Any:
            run = plait.capture(model, init=probes, method_outputs=plait.Perturbation, only="blocks[*].linear")
            return (run(X) ** 2).sum()

        found.append(plait.grad(perturbed)(probes, model))
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        assert float(jnp.abs(a).max()) > 0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_arguments_and_outputs_of_each_layer() -> None:
    """ST7: caches go in and come out, of different shapes for different positions of the period."""
    blocks, lengths = blocks_of(7, 3), [2, 3, 5, 2, 3, 5, 2]
    caches = [jnp.full((length,), i, jnp.float32) for i, length in enumerate(lengths)]

    def step(block: Any, x: Any, cache: Any, *, scale: Any) -> Any:
        x = block(x, scale) + cache.sum()
        return x, (cache + 1, {"norm": (x**2).sum()})

    x, expected = X, []
    for block, cache in zip(blocks, caches, strict=True):
        x, out = step(block, x, cache, scale=0.5)
        expected.append(out)
    stack = plait.Stack(blocks_of(7, 3))
    y, found = plait.jit(lambda stack, x: stack.scan(step, x, plait.PerLayer(caches), scale=0.5))(stack, X)
    np.testing.assert_allclose(y, x, rtol=1e-5)
    for (cache, norm), (their_cache, their_norm) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(cache, their_cache)
        np.testing.assert_allclose(norm["norm"], their_norm["norm"], rtol=1e-5)
    with pytest.raises(ArgumentError, match="layers 0 and 1"):
        found.stack()
    again, _ = stack.scan(lambda block, x, out: (x + out[1]["norm"], None), X, found)
    assert again.shape == X.shape


@pytest.mark.slow
def test_shared_streams_go_on_from_block_to_block() -> None:
    class Masked(plait.Module):
        def __init__(self, rngs: Any) -> None:
            self.scale, self.dropout = plait.Param(jnp.ones(FEATURES)), plait.Dropout(0.5)

        def __call__(self, x: Any, rngs: Any) -> Any:
            return self.dropout(x * self.scale.value[None], rngs=rngs) + x

    theirs, ours = plait.Rngs(5), plait.Rngs(5)
    x = X
    for block in [Masked(plait.Rngs(0)) for _ in range(4)]:
        x = block(x, rngs=theirs)
    y = plait.Stack(Masked, 4, rngs=plait.Rngs(0))(X, rngs=ours)
    np.testing.assert_array_equal(x, y)
    assert int(ours["default"].count.value) == int(theirs["default"].count.value) == 4


# A list ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_views_read_and_write_the_stack() -> None:
    """ST3: by index, iteration and slice, by ``update``, ``select``, and what a jitted function writes."""
    _, model = pair(5, 2)
    stack = model.blocks
    assert [type(block) for block in stack] == [Block, Wider, Block, Wider, Block]
    assert (len(stack), type(stack[-1])) == (5, Block)
    assert [b.linear.kernel.shape for b in stack[1:3]] == [(4, 4)] * 2
    before = stack.to_list()
    stack[2].linear.bias[...] = jnp.arange(4.0)
    stack[3].linear.kernel[1] = 7.0
    plait.update(stack[4], plait.state(before[0], plait.Param))
    plait.select(stack[0], "norm.scale").set(3.0)
    stack[1] = before[3]
    after = stack.to_list()
    assert after[2].linear.bias[...].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert after[3].linear.kernel[1].tolist() == [7.0] * 4
    np.testing.assert_array_equal(after[4].linear.kernel[...], before[0].linear.kernel[...])
    assert after[0].norm.scale[...].tolist() == [3.0] * 4
    np.testing.assert_array_equal(after[1].out.kernel[...], before[3].out.kernel[...])
    np.testing.assert_array_equal(after[2].linear.kernel[...], before[2].linear.kernel[...])

    plait.jit(lambda block, x: block(x))(stack[2], X)
    counts = [int(block.dropout.rngs.count.value) for block in stack]
    assert counts == [0, 0, 1, 0, 0]

    @plait.jit
    def inside(model: Any) -> None:
        for number, block in enumerate(model.blocks):
            block.linear.bias[...] = jnp.full(4, number, jnp.float32)

    inside(model)
    assert [float(block.linear.bias[0]) for block in stack] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.slow
def test_gradients_of_one_layer() -> None:
    looped, stacked = pair(3)
    theirs, ours = (plait.grad(loss)(model.blocks[1], X) for model in (looped, stacked))
    for a, b in zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda b: setattr(b, "extra", 1), GraphError, "a changed attribute"),
        (lambda b: setattr(b.dropout, "rate", 0.9), GraphError, "a changed attribute"),
        (lambda b: b.linear.kernel.set_metadata(note=1), GraphError, "new metadata"),
        (lambda b: b.linear.kernel.set_value(jnp.ones((2, 2))), ShapeError, r"float32\(2, 2\)"),
        (lambda b: b.linear.kernel.set_value(jnp.ones((4, 4), jnp.bfloat16)), ShapeError, "bfloat16"),
    ],
    ids=["attribute", "setting", "metadata", "shape", "dtype"],
)
def test_a_layer_cannot_differ_from_the_others(change: Any, error: Any, match: str) -> None:
    _, model = pair(3)
    before = leaves(model)
    with pytest.raises(error, match=match):
        change(model.blocks[1])
    after = leaves(model)
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert (model.blocks[1].dropout.rate, hasattr(model.blocks[1], "extra")) == (0.3, False)


@pytest.mark.parametrize("weak", [False, True], ids=["numbers", "weak types"])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [(jnp.int32, 2.7), (jnp.int32, 2 + 3j), (jnp.float32, 2 + 3j), (jnp.int8, 300), (jnp.uint8, -1), (jnp.bool_, 2)],
)
def test_a_layer_loses_nothing_of_what_is_written(dtype: Any, number: Any, weak: bool) -> None:
    """ST3: no value is cast, whether it is a number or an array of a weak type."""
    stack = plait.Stack([Net(plait.Variable(jnp.zeros((), dtype))) for _ in range(2)])
    with pytest.raises(
        ShapeError, match=rf"(?s)found .*expected +{jnp.dtype(dtype)}\(\)" if weak else "(?s)the number"
    ):
        stack[0].blocks.value = jnp.asarray(number) if weak else number
    assert not stack.to_list()[0].blocks.value


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(jnp.int8, -128), (jnp.float32, 2.7), (jnp.bfloat16, 3), (jnp.complex64, 1.5), (jnp.int32, True)],
)
def test_a_layer_takes_numbers_of_its_kind(dtype: Any, number: Any) -> None:
    """ST3."""
    stack = plait.Stack([Net(plait.Variable(jnp.zeros((), dtype))) for _ in range(2)])
    stack[0].blocks.value = number
    assert stack[0].blocks.value == jnp.asarray(number, dtype)


def test_paths_say_which_layers_they_stand_for() -> None:
    """ST4: filters are asked about the path of each layer, and have to give one answer."""
    _, model = pair(5, 2)
    paths = plait.to_flat_state(plait.state(model, plait.PathContains("kernel"))).paths
    groups = ["0:4:2", "1:4:2", "4:5"]
    assert [path[1] for path in paths if path[2] == "linear"] == groups
    assert [path[1] for path in paths if path[2] == "out"] == ["1:4:2"]

    def odd(path: Any, value: Any) -> bool:
        return path[0] == "blocks" and path[1] % 2 == 1

    assert {path[1] for path in plait.to_flat_state(plait.state(model, odd)).paths} == {"1:4:2"}
    assert {path[1] for path in plait.select(model, "blocks[1::2].linear.kernel").paths} == {"1:4:2"}
    both = plait.Any(plait.PathContains(0), plait.PathContains(2))
    assert {path[1] for path in plait.to_flat_state(plait.state(model, plait.All(both))).paths} == {"0:4:2"}
    with pytest.raises(FilterError, match=re.escape("PathContains(0) matches blocks[0]")) as raised:
        plait.state(model, plait.PathContains(0))
    assert "blocks[0:4:2]" in str(raised.value)
    assert plait.state(plait.as_list(model), plait.PathContains(0))  # the advice


@pytest.mark.slow
def test_training_writes_whole_arrays() -> None:
    """ST9: the optimizer updates the stacked arrays, and the compiled step reuses their buffers."""
    looped, stacked = pair(3)
    losses = []
    for model in (looped, stacked):
        optimizer = plait.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=plait.Param)

        @plait.jit(donate_argnums=(0, 1))
        def step(model: Any, optimizer: Any, x: Any) -> Any:
            value, grads = plait.value_and_grad(loss)(model, x)
            optimizer.update(model, grads)
            return value

        losses.append([float(step(model, optimizer, X)) for _ in range(3)])
        if model is stacked:
            compiled = step.lower(model, optimizer, X).compile()
            kernel = 3 * FEATURES * FEATURES * 4
            assert compiled.memory_analysis().alias_size_in_bytes >= 2 * kernel  # parameter and momentum
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.parametrize("remat", [False, True], ids=["kept", "recomputed"])
def test_the_loop_returns_no_parameter_that_it_reads(remat: bool) -> None:
    _, model = pair(4, remat=remat)
    model.eval()
    jaxpr = jax.make_jaxpr(lambda model, x: model(x))(model, X)
    [scan] = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert [var.aval.shape for var in scan.outvars] == [X.shape]


@pytest.mark.slow
def test_the_program_does_not_grow_with_depth() -> None:
    texts = {}
    for depth in (4, 16):
        stack = plait.Stack(Block, depth, rngs=plait.Rngs(0), remat=True)
        step = plait.jit(plait.value_and_grad(loss))
        texts[depth] = len(step.lower(stack, X).as_text())
    assert texts[16] <= 1.01 * texts[4]


@pytest.mark.slow
def test_it_is_traced_once_however_deep() -> None:
    traced = []

    class Counting(plait.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = plait.Linear(FEATURES, FEATURES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            traced.append(1)
            return self.linear(x)

    stack = plait.Stack(Counting, 9, rngs=plait.Rngs(0))
    for _ in range(3):
        stack(X)
    assert len(traced) <= 2


# Copies and conversion ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(depth=st.integers(2, 7), period=st.integers(1, 3))
def test_lists_become_stacks_and_back_bit_for_bit(depth: int, period: int) -> None:
    """ST10."""
    looped = Net(plait.List(blocks_of(depth, period)))
    stacked = plait.as_stack(looped, "blocks", period=min(period, depth))
    assert (type(stacked.blocks), type(looped.blocks)) == (plait.Stack, plait.List)
    again = plait.as_list(stacked)
    assert plait.graphdef(again) == plait.graphdef(looped)
    assert_same(again, looped)


@pytest.mark.slow
@pytest.mark.parametrize(
    "copied",
    [plait.clone, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: plait.merge(*plait.split(m))],
    ids=["clone", "deepcopy", "pickle", "merge"],
)
def test_copies_are_stacks(copied: Any) -> None:
    _, model = pair(5, 2, remat=True)
    other = copied(model)
    np.testing.assert_array_equal(other(X), model(X))
    assert type(other.blocks[3]) is Wider


def test_modes_are_those_of_all_layers() -> None:
    looped, stacked = pair(3)
    for model in (looped, stacked):
        model.eval()
    np.testing.assert_allclose(stacked(X), looped(X), rtol=1e-6, atol=1e-6)
    assert [block.dropout.deterministic for block in stacked.blocks] == [True] * 3


def test_abstract_models_have_stacks() -> None:
    shapes = plait.eval_shape(lambda: plait.as_stack(pair(3)[0]))
    assert shapes.blocks[1].linear.kernel.get_raw_value().shape == (FEATURES, FEATURES)
    assert plait.eval_shape(forward, shapes, X).shape == X.shape


@pytest.mark.slow
def test_a_stack_in_a_stack() -> None:
    class Outer(plait.Module):
        def __init__(self, rngs: Any) -> None:
            self.inner = plait.Stack(Block, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    theirs, ours = plait.Rngs(1), plait.Rngs(1)
    looped, stack = [Outer(theirs) for _ in range(3)], plait.Stack(Outer, 3, rngs=ours)
    x = X
    for block in looped:
        x = block(x)
    np.testing.assert_allclose(stack(X), x, rtol=1e-5)
    assert stack[2].inner[1].linear.kernel.shape == (FEATURES, FEATURES)
    np.testing.assert_allclose(stack[2].inner[1].linear.kernel[...], looped[2].inner[1].linear.kernel[...], rtol=1e-6)


class Leaf(plait.Module):
    """A block of one number, and what it does with it."""

    def __init__(self, value: float) -> None:
        self.w = plait.Param(jnp.float32(value))

    def __call__(self, x: Any) -> Any:
        return 2 * x + self.w


class Holder(plait.Module):
    def __init__(self, blocks: Any) -> None:
        self.inner = blocks

    def __call__(self, x: Any) -> Any:
        if isinstance(self.inner, plait.Stack):
            return self.inner(x)
        for block in self.inner:
            x = block(x)
        return x


class Other(Holder):
    """A second class, for a period of two."""


def nested(make: Any, period: int, depth: int = 5) -> Any:
    """Blocks of blocks, in stacks or lists; layer ``i`` holds ``10 i`` and ``10 i + 1``, and further on for depth."""
    kinds = (Holder, Other)
    return Holder(make([kinds[i % period](make([Leaf(10 * i + j) for j in range(2)])) for i in range(depth)]))


def numbers(model: Any) -> list[list[float]]:
    return [[float(leaf.w[...]) for leaf in block.inner] for block in model.inner]


@pytest.mark.parametrize("period", [1, 2])
def test_nested_stacks_become_lists_and_stacks_again(period: int) -> None:
    """ST10: the inner arrays begin with the axis of the outer layers."""
    looped, stacked = nested(plait.List, period), nested(plait.Stack, period)
    expected = [[10.0 * i, 10.0 * i + 1] for i in range(5)]
    listed = plait.as_list(stacked)
    assert numbers(listed) == numbers(stacked) == expected
    assert plait.graphdef(listed) == plait.graphdef(looped)
    again = plait.as_stack(listed)
    assert numbers(again) == expected
    assert plait.graphdef(again) == plait.graphdef(plait.as_stack(looped))
    assert numbers(plait.as_list(again)) == expected


def test_nested_stacks_are_exported_as_lists() -> None:
    theirs, ours = (plait.convert.to_torch(nested(make, 1)) for make in (plait.List, plait.Stack))
    assert ours.keys() == theirs.keys()
    assert {name: float(value) for name, value in ours.items()} == {
        name: float(value) for name, value in theirs.items()
    }


# Views with their stack -----------------------------------------------------------------------------------------------


def doubled(model: Any, block: Any) -> Any:
    block.w[...] = block.w[...] * 2
    return model(1.0)


def leaves_net() -> Holder:
    return Holder(plait.Stack([Leaf(1.0) for _ in range(3)]))


def test_a_held_view_is_checked_in_every_call() -> None:
    model, calls = leaves_net(), plait.jit(doubled)
    calls(model, Leaf(1.0))
    view = model.inner[1]
    for _ in range(2):
        with pytest.raises(SharingError, match="given twice"):
            calls(model, view)
    assert [float(block.w[...]) for block in model.inner] == [1.0] * 3


def test_views_of_different_layers_and_one_view_twice_are_given() -> None:
    model = leaves_net()
    plait.jit(doubled)(model.inner[0], model.inner[1])
    view = model.inner[2]
    plait.jit(doubled)(view, view)
    assert [float(block.w[...]) for block in model.inner] == [1.0, 2.0, 2.0]


def test_blocks_are_written_and_found_as_in_a_list() -> None:
    stack = plait.Stack([Leaf(i) for i in range(4)])
    stack[:2] = [stack[1], stack[0]]
    stack[2:] = [Leaf(7.0), Leaf(8.0)]
    assert [float(block.w[...]) for block in stack] == [1.0, 0.0, 7.0, 8.0]
    assert stack[1] in stack
    assert plait.clone(stack[1]) not in stack
    assert Leaf(1.0) not in stack
    with pytest.raises(ArgumentError, match="1 blocks for 2 layers"):
        stack[:2] = [Leaf(1.0)]
    with pytest.raises(ArgumentTypeError, match="number of blocks"):
        del stack[0]
    assert [float(block.w[...]) for block in stack] == [1.0, 0.0, 7.0, 8.0]


# Caches ---------------------------------------------------------------------------------------------------------------


class Attending(plait.Module):
    def __init__(self, rngs: Any) -> None:
        self.attention = plait.MultiHeadAttention(2, FEATURES, decode=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.attention(x)


def attending(make: Any) -> Holder:
    rngs = plait.Rngs(0)
    return Holder(make([Attending(rngs) for _ in range(3)]))


def attending_twice(make: Any) -> Holder:
    rngs = plait.Rngs(0)
    return Holder(make([Holder(make([Attending(rngs) for _ in range(2)])) for _ in range(3)]))


def attentions(model: Any) -> list[Any]:
    return [module for _, module in plait.iter_modules(model) if isinstance(module, plait.MultiHeadAttention)]


def set_attributes(model: Any, options: Any) -> Any:
    model.set_attributes(decode=True, **options)
    return model


def init_cache(model: Any, options: Any) -> Any:
    model.set_attributes(decode=True)
    for attention in attentions(model):
        attention.init_cache((3, 4, FEATURES), per_sequence=options["per_sequence"])
    return model


def replaced(model: Any, options: Any) -> Any:
    model.set_attributes(decode=True)

    def with_cache(path: Any, attention: Any) -> Any:
        attention.init_cache((3, 4, FEATURES), per_sequence=options["per_sequence"])
        return attention

    plait.select(model, plait.MultiHeadAttention).replace(with_cache)
    return model


CACHES = {
    "view": lambda model, options: plait.view(model, decode=True, **options),
    "set_attributes": set_attributes,
    "init_cache": init_cache,
    "select": replaced,
}
FAST_CACHES = [("view", "nested", False), ("init_cache", "nested", True)]
EVERY_CACHE = [(way, make, each) for way in CACHES for make in ("stack", "nested") for each in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "make", "per_sequence"), slow_but(FAST_CACHES, EVERY_CACHE))
def test_each_layer_has_its_cache(way: str, make: str, per_sequence: bool) -> None:
    """ST3: the batch is as large as the stack is deep, so that only the axis of layers tells them apart."""
    x = jax.random.normal(jax.random.key(0), (3, 4, FEATURES))
    found = []
    for kind in (plait.List, plait.Stack):
        options = {"batch_size": 3, "max_length": 4, "per_sequence": per_sequence}
        model = attending(kind) if make == "stack" else attending_twice(kind)
        decoder = CACHES[way](model, options)
        step = plait.jit(forward)
        found.append(jnp.concatenate([decoder(x[:, :1]), *(step(decoder, x[:, t : t + 1]) for t in (1, 2, 3))], 1))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("impl", slow_but(["unsafe_rbg"], ["rbg", "unsafe_rbg", "threefry2x32"]))
def test_blocks_of_a_factory_are_those_of_the_list_with_any_keys(impl: str) -> None:
    """ST2: under ``vmap``, keys of ``rbg`` draw from the first of them."""

    def streams() -> plait.Rngs:
        return plait.Rngs(jax.random.key(0, impl=impl))

    def make(rngs: plait.Rngs) -> Any:
        return plait.Sequential(
            plait.Linear(3, 4, rngs=rngs), plait.Dropout(0.5, rngs=rngs), plait.Linear(4, 3, rngs=rngs)
        )

    ours, theirs = streams(), streams()
    stack = plait.Stack([make, make], 5, rngs=ours, axis="layers")
    assert_same(plait.List([stack]), plait.List([plait.List([make(theirs) for _ in range(5)])]))
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("per_sequence", [True, False])
@pytest.mark.parametrize("depth", slow_but([3], [2, 3]))
def test_a_step_past_the_end_of_a_cache_is_refused_and_changes_nothing(depth: int, per_sequence: bool) -> None:
    """ST19: as in a list, though the loop does not know the index. With depth 3 a block is left after the loop."""
    blocks = [attending(plait.List) for _ in range(depth)]
    model = plait.Sequential(plait.Stack(blocks, period=min(depth, 2)), plait.BatchNorm(FEATURES, rngs=plait.Rngs(0)))
    decoder = plait.view(model, decode=True, batch_size=3, max_length=2, per_sequence=per_sequence)
    x = jnp.ones((3, 1, FEATURES))
    decoder(x), decoder(x)
    before = leaves(decoder)
    with pytest.raises(ArgumentError, match=r"past the end of its cache[\s\S]*position 3 with a cache of 2 positions"):
        decoder(x)
    after = leaves(decoder)
    assert all((after[path] == value).all() for path, value in before.items())


def test_a_cache_is_made_anew() -> None:
    """Also by a part of a stack, and in a program."""
    stack = attending_twice(plait.Stack).inner
    stack.set_attributes(decode=True)
    [attention] = attentions(stack)
    for length in (4, 6):
        attention.init_cache((2, length, FEATURES))
        assert attention.cached_key.shape == (3, 2, 2, length, 2, FEATURES // 2)
        assert attention.cache_index.shape == (3, 2)
    plait.jit(lambda stack: attentions(stack)[0].init_cache((5, 1, FEATURES)))(stack)
    assert attention.cached_key.shape == (3, 2, 5, 1, 2, FEATURES // 2)
    assert stack[0].inner[1].attention.cached_key.shape == (5, 1, 2, FEATURES // 2)
    inner = attentions(stack[0])[0]
    with pytest.raises(GraphError, match="a changed attribute"):
        inner.init_cache((2, 4, FEATURES))


class Remembering(plait.Module):
    """A layer of a user, whose mode creates a variable."""

    def __init__(self) -> None:
        self.cache: Any = None

    def set_view(self, memory: int | None = None) -> None:
        if memory is not None:
            self.cache = plait.Cache(jnp.zeros((memory,)), out_sharding=("memory",))


MODES = {
    "view": lambda m: plait.view(m, memory=3),
    "set_attributes": lambda m: m.set_attributes(memory=3),
    "of a part": lambda m: [
        part.set_attributes(memory=3) for _, part in plait.iter_modules(m) if hasattr(part, "cache")
    ],
}


@pytest.mark.parametrize("way", MODES)
def test_a_variable_that_a_mode_creates_is_that_of_each_layer(way: str) -> None:
    inner = [plait.Stack([Remembering() for _ in range(3)], axis="inner") for _ in range(2)]
    model = Holder(plait.Stack(inner, axis="layers"))
    found = MODES[way](model)
    model = found if isinstance(found, Holder) else model
    assert model.inner[0][1].cache.shape == (3,)
    whole = plait.variables(model.inner)["0:2"]["0:3"]["cache"]
    assert (whole.shape, whole.out_sharding) == ((2, 3, 3), ("layers", "inner", "memory"))


@pytest.mark.slow
def test_views_of_layers_share_the_cache_of_their_stack() -> None:
    decoder = plait.view(attending(plait.Stack), decode=True, batch_size=1, max_length=4)
    x = jnp.ones((1, 1, FEATURES))
    for block in decoder.inner:
        x = block(x)
    assert [int(block.attention.cache_index[...]) for block in decoder.inner] == [1] * 3
    assert decoder.inner[1].attention.cached_key.shape == (1, 4, 2, FEATURES // 2)


def test_a_value_without_an_axis_of_layers_is_named() -> None:
    model = plait.view(attending(plait.Stack), decode=True)
    for attention in attentions(model):
        attention.cache_index = plait.Cache(jnp.zeros((2,), jnp.int32))
    with pytest.raises(ShapeError, match=re.escape("[0:3].attention.cache_index")) as caught:
        model(jnp.ones((2, 1, FEATURES)))
    assert "plait.view(model, decode=True" in str(caught.value)
    for index in range(3):
        with pytest.raises(ShapeError, match="no axis of layers"):
            model.inner[index].attention.cache_index[...]


# Random streams -------------------------------------------------------------------------------------------------------


class Dropping(plait.Module):
    """Two streams of one tag, in an order that is not that of their layers."""

    def __init__(self, rngs: Any) -> None:
        self.a, self.b = plait.Dropout(0.5, rngs=rngs), plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.b(self.a(x) + x)


class DroppingMore(Dropping):
    def __init__(self, rngs: Any) -> None:
        super().__init__(rngs)
        self.c = plait.Dropout(0.1, rngs=rngs)


def dropping(make: Any, period: int) -> Any:
    rngs = plait.Rngs(0, dropout=1)
    kinds = (Dropping, DroppingMore)
    blocks = make([kinds[i % period](rngs) for i in range(5)])
    inner = make([Holder(make([Dropping(rngs) for _ in range(2)])) for _ in range(3)])
    return plait.Dict(after=plait.Dropout(0.5, rngs=rngs), blocks=blocks, a=plait.Dropout(0.5, rngs=rngs), inner=inner)


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("policy", ["scalars_only", "match_shape", lambda path, key, shape: jax.random.fold_in(key, 1)])
def test_reseeded_layers_have_the_keys_of_a_list(period: int, policy: Any) -> None:
    looped, stacked = dropping(plait.List, period), dropping(plait.Stack, period)
    for model in (looped, stacked):
        plait.reseed(model, policy=policy, dropout=5)
    assert_same(stacked, looped)


# Errors ---------------------------------------------------------------------------------------------------------------


def shared() -> list[Any]:
    blocks = blocks_of(2)
    blocks[1].linear = blocks[0].linear
    return blocks


def unlike() -> list[Any]:
    blocks = blocks_of(3)
    blocks[2].dropout.rate = 0.9
    return blocks


class Growing(plait.Module):
    def __init__(self, rngs: Any) -> None:
        self.scale = plait.Param(jnp.ones(()))

    def __call__(self, x: Any) -> Any:
        return jnp.concatenate([x, x])


class Switched(plait.Module):
    def __init__(self) -> None:
        self.scale = plait.Param(jnp.full((), 2.0))

    def __call__(self, x: Any, on: Any = True) -> Any:
        return x * self.scale if on else x


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: plait.Stack(shared()), SharingError, r"blocks\[0\].linear.bias and blocks\[1\].linear.bias"),
        (lambda: plait.Stack(unlike()), ArgumentError, "differ"),
        (lambda: plait.Stack(unlike(), period=1), ArgumentError, r"dropout.rate: 0.3 -> 0.9"),
        (lambda: plait.Stack([]), ArgumentTypeError, "no block"),
        (lambda: plait.Stack(Block), ArgumentError, "no number"),
        (lambda: plait.Stack(blocks_of(2), period=3), ArgumentError, "period=3"),
        (lambda: plait.Stack(blocks_of(2), remat=3), ArgumentTypeError, "remat="),  # type: ignore[arg-type]
        (lambda: plait.Stack(blocks_of(2))(X, plait.PerLayer([1.0])), ArgumentError, "1 entries"),
        (lambda: plait.Stack(Growing, 2, rngs=plait.Rngs(0))(X), ArgumentTypeError, "changed the type of a carried"),
        (lambda: plait.Stack(Block, 0, rngs=plait.Rngs(0)), ArgumentError, r"number\n *found +0\n"),
        (lambda: plait.Stack(Block, 2.0, rngs=plait.Rngs(0)), ArgumentError, r"number\n *found +2\.0\n"),
        (lambda: plait.Stack(blocks_of(2)).scan(Block.__call__, X), ArgumentTypeError, "found +a traced array"),
        (lambda: plait.as_stack(plait.Linear(2, 2, rngs=plait.Rngs(0))), ArgumentError, "no list"),
        (lambda: plait.as_stack(Net(plait.List(shared())), "blocks"), SharingError, "share"),
    ],
    ids=[
        "shared", "unlike", "unlike by period", "empty", "no number", "period", "remat", "entries", "shapes",
        "none", "number", "no pair", "no list", "shared list",
    ],
)  # fmt: skip
def test_mistakes_are_named(make: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("flag", [True, np.True_, np.bool_(False)])
def test_a_boolean_decides_in_a_block(flag: Any) -> None:
    """Also one of NumPy, as in a list of blocks."""
    stack = plait.Stack(lambda rngs: Switched(), 2, rngs=plait.Rngs(0))
    assert stack(jnp.ones(()), flag) == stack(jnp.ones(()), on=flag) == (4 if flag else 1)


def test_no_block_at_this_index() -> None:
    with pytest.raises(IndexError, match="3 blocks has no block 3"):
        pair(3)[1].blocks[3]


# Surgery --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [2, 7])
@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("transform", [lambda f: f, plait.jit, plait.remat], ids=["eager", "jit", "remat"])
def test_arrays_of_another_number_of_layers_are_refused(transform, period, layers):
    """ST3: also where all agree, so that a loop over them would run, with more or fewer layers than the stack has."""
    stack = plait.Stack([plait.Linear(2, 2, rngs=plait.Rngs(seed)) for seed in range(4)], period=period)
    plait.update(
        stack, jax.tree.map(lambda x: jnp.resize(x, (layers + (period == 2), *x.shape[1:])), plait.state(stack))
    )
    with pytest.raises(ShapeError, match=r"no axis of layers\n +at +a Stack\[0:4(:2)?\]\.(bias|kernel)"):
        transform(lambda stack, x: stack(x))(stack, jnp.ones(2))


def test_stacked_variables_may_hold_references():
    """ST2: made by a factory or from blocks, with the values of a stack without."""
    x = jnp.ones((1, 3))
    make = lambda rngs: plait.Sequential(plait.Linear(3, 3, rngs=rngs), plait.Dropout(0.5, rngs=rngs))
    with plait.var_defaults(ref=True):
        made, rngs = plait.Stack(make, 2, rngs=plait.Rngs(0)), plait.Rngs(0)
        taken = plait.Stack([make(rngs) for _ in range(2)])
    expected = plait.Stack(make, 2, rngs=plait.Rngs(0))(x)
    for stack in (made, taken):
        assert all(variable.ref for _, variable in plait.to_flat_state(plait.variables(stack)))
        np.testing.assert_array_equal(stack(x), expected)
