"""Ask 1: the work that Python does for a jitted call does not grow with the model."""

import sys

import jax.numpy as jnp
import pytest

import plait
from tests.sampling import slow_but

pytestmark = pytest.mark.unchecked  # checking walks the model on every call


def model_of(size):
    return plait.Dict({f"v{i}": plait.Param(jnp.full((), 1.0 * i)) for i in range(size)})


def deep_model_of(size):
    """Each variable in a module of its own, in a plain list."""
    return plait.Dict(layers=[plait.Dict(w=plait.Param(jnp.full((), 1.0 * i))) for i in range(size)])


def write_all(model, x):
    for _, variable in plait.to_flat_state(plait.variables(model)):
        variable.value = variable.value * x


def read_all(model, x):
    return sum(variable.value for _, variable in plait.to_flat_state(plait.variables(model))) * x


def frames_of(call):
    """How many Python functions a call enters."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    call()
    call()
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


STEPS = {"writes all": (write_all, {}), "only reads": (read_all, {}), "donates": (write_all, {"donate_argnums": 0})}


@pytest.mark.parametrize("make", [model_of, deep_model_of])
@pytest.mark.parametrize("step", slow_but(["writes all"], STEPS))
def test_python_functions_entered_do_not_grow_with_the_variables(step, make):
    """U33, U34."""
    function, options = STEPS[step]
    found = {}
    for size in (2, 20, 200):
        jitted, model = plait.jit(function, **options), make(size)
        found[size] = frames_of(lambda jitted=jitted, model=model: jitted(model, 1.0))
    assert 0 < found[2] == found[20] == found[200]


def test_a_call_after_another_model_changed_does_not_grow_either():
    found = {}
    for size in (2, 200):
        jitted, model, other = plait.jit(read_all), model_of(size), plait.Dict()

        def call(jitted=jitted, model=model, other=other):
            other.note = object()
            jitted(model, 1.0)

        found[size] = frames_of(call)
    assert found[2] == found[200]
