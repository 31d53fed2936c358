"""``cond`` and ``switch``: numbers, updates of the branch that runs, errors that show the difference. (X22, U29)"""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import ArgumentTypeError
from tests.strategies import Leafy, Node


def two():
    return Node(a=plait.Param(jnp.arange(2.0)), b=plait.BatchStat(jnp.zeros(())))


def double(node, x):
    node.a[...] = node.a * 2
    return node.a.sum() + x


def count(node, x):
    node.b += x
    return node.b[...]


def nothing(node, x):
    return x


BRANCHES = [double, count, nothing]


@pytest.mark.slow
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=4), st.booleans())
def test_switch_equals_calling_the_branch(indices, jitted):
    """X22: the index is clamped; only what the branch wrote is changed."""
    node, twin = two(), two()
    a, b = node.a, node.b
    run = lambda node, i: plait.switch(i, BRANCHES, node, jnp.float32(3))
    run = plait.jit(run) if jitted else run
    for index in indices:
        found = run(node, jnp.int32(index))
        expected = BRANCHES[min(max(index, 0), 2)](twin, jnp.float32(3))
        np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(node.a[...], twin.a[...])
        np.testing.assert_allclose(node.b[...], twin.b[...])
    assert (node.a, node.b) == (a, b)
    assert node.a is a


class Mistake(TypeError):
    """Of the user's."""


def raise_for_four(x):
    if x.shape == (4,):
        raise Mistake
    return x


def negated(x):
    return -x


def doubled(x):
    return 2 * x


@pytest.mark.parametrize(
    "choose", [plait.cond, lambda index, *rest: plait.switch(jnp.int32(index), rest[:2], *rest[2:])]
)
def test_an_error_is_not_taken_for_a_difference_of_branches(choose):
    """X22: what an earlier call traced, for other shapes, says nothing about this one."""
    choose(True, negated, raise_for_four, jnp.ones(3))
    with pytest.raises(Mistake):
        choose(True, negated, raise_for_four, jnp.ones(4))
    choose(True, doubled, raise_for_four, jnp.ones(3))
    with pytest.raises(TypeError) as caught:
        choose(jnp.ones(2), doubled, negated, jnp.ones(3))
    assert not isinstance(caught.value, ArgumentTypeError)


@pytest.mark.parametrize("pred", [True, False])
def test_cond_takes_one_branch(pred):
    """X22."""
    node = two()
    plait.cond(pred, lambda n: count(n, 1.0), lambda n: count(n, 2.0), node)
    assert float(node.b[...]) == (1.0 if pred else 2.0)


def test_a_variable_that_no_branch_writes_is_untouched():
    """U19: the same array, and no output of the program."""
    node = two()
    before = node.a.get_raw_value()
    plait.cond(True, count, count, node, jnp.float32(1))
    assert node.a.get_raw_value() is before
    lowered = plait.jit(lambda n: plait.cond(n.b[...] > 0, count, count, n, jnp.float32(1))).lower(node)
    assert lowered.as_text().count("stablehlo.case") == 1
    assert "tensor<2xf32>" not in lowered.as_text().split("stablehlo.case")[1].split("return")[-1]


@pytest.mark.parametrize("choose", ["cond", "switch"])
def test_an_array_attribute_may_be_set_in_one_branch_only(choose):
    """U29: it is a value; the branch that runs decides, and every call anew."""
    node = Node(seen=jnp.float32(1), b=plait.BatchStat(jnp.zeros(())), inner=Node(c=jnp.zeros(2)))
    inner = node.inner

    def sets(node):
        node.seen = node.seen + 1
        return node.seen

    def reads(node):
        node.inner.c = node.inner.c + 1
        return node.seen

    run = (
        plait.jit(lambda p, n: plait.cond(p, sets, reads, n))
        if choose == "cond"
        else lambda p, n: plait.switch(1 - p, [sets, reads], n)
    )
    assert [float(run(jnp.int32(p), node)) for p in (1, 0, 1)] == [2, 2, 3]
    assert (float(node.seen), node.inner.c.tolist(), node.inner) == (3.0, [1, 1], inner)


def test_branches_may_change_structure_alike():
    """U18, U29: new objects appear once, and outputs keep identity."""
    node = two()

    def made(value):
        def branch(node):
            node.extra = Leafy(v=plait.Param(jnp.float32(value)))
            node.a, node.b = node.b, node.a
            return node, node.extra

        return branch

    a, b = node.a, node.b
    out, extra = plait.cond(jnp.array(False), made(1), made(2), node)
    assert out is node
    assert extra is node.extra
    assert float(extra.v[...]) == 2.0
    assert node.a is b
    assert node.b is a


def test_gradients_pass_through():
    """X22: as through jax.lax.cond."""
    node = two()

    def loss(node, x):
        return plait.cond(x > 0, lambda n: (n.a**2).sum(), lambda n: n.a.sum(), node)

    np.testing.assert_array_equal(plait.grad(loss)(node, 1.0)["a"][...], [0, 2])
    np.testing.assert_array_equal(plait.grad(loss)(node, -1.0)["a"][...], [1, 1])


def test_values_only():
    """U32."""
    node = two()
    plait.cond(True, lambda n: setattr(n, "k", 1) or count(n, 1.0), lambda n: count(n, 2.0), node, graph_updates=False)
    assert not hasattr(node, "k")
    assert float(node.b[...]) == 1.0
    shared = Node(x=node.a, y=node.a)
    plait.cond(True, lambda n: setattr(n.x, "value", n.x.value + 1), lambda n: None, shared, graph_updates=False)
    assert shared.x is shared.y is node.a


@pytest.mark.oracle
def test_flax_agrees():
    """X22: Flax NNX, run as an oracle."""
    nnx = pytest.importorskip("flax.nnx")

    def run(nnx):
        bn = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        x = jnp.arange(6.0).reshape(3, 2)
        outs = [nnx.cond(flag, lambda m, x: m(x), lambda m, x: x, bn, x) for flag in (True, False)]
        return (*outs, bn.mean[...], bn.var[...])

    for found, expected in zip(run(plait), run(nnx), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("branches", "pattern"),
    [
        (
            (lambda n: n.b.set_value(jnp.ones(2)), lambda n: None),
            r"(?s)at +n\.b\n.*float32\[\] from branch 1.*float32\[2\]",
        ),
        (
            (
                lambda n: setattr(n, "x", plait.Param(jnp.ones(3))),
                lambda n: setattr(n, "x", plait.Param(jnp.ones(3, jnp.float16))),
            ),
            r"(?s)at +n\.x\n.*float16\[3\].*float32\[3\]",
        ),
        ((lambda n: 1.0, lambda n: 1), r"(?s)at +the output\n.*int32\[\].*float32\[\]"),
    ],
)
def test_values_of_other_types_are_told_by_path(branches, pattern):
    """U29."""
    with pytest.raises(ArgumentTypeError, match=pattern):
        plait.cond(True, *branches, two())


def test_one_module_in_two_operands_with_values_only():
    """U32: shared between arguments is shared."""
    node = two()
    plait.cond(True, lambda a, b: count(a, 1.0), lambda a, b: count(b, 2.0), node, node, graph_updates=False)
    assert float(node.b[...]) == 1.0
