"""Arrays that are not in variables, in Linen and in a ``bridge.Module``. (rules B29, B30, B36)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge, meta
from plait.errors import ArgumentError
from tests.flax.bridge.flaxes import same_trees

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
KEY = jax.random.key(0)


def features(nnx):
    """A class with random features, a key, a NumPy array, a list and a counter, none of them a variable."""

    class Features(nnx.Module):
        def __init__(self, rngs):
            self.basis = nnx.data(jax.random.normal(rngs.params(), (3, 3)))
            self.key = rngs.params()
            self.table = np.arange(3.0, dtype=np.float32)
            self.parts = nnx.data([jnp.ones(3)])
            self.calls = jnp.zeros(())
            self.bias = nnx.Param(jnp.ones(3))

        def __call__(self, x):
            self.calls = self.calls + 1
            noise = jax.random.normal(self.key, (3,))
            return x @ self.basis + (noise + self.table + self.parts[0] * self.calls + self.bias[...])[None]

    return Features


def in_a_bridge_module(name=None):
    class Net(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            return bridge.nnx_in_bridge_mdl(features(plait), name=name)(x)

    return Net()


def with_key_data(tree):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)


def test_init_and_apply_give_the_same_numbers():
    """B29: whatever the keys of ``apply`` are."""
    module = bridge.to_linen(features(plait))
    out, variables = module.init_with_output(KEY, X)
    assert sorted(variables) == ["ArrayImpl", "PRNGKeyArray", "ndarray", "params"]
    for apply in (module.apply, jax.jit(module.apply), bridge.to_linen(features(plait), abstract_init=False).apply):
        np.testing.assert_allclose(apply(variables, X), out, rtol=1e-6)
        np.testing.assert_allclose(apply(variables, X, rngs={"params": jax.random.key(7)}), out, rtol=1e-6)


def test_a_compiled_init_stores_the_same_arrays():
    module = bridge.to_linen(features(plait))
    same_trees(with_key_data(jax.jit(module.init)(KEY, X)), with_key_data(module.init(KEY, X)))


def test_new_values_return_in_a_mutable_collection():
    """B30: the counter; and a list of mutable collections that lacks it is an error, as for a variable."""
    module = bridge.to_linen(features(plait))
    variables = module.init(KEY, X)
    assert variables["ArrayImpl"]["calls"] == 0
    _, updates = module.apply(variables, X, mutable=["ArrayImpl"])
    assert (list(updates), updates["ArrayImpl"]["calls"]) == (["ArrayImpl"], 1)
    assert updates["ArrayImpl"]["basis"] is variables["ArrayImpl"]["basis"]
    _, updates = module.apply({**variables, **updates}, X, mutable=True)
    assert updates["ArrayImpl"]["calls"] == 2
    with pytest.raises(ArgumentError, match=r"'ArrayImpl' was changed\n +at +ToLinen, calls"):
        module.apply(variables, X, mutable=["params"])


def test_a_bridge_module_stores_them_too():
    """B36: its own init stores what the call left."""
    module = in_a_bridge_module("features")
    _, variables = module.init_with_output(0, X)
    assert sorted(variables) == ["ArrayImpl", "PRNGKeyArray", "ndarray", "params"]
    start = {**variables, "ArrayImpl": {"features": {**variables["ArrayImpl"]["features"], "calls": jnp.zeros(())}}}
    expected = module.init_with_output(0, X)[0]
    for apply in (module.apply, jax.jit(module.apply)):
        np.testing.assert_allclose(apply(start, X), expected, rtol=1e-6)
        np.testing.assert_allclose(apply(start, X, rngs=3), expected, rtol=1e-6)
    _, updates = module.apply(start, X, mutable=["ArrayImpl"])
    same_trees(updates["ArrayImpl"], variables["ArrayImpl"])
    with pytest.raises(ArgumentError, match=r"'ArrayImpl' was changed\n +at +Net, features\.calls"):
        module.apply(start, X, mutable=["params"])


def test_modules_made_without_a_factory_get_their_arrays_too():
    """B36: also in containers."""

    class Net(bridge.Module):
        def setup(self):
            self.parts = plait.List([features(plait)(plait.Rngs(3))])

        def __call__(self, x):
            return self.parts[0](x)

    variables = Net().init(0, X)
    arrays = variables["ArrayImpl"]["parts"][0]
    arrays.update(basis=arrays["basis"] * 0, parts={0: jnp.zeros(3)})
    zeros = Net().apply(variables, X)
    np.testing.assert_allclose(zeros, np.broadcast_to(zeros[:1], (4, 3)))


def test_collections_with_arrays_make_a_model():
    """B18a: of the values of ``init``."""
    out, variables = bridge.to_linen(features(plait)).init_with_output(KEY, X)
    model = bridge.from_collections(variables, features(plait)(plait.Rngs(9)))
    np.testing.assert_allclose(model(X), out, rtol=1e-6)


@pytest.mark.oracle
def test_collections_and_numbers_are_those_of_flax():
    """B29, B30: and either library takes the variables of the other."""
    flax_nnx = pytest.importorskip("flax.nnx")
    with flax_nnx.use_eager_sharding(False):
        theirs, ours = (nnx.bridge.to_linen(features(nnx)) for nnx in (flax_nnx, plait))
        out, variables = theirs.init_with_output(KEY, X)
        same_trees(*(with_key_data(meta.unbox(tree)) for tree in (ours.init(KEY, X), variables)))
        for module, given in ((ours, variables), (theirs, ours.init(KEY, X)), (ours, jax.jit(theirs.init)(KEY, X))):
            if "ArrayImpl" not in given:  # a compiled init of Flax loses what it does not trace
                rest = {name: value for name, value in variables["ArrayImpl"].items() if name in ("calls", "parts")}
                given = {**variables, **given, "ArrayImpl": rest}
            np.testing.assert_allclose(module.apply(given, X), out, rtol=1e-6)
        same_trees(*(with_key_data(m.apply(variables, X, mutable=True)[1]["ArrayImpl"]) for m in (ours, theirs)))
