"""The functions that transforms accept, and what is said of others."""

import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError
from plait.transforms.call.functions import check_function, curried
from tests.conformance.transforms import TRANSFORMS

# What to write instead of a bound method, by how the transform takes its function.
INSTEAD = {
    "jit": "decorate the method in the class (@plait.jit), or call plait.jit(Linear.attend)(linear, x)",
    "grad": "decorate the method in the class (@plait.grad), or call plait.grad(Linear.attend)(linear, x)",
    "vjp": "pass the module as an argument: plait.vjp(Linear.attend, linear, x)",
    "jvp": "pass the module as an argument: plait.jvp(Linear.attend, primals=(linear, x,), "
    "tangents=(linear_tangent, x_tangent,))",
    "hvp": "pass the module as an argument: plait.hvp(Linear.attend, primals=(linear, x,), tangents=grads)",
    "jit_partial": "pass the module as an argument: plait.jit_partial(Linear.attend, linear)(x)",
    "cond": "pass a function that takes the module: lambda linear, x: linear.attend(x)",
    "custom_vjp.defvjp": "pass a function that takes the module: lambda linear, x: linear.attend(x)",
    "lax_map": "also pass the module: plait.lax_map(lambda x, linear: linear.attend(x), xs, linear)",
    "transform_metadata": "or call plait.transform_metadata(Linear.attend, partition='layers')",
}


class Linear(plait.Module):
    def attend(self, x):
        return x


@pytest.mark.parametrize("name", INSTEAD)
def test_a_bound_method_is_refused_with_the_code_to_write(name):
    """X1."""
    with pytest.raises(ArgumentError) as error:
        check_function(Linear().attend, name)
    assert str(error.value).endswith(INSTEAD[name])
    assert "the method 'attend' bound to a Linear" in str(error.value)


@pytest.mark.parametrize("name", [transform.name for transform in TRANSFORMS])
def test_what_cannot_be_called_is_refused(name):
    with pytest.raises(ArgumentTypeError, match=f"{name} takes a function"):
        check_function(3, name)
    check_function(len, name)
    check_function([].append, name)  # bound to something that is no module


def test_a_transform_is_a_decorator_with_and_without_options():
    @curried
    def scaled(f, *, by=2):
        """Scales."""
        return lambda x: f(x) * by

    assert scaled.__doc__ == "Scales."
    assert scaled(jnp.negative)(1) == -2
    assert scaled(by=3)(jnp.negative)(1) == -3
    assert scaled(jnp.negative, by=4)(1) == -4
