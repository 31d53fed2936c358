"""Step 4 of a call: it writes everything or nothing. (rules U19 to U21)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from tests.interrupts import WRITERS, interrupted
from tests.oracles import describe
from tests.strategies import Node


def make():
    return Node(a=plait.Param(jnp.zeros(())), inner=Node(b=plait.Param(jnp.zeros(()))), items=[1], c=jnp.zeros(()))


def values_only(m):
    m.a += 1
    m.inner.b += 1


def attributes(m):
    values_only(m)
    m.c = m.c + 1


def structure(m):
    values_only(m)
    m.tag = "seen"
    m.inner.new = plait.Param(m.a * 2)
    m.items.append(m.inner)


@pytest.mark.sampled
@pytest.mark.parametrize("change", [values_only, attributes, structure])
@pytest.mark.parametrize("transform", [plait.jit, plait.remat])
def test_an_interrupt_leaves_the_model_as_before_or_as_after(transform, change):
    """U21: at whichever line of what writes the interrupt comes."""
    run = transform(change)
    before, after = make(), make()
    run(make())
    change(after)
    allowed, seen = [describe(before), describe(after)], set()
    for stop, model in interrupted(make, run, *WRITERS):
        assert describe(model) in allowed, stop
        seen.add(allowed.index(describe(model)))
    assert seen == {0, 1}


def test_an_error_of_the_users_own_container_is_raised_once():
    """U21: and nothing is written, since the caller does not get the output."""
    made = []

    @jax.tree_util.register_pytree_node_class
    class Failing:
        def tree_flatten(self):
            return (jnp.ones(()),), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            made.append(children)
            if len(made) > count:
                raise ValueError("from the container")
            return cls()

    def f(model):
        structure(model)
        return Failing()

    count = 100
    plait.remat(f)(make())
    count, model = len(made) - 1, make()
    before = describe(model)
    del made[:]
    with pytest.raises(ValueError, match="from the container") as caught:
        plait.remat(f)(model)
    assert len(made) == count + 1
    assert caught.value.__context__ is None
    assert describe(model) == before
