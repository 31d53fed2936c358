"""Private functions of Flax that packages call give what they give in Flax."""

import functools
import importlib

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.flax.compat.flax_paths import find
from tests.nn.twins import compare, flax_nnx, users_promotion

pytestmark = pytest.mark.oracle

X = jnp.arange(24.0).reshape(2, 4, 3) / 7
MASK = jnp.arange(24).reshape(2, 4, 3) % 5 > 0
SCALE, BIAS = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2, 0.3])


def call(a, b, c=3, *more):
    return a, b, c, more


def normalized(n, axes, features, scale=None, bias=None, dtype=None, x=X):
    return n["_normalize"](x, *n["_compute_stats"](x, axes, None), scale, bias, axes, features, dtype, 1e-5)


def bound(n, lib, partial):
    layer = lib.Dropout(0.5)
    method = functools.partial(layer.__call__, 1, rngs=2) if partial else layer.__call__
    function, owner, was_bound = n["_resolve_bound_callable"](method)
    parts = (function.args, function.keywords, function.func.__name__) if partial else function.__name__
    return parts, owner is layer, was_bound


CASES = {
    "nn.linear._conv_dimension_numbers": [lambda n, _, rank=rank: tuple(n((2,) * rank)) for rank in (3, 4, 5)],
    "transforms.transforms.resolve_kwargs": [
        lambda n, _: n(call, (1,), {"b": 2}),
        lambda n, _: n(call, (1, 2, 4, 5), {}),
        lambda n, _: n(functools.partial(call, 1), (2,), {}),
        lambda n, _: n()(call)(1, b=2),
        lambda n, _: n(lambda **named: None, (), {"x": 1}),
        lambda n, _: n(call, (1,), {"z": 2}),
    ],
    "transforms.transforms._resolve_bound_callable": [
        lambda n, lib: bound({"_resolve_bound_callable": n}, lib, partial=False),
        lambda n, lib: bound({"_resolve_bound_callable": n}, lib, partial=True),
        lambda n, _: n(call) == (call, None, False),
        lambda n, lib: n(lib.Param(1.0).get_value)[1:],
    ],
    "nn.recurrent._select_last_carry": [
        lambda n, _: n({"a": jnp.swapaxes(X, 0, 1), "b": X[..., 0].T}, jnp.array([0, 3])),
    ],
    "nn.recurrent.flip_sequences": [lambda n, _: n(X, jnp.array([2, 4]), 1, False), lambda n, _: n(X, None, 1, True)],
    "nn.normalization._canonicalize_axes": [lambda n, _: (n(3, -1), n(3, (2, -1, 0)), n(4, [-2, 1]))],
    "nn.normalization._compute_stats": [
        lambda n, _: n(X, (0, 1), None),
        lambda n, _: n(X, -1, jnp.bfloat16, use_mean=False, mask=MASK),
        lambda n, _: n(X.astype(jnp.bfloat16), (0,), None, use_fast_variance=False, mask=MASK),
        lambda n, _: n(X.astype(jnp.complex64), (0,), None),
        lambda n, _: jax.vmap(lambda x: n(x, (0,), None, axis_name="b"), axis_name="b")(X),
    ],
    "nn.normalization._normalize": [
        lambda _, n: normalized(n, (0, 1), (-1,), SCALE, BIAS),
        lambda _, n: normalized(n, (0,), (1, 2), jnp.ones((4, 3)) * 2, dtype=jnp.bfloat16),
        lambda _, n: normalized(n, (0, 2), 1, jnp.arange(4.0), x=X.astype(jnp.bfloat16)),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), [(name, i) for name in CASES for i in range(len(CASES[name]))])
def test_it_gives_what_it_gives_in_flax(name, number):
    path, _, last = name.rpartition(".")
    got = []
    for lib, of in (
        (flax_nnx(), functools.partial(getattr, importlib.import_module(f"flax.nnx.{path}"))),
        (plait, functools.partial(find, "flax.nnx", path)),
    ):
        both = {each: of(each) for each in ("_normalize", "_compute_stats")} if last == "_normalize" else lib
        try:
            with users_promotion():
                got.append(CASES[name][number](of(last), both))
        except TypeError:
            got.append("TypeError")
    theirs, ours = map(jax.tree.leaves, got)
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        assert getattr(one, "dtype", one) == getattr(other, "dtype", other)
        if isinstance(one, jax.Array):
            compare(other, one, {"rtol": 1e-5, "atol": 1e-6}, name)


def test_the_stack_of_running_modules_ends_with_the_innermost():
    seen = []
    context = find("flax.nnx", "bridge.module", "MODULE_CONTEXT")

    class Layer(plait.bridge.Module):
        @plait.bridge.compact
        def __call__(self):
            seen.append(context.module_stack[-1])

    Layer().apply({})
    assert (type(seen[0].module), seen[0].in_compact, context.module_stack) == (Layer, True, [None])
