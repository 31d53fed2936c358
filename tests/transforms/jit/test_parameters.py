"""The parameters of a jitted function, from which its entrance is generated."""

import functools

import jax.numpy as jnp
import pytest

import plait
from plait.transforms.jit.dispatch import MISSING, Parameters, collect


def simple(model, x):
    return model, x


def full(a, /, b, c=1, *, d, e=2):
    return a, b, c, d, e


@pytest.mark.parametrize(
    ("f", "positional", "keywords", "optional", "head"),
    [
        (simple, ("model", "x"), (), set(), "model, x"),
        (full, ("a", "b", "c"), ("d", "e"), {"c", "e"}, "a, /, b, c=_plait_missing, *, d, e=_plait_missing"),
        (lambda: 0, (), (), set(), ""),
        (lambda *args: 0, None, (), set(), "*_plait_args, **_plait_kwargs"),
        (lambda x, **rest: 0, None, (), set(), "*_plait_args, **_plait_kwargs"),
        (lambda _plait_x: 0, None, (), set(), "*_plait_args, **_plait_kwargs"),
        (functools.partial(simple, 1), None, (), set(), "*_plait_args, **_plait_kwargs"),
        (len, None, (), set(), "*_plait_args, **_plait_kwargs"),
    ],
)
def test_the_entrance_has_the_parameters_of_the_function(f, positional, keywords, optional, head):
    """A named parameter is a local variable of the entrance, which is what makes it fast."""
    found = Parameters(f)
    assert (found.positional, found.keywords, found.optional, found.head()) == (positional, keywords, optional, head)


def test_arguments_are_passed_on_as_they_were_given():
    assert collect((1,), {"b": 2, "c": MISSING, "d": 4, "e": MISSING}, 3) == ((1, 2), {"d": 4})
    assert collect((1,), {"b": MISSING, "c": 3, "d": 4}, 2) == ((1,), {"c": 3, "d": 4})
    assert collect((), {"b": 2, "c": 3}, 2) == ((2, 3), {})


def test_the_generated_function_takes_what_the_function_takes():
    jitted = plait.jit(full)
    assert [*map(int, jitted(1, 2, d=3))] == [1, 2, 1, 3, 2]
    assert [*map(int, jitted(1, c=5, b=2, d=3, e=4))] == [1, 2, 5, 3, 4]
    for args, kwargs in (
        ((), {}),
        ((1,), {"d": 3}),
        ((1, 2, 3, 4), {"d": 3}),
        ((1, 2), {}),
        ((1, 2), {"d": 3, "f": 4}),
    ):
        with pytest.raises(TypeError):
            jitted(*args, **kwargs)
    with pytest.raises(TypeError):
        jitted(a=1, b=2, d=3)


@pytest.mark.parametrize("name", ["class", "lambda", "None", "ﬁ", "a b", "", "_plait_out", "a0", "clock"])
def test_arguments_may_have_names_that_code_cannot(name):
    """U8: by ** only; twice, since the second call runs generated code."""
    model = plait.Dict(n=plait.Param(jnp.float32(1)))

    @plait.jit
    def f(model, **kwargs):
        model.n[...] += 1
        return {key: value * 2 for key, value in kwargs.items()}

    for count in (2, 3, 4):
        assert f(model, **{name: jnp.float32(count)}) == {name: 2 * count}
        assert model.n[...] == count
