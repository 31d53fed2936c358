"""The children of a running ``bridge.Module``."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


def equal(field):
    """Two equal values that are not one object."""
    return field, pickle.loads(pickle.dumps(field))


AGAIN = {
    "one object": ((X,) * 2, True),
    "equal integers": (equal(10**6), True),
    "equal numbers": (equal(0.125), True),
    "equal strings": (equal("no identifier"), True),
    "equal tuples": (equal((1, "a")), True),
    "none": ((None, None), True),
    "other integers": ((3, 4), False),
    "other tuples": (((1, "a"), (1, "b")), False),
    "an integer and a bool": ((1, True), False),
    "an integer and none": ((0, None), False),
    "other arrays": ((X, X.copy()), False),
}


@pytest.mark.parametrize("case", AGAIN)
def test_a_compact_method_that_runs_again_finds_its_children(case):
    """B35: a child with the same fields is the earlier one, and its setup does not run again.

    With other fields it is another one, which shares the variables.
    """
    (first, second), same = AGAIN[case]
    children, setups = [], []

    class Child(bridge.Module):
        field: object

        def setup(self):
            setups.append(self.field)
            self.w = self.param("w", plait.initializers.ones, ())

    class Twice(bridge.Module):
        def __call__(self):
            return self.once(first), self.once(second)

        @bridge.compact
        def once(self, field):
            children.append(Child(field))
            return children[-1].field

    found, variables = Twice().init_with_output(0)
    assert (children[0] is children[1]) is same
    assert len(setups) == 2 - same
    assert found[1] is (found[0] if same else second)
    assert children[0].w is children[1].w
    assert jax.tree.map(jnp.shape, variables) == {"params": {"Child_0": {"w": ()}}}
