"""``bridge.partitioning``: names of axes beside the variables, in both kinds of modules. (rows 264 to 266)"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import unfreeze
from flax.linen import partitioning as flax_partitioning
from jax.sharding import AxisType, PartitionSpec as P

import plait
from plait import bridge
from plait.errors import ArgumentError, ArgumentTypeError
from plait.flax.bridge import partitioning
from tests.sampling import slow_but

X = jnp.ones((2, 3))
ones = plait.initializers.ones


def body(library, x, axes=("embed", "mlp")):
    w = library.param_with_axes("w", plait.initializers.lecun_normal(), (3, 4), axes=axes)
    bias = library.param_with_axes("bias", ones, (4,))
    calls = library.variable_with_axes("stats", "calls", jnp.zeros, (4,), axes=("mlp",))
    calls.value = calls.value + 1
    return x @ w + (bias + calls.value)[None]


class Linen(nn.Module):
    library: object = partitioning

    @nn.compact
    def __call__(self, x):
        return body(self.library, x)


class Hybrid(bridge.Module):
    axes: tuple = ("embed", "mlp")

    @bridge.compact
    def __call__(self, x):
        return body(partitioning, x, self.axes)


def names(variables):
    return {c: plain_names(variables[c]) for c in sorted(variables) if c.endswith("_axes")}


def plain_names(tree):
    return {k: plain_names(v) if isinstance(v, dict) else v.names for k, v in tree.items()}


@pytest.mark.oracle
def test_a_linen_module_gets_what_flax_makes():
    """264: parameters, names and outputs, to the bit."""
    mine = Linen().init(jax.random.key(0), X)
    theirs = Linen(flax_partitioning).init(jax.random.key(0), X)
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    out, expected = (m.apply(mine, X, mutable=["stats"]) for m in (Linen(), Linen(flax_partitioning)))
    jax.tree.map(np.testing.assert_array_equal, out, expected)


@pytest.mark.oracle
def test_a_hybrid_module_keeps_the_same_collections():
    """264: and needs the names no more than Linen does."""
    theirs = Linen(flax_partitioning).init(jax.random.key(0), X)
    mine = Hybrid().init(0, X)
    shapes = [jax.tree.map(jnp.shape, {c: v[c] for c in ("params", "stats")}) for v in (mine, theirs)]
    assert shapes[0] == shapes[1]
    assert (
        names(mine)
        == names(theirs)
        == {
            "params_axes": {"w_axes": ("embed", "mlp")},
            "stats_axes": {"calls_axes": ("mlp",)},
        }
    )
    stored = {"params": theirs["params"], "stats": theirs["stats"]}
    out, changed = Hybrid().apply(stored, X, mutable=["stats"])
    expected, expected_changed = Linen(flax_partitioning).apply(stored, X, mutable=["stats"])
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    np.testing.assert_array_equal(changed["stats"]["calls"], expected_changed["stats"]["calls"])
    assert set(changed) == {"stats"}
    both = [m.apply(stored, X, mutable=True)[1] for m in (Hybrid(), Linen(flax_partitioning))]
    assert names(both[0]) == names(both[1]) != {}
    # The names of either side serve the other.
    by_hybrid, by_linen = (m.apply(mine, X, mutable=["stats"])[0] for m in (Hybrid(), Linen(flax_partitioning)))
    np.testing.assert_allclose(by_hybrid, by_linen, rtol=1e-6)
    np.testing.assert_allclose(Hybrid().apply(theirs, X), expected, rtol=1e-6)


@pytest.mark.oracle
def test_names_as_specs():
    """265: those of Flax and of a hybrid, nested."""
    for module in (Linen(), Hybrid()):
        variables = module.init(jax.random.key(0), X)
        for collection in ("params_axes", "stats_axes"):
            tree = {"layer": variables[collection]}
            mine = partitioning.get_axis_names(tree)
            assert mine == {"layer": partitioning.get_axis_names(variables[collection])}
            if isinstance(module, Linen):
                assert mine == unfreeze(flax_partitioning.get_axis_names(tree))
    assert mine == {"layer": {"calls": P("mlp")}}
    box = partitioning.AxisMetadata(("a", None))
    assert jax.tree.leaves(box) == []
    assert box == partitioning.AxisMetadata(("a", None))


def test_stored_names_are_static_values():
    """264: variables cross ``jit`` with them, and equal names are the same program."""
    traced = []
    pass_on = jax.jit(lambda tree: [traced.append(tree), tree][1])
    for _ in range(2):
        assert pass_on({"w": partitioning.AxisMetadata(("a",))}) == {"w": partitioning.AxisMetadata(("a",))}
    assert len(traced) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        partitioning.AxisMetadata(("a",)).names = ()


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        w = partitioning.param_with_axes("w", plait.initializers.lecun_normal(), (3, 3), axes=("embed", "mlp"))
        return jnp.tanh(x @ w), None


LIFTS = {
    "scan": lambda lib: lib.scan_with_axes(
        Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=4, axis_name="stack"
    ),
    "vmap": lambda lib: lib.vmap_with_axes(
        Layer, variable_axes={"params": 1}, split_rngs={"params": True}, partitioning_axis_names={"params": "ensemble"}
    ),
    "remat": lambda lib: lib.remat(Layer),
}
EXPECTED = {"scan": ("stack", "embed", "mlp"), "vmap": ("embed", "ensemble", "mlp"), "remat": ("embed", "mlp")}


@pytest.mark.oracle
@pytest.mark.parametrize("lift", slow_but(["vmap"], LIFTS))
def test_transforms_of_linen_modules_keep_the_names(lift):
    """266: in a Linen module, and in a plait model around it."""

    class Net(nn.Module):
        library: object = partitioning

        @nn.compact
        def __call__(self, x):
            return LIFTS[lift](self.library)(name="layer")(x, None if lift == "scan" else x)[0]

    mine, theirs = (Net(library).init(jax.random.key(0), X) for library in (partitioning, flax_partitioning))
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    assert partitioning.get_axis_names(mine["params_axes"]) == {"layer": {"w": P(*EXPECTED[lift])}}
    wrapped = bridge.ToNNX(Net(), plait.Rngs(0)).lazy_init(X, rngs=jax.random.key(0))
    collections = bridge.to_collections(wrapped)
    assert names(collections) == names(theirs)
    np.testing.assert_allclose(wrapped(X), Net().apply(theirs, X), rtol=1e-6)
    np.testing.assert_allclose(plait.jit(lambda m, x: m(x))(wrapped, X), Net().apply(theirs, X), rtol=1e-6)


def test_a_linen_module_inside_of_a_hybrid():
    """264: the innermost module that runs has the variable."""

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            scale = partitioning.param_with_axes("scale", ones, (), axes=())
            return bridge.linen_in_bridge_mdl(Linen(), name="inner")(x) * scale

    variables = Outer().init(0, X)
    assert plain_names(variables["params_axes"]) == {"scale_axes": (), "inner": {"w_axes": ("embed", "mlp")}}


def test_names_may_be_left_out():
    """264: then nothing is kept beside the variable."""

    class Bare(bridge.Module):
        @bridge.compact
        def __call__(self):
            bare = partitioning.variable_with_axes("stats", "n", jnp.ones, (2,))
            return partitioning.param_with_axes("w", ones, (2,)) + bare.value

    variables = Bare().init(0)
    assert {c: list(variables[c]) for c in sorted(variables)} == {"params": ["w"], "stats": ["n"]}


@pytest.mark.oracle
def test_the_module_that_is_given_has_the_variable():
    """264: though another one runs."""

    class Outer(nn.Module):
        library: object

        @nn.compact
        def __call__(self):
            library, kept = self.library, {"axes": ("a",), "module": self}

            class Inner(nn.Module):
                @nn.compact
                def __call__(self):
                    w = library.param_with_axes("w", ones, (2,), **kept)
                    return w + library.variable_with_axes("stats", "n", jnp.ones, (2,), **kept).value

            return Inner(name="inner")()

    mine, theirs = (Outer(library).init(jax.random.key(0)) for library in (partitioning, flax_partitioning))
    assert names(mine) == names(theirs) == {"params_axes": {"w_axes": ("a",)}, "stats_axes": {"n_axes": ("a",)}}


def test_rules_lay_out_the_value():
    """264: the names go through the rules in force."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    class Net(bridge.Module):
        @bridge.compact
        def __call__(self):
            return partitioning.param_with_axes("w", ones, (8, 4), axes=("rows", "columns"))

    with jax.set_mesh(mesh), plait.logical_axis_rules([("rows", "data"), ("columns", None)]):
        variables = Net().init(0)
        out = jax.jit(lambda v: Net().apply(v))(variables)
    assert out.sharding.is_equivalent_to(jax.NamedSharding(mesh, P("data")), 2)


MISTAKES = {
    "outside": (
        lambda: partitioning.param_with_axes("w", ones, (2,), axes=("a",)),
        r"^param_with_axes creates a variable in the running module",
    ),
    "a variable outside": (
        lambda: partitioning.variable_with_axes("stats", "n", ones, (2,), axes=("a",)),
        r"^variable_with_axes creates a variable in the running module",
    ),
    "rank": (lambda: Hybrid(("embed",)).init(0, X), r"(?s)Hybrid, params/w.*\('embed',\).*\(3, 4\).*2 names"),
    "a word": (lambda: Hybrid("embed").init(0, X), r"(?s)axis names are a tuple.*Hybrid, params/w"),
    "other names": (
        lambda: Hybrid(("embed", "x")).apply(Hybrid().init(0, X), X),
        r"(?s)params_axes/w_axes.*\('embed', 'x'\).*\('embed', 'mlp'\)",
    ),
    "a hybrid to scan": (
        lambda: partitioning.scan_with_axes(Hybrid, length=2),
        r"(?s)scan_with_axes lifts Linen.*at +Hybrid\n.*plait\.scan;",
    ),
    "a hybrid to map": (
        lambda: partitioning.vmap_with_axes(Hybrid, axis_size=2),
        r"(?s)vmap_with_axes lifts Linen.*at +Hybrid\n.*plait\.vmap;",
    ),
    "a hybrid to remat": (lambda: partitioning.remat(Hybrid), r"(?s)remat lifts Linen.*at +Hybrid\n.*plait\.remat;"),
    "no names": (lambda: partitioning.get_axis_names({"w": 1}), r"(?s)at +w.*an int.*params_axes"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    """Section 9."""
    call, message = MISTAKES[name]
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        call()
