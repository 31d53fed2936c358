import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentTypeError, ShapeError
from tests.nn.twins import flax_nnx, pure, some_input, users_promotion


def build(lib, rngs):
    return lib.Sequential(
        lib.Linear(3, 4, rngs=rngs), lib.relu, lib.BatchNorm(4, rngs=rngs), lib.Dropout(0.5, rngs=rngs)
    )


@pytest.mark.slow
@pytest.mark.oracle
def test_a_stack_has_flax_s_paths_and_values():
    nnx = flax_nnx()
    ours, theirs = build(plait, plait.Rngs(0)), build(nnx, nnx.Rngs(0))
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    assert list(mine) == list(other)
    x = some_input(5, 3)
    with users_promotion():
        expected = theirs(x)
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)


def test_tuples_and_dicts_become_arguments():
    model = plait.Sequential(lambda x: (x, 2), lambda a, b: {"u": a, "v": b}, lambda u, v: [u, v], lambda xs: sum(xs))
    assert model(1) == 3


def plus(x, k=0):
    return x + k


def all_keywords(x, **keywords):
    return x + sum(keywords.values())


@functools.wraps(lambda x: x)
def wrapper_of_less(x, **keywords):
    return x + sum(keywords.values())


# The layers, the arguments of the call, and what Flax 0.12.12 returns.
KEYWORDS = {
    "all that name it": ([plus, plus], {"k": 3}, 7),
    "not those before": ([abs, plus], {"k": 3}, 4),
    "not those between": ([plus, jnp.abs, plait.relu, plus], {"k": 3}, 7),
    "by position or name": ([lambda x, k: x * k, plus], {"k": 3}, 6),
    "by name only": ([lambda x, *, k: x * k, plus], {"k": 3}, 6),
    "not by position only": ([lambda x, k=5, /: x + k, plus], {"k": 3}, 9),
    "all others": ([all_keywords, all_keywords], {"k": 3, "l": 1}, 9),
    "a partial's default": ([functools.partial(plus, k=5), plus], {"k": 3}, 7),
    "what a wrapper wraps": ([wrapper_of_less, plus], {"k": 3}, 4),
    "a jitted function": ([plait.jit(plus), jax.jit(plus)], {"k": 3}, 7),
    "nested": ([plait.Sequential(abs), plait.Sequential(plus, plait.Sequential(plus)), plus], {"k": 3}, 10),
    "None": ([lambda x, k=5: x if k is None else k], {"k": None}, 1),
    "beside a dict": ([lambda x: {"x": x}, plus], {"k": 3}, 4),
    "not what the layer before returned": ([lambda x: x, lambda x, **others: x + others["k"]], {"k": 3, "x": 9}, 4),
    "a tuple": ([lambda x: (x, 5), lambda x, k: x + k, plus], {"k": 3}, 9),
}


@pytest.mark.filterwarnings("ignore::plait.errors.UnusedArgumentWarning")
@pytest.mark.parametrize(("layers", "keywords", "expected"), KEYWORDS.values(), ids=KEYWORDS)
def test_keywords_go_to_every_layer_that_takes_them(layers, keywords, expected):
    """G65."""
    assert plait.Sequential(*layers)(1, **keywords) == expected


def test_a_mode_reaches_every_layer():
    """G65: without it, the second dropout stays random and the second norm is updated."""
    rngs = plait.Rngs(0)
    parts = [plait.Dropout(0.5, rngs=rngs), plait.BatchNorm(3, rngs=rngs)]
    model = plait.Sequential(*parts, *map(plait.clone, parts))
    x = some_input(4, 3)
    y = model(x, deterministic=True, use_running_average=True)
    np.testing.assert_allclose(y, x, rtol=1e-4)
    assert not model.layers[3].mean[...].any()


def test_a_keyword_that_is_also_an_output_is_an_error():
    with pytest.raises(ArgumentTypeError, match=r"layers\[1\](?s:.*)k in the call"):
        plait.Sequential(lambda x: {"x": x, "k": 1}, plus)(1, k=3)


def test_it_is_iterable():
    model = plait.Sequential(plait.relu, plus)
    assert [*model] == [plait.relu, plus]
    assert plait.Sequential(*model, plus)(-1, k=3) == 6


def test_an_empty_stack_is_the_identity():
    assert plait.Sequential()(3) == 3


def test_layers_can_be_replaced_and_indexed():
    model = plait.Sequential(plait.relu, plait.relu)
    model.layers[1] = lambda x: x + 1
    assert model(jnp.ones(1)).tolist() == [2.0]


def test_errors_name_the_layer_in_the_stack():
    model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Linear(4, 5, rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"at +layers\[1\] \(a Linear\)"):
        model(jnp.ones((1, 2)))


EMPTY_CALLS = {
    "nothing": ((), {}),
    "an argument": ((1,), {}),
    "two": ((1, 2), {}),
    "a keyword": ((), {"k": 2}),
    "both": ((1,), {"k": 2}),
    "several of both": ((1, 2), {"k": 2, "l": 3}),
}


@pytest.mark.oracle
@pytest.mark.parametrize("call", EMPTY_CALLS.values(), ids=EMPTY_CALLS)
def test_without_members_it_returns_what_flax_s_does(call):
    args, kwargs = call
    assert plait.Sequential()(*args, **kwargs) == flax_nnx().Sequential()(*args, **kwargs)


def test_a_list_of_layers_is_refused_at_once():
    with pytest.raises(ArgumentTypeError, match=r"(?s)at +layers\[0\].*found +a list.*plait\.Sequential\(\*layers\)"):
        plait.Sequential([plait.relu, plait.relu])
