"""``grad`` and ``value_and_grad``: numbers, updates, selections, errors. (rules U21, U25, U30, X13, X14)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import SharingError
from tests.oracles import describe
from tests.sampling import slow_but
from tests.strategies import Leafy, Node


class Net(plait.Module):
    """Two layers with one tied matrix, statistics, and a random stream."""

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 2)
        self.enc = Leafy(w=plait.Param(jax.random.normal(keys[0], (3, 3)), note="tied"), b=plait.Param(jnp.ones(3)))
        self.layers = [Leafy(w=self.enc.w, b=plait.Param(jax.random.normal(keys[1], (3,))))]
        self.mean = plait.BatchStat(jnp.zeros(3))
        self.calls = plait.BatchStat(jnp.int32(0))
        self.scale = jnp.float32(2)

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        for layer in (self.enc, *self.layers):
            x = jnp.tanh(x @ layer.w.value + layer.b.value[None])
        self.mean.value = 0.5 * self.mean.value + 0.5 * x.mean(0)
        return x * self.scale


X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def loss(net, x):
    return (net(x) ** 2).sum()


def pure_loss(params, x):
    """The same mathematics, as a function of arrays."""
    w, first, second = params
    x = jnp.tanh(x @ w + first[None])
    x = jnp.tanh(x @ w + second[None])
    return ((x * 2) ** 2).sum()


def arrays(net):
    return net.enc.w.value, net.enc.b.value, net.layers[0].b.value


def test_the_numbers_are_those_of_plain_jax():
    """X13: tied weights get the sum over both places; paths and classes are those of the model."""
    net = Net()
    value, grads = plait.value_and_grad(loss)(net, X)
    expected, (w, first, second) = jax.value_and_grad(pure_loss)(arrays(net), X)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert isinstance(grads, plait.State)
    assert grads.flat_state().paths == (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))
    for leaf, array in zip(grads.flat_state().leaves, (first, w, second), strict=True):
        assert isinstance(leaf, plait.Param)
        np.testing.assert_allclose(leaf.value, array, rtol=1e-5)
    assert grads["enc"]["w"].note == "tied"


def test_aux_comes_back_with_its_objects():
    """X14: ((value, aux), grads); objects in aux are the caller's own."""
    net = Net()

    def f(net, x):
        return loss(net, x), {"net": net, "new": Node(of=net.enc), "x": x}

    (value, aux), grads = plait.value_and_grad(f, has_aux=True)(net, X)
    assert (aux["net"] is net, aux["new"].of is net.enc) == (True, True)
    assert aux["x"].shape == X.shape
    grads_again, aux = plait.grad(f, has_aux=True)(net, X)
    assert aux["net"] is net
    assert describe(grads.flat_state().leaves) == describe(grads_again.flat_state().leaves)
    np.testing.assert_allclose(value, pure_loss(arrays(net), X), rtol=1e-6)


def mixed(net, v, tree, x):
    return (net(x) ** 2).sum() * v.value + (tree["a"] ** 2).sum() + tree["b"][0] * v.value


SELECTIONS = {
    "a module": (0, lambda g: g.flat_state().paths, (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))),
    "negative": (-4, lambda g: g.flat_state().paths, (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))),
    "a variable": (1, type, plait.Param),
    "a pytree": (2, lambda g: jax.tree.map(jnp.shape, g), {"a": (2,), "b": [()]}),
    "an array": (3, jnp.shape, (2, 3)),
    "a tuple of one": ((1,), lambda g: [type(part) for part in g], [plait.Param]),
    "several": ((2, 0), lambda g: [type(part) for part in g], [dict, plait.State]),
    "by type": (plait.DiffState(0, plait.BatchStat), lambda g: list(g), ["mean"]),
    "by path": (
        plait.DiffState(0, plait.PathContains("layers")),
        lambda g: g.flat_state().paths,
        (("layers", 0, "b"),),
    ),
    "pairs from the front": (plait.DiffState(-4, plait.PathContains("layers")), lambda g: list(g), ["layers"]),
    "arrays of a module": (plait.DiffState(0, lambda path, value: path == ("scale",)), lambda g: g["scale"].shape, ()),
    "mixed": ((plait.DiffState(0, plait.PathContains("enc")), 1), lambda g: [len(g[0]), type(g[1])], [1, plait.Param]),
}


@pytest.mark.parametrize("case", slow_but([*SELECTIONS][::2], SELECTIONS))
def test_what_is_differentiated_is_chosen_by_argnums(case):
    """X13: positions and DiffStates; the gradient has the shape of what was chosen."""
    argnums, look, expected = SELECTIONS[case]
    if case == "by type":  # statistics that are integers have no gradient
        argnums = plait.DiffState(0, lambda path, value: path == ("mean",))
    args = Net(), plait.Param(jnp.float32(3)), {"a": jnp.ones(2), "b": [jnp.float32(1)]}, X
    assert look(plait.grad(mixed, argnums=argnums)(*args)) == expected
    assert look(plait.jit(plait.grad(mixed, argnums=argnums))(*args)) == expected


def test_gradients_of_several_arguments_are_those_of_plain_jax():
    """X13."""
    a, b = Node(w=plait.Param(jnp.float32(3))), Node(w=plait.Param(jnp.float32(5)))
    f = lambda a, b, x: a.w.value**2 * b.w.value * x
    got = plait.grad(f, argnums=(2, 0, 1))(a, b, jnp.float32(2))
    assert [float(got[0]), float(got[1]["w"].value), float(got[2]["w"].value)] == [45.0, 60.0, 18.0]


def test_a_list_of_models_gives_a_list_of_states():
    """X13: containers keep their shape."""
    models = [Node(w=plait.Param(jnp.float32(3))), Node(w=plait.Param(jnp.float32(5)))]
    first, second = plait.grad(lambda ms: ms[0].w.value * ms[1].w.value)(models)
    assert (float(first["w"].value), float(second["w"].value)) == (5.0, 3.0)


def product(a, b):
    return a.w.value * b.w.value**2


def test_a_variable_shared_by_both_differentiated_arguments_is_counted_once():
    """U16: the first argument has the gradient, and it is the whole."""
    a = Node(w=plait.Param(jnp.float32(3)))
    first, second = plait.grad(product, argnums=(0, 1))(a, Node(w=a.w))
    assert (float(first["w"].value), len(second)) == (27.0, 0)


def test_a_variable_shared_with_a_keyword_argument_is_under_two_treatments_too():
    """U25."""
    a = Node(w=plait.Param(jnp.float32(3)))
    with pytest.raises(SharingError, match=r"a\.w and b\[0\]\.w"):
        plait.grad(lambda a, *, b: a.w.value * b[0].w.value)(a, b=[Node(w=a.w)])


def test_keyword_arguments_are_not_differentiated_unless_argnums_means_them():
    """X1: a position that only a keyword can fill is resolved, as in the reference."""
    net = Net()
    grads = plait.grad(lambda net, *, x: loss(net, x))(net, x=X)
    assert len(grads.flat_state()) == 3
    assert len(plait.grad(loss)(x=X, net=net).flat_state()) == 3
    with pytest.raises(TypeError, match=r"found +argnums=0 and 0 positional"):
        plait.grad(lambda *, net, x: loss(net, x))(net=net, x=X)


VALUES_ONLY = [{"graph_updates": False}, {"graph": False}]


@pytest.mark.parametrize("mode", VALUES_ONLY, ids=str)
def test_where_only_values_are_carried_the_gradient_of_a_module_is_a_module(mode):
    """Section 10, U32: every leaf has a gradient; what was written is written, once; nothing else changes."""
    net, eager = untied(), untied()
    value, grads = plait.value_and_grad(loss, **mode)(net, X)
    expected = loss(eager, X)
    pure, static = plait.grad(loss, argnums=plait.DiffState(0, ...))(untied(), X), plait.graphdef(net)
    assert type(grads) is Net
    assert plait.graphdef(grads) == static
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plait.state(grads), pure)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(net.mean.value, eager.mean.value, rtol=1e-6)


def untied():
    """A net without sharing, and without an integer."""
    net = Net()
    net.layers[0].w = plait.Param(net.enc.w.value, note="tied")
    net.calls = plait.BatchStat(jnp.float32(0))
    return net


@pytest.mark.parametrize("mode", VALUES_ONLY, ids=str)
def test_where_only_values_are_carried_structure_is_not(mode):
    """U32."""
    net = untied()
    before = plait.graphdef(net)

    def f(net, x):
        net.z = plait.Cache(x)
        return loss(net, x), {"new": plait.Param(x.sum())}

    (_, aux), grads = plait.value_and_grad(f, has_aux=True, **mode)(net, X)
    assert plait.graphdef(net) == before
    assert type(aux["new"]) is plait.Param
    assert not hasattr(grads, "z")


def test_where_only_values_are_carried_containers_and_positions_are_as_in_jax():
    """X13: a dict of modules and arrays, a variable, an array; gradients of their own types."""
    args = {"m": Node(w=plait.Param(jnp.float32(3))), "s": jnp.float32(2)}, plait.Param(jnp.float32(5)), jnp.float32(7)
    f = lambda d, v, x: d["m"].w.value * d["s"] * v.value * x**2
    grads = plait.grad(f, argnums=(0, -1, 1), graph_updates=False)(*args)
    assert (type(grads[0]["m"]), type(grads[2])) == (Node, plait.Param)
    got = [grads[0]["m"].w.value, grads[0]["s"], grads[1], grads[2].value]
    np.testing.assert_allclose(got, [490, 735, 420, 294])
    with plait.set_graph_updates(False):
        assert type(plait.grad(lambda m: m.w.value)(args[0]["m"])) is Node


def test_numpy_values_are_left_alone_or_replaced_never_edited():
    """U21, U30: a statistic that holds a NumPy array takes traced values."""
    held = np.zeros(3, np.float32)
    net = Net()
    net.mean.set_raw_value(held)

    def f(net, x):
        net.mean[...] = net(x).mean(0)
        return loss(net, x)

    plait.grad(f)(net, X)
    assert (isinstance(net.mean.value, jax.Array), held.tolist()) == (True, [0.0] * 3)


def test_complex_and_integer_inputs_go_through():
    """X13: holomorphic and allow_int as in JAX."""
    z = jnp.complex64(1 + 2j)
    got = plait.grad(lambda m, z: m.w.value * z**2, argnums=1, holomorphic=True)(
        Node(w=plait.Param(jnp.complex64(1))), z
    )
    assert got == 2 * z
    grads = plait.grad(lambda m: m.w.value * 2.0, allow_int=True)(Node(w=plait.Param(1.0), n=plait.Param(jnp.int32(3))))
    assert (float(grads["w"].value), grads["n"].value.dtype) == (2.0, jax.dtypes.float0)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("mode", [{}, *VALUES_ONLY], ids=str)
@pytest.mark.usefixtures("users_promotion")
def test_types_numbers_and_updates_are_those_of_the_reference(mode):
    """X13, section 10: the same program, run with both libraries."""
    nnx = pytest.importorskip("flax.nnx")

    def program(lib):
        class Model(lib.Module):
            def __init__(self):
                self.linear = lib.Linear(3, 2, rngs=lib.Rngs(0))
                self.norm = lib.BatchNorm(2, rngs=lib.Rngs(1))
                self.kind = "a"

        def f(model, x):
            return (model.norm(model.linear(x)) ** 3).sum()

        model = Model()
        modes = {"graph": True, "graph_updates": True, **mode}
        value, (by_model, by_x) = lib.value_and_grad(f, argnums=(0, 1), **modes)(model, jnp.arange(6.0).reshape(2, 3))
        kind = type(by_model).__name__
        leaves = {
            ".".join(map(str, path)): leaf[...]
            for path, leaf in lib.to_flat_state(by_model if kind == "State" else lib.state(by_model))
        }
        return kind, {**leaves, "value": value, "by x": by_x, "mean": model.norm.mean[...], "var": model.norm.var[...]}

    kind, ours = program(plait)
    expected_kind, theirs = program(nnx)
    assert (kind, sorted(ours)) == (expected_kind, sorted(theirs))
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=2e-3, atol=2e-3, err_msg=name)


class Noisy(plait.Module):
    """A layer, batch statistics and dropout."""

    def __init__(self):
        self.linear = plait.Linear(3, 2, rngs=plait.Rngs(0))
        self.norm = plait.BatchNorm(2, rngs=plait.Rngs(1))
        self.drop = plait.Dropout(0.5, rngs=plait.Rngs(dropout=2))

    def __call__(self, x):
        return self.drop(self.norm(self.linear(x)))


def squared(model, x):
    return (model(x) ** 2).sum()


def scanned(model, x):
    step = plait.scan(lambda m, x: (m, squared(m, x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
    return step(model, x[None])[1].sum()


def mapped(model, x):
    return plait.vmap(lambda x: plait.grad(lambda x: (x**2).sum())(x))(x).sum() + squared(model, x)


NESTED = {
    "plain": plait.grad(squared),
    "jit": plait.jit(plait.grad(squared)),
    "of jit": plait.grad(plait.jit(squared)),
    "of remat": plait.grad(plait.remat(squared)),
    "of scan": plait.grad(scanned),
    "of vmap of grad": plait.grad(mapped),
    "of value_and_grad": plait.grad(lambda m, x: plait.value_and_grad(squared, argnums=1)(m, x)[0]),
    "in scan": lambda m, x: jax.tree.map(
        lambda g: g[0],
        plait.scan(lambda m, x: (m, plait.grad(squared)(m, x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))(
            m, x[None]
        )[1],
    ),
    "in cond": lambda m, x: plait.cond(True, plait.grad(squared), lambda m, x: plait.grad(squared)(m, 2 * x), m, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(["plain"], NESTED))
def test_statistics_and_streams_advance_once_wherever_the_gradient_is_taken(case):
    """U30, U38: one draw, one step of the running mean; the gradient of the mask that eager Python draws."""
    eager, model = Noisy(), Noisy()
    loss = squared(eager, X)
    graphdef, params, rest = plait.split(Noisy(), plait.Param, ...)
    expected = jax.grad(lambda p: squared(plait.merge(graphdef, p, rest), X))(params)
    grads = NESTED[case](model, X)
    assert np.isfinite(loss)
    assert int(model.drop.rngs.count.value) == int(eager.drop.rngs.count.value) == 1
    np.testing.assert_allclose(model.norm.mean.value, eager.norm.mean.value, rtol=1e-5, atol=1e-7)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), grads, expected)


WRONG_POSITIONS = {
    "a module": lambda nnx: nnx.grad(abs, argnums=nnx.Dict(a=0)),
    "in a tuple": lambda nnx: nnx.grad(abs, argnums=(0, nnx.Dict(a=0))),
    "a variable": lambda nnx: nnx.value_and_grad(abs, argnums=nnx.Variable(0)),
    "of a rule": lambda nnx: nnx.custom_vjp(abs, nondiff_argnums=(nnx.Dict(a=0),)),
}


@pytest.mark.parametrize("wrap", WRONG_POSITIONS.values(), ids=WRONG_POSITIONS)
def test_argnums_that_fit_no_call_are_refused_when_the_function_is_wrapped(wrap):
    """X13."""
    with pytest.raises(ValueError, match=r"takes the positions of arguments\n +at +(nondiff_)?argnums"):
        wrap(plait)


EMPTY = {"a dict": {}, "a state": plait.State({}), "None": None}


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacrev", "jacfwd", "hessian"])
@pytest.mark.parametrize("kind", EMPTY)
def test_the_gradient_of_nothing_is_nothing(name, kind):
    """X12: as in JAX and Flax, for an argument without leaves, and for no argument."""
    x, nothing = jnp.float32(2), EMPTY[kind]
    found = getattr(plait, name)(lambda _, x: x * 1.0)(nothing, x)
    assert (found[1] if name == "value_and_grad" else found) == nothing
    found = getattr(plait, name)(lambda _, x: x * 1.0, argnums=())(nothing, x)
    assert (found[1] if name == "value_and_grad" else found) == ()


def test_other_derivatives_of_nothing():
    assert plait.hvp(lambda _: jnp.float32(1), ({},), {}) == {}
    model = plait.Dict(w=plait.Param(jnp.ones(2)))
    value, grads = plait.capture_gradients(lambda model, x: (model.w[...] * x).sum())(model, jnp.float32(2))
    assert (float(value), grads) == (4.0, plait.State({}))
