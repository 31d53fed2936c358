"""What Flax accepts by position or by name, plait accepts: all public functions, constructors and methods of both."""

import jax.numpy as jnp
import pytest

import plait as nnx
from tests.compat.flax_signatures import lacking, other_defaults, pairs

flax = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.oracle

PARTS = "parts of a structure, which split makes: equal structures are one object"
STEPS = "update_context, split_context and merge_context make these; they take what plait's own mapping needs"

# Name → why plait accepts less.
EXCEPTIONS = {
    "GraphDef.__init__": PARTS,
    "graph.NodeDef.__init__": PARTS,
    "graph.NodeRef.__init__": PARTS,
    "graph.VariableDef.__init__": PARTS,
    "MergeContext.__init__": STEPS,
    "SplitContext.__init__": STEPS,
    "UpdateContext.__init__": STEPS,
    "GraphDef.apply": "graph: the graph was checked when it was split",
    "flatten": "ref_outer_index: the outer indices are one mapping on the root, which update_context makes",
    "bridge.ToLinen.__init__": "parent and name: fields that a Linen module puts after its own; by name they work",
    "bridge.ToLinen.metadata_fn": "a default of Flax's class that is seen as its method",
}
# Name → defaults that differ, and why.
DEFAULTS = {
    "merge": "copy: what is merged never shares variables with the state",
    "tabulate": "compute_flops: plait counts without compiling",
    "bridge.Module.init_with_output": "mutable: what a Linen module's own method takes",
}

PAIRS = {path: both for path, *both in pairs(flax, nnx)}


@pytest.mark.parametrize("path", PAIRS.keys() - EXCEPTIONS.keys())
def test_what_flax_accepts_plait_accepts(path):
    assert lacking(*PAIRS[path]) == []


@pytest.mark.parametrize("path", PAIRS.keys() - DEFAULTS.keys())
def test_defaults_are_those_of_flax(path):
    assert other_defaults(*PAIRS[path]) == []


def test_the_tables_have_no_row_too_many():
    assert [path for path in EXCEPTIONS if not lacking(*PAIRS[path])] == []
    assert [path for path in DEFAULTS if not other_defaults(*PAIRS[path])] == []


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
