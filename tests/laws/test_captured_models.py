"""However a function comes to a model that it captures, and whatever it does with it, an eager transform gives today's
values, and ``jit`` those of its trace, with a warning. (rule U27)"""

import contextvars
import copy
import functools
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import CapturedModelWarning
from tests.strategies import Node

_variable = contextvars.ContextVar("model")


class Holder:
    """Holds a model, and calls a function of it."""

    def __init__(self, f, model):
        self.f, self.model = f, model

    def method(self, x):
        return self.f(self.model, x)

    __call__ = method


def by_global(f, model):
    code = eval("lambda x: the_f(the_model, x)").__code__
    return types.FunctionType(code, {"the_f": f, "the_model": model})


def by_class(f, model):
    kind = type("Kind", (), {"model": model})
    return lambda x: f(kind.model, x)


def by_context(f, model):
    _variable.set(model)
    return lambda x: f(_variable.get(), x)


def by_weak_reference(f, model):
    reference = weakref.ref(model)
    return lambda x: f(reference(), x)


def by_wrapper(f, model):
    inner = by_default(f, model)
    return functools.wraps(inner)(lambda x: inner(x))


def by_default(f, model):
    return lambda x, model=model: f(model, x)


def by_keyword_default(f, model):
    return lambda x, *, model=model: f(model, x)


ROUTES = {
    "a closure": lambda f, model: lambda x: f(model, x),
    "two closures": lambda f, model: (lambda inner: lambda x: inner(x))(lambda x: f(model, x)),
    "a list": lambda f, model: (lambda held: lambda x: f(held[0], x))([model]),
    "a dict of tuples": lambda f, model: (lambda held: lambda x: f(held["a"][1], x))({"a": (0, model)}),
    "a global": by_global,
    "a default": by_default,
    "a keyword default": by_keyword_default,
    "a partial": lambda f, model: functools.partial(f, model),
    "a partial of a partial": lambda f, model: functools.partial(functools.partial(f), model),
    "a bound method": lambda f, model: Holder(f, model).method,
    "an object that is called": Holder,
    "an attribute of a module": lambda f, model: (lambda outer: lambda x: f(outer.part, x))(Node(part=model)),
    "a class attribute": by_class,
    "a context variable": by_context,
    "a weak reference": by_weak_reference,
    "a wrapper": by_wrapper,
}
READS = {
    "indexing": lambda model: model.w[...],
    "the value": lambda model: model.w.get_value(),
    "arithmetic": lambda model: model.w * 1.0,
    "its state": lambda model: plait.state(model)["w"].get_value(),
    "split and merge": lambda model: plait.merge(*plait.split(model)).w[...],
    "leaves of its variables": lambda model: jax.tree.leaves(plait.variables(model))[0],
    "a clone": lambda model: plait.clone(model).w[...],
    "a deep copy": lambda model: copy.deepcopy(model).w[...],
    "jitted": lambda model: plait.jit(lambda model: model.w[...])(model),
    "differentiated": lambda model: plait.grad(lambda model: model.w[...] ** 2 / 2)(model)["w"].get_value(),
}
XS = jnp.arange(3.0)
TRANSFORMS = {
    "grad": lambda f: plait.grad(f)(2.0),
    "value_and_grad": lambda f: plait.value_and_grad(f)(2.0),
    "jvp": lambda f: plait.jvp(f, (2.0,), (1.0,)),
    "vjp": lambda f: plait.vjp(f, 2.0)[0],
    "vmap": lambda f: plait.vmap(f)(XS),
    "scan": lambda f: plait.scan(
        lambda carry, x: (carry + f(x), x), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0)
    )(0.0, XS),
    "fori_loop": lambda f: plait.fori_loop(0, 2, _Iteration(f), 1.0),
    "cond": lambda f: plait.cond(jnp.asarray(True), f, lambda x: x, 2.0),
    "remat": lambda f: plait.remat(f)(2.0),
    "vmap of grad": lambda f: plait.vmap(plait.grad(f))(XS),
    "grad of remat": lambda f: plait.grad(plait.remat(f))(2.0),
}


class _Iteration:
    def __init__(self, f):
        self.f = f

    def __call__(self, i, x):
        return self.f(x)


def program(route, read):
    """A model, and a function that captures it."""
    model = Node(w=plait.Param(jnp.asarray(1.0)))
    return model, ROUTES[route](lambda model, x: READS[read](model) * x, model)


def check(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)


@pytest.mark.slow
@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(sorted(READS)), st.sampled_from(sorted(TRANSFORMS)))
def test_an_eager_transform_reads_todays_values(route, read, transform):
    """U27: the same function, called again after the variable was written."""
    model, f = program(route, read)
    for value in (1.0, 3.0, 5.0):
        model.w[...] = jnp.asarray(value)
        check(TRANSFORMS[transform](f), TRANSFORMS[transform](lambda x, value=value: value * x))


@pytest.mark.slow
@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(sorted(READS)))
def test_jit_keeps_the_value_and_warns(route, read):
    """U27."""
    model, f = program(route, read)
    jitted = plait.jit(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = jitted(2.0)
    assert any(issubclass(each.category, CapturedModelWarning) for each in caught)
    model.w[...] = jnp.asarray(3.0)
    check((first, jitted(2.0)), (2.0, 2.0))
