"""Ahead-of-time stages with modules (rule X10)."""

import jax.numpy as jnp
import pytest

import plait
from plait import Param
from plait.errors import ArgumentError


class Net(plait.Module):
    def __init__(self, size=3):
        self.weight = Param(jnp.ones(size))


@plait.jit
def step(model, x):
    model.weight[...] += x
    return model.weight.sum()


def test_a_compiled_stage_takes_modules_and_writes_to_them():
    model = Net()
    compiled = step.lower(model, 1.0).compile()
    assert float(compiled(model, 1.0)) == 6.0
    assert model.weight[0] == 2


def test_a_stage_takes_arguments_by_name():
    """As the call does; what is compiled is given them by name too."""
    model = Net()
    assert float(step.lower(model, x=jnp.float32(1)).compile()(model, x=jnp.float32(1))) == 6.0
    keyword_only = plait.jit(lambda model, *, x: model.weight[...] * x)
    assert keyword_only.lower(model, x=2.0).compile()(model, x=2.0).tolist() == [4, 4, 4]


def test_stages_hand_on_what_jax_offers():
    traced = step.trace(Net(), 1.0)
    assert "add" in str(traced.jaxpr)
    assert "stablehlo" in traced.lower().as_text()
    assert step.lower(Net(), 1.0).compile().memory_analysis() is not None


def test_lowering_changes_nothing():
    model = Net()
    step.lower(model, 1.0)
    assert model.weight[0] == 1


def test_clear_cache_forgets_what_was_compiled():
    traces = []

    @plait.jit
    def f(model):
        traces.append(1)

    f(Net())
    (compiled,) = f.jitted_fn.compiled.values()
    f.clear_cache()
    assert compiled.jitted._cache_size() == 0  # at once, and not when it is collected
    f(Net())
    assert len(traces) == 2


STATIC = {
    "by position": ({"static_argnums": 2}, (2,), {}),
    "in the middle": ({"static_argnums": (1,)}, (2,), {}),
    "by name": ({"static_argnames": ("n",)}, (), {"n": 2}),
}


@pytest.mark.parametrize("case", STATIC)
def test_a_compiled_function_takes_static_arguments_or_leaves_them_out(case):
    """X10: as JAX's does, and as the function itself; other ones are another structure."""
    options, args, kwargs = STATIC[case]
    model, x = plait.Param(jnp.float32(3)), jnp.float32(5)
    if case == "in the middle":
        f, given, without = plait.jit(lambda m, n, x: m[...] * x * n, **options), (model, *args, x), (model, x)
        other = (model, 7, x)
    else:
        f, given, without = plait.jit(lambda m, x, n: m[...] * x * n, **options), (model, x, *args), (model, x)
        other = (model, x, *[7 for _ in args])
    compiled = f.lower(*given, **kwargs).compile()
    assert float(compiled(*without)) == float(compiled(*given, **kwargs)) == 30.0
    with pytest.raises(ArgumentError, match="different structure"):
        compiled(*other, **dict.fromkeys(kwargs, 7))
