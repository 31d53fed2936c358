"""Under every transform, operations have the names of the modules that they come from, at no cost per step."""

import contextlib
import re

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import NonFiniteError
from tests.conformance.transforms import TRANSFORMS

# Not those that run nothing, and not what the user's own code calls.
INSIDE = [each for each in TRANSFORMS if each.calls and each.name not in ("eval_shape", "make_jaxpr")]
each = pytest.mark.parametrize("transform", INSIDE, ids=lambda transform: transform.name)


class Inner(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.float32(2))
        self.seen = plait.Variable(jnp.float32(0))

    def __call__(self, x):
        self.seen[...] += jnp.sin(self.w[...])  # kept, whatever becomes of the result
        return jnp.sin(self.w[...] * x)


class Outer(plait.Module):
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x) * 2


class Logarithm(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.float32(0))
        self.seen = plait.Variable(jnp.float32(0))

    def __call__(self, x):
        self.seen[...] += jnp.log(self.w[...] - 1)
        return self.w[...] * x


def apply(model, x):
    return model(x)


def arrays(out):
    return jax.tree.leaves(plait.state(out) if isinstance(out, plait.Module) else out)


def program(transform):
    """A jitted function that runs a part of its model under the transform, lowered."""
    return plait.jit(lambda model, x: arrays(transform.run(apply)(model["part"], x))).lower(
        plait.Dict(part=Outer(Inner())), jnp.float32(1)
    )


@each
def test_operations_are_named_after_their_modules(transform):
    names = set(re.findall(r'"([^"]*/(?:sin|cos))"', program(transform).as_text(debug_info=True)))
    assert names
    assert all(re.search(r"\binner\b", name) for name in names), names


@pytest.mark.sampled
@each
def test_names_do_not_change_the_program(transform, monkeypatch):
    named = program(transform).as_text()
    monkeypatch.setattr(jax, "named_scope", lambda name: contextlib.nullcontext())
    assert program(transform).as_text() == named


@pytest.mark.sampled
@each
def test_a_nan_is_found_in_its_module(transform):
    with pytest.raises(NonFiniteError, match=r"at +(inner \()?a Logarithm\)?, in __call__"), plait.debug_nans():
        transform.run(apply)(Outer(Logarithm()), jnp.float32(1))
