"""What Flax accepts by position or by name, plait accepts: all public functions, constructors and methods of both."""

import re
import types
from importlib.metadata import version

import jax.numpy as jnp
import pytest

import plait as nnx
from tests.flax.compat.flax_signatures import (
    ABSENT,
    DEFAULTS,
    EXCEPTIONS,
    absent,
    lacking,
    news,
    other_defaults,
    pairs,
    reason,
    table,
)  # fmt: skip
from tests.new_flax import HEAD, PAGE

flax = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.oracle

PAIRS = {path: both for path, *both in pairs(flax, nnx)}


@pytest.mark.parametrize("path", sorted(PAIRS.keys() - EXCEPTIONS.keys()))
def test_what_flax_accepts_plait_accepts(path):
    assert lacking(*PAIRS[path]) == []


@pytest.mark.parametrize("path", sorted(PAIRS.keys() - DEFAULTS.keys()))
def test_defaults_are_those_of_flax(path):
    assert other_defaults(*PAIRS[path]) == []


def test_every_name_of_flax_is_one_of_plait():
    assert [name for name in absent(flax, nnx) if reason(name) is None] == []


def test_nothing_of_flax_is_new():
    assert news(flax, nnx) == []


def test_what_is_new_in_a_flax_is_said():
    newer = types.SimpleNamespace(**{name: getattr(flax, name) for name in dir(flax)})
    newer.brand_new = lambda: None
    newer.split = lambda node, /, *filters, graph=None, flatten_all=False: None
    newer.split.__module__ = "flax.nnx.graphlib"
    assert news(newer, nnx) == ["brand_new: plait has no such name", "split: by name: flatten_all"]


def test_the_tables_have_no_row_too_many():
    names = absent(flax, nnx)
    assert [pattern for pattern in ABSENT if not any(re.fullmatch(pattern, name) for name in names)] == []
    of_older = {"Sequential.__call__"}
    assert [path for path in EXCEPTIONS if not lacking(*PAIRS[path]) and path not in of_older] == []
    assert [path for path in DEFAULTS if not other_defaults(*PAIRS[path])] == []


@pytest.mark.skipif(version("flax") != "0.12.12", reason="the page is about Flax 0.12.12")
def test_the_page_has_the_table():
    """``python -m tests.new_flax --write`` writes it."""
    assert PAGE.read_text(encoding="utf-8").partition(HEAD)[2].splitlines() == table(flax, nnx).splitlines()


def test_both_libraries_are_seen_whole():
    """Names of all kinds: functions, constructors, methods, inherited ones, and those of the modules."""
    assert {"jit", "Linear.__init__", "Linear.__call__", "Rngs.fork", "spmd.add_axis", "BatchNorm.sow"} <= PAIRS.keys()


def test_a_lack_is_found():
    def one(a, b=1, *rest, c, d=2, **more): ...
    def other(x, *, c, e): ...

    assert lacking(one, other) == [
        *["by position 0: a", "by position 1: b", "by position: any number"],
        *["by name: any", "by name: a", "by name: b", "by name: d", "needs: e"],
    ]
    assert lacking(one, one) == []
    assert lacking(one, lambda a, b, *rest, c, **more: None) == ["by name: d"]  # it would be one of ``more``
    assert other_defaults(one, lambda a, b=True: None) == ["b=True, not 1"]


RNGS = {"rngs": nnx.Rngs(0)}
LAYERS = {
    "Linear": lambda: (nnx.Linear(2, 3, **RNGS), jnp.ones((1, 2))),
    "Conv": lambda: (nnx.Conv(2, 3, (1,), **RNGS), jnp.ones((1, 4, 2))),
    "Dropout": lambda: (nnx.Dropout(0.5, **RNGS), jnp.ones((1, 2))),
    "Embed": lambda: (nnx.Embed(4, 2, **RNGS), jnp.ones((1,), jnp.int32)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_its_inputs_by_name(name):
    layer, x = LAYERS[name]()
    assert layer(inputs=x).shape == layer(x).shape


TRANSFORMS = {
    "jit": lambda f: nnx.jit(fun=f)(1.0),
    "grad": lambda f: nnx.grad(f=f)(1.0),
    "value_and_grad": lambda f: nnx.value_and_grad(f=f)(1.0)[1],
    "vmap": lambda f: nnx.vmap(f=f)(jnp.ones(1))[0],
    "remat": lambda f: nnx.remat(f=f)(1.0),
    "vjp": lambda f: nnx.vjp(f=f)(1.0)[0],
    "a decorator": lambda f: nnx.jit(fun=None, inline=True)(f)(1.0),
    "checkify": lambda f: nnx.checkify(f, frozenset(), True, False)(1.0)[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_takes_its_function_by_name_and_checkify_its_modes_by_position(name):
    assert TRANSFORMS[name](lambda x: x * 1.0) == 1.0
