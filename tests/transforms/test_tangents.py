"""``vjp``, ``jvp`` and ``linearize``: numbers, types, updates, errors. (rules X15, U32, section 10)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.sampling import slow_but
from tests.strategies import Leafy, Node


class Net(plait.Module):
    """A layer with statistics, an array of its own, a random stream and a static value."""

    def __init__(self, seed=0):
        keys = jax.random.split(jax.random.key(seed), 2)
        self.layers = [Leafy(w=plait.Param(jax.random.normal(keys[0], (3, 2))))]
        self.bias = jax.random.normal(keys[1], (2,))
        self.mean = plait.BatchStat(jnp.zeros(2))
        self.stream = plait.RngStream(0, tag="noise")
        self.kind = "net"

    def __call__(self, x):
        x = jnp.tanh(x @ self.layers[0].w.value + self.bias[None])
        self.mean.value = 0.5 * self.mean.value + 0.5 * jax.lax.stop_gradient(x.mean(0))
        return x + 0.0 * jax.random.normal(self.stream(), x.shape)


def pure(w, bias, x):
    return jnp.tanh(x @ w + bias[None])


X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
G = jnp.arange(4.0).reshape(2, 2)


def call(net, x):
    return net(x)


def arrays(net):
    return net.layers[0].w.value, net.bias


def direction(net, scale=1.0):
    """A tangent for a net, as a module."""
    rest = plait.state(net, plait.Not(plait.RngState))
    return jax.tree.map(lambda a: jnp.cos(a) * scale, rest)


def test_vjp_gives_modules_for_modules():
    """X15: numbers of plain JAX; types, static values and integer leaves of the primal."""
    net = Net()
    out, vjp_fn = plait.vjp(call, net, X)
    expected, pure_vjp = jax.vjp(pure, *arrays(net), X)
    by_net, by_x = vjp_fn(G)
    w, bias, x = pure_vjp(G)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert (type(by_net), type(by_net.layers[0].w), by_net.kind) == (Net, plait.Param, "net")
    for got, wanted in (
        (by_net.layers[0].w.value, w),
        (by_net.bias, bias),
        (by_x, x),
        (by_net.mean.value, jnp.zeros(2)),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert by_net.stream.count.get_raw_value().dtype == jax.dtypes.float0
    np.testing.assert_allclose(vjp_fn(2 * G)[1], 2 * x, rtol=1e-5)


def test_jvp_and_linearize_give_what_plain_jax_gives():
    """X15."""
    net = Net()
    moved = direction(net)
    slopes = moved["layers"][0]["w"].value, moved["bias"]
    expected, slope = jax.jvp(pure, (*arrays(net), X), (*slopes, X))
    out, tangent = plait.jvp(call, (net, X), (moved, X))
    again, jvp_fn = plait.linearize(call, net, X)
    for got, wanted in ((out, expected), (again, expected), (tangent, slope), (jvp_fn(moved, X), slope)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(jvp_fn(direction(net, 2.0), 2 * X), 2 * slope, rtol=1e-5)


def test_a_tangent_is_a_module_or_a_state_or_a_part_of_one():
    """X15: what a state leaves out does not move."""
    net = Net()
    graphdef, state = plait.split(net)
    as_module = plait.merge(graphdef, jax.tree.map(jnp.ones_like, state))
    as_state = jax.tree.map(jnp.ones_like, plait.state(net))
    part = plait.state(as_module, plait.Param)
    by_module, by_state, by_part = (plait.jvp(call, (net, X), (t, 0 * X))[1] for t in (as_module, as_state, part))
    _, slope = jax.jvp(lambda w: pure(w, net.bias, X), (net.layers[0].w.value,), (jnp.ones((3, 2)),))
    np.testing.assert_allclose(by_module, by_state, rtol=1e-6)
    np.testing.assert_allclose(by_part, slope, rtol=1e-5)


def test_each_of_two_models_moves_by_its_own_tangent():
    """X15: among the arguments, and in the output."""

    def along(model, scale):
        return jax.tree.map(lambda v: scale * jnp.ones_like(v), plait.state(model))

    first, second = (plait.Dict(a=plait.Param(jnp.full(n, float(n))), b=plait.Param(jnp.float32(n))) for n in (2, 3))
    out, tangent = plait.jvp(
        lambda m, k: (k.b * m.a, m.b * k.a), (first, second), (along(first, 10), along(second, 100))
    )
    assert [each.tolist() for each in out] == [[6.0, 6.0], [6.0, 6.0, 6.0]]
    assert [each.tolist() for each in tangent] == [[230.0, 230.0], [230.0, 230.0, 230.0]]
    (m, k), pull = plait.vjp(lambda x: (plait.Dict(v=plait.Param(x)), plait.Dict(v=plait.Param(2 * x))), jnp.ones(2))
    assert pull((along(m, 1), along(k, 10)))[0].tolist() == [21.0, 21.0]


def test_variables_move_too():
    """X15."""
    v = plait.Param(jnp.float32(3))
    out, tangent = plait.jvp(lambda v: v.value**2, (v,), (plait.Param(jnp.float32(2)),))
    assert (float(out), float(tangent)) == (9.0, 12.0)
    (by_v,) = plait.vjp(lambda v: v.value**2, v)[1](jnp.float32(1))
    assert (type(by_v), float(by_v.value)) == (plait.Param, 6.0)


WAYS = {
    "vjp": lambda f, net: plait.vjp(f, net, X),
    "jvp": lambda f, net: plait.jvp(f, (net, X), (plait.State({}), X)),
    "linearize": lambda f, net: plait.linearize(f, net, X),
}
AUX_WAYS = {
    "vjp": lambda f, net: plait.vjp(f, net, X, has_aux=True),
    "jvp": lambda f, net: plait.jvp(f, (net, X), (plait.State({}), X), has_aux=True),
    "linearize": lambda f, net: plait.linearize(f, net, X, has_aux=True),
}


@pytest.mark.parametrize("name", WAYS)
def test_values_written_inside_come_back_once_and_structure_does_not(name):
    """U32, section 10: statistics and random counters as eager Python leaves them, eager and under jit."""

    def f(net, x):
        net.extra = 1
        return net(x)

    net, eager, jitted = Net(), Net(), Net()
    before = plait.graphdef(net)
    w = net.layers[0].w.get_raw_value()
    result = WAYS[name](f, net)
    if name != "jvp":
        result[1](*((G,) if name == "vjp" else (plait.State({}), X)))
    eager(X)
    plait.jit(lambda net: WAYS[name](f, net)[0])(jitted)
    assert plait.graphdef(net) == plait.graphdef(jitted) == before
    for each in (net, jitted):
        np.testing.assert_allclose(each.mean.value, eager.mean.value, rtol=1e-6)
        assert int(each.stream.count.value) == 1
    assert net.layers[0].w.get_raw_value() is w


@pytest.mark.parametrize("name", AUX_WAYS)
def test_aux_may_hold_anything(name):
    """X15: objects, arrays, and what is no array."""
    f = lambda net, x: (net(x), {"new": Node(p=plait.Param(x)), "x": x, "n": None})
    out, _, aux = AUX_WAYS[name](f, Net())
    np.testing.assert_allclose(out, pure(*arrays(Net()), X), rtol=1e-6)
    assert (type(aux["new"]), type(aux["new"].p), aux["x"].shape, aux["n"]) == (Node, plait.Param, (2, 3), None)
    out, _, aux = AUX_WAYS[name](lambda net, x: (net(x), x), Net())
    assert aux.shape == (2, 3)


def test_an_output_that_holds_objects_has_cotangents_and_tangents_that_do():
    """X15: a new module in the output, beside an array and an integer, with a new variable in aux."""

    def f(v, x):
        new = Leafy(p=plait.Param(v.value * x), n=plait.Cache(jnp.int32(7)))
        return (x**2, [new]), plait.Cache(v.value)

    v, x = plait.Param(jnp.float32(3)), jnp.float32(2)
    (square, (new,)), vjp_fn, aux = plait.vjp(f, v, x, has_aux=True)
    assert (float(square), float(new.p.value), int(new.n.value), float(aux.value)) == (4.0, 6.0, 7, 3.0)
    for cotangent in (new, plait.State({"p": plait.Param(jnp.float32(6))})):
        by_v, by_x = vjp_fn((jnp.float32(1), [cotangent]))
        assert (float(by_v.value), float(by_x)) == (12.0, 22.0)
    _, (by_square, (slope,)), _ = plait.jvp(f, (v, x), (v, jnp.float32(1)), has_aux=True)
    assert (float(by_square), type(slope), float(slope.p.value)) == (4.0, Leafy, 9.0)
    assert slope.n.get_raw_value().dtype == jax.dtypes.float0


def test_the_pullback_may_leave_jit():
    """As in JAX, it is a pytree."""
    out, vjp_fn = jax.jit(lambda w: plait.vjp(lambda v: v.value**2, plait.Param(w)))(jnp.float32(3))
    (by_v,) = vjp_fn(jnp.ones_like(out))
    assert (float(out), float(by_v.value)) == (9.0, 6.0)


def test_they_nest_in_each_other_and_in_the_other_transforms():
    """U38: forward over reverse, vmap over vjp, scan over jvp, remat inside."""
    m = Node(w=plait.Param(jnp.float32(3)))
    cube = plait.remat(lambda m: m.w.value**3)
    by_grad = lambda m: plait.grad(cube)(m)["w"].value
    assert float(plait.jvp(by_grad, (m,), (m,))[1]) == 54.0
    assert float(plait.grad(lambda m: plait.jvp(cube, (m,), (plait.clone(m),))[1])(m)["w"].value) == 81.0

    xs = jnp.arange(3.0)
    pull = lambda m, x: plait.vjp(lambda m, x: m.w.value * x**2, m, x)[1](jnp.ones_like(x))
    by_m, by_x = plait.vmap(pull, in_axes=(None, 0))(m, xs)
    np.testing.assert_allclose(by_m.w.value, xs**2)
    np.testing.assert_allclose(by_x, 6 * xs)

    @plait.scan(in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
    def step(m, x):
        slope = plait.jvp(lambda m, x: m.w.value * x**2, (m, x), (plait.State({}), jnp.ones_like(x)))[1]
        m.w.value = m.w.value + 1
        return m, slope

    _, slopes = step(m, xs)
    np.testing.assert_allclose(slopes, [0.0, 8.0, 20.0])
    assert float(m.w.value) == 6.0


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    "mode", slow_but([{"graph_updates": False}], [{"graph_updates": False}, {"graph": False}]), ids=str
)
@pytest.mark.usefixtures("users_promotion")
def test_types_numbers_and_updates_are_those_of_the_reference(mode):
    """X15: the same program, run with both libraries."""
    nnx = pytest.importorskip("flax.nnx")

    def program(lib):
        class Model(lib.Module):
            def __init__(self):
                self.linear = lib.Linear(3, 2, rngs=lib.Rngs(0))
                self.norm = lib.BatchNorm(2, rngs=lib.Rngs(1))
                self.steps = lib.BatchStat(jnp.int32(0))

        def f(model, x):
            model.steps[...] += 1
            return {"new": lib.Param(model.norm(model.linear(x)))}, x.sum()

        model, x = Model(), jnp.arange(6.0).reshape(2, 3)
        out, _, aux = lib.vjp(f, model, x, has_aux=True, **mode)
        smooth = lambda model, x: model.norm(model.linear(x))
        value, pull = lib.vjp(smooth, model, x, **mode)
        by_model, by_x = pull(jnp.arange(4.0).reshape(2, 2))
        tangents = jax.tree.map(
            lambda a: jnp.ones_like(a) if a.dtype == jnp.float32 else np.zeros(a.shape, jax.dtypes.float0), model
        )
        moved, slope = lib.jvp(smooth, (model, x), (tangents, x), **mode)
        shown = lambda leaf: leaf.dtype if leaf.dtype == jax.dtypes.float0 else np.asarray(leaf)
        leaves = {".".join(path): shown(leaf.get_value()) for path, leaf in lib.to_flat_state(lib.state(by_model))}
        leaves |= {"out": out["new"][...], "aux": aux, "value": value, "x": by_x, "moved": moved, "slope": slope}
        leaves |= {"steps": model.steps[...], "mean": model.norm.mean[...], "var": model.norm.var[...]}
        return [type(by_model).__name__, type(out["new"]).__name__], leaves

    types, ours = program(plait)
    expected_types, theirs = program(nnx)
    assert (types, sorted(ours)) == (expected_types, sorted(theirs))
    for name, value in theirs.items():
        if isinstance(value, np.dtype):
            assert ours[name] == value
        else:
            np.testing.assert_allclose(ours[name], value, rtol=2e-3, atol=2e-3, err_msg=name)
