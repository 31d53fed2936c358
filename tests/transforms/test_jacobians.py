"""``jacrev``, ``jacfwd``, ``hessian`` and ``hvp``: numbers of JAX, forms, updates, errors. (rules X13, X30, X31)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from tests.sampling import slow_but
from tests.strategies import Leafy, Node

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


class Net(plait.Module):
    """Two layers with one tied matrix, statistics, a counter, and a random stream."""

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 2)
        self.enc = Leafy(w=plait.Param(jax.random.normal(keys[0], (3, 3))), b=plait.Param(jnp.ones(3)))
        self.layers = [Leafy(w=self.enc.w, b=plait.Param(jax.random.normal(keys[1], (3,))))]
        self.mean = plait.BatchStat(jnp.zeros(3))
        self.calls = plait.Variable(jnp.int32(0))
        self.drop = plait.Dropout(0.5, rngs=plait.Rngs(dropout=1))

    def __call__(self, x):
        self.calls[...] += 1
        for layer in (self.enc, *self.layers):
            x = jnp.tanh(x @ layer.w[...] + layer.b[...][None])
        self.mean[...] = 0.5 * self.mean[...] + 0.5 * x.mean(0)
        return self.drop(x)


def outputs(net, x):
    y = net(x)
    return {"rows": y.sum(1), "sum": [(y**2).sum() + net.mean[...].sum()]}


def loss(net, x):
    return (net(x) ** 2).sum() + (net.mean[...] ** 3).sum()


def plain(f, net, x):
    """The same function of the parameters and the input, and the parameters."""
    graphdef, params, rest = plait.split(net, plait.Param, ...)
    return (lambda params, x: f(plait.merge(graphdef, params, rest), x)), (params, x)


def assert_same(found, expected):
    """Equal numbers, leaf by leaf: both have an entry for each output and each input, in this order."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert [leaf.shape for leaf in found] == [leaf.shape for leaf in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


DERIVATIVES = {
    "jacrev": (plait.jacrev, jax.jacrev, outputs),
    "jacfwd": (plait.jacfwd, jax.jacfwd, outputs),
    "hessian": (plait.hessian, jax.hessian, loss),
}
each = pytest.mark.parametrize("name", DERIVATIVES)
BOTH_JITTED = "jit of the derivative of a jitted function"


@pytest.mark.slow
@each
@pytest.mark.parametrize("argnums", slow_but([[1, 0]], [0, 1, [0, 1], [1, 0], [-1]]), ids=str)
def test_the_numbers_are_those_of_plain_jax(name, argnums):
    """X30, X31: as JAX differentiates the same function of the split state."""
    ours, jaxs, f = DERIVATIVES[name]
    net = Net()
    pure, arguments = plain(f, net, X)
    argnums = tuple(argnums) if isinstance(argnums, list) else argnums
    assert_same(ours(f, argnums=argnums)(net, X), jax.jit(jaxs(pure, argnums=argnums))(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["hessian"], DERIVATIVES))
@pytest.mark.parametrize("under", slow_but([BOTH_JITTED], ["jit", BOTH_JITTED, "remat"]))
def test_they_agree_under_other_transforms(name, under):
    ours, _, f = DERIVATIVES[name]
    way = {
        "jit": lambda: plait.jit(ours(f)),
        BOTH_JITTED: lambda: plait.jit(ours(plait.jit(f))),
        "remat": lambda: ours(plait.remat(f)),
    }[under]
    one, other = Net(), Net()
    for _ in range(2):
        assert_same(way()(one, X), ours(f)(other, X))
    assert int(one.calls[...]) == 2


def hvp_of(f, has_aux=False):
    return lambda net, x: plait.hvp(f, (net, x), plait.state(net, plait.Param), has_aux=has_aux)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*DERIVATIVES, "hvp"])
def test_updates_made_inside_come_back_once(name):
    """U30: counters, statistics and streams are as after one call."""
    derivative = hvp_of if name == "hvp" else DERIVATIVES[name][0]
    net, eager = Net(), Net()
    weights = net.enc.w.get_raw_value()
    derivative(loss)(net, X)
    loss(eager, X)
    assert (int(net.calls[...]), net.enc.w.get_raw_value() is weights) == (1, True)
    assert int(net.drop.rngs.count[...]) == int(eager.drop.rngs.count[...]) == 1
    np.testing.assert_allclose(net.mean[...], eager.mean[...], rtol=1e-6)


@pytest.mark.parametrize("name", [*DERIVATIVES, "hvp"])
def test_structural_changes_and_aux_come_back(name):
    """U18, X14."""

    def f(net, x):
        net.seen = plait.Cache(jnp.ones(2))
        return loss(net, x), {"net": net, "new": Node(of=net.enc)}

    derivative = hvp_of if name == "hvp" else DERIVATIVES[name][0]
    net = Net()
    _, aux = derivative(f, has_aux=True)(net, X)
    assert (aux["net"] is net, aux["new"].of is net.enc) == (True, True)
    assert net.seen[...].tolist() == [1.0, 1.0]


BIAS = plait.DiffState(0, plait.PathContains("b"))
RETURNED = {
    "an array": lambda net: net.enc.b[...] * 2,
    "one array twice": lambda net: (net.enc.b[...],) * 2,
    "a variable": lambda net: net.enc.b,
    "a new variable": lambda net: plait.Variable(net.enc.b[...] ** 2),
    "a module": lambda net: Node(b=plait.Param(net.enc.b[...] ** 2), a=net.mean),
    "a state": lambda net: plait.state(net, plait.PathContains("b")),
    "a gradient": lambda net: plait.grad(lambda net: (net.enc.b[...] ** 3).sum(), argnums=BIAS)(net),
}


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("returned", RETURNED)
def test_objects_among_the_outputs_count_as_their_values(name, returned):
    """X30."""
    f = RETURNED[returned]
    graphdef, chosen, rest = plait.split(Net(), plait.PathContains("b"), ...)

    def pure(chosen):
        out = f(plait.merge(graphdef, chosen, rest))
        return jax.tree.leaves(plait.state(out) if isinstance(out, Node) else out)

    found = DERIVATIVES[name][0](f, argnums=BIAS)(Net())
    assert_same(found, getattr(jax, name)(pure)(chosen))


@pytest.mark.slow
def test_the_form_is_that_of_the_output_with_gradients_in_it():
    """X30: a state for a module, a variable for a variable, a tuple for several."""
    scale = plait.Param(jnp.float32(2))
    f = lambda net, scale, x: {"y": net(x) * scale[...]}
    found = plait.jacrev(f, argnums=(0, 1, 2))(Net(), scale, X)
    by_net, by_scale, by_x = found["y"]
    assert by_net.flat_state().paths == (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))
    assert (type(by_scale), by_scale.shape, by_x.shape) == (plait.Param, (2, 3), (2, 3, 2, 3))
    by_one = plait.hessian(lambda scale: scale[...] ** 3)(scale)
    assert (type(by_one), float(by_one[...])) == (plait.Param, 12.0)


@each
def test_where_only_values_are_carried_a_derivative_is_a_module(name):
    """Section 10."""
    derivative = DERIVATIVES[name][0]
    node = Node(w=plait.Param(jnp.arange(3.0)), scale=jnp.float32(2), kind="a")
    f = lambda node: (node.w[...] ** 3).sum() * node.scale
    found = derivative(f, graph_updates=False)(node)
    part = found["w"] if name == "hessian" else found
    assert (type(part), part.kind) == (Node, "a")
    expected = derivative(lambda w: (w**3).sum() * 2)(jnp.arange(3.0))
    np.testing.assert_allclose(part.w[...], expected, rtol=1e-6)


def test_options_of_jax_are_passed_on():
    whole = jnp.arange(3)
    double = lambda x: x.astype(jnp.float32) * 2
    assert plait.jacrev(double, allow_int=True)(whole).dtype == jax.jacrev(double, allow_int=True)(whole).dtype
    with pytest.raises(TypeError, match="int32"):
        plait.jacfwd(double)(whole)
    z = jnp.array([1 + 2j, 3j])
    for derivative in (plait.jacrev, plait.jacfwd):
        np.testing.assert_allclose(derivative(lambda z: z**2, holomorphic=True)(z), jnp.diag(2 * z), rtol=1e-6)


# hvp ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=8)
@given(seed=st.integers(0, 2**16), both=st.booleans())
def test_hvp_is_the_hessian_times_a_vector(seed, both):
    """X31: the vector has the form of the gradient."""
    net = Net()
    argnums = (0, 1) if both else 0
    grads = plait.grad(loss, argnums=argnums)(plait.clone(net), X)
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    vector = tree.unflatten([jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)])
    pure, arguments = plain(loss, net, X)
    expected = jax.jvp(
        lambda *arguments: jax.grad(pure, argnums=argnums)(*arguments),
        arguments,
        vector if both else (vector, jnp.zeros_like(X)),
    )[1]
    found = plait.hvp(loss, (net, X), vector, argnums=argnums)
    assert jax.tree.structure(found) == jax.tree.structure(grads)
    assert_same(found, expected)


def test_a_vector_is_a_state_a_part_of_one_or_a_module():
    """X31: what a state leaves out is zero."""
    net = Net()
    ones = jax.tree.map(jnp.ones_like, plait.state(net, plait.Param))
    alone = plait.State({"enc": {"b": ones["enc"]["b"]}})
    as_module = plait.clone(net)
    plait.update(as_module, jax.tree.map(jnp.zeros_like, plait.state(as_module, plait.Param)))
    as_module.enc.b[...] = jnp.ones(3)
    found = [plait.hvp(loss, (plait.clone(net), X), vector) for vector in (alone, as_module)]
    whole = plait.hessian(loss)(net, X)
    expected = jax.tree.map(lambda leaf: leaf, {path: whole[path[0]][path[1]] for path in [("enc", "w"), ("enc", "b")]})
    for each in found:
        for path, by_path in expected.items():
            np.testing.assert_allclose(
                each[path[0]][path[1]][...], by_path["enc"]["b"][...].sum(-1), rtol=2e-4, atol=1e-5
            )


@pytest.mark.slow
def test_hvp_of_an_array_beside_a_module():
    """X31: the module is not differentiated."""
    pure, (state, x) = plain(loss, net := Net(), X)
    expected = jax.jvp(lambda x: jax.grad(pure, argnums=1)(state, x), (x,), (jnp.cos(x),))[1]
    np.testing.assert_allclose(plait.hvp(loss, (net, X), jnp.cos(X), argnums=1), expected, rtol=1e-5)


def test_hvp_asks_for_a_vector_for_each_differentiated_argument():
    """X31."""
    net = Net()
    vector = plait.grad(loss)(plait.clone(net), X)
    with pytest.raises(plait.errors.ArgumentError, match="hvp needs one tangent") as error:
        plait.hvp(loss, (net, X), (vector,), argnums=(0, 1))
    assert "1 tangents for 2 primals" in str(error.value)
    with pytest.raises(plait.errors.ArgumentTypeError, match="hvp takes tangents as a tuple"):
        plait.hvp(loss, (net, X), vector, argnums=(0, 1))
    with pytest.raises(plait.errors.ArgumentTypeError, match="hvp takes primals as a tuple"):
        plait.hvp(loss, net, vector)
