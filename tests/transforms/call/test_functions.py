"""The functions that transforms accept, and what is said of others."""

import jax.numpy as jnp

from plait.transforms.call.call import curried


def test_a_transform_is_a_decorator_with_and_without_options():
    @curried
    def scaled(f, *, by=2):
        """Scales."""
        return lambda x: f(x) * by

    assert scaled.__doc__ == "Scales."
    assert scaled(jnp.negative)(1) == -2
    assert scaled(by=3)(jnp.negative)(1) == -3
    assert scaled(jnp.negative, by=4)(1) == -4
