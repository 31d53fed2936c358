"""Functional calls: merge, call, split."""

import jax
import jax.numpy as jnp

import plait


class Counter(plait.Module):
    def __init__(self):
        self.count = plait.Variable(jnp.zeros((), jnp.int32))
        self.parts = [plait.Dict(inner=plait.Variable(jnp.ones(2)))]

    def __call__(self, step):
        self.count += step
        return self.count * 2

    def reset(self):
        self.count[...] = 0


def test_call_returns_the_output_and_the_new_pair():
    """G43, G44."""
    counter = Counter()
    out, (graphdef, state) = plait.call(plait.split(counter))(3)
    assert int(out) == 6
    assert int(state["count"][...]) == 3
    assert int(counter.count) == 0
    assert graphdef == plait.graphdef(counter)


def test_apply_of_a_graphdef_is_the_same():
    """G18."""
    graphdef, state = plait.split(Counter())
    out, (_, after) = graphdef.apply(state)(3)
    assert int(out) == 6
    assert int(after["count"][...]) == 3


def test_names_and_keys_select_a_method_or_part():
    """G45."""
    pair = plait.split(Counter())
    _, pair = plait.call(pair)(5)
    _, (_, state) = plait.call(pair).reset()
    assert int(state["count"][...]) == 0
    out, _ = plait.call(pair).parts[0].inner.sum()
    assert float(out) == 2.0


def test_it_works_inside_jit():
    """G45: the pair is a pytree."""

    @jax.jit
    def step(pair):
        return plait.call(pair)(1)

    pair = plait.split(Counter())
    for expected in (2, 4):
        out, pair = step(pair)
        assert int(out) == expected
