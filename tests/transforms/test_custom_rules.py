"""``custom_vjp`` and ``custom_jvp``: what rules get and return, updates, nesting, errors. (rules U19, U31, X16)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import SymbolicZero

import plait
from plait.errors import SharingError
from tests.oracles import describe
from tests.strategies import Leafy, Node


class Foo(plait.Module):
    """Two parameters, a statistic, an integer, an array of its own and a static value."""

    def __init__(self, x=1.0, y=2.0):
        self.x = plait.Param(jnp.float32(x))
        self.y = plait.Param(jnp.float32(y))
        self.seen = plait.BatchStat(jnp.float32(1))
        self.calls = plait.Cache(jnp.int32(0))
        self.kind = "foo"


A = jnp.float32(2.0)
MODES = pytest.mark.parametrize("updates", [True, False], ids=["states", "modules"])


def sine(m, a):
    """Reads two parameters and writes two other variables."""
    m.seen.value = m.seen.value * 2 + a
    m.calls.value = m.calls.value + 1
    return jnp.sin(m.x.value) * m.y.value * a


def make(updates=True, *, factor=1.0, nondiff=(), seen=None):
    """``sine`` with a rule that gives ``factor`` times the true gradient; what ``bwd`` gets goes to ``seen``."""
    f = plait.custom_vjp(sine, nondiff_argnums=nondiff, graph_updates=updates)

    def fwd(m, a):
        return f(m, a), (jnp.cos(m.x.value), jnp.sin(m.x.value), m, a)

    def bwd(residuals, g):
        cos, sin, m, a = residuals
        if seen is not None:
            seen.append((m, g))
        out_g = g[1] if updates else g
        m_g = jax.tree.map(lambda leaf: leaf, g[0][0]) if updates else plait.clone(m)
        x_g, y_g = (m_g["x"], m_g["y"]) if updates else (m_g.x, m_g.y)
        x_g[...], y_g[...] = factor * cos * out_g * m.y.value * a, factor * sin * out_g * a
        if not updates:
            m_g.seen[...] = jnp.float32(0)
        return m_g, factor * sin * m.y.value * out_g

    f.defvjp(fwd, bwd)
    return f


def true_gradients(factor=1.0):
    grads = jax.grad(lambda x, y, a: jnp.sin(x) * y * a, argnums=(0, 1, 2))(jnp.float32(1), jnp.float32(2), A)
    return [factor * float(g) for g in grads]


def taken(grads):
    by_m, by_a = grads
    return [float(by_m["x"].value), float(by_m["y"].value), float(by_a)]


@MODES
def test_the_gradient_is_what_the_rule_says(updates):
    """X16: not called, f computes what it computes; differentiated, its rule does. The rule's modules are modules."""
    seen = []
    f = make(updates, factor=10.0, seen=seen)
    m = Foo()
    np.testing.assert_allclose(f(m, A), np.sin(1.0) * 4, rtol=1e-6)
    assert not seen
    np.testing.assert_allclose(taken(plait.grad(f, argnums=(0, 1))(m, A)), true_gradients(10.0), rtol=1e-6)
    ((residual, _),) = seen
    assert (type(residual), residual.kind, residual is m) == (Foo, "foo", False)


@MODES
def test_changes_come_back_once(updates):
    """U19, U31: called, differentiated, and under every other transform; what was not written is not touched."""
    f = make(updates)
    ways = {
        "called": f,
        "differentiated": plait.grad(f),
        "jit of grad": plait.jit(plait.grad(f)),
        "grad of jit": plait.grad(plait.jit(f)),
        "remat": plait.grad(plait.remat(f)),
        "vjp": lambda m, a: plait.vjp(f, m, a)[1](jnp.ones_like(a)),
    }
    for name, way in ways.items():
        m = Foo()
        x = m.x.get_raw_value()
        way(m, A)
        assert (float(m.seen.value), int(m.calls.value), m.x.get_raw_value() is x) == (4.0, 1, True), name


@MODES
def test_the_rule_holds_under_the_other_transforms(updates):
    """U38: numbers of the rule under jit, remat, vmap and scan."""
    f = make(updates, factor=10.0)
    grad = plait.grad(f, argnums=(0, 1))
    for way in (plait.jit(grad), plait.grad(plait.jit(f), argnums=(0, 1)), plait.grad(plait.remat(f), argnums=(0, 1))):
        np.testing.assert_allclose(taken(way(Foo(), A)), true_gradients(10.0), rtol=1e-6)
    models = plait.vmap(lambda x: Foo(x))(jnp.ones(3))
    by_m, by_a = plait.vmap(plait.grad(f, argnums=(0, 1)), in_axes=(0, None))(models, A)
    np.testing.assert_allclose(by_m["x"].value, np.full(3, true_gradients(10.0)[0]), rtol=1e-6)
    assert (by_a.shape, models.calls.value.tolist()) == ((3,), [1, 1, 1])

    def scanned(m, xs):
        run = plait.scan(lambda m, x: (m, f(m, x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
        return run(m, xs)[1].sum()

    m = Foo()
    by_m = plait.grad(scanned)(m, jnp.stack([A, A]))
    np.testing.assert_allclose(by_m["x"].value, 2 * true_gradients(10.0)[0], rtol=1e-6)
    assert int(m.calls.value) == 2


def test_states_stand_in_place_of_modules():
    """X16: (input_updates_g, out_g), with the cotangents of the values that variables have afterwards."""
    seen = []
    f = make(seen=seen)
    plait.grad(lambda m, a: f(m, a) * 3 + 5 * m.seen.value)(Foo(), A)
    ((_, ((m_g, a_g), out_g)),) = seen
    assert (type(m_g), list(m_g), a_g, float(out_g)) == (plait.State, ["calls", "seen", "x", "y"], None, 3.0)
    assert (type(m_g["seen"]), float(m_g["seen"].value)) == (plait.BatchStat, 5.0)
    assert (m_g["calls"].get_raw_value().dtype, float(m_g["x"].value)) == (jax.dtypes.float0, 0.0)


@MODES
def test_a_variable_that_was_not_written_is_differentiated_beside_the_rule(updates):
    """U19: the use of m.x outside f counts, whatever the rule does with its cotangents."""
    f = make(updates, factor=10.0)
    by_m = plait.grad(lambda m: f(m, A) + m.x.value)(Foo())
    np.testing.assert_allclose(by_m["x"].value, true_gradients(10.0)[0] + 1, rtol=1e-6)


def test_updates_g_has_the_cotangents_of_written_variables():
    """X16, graph_updates=False: the arguments, with None where nothing was written."""
    got = []
    f = plait.custom_vjp(lambda s, ms, a: sine(ms[0], a) * s, nondiff_argnums=(0,), graph_updates=False)

    def bwd(s, residuals, g, *, updates_g):
        got.append(updates_g)
        return [plait.clone(m) for m in residuals], None

    f.defvjp(lambda s, ms, a: (f(s, ms, a), ms), bwd)
    m, other = Foo(), Foo()
    plait.grad(lambda ms: f(2.0, ms, A) + 5 * ms[0].seen.value)([m, other])
    ((s_g, (m_g, other_g), a_g),) = got
    assert (type(m_g), m_g.kind, m_g.x, m_g.y, s_g, a_g) == (Foo, "foo", None, None, None, None)
    assert (type(m_g.seen), float(m_g.seen.value), other_g.seen) == (plait.BatchStat, 5.0, None)


def test_a_backward_rule_of_a_state_returns_a_state():
    """X16: with values only a state is a tree, and its tangent a tree of the same structure, or None for a part."""
    state = plait.State({"x": plait.Param(jnp.array(1.0)), "n": {"y": plait.Param(jnp.ones(2))}})
    f = plait.custom_vjp(lambda s: s["x"][...] + s["n"]["y"].sum(), graph_updates=False)
    f.defvjp(lambda s: (f(s), s), lambda s, g: (jax.tree.map(lambda v: v * 0 + 7, s),))
    grads = plait.grad(lambda s: f(s), graph_updates=False)(state)
    assert (grads["x"][...].item(), grads["n"]["y"][...].tolist()) == (7.0, [7.0, 7.0])


def test_a_diffstate_says_what_is_differentiable():
    """X16, X3: the tangent has those leaves and no others; asking for more is an error, naming the leaf."""
    only_x = plait.DiffState(0, plait.PathContains("x"))
    f = plait.custom_vjp(sine, nondiff_argnums=(only_x,))

    def bwd(residual, g):
        (m_g, a_g), out_g = g
        assert (list(m_g), a_g) == (["calls", "seen", "x", "y"], None)
        return plait.State({"x": plait.Param(residual * out_g)}), None

    f.defvjp(lambda m, a: (f(m, a), jnp.cos(m.x.value)), bwd)
    for way in (lambda g: g, plait.jit):
        m = Foo()
        grads = way(plait.grad(f, argnums=only_x))(m, A)
        assert (list(grads), float(m.seen.value)) == (["x"], 4.0)
        np.testing.assert_allclose(grads["x"].value, np.cos(1.0), rtol=1e-6)
    m = Foo()
    before = describe(m)
    for way in (plait.grad(f), plait.jit(plait.grad(f)), plait.grad(plait.jit(f))):
        with pytest.raises(ValueError, match=r"(?s)custom_vjp.*derivative was requested.*at +m\.y\n"):
            way(m, A)
    assert describe(m) == before
    with pytest.raises(SharingError, match=r"(?s)Inconsistent aliasing.*m\.y and other\.x"):
        g = plait.custom_vjp(lambda m, other: sine(m, A) * other.x.value, nondiff_argnums=(only_x,))
        g.defvjp(g, g)
        g(m, Leafy(x=m.y))


def test_a_diffstate_of_nothing_leaves_a_module_out():
    f = plait.custom_vjp(sine, nondiff_argnums=(plait.DiffState(0, False),))
    f.defvjp(lambda m, a: (f(m, a), None), lambda residual, g: (None, 7 * g[1]))
    assert float(plait.grad(f, argnums=1)(Foo(), A)) == 7.0


@MODES
def test_plain_arguments_without_derivative_come_first(updates):
    """X16: strings, functions and arrays; arrays may be traced."""
    f = plait.custom_vjp(lambda how, m, k: how(m.x.value) * k, nondiff_argnums=(0, 2), graph_updates=updates)

    def bwd(how, k, residuals, g):
        assert how is jnp.sin
        out_g = g[1] if updates else g
        if updates:
            assert len(g[0]) == 1
            g[0][0]["x"][...] = out_g * 10 * k
            return (g[0][0],)
        return (plait.State({"x": plait.Param(out_g * 10 * k), "y": A, "seen": A}),)

    f.defvjp(lambda how, m, k: (f(how, m, k), None), bwd)
    for k in (2.0, A):
        assert float(plait.grad(f, argnums=1)(jnp.sin, Foo(), k)["x"].value) == 20.0
    assert float(plait.jit(lambda m, k: plait.grad(f, argnums=1)(jnp.sin, m, k)["x"].value)(Foo(), A)) == 20.0
    with pytest.raises(ValueError, match=r"(?s)a derivative was requested.*at +k\n"):
        plait.grad(f, argnums=2)(jnp.sin, Foo(), A)


def test_a_module_without_derivative_is_a_module_in_the_rule():
    """X16, graph_updates=False: its values may be traced; what is written to it comes back; its gradient is refused."""
    f = plait.custom_vjp(lambda m, a: sine(m, a), nondiff_argnums=(0,), graph_updates=False)
    f.defvjp(lambda m, a: (f(m, a), a), lambda m, a, g: (g * a * m.y.value + m.seen.value,))
    for way in (lambda g: g, plait.jit):
        m = Foo()
        assert float(way(plait.grad(f, argnums=1))(m, A)) == 5.0
        assert (float(m.seen.value), int(m.calls.value)) == (4.0, 1)
    with pytest.raises(ValueError, match=r"(?s)a derivative was requested.*at +m\.x\n"):
        plait.grad(f)(Foo(), A)


def test_structural_changes_come_back():
    """U15 to U18, default mode: new attributes, aliases, and the module itself in the output."""

    def change(m, a):
        m.new, m.x_again, m.kind = plait.Cache(a), m.x, "bar"
        return m, [Node(p=m.y, q=plait.Cache(a * 3))], jnp.sin(m.x.value) * a

    f = plait.custom_vjp(change)
    got = []

    def bwd(residuals, g):
        got.append(g)
        m_g = jax.tree.map(lambda leaf: leaf, g[0][0])
        del m_g["new"]
        m_g["x"][...] = 10 * g[1][2]
        return m_g, None

    f.defvjp(lambda m, a: (f(m, a), None), bwd)
    for way in (lambda g: g, plait.jit):
        m = Foo()
        x = m.x

        def loss(m):
            same, (node,), out = f(m, A)
            assert (same is m, node.p is m.y) == (True, True)
            return out + node.q.value + 2 * m.new.value

        by_m = way(plait.grad(loss))(m)
        assert float(by_m["x"].value) == 10.0
        assert (m.x is x, m.x_again is x, m.kind, float(m.new.value)) == (True, True, "bar", 2.0)
    (m_g, _), (same_g, (node_g,), out_g) = got[0]
    assert (float(m_g["new"].value), dict(same_g), list(node_g), float(out_g)) == (2.0, {}, ["q"], 1.0)
    assert float(node_g["q"].value) == 1.0


@MODES
def test_an_output_that_holds_objects(updates):
    """X16: a variable stays a variable, a new module is a state, or a module."""
    f = plait.custom_vjp(lambda v: (plait.Param(v.value * 2), Leafy(c=plait.Cache(v.value))), graph_updates=updates)
    got = []

    def bwd(residuals, g):
        got.append(g[1] if updates else g)
        return (plait.Param(jnp.float32(7)),)

    f.defvjp(lambda v: (f(v), None), bwd)

    def loss(v):
        p, leafy = f(v)
        return 3 * p.value + 4 * leafy.c.value

    assert float(plait.grad(loss)(plait.Param(A)).value) == 7.0
    ((p_g, leafy_g),) = got
    assert (type(p_g), float(p_g.value), type(leafy_g)) == (plait.Param, 3.0, plait.State if updates else Leafy)
    assert float(leafy_g["c"].value if updates else leafy_g.c.value) == 4.0


@MODES
def test_function_and_rule_may_write_different_variables(updates):
    """U31: whichever ran decides; jit decides when it traces."""
    f = plait.custom_vjp(sine, graph_updates=updates)

    def fwd(m, a):
        m.seen.value = jnp.float32(100)
        return jnp.sin(m.x.value), None

    f.defvjp(fwd, lambda residuals, g: (None, None))
    m = Foo()
    plait.grad(f)(m, A)
    assert (float(m.seen.value), int(m.calls.value)) == (100.0, 0)
    m = Foo()
    plait.grad(plait.jit(f))(m, A)
    assert (float(m.seen.value), int(m.calls.value)) == (100.0, 0)
    f(m, A)
    assert (float(m.seen.value), int(m.calls.value)) == (202.0, 1)


def test_a_new_variable_gets_the_value_of_an_input_from_the_rule():
    """X16: the derivative finds no way around the rule."""

    def copy(m):
        m.new = plait.Cache(m.x.value)
        return Leafy(p=plait.Cache(m.y.value))

    f = plait.custom_vjp(copy)
    f.defvjp(lambda m: (f(m), None), lambda residuals, g: (plait.State({"x": 7 * A, "y": A, "seen": A}),))
    by_m = plait.grad(lambda m: f(m).p.value + 1000 * m.new.value)(Foo())
    assert (float(by_m["x"].value), float(by_m["y"].value)) == (14.0, 2.0)


def test_random_keys_have_no_tangent():
    """X13, X15, X16: streams go through every transform, and come back advanced."""

    def noisy(m, x):
        return (m.w.value * x * jax.random.uniform(m.stream())).sum()

    ruled = plait.custom_vjp(noisy)
    ruled.defvjp(lambda m, x: (ruled(m, x), x), lambda x, g: (g[0][0] | {"w": plait.Param(3 * g[1])}, None))
    pushed = plait.custom_jvp(noisy)
    pushed.defjvp(lambda primals, tangents: (pushed(*primals), 3 * tangents[0].w.value))
    for f in (ruled, pushed):
        m = Node(w=plait.Param(A), stream=plait.RngStream(0, tag="noise"))
        assert float(plait.grad(f)(m, A)["w"].value) == 3.0
        assert int(m.stream.count.value) == 1


def test_function_and_rule_must_leave_one_structure():
    """U31: where both run, a difference is an error that changes nothing."""
    f = plait.custom_vjp(lambda m: setattr(m, "new", 1) or m.x.value)
    f.defvjp(lambda m: (m.x.value, None), lambda residuals, g: (None,))
    m = Foo()
    with pytest.raises(ValueError, match=r"(?s)function and its rule produce different structures.*call the function"):
        plait.grad(plait.jit(f))(m)
    assert not hasattr(m, "new")


def test_what_the_backward_rule_writes_is_lost():
    """U31: residuals are modules of their own; shared ones stay shared."""
    f = plait.custom_vjp(sine)

    def bwd(residuals, g):
        m, pair = residuals
        assert m is not pair.m
        assert m.x is pair.m.x
        m.x.value = jnp.float32(1000)
        return None, None

    def fwd(m, a):
        return f(m, a), (m.x and m, Node(m=Leafy(x=m.x)))

    f.defvjp(fwd, bwd)
    m = Foo()
    plait.grad(f)(m, A)
    assert float(m.x.value) == 1.0


@MODES
def test_the_rule_works_in_plain_jax(updates):
    """U31: jax.grad over a state; forward rule without any crossing around."""
    f = make(updates, factor=10.0)
    graphdef, params, rest = plait.split(Foo(), plait.Param, ...)
    grads = jax.jit(jax.grad(lambda params: f(plait.merge(graphdef, params, rest), A)))(params)
    np.testing.assert_allclose(grads["x"].value, true_gradients(10.0)[0], rtol=1e-6)


def test_symbolic_zeros():
    """X16: fwd learns what is differentiated; bwd may get zeros that are not computed."""
    f = plait.custom_vjp(sine)
    got = []

    def fwd(m, a):
        x, y = m.x.get_raw_value(), m.y.get_raw_value()
        got.append((x.perturbed, y.perturbed, a.perturbed, type(m)))
        return jnp.sin(x.value) * y.value, m

    def bwd(m, g):
        (m_g, _), out_g = g
        got.append((type(m_g["seen"].get_raw_value()), float(out_g), float(m.x.value)))
        return plait.State({"x": plait.Param(3 * out_g), "y": A, "seen": A}), None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    grads = plait.grad(f, argnums=plait.DiffState(0, plait.PathContains("x")))(Foo(), A)
    assert float(grads["x"].value) == 3.0
    assert got == [(True, False, False, Foo), (SymbolicZero, 1.0, 1.0)]


def test_symbolic_zeros_leave_arguments_without_derivative_as_they_are():
    """X16, graph_updates=False."""
    f = plait.custom_vjp(lambda m, v, a: sine(m, a) * v.value, nondiff_argnums=(0,), graph_updates=False)

    def fwd(m, v, a):
        assert (v.get_raw_value().perturbed, a.perturbed) == (True, False)
        return f(m, plait.Param(v.get_raw_value().value), a.value), v

    f.defvjp(fwd, lambda m, v, g: (plait.Param(g * v.value), None), symbolic_zeros=True)
    assert float(plait.grad(f, argnums=1)(Foo(), plait.Param(A), A).value) == 2.0


def test_keyword_arguments_and_defaults_have_positions():
    """X1: the rule gets every argument by position."""
    f = plait.custom_vjp(lambda m, a=3.0, *, b=1: a, graph_updates=True)
    f.defvjp(lambda m, a: None, lambda r, g: None)
    with pytest.raises(TypeError, match=r"(?s)keyword-only arguments.*\['b'\]"):
        f(Foo())
    f = plait.custom_vjp(lambda m, a=3.0: m.x.value * a)
    f.defvjp(lambda m, a: (f(m, a), a), lambda a, g: (None, 10 * a))
    assert float(f(a=A, m=Foo())) == float(f(Foo(), 2.0)) == 2.0
    assert float(plait.grad(lambda a: f(m=Foo(), a=a))(A)) == 20.0
    assert float(f(Foo())) == 3.0


def ruled(fwd=None, bwd=None, *, updates=True, nondiff=()):
    f = plait.custom_vjp(sine, graph_updates=updates, nondiff_argnums=nondiff)
    f.defvjp(fwd or (lambda m, a: (f(m, a), m)), bwd or (lambda m, g: (None, None)))
    return f


@pytest.mark.oracle
@MODES
@pytest.mark.usefixtures("users_promotion")
def test_rules_are_those_of_the_reference(updates):
    """X16: the examples of the reference's documentation, with what the backward rules see."""
    nnx = pytest.importorskip("flax.nnx")

    def program(lib):
        class Bar(lib.Module):
            def __init__(self, x, y, z):
                self.x, self.y, self.z = lib.Param(x), lib.Param(y), lib.BatchStat(z)
                self.n = lib.Variable(jnp.int32(0))

        def body(m, ms, k):
            m.z[...] *= 2.0
            m.n[...] += 1
            return jnp.sin(m.x[...]) * m.y[...] * ms[0].x[...] * k

        f = lib.custom_vjp(body, graph_updates=updates)
        log = []

        def note(tree):
            leaves = jax.tree.leaves(tree)
            log.append([str(leaf.dtype) if leaf.dtype == jax.dtypes.float0 else float(leaf) for leaf in leaves])

        def bwd_states(residuals, g):
            (m_g, ms_g, k_g), out_g = g
            cos, sin, m = residuals
            note(g)
            log.append([type(m_g).__name__, type(ms_g).__name__, type(ms_g[0]).__name__, k_g, type(m).__name__])
            m_g = jax.tree.map(lambda x: x, m_g)
            m_g["x"][...], m_g["y"][...] = cos * out_g * m.y[...], sin * out_g
            return m_g, jax.tree.map(lambda x: x, ms_g), out_g

        def bwd_modules(residuals, g, *, updates_g):
            cos, sin, m = residuals
            note((g, updates_g))
            log.append([type(updates_g[0]).__name__, updates_g[0].x, updates_g[2], type(m).__name__])
            m_g = lib.clone(m)
            m_g.x[...], m_g.y[...] = cos * g * m.y[...], sin * g
            return m_g, None, g

        f.defvjp(
            lambda m, ms, k: (f(m, ms, k), (jnp.cos(m.x[...]), jnp.sin(m.x[...]), m)),
            bwd_states if updates else bwd_modules,
        )
        m, other = (Bar(jnp.float32(1), jnp.float32(2), jnp.float32(3)) for _ in range(2))
        value = f(m, [other], 2.0)
        by_m, by_others, by_k = lib.grad(
            lambda m, ms, k: f(m, ms, k) + 5 * m.z[...], argnums=(0, 1, 2), graph=True, graph_updates=True
        )(m, [other], jnp.float32(2))
        grads = [float(leaf) for leaf in jax.tree.leaves((by_m, by_others, by_k))]
        return [float(value), grads, float(m.z[...]), int(m.n[...])], log

    (value, grads, *written), log = program(plait)
    (expected_value, expected_grads, *expected_written), expected_log = program(nnx)
    assert (written, log) == (expected_written, expected_log)
    np.testing.assert_allclose([value, *grads], [expected_value, *expected_grads], rtol=1e-5)


def make_jvp(factor=1.0, nondiff=()):
    f = plait.custom_jvp(sine, nondiff_argnums=nondiff)

    def jvp(primals, tangents):
        (m, a), (m_t, a_t) = primals, tangents
        assert (type(m), type(m_t), m_t.kind) == (Foo, Foo, "foo")
        slope = jnp.cos(m.x.value) * m.y.value * a * m_t.x.value + jnp.sin(m.x.value) * (
            m_t.y.value * a + m.y.value * a_t
        )
        return f(m, a), factor * slope

    f.defjvp(jvp)
    return f


@pytest.mark.slow
def test_custom_jvp_is_used_forward_and_backward():
    """X16: jvp, linearize, grad; under jit, vmap, remat; updates come back once."""
    f = make_jvp(10.0)
    m = Foo()
    np.testing.assert_allclose(f(m, A), np.sin(1.0) * 4, rtol=1e-6)
    assert (float(m.seen.value), int(m.calls.value)) == (4.0, 1)
    x_g, y_g, a_g = true_gradients(10.0)
    direction = plait.State({"x": plait.Param(A), "y": plait.Param(jnp.float32(3))})
    for way in (plait.jvp(f)((m, A), (direction, A))[1], plait.linearize(f, m, A)[1](direction, A)):
        np.testing.assert_allclose(way, 2 * x_g + 3 * y_g + 2 * a_g, rtol=1e-6)
    grad = plait.grad(f, argnums=(0, 1))
    for way in (
        grad,
        plait.jit(grad),
        plait.grad(plait.jit(f), argnums=(0, 1)),
        plait.grad(plait.remat(f), argnums=(0, 1)),
    ):
        m = Foo()
        np.testing.assert_allclose(taken(way(m, A)), [x_g, y_g, a_g], rtol=1e-6)
        assert (float(m.seen.value), int(m.calls.value)) == (4.0, 1)
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda a: f(Foo(), a)))(jnp.ones(3)), [a_g] * 3, rtol=1e-6)


def test_the_tangent_of_a_written_variable_is_written_too():
    """X16: what the rule writes into the tangent, or else zero; what it leaves alone moves as before."""
    f = plait.custom_jvp(sine)

    def jvp(primals, tangents):
        (m, a), (m_t, _) = primals, tangents
        out = f(m, a)
        m.y.value = m.y.value + 1
        m_t.seen.value = 7 * m_t.x.value
        return out, jnp.zeros_like(out)

    f.defjvp(jvp)

    def loss(m):
        return f(m, A) + m.seen.value + 100 * m.x.value + 1000 * m.y.value

    grads = plait.grad(loss)(Foo())
    assert (float(grads["x"].value), float(grads["y"].value)) == (107.0, 0.0)


def test_an_output_of_custom_jvp_may_hold_objects():
    """X16: its tangent has an object, or a state, in the same place."""
    f = plait.custom_jvp(lambda v: {"new": Leafy(p=plait.Param(v.value * 2)), "v": v.value})

    def jvp(primals, tangents):
        (v,), (v_t,) = primals, tangents
        return f(v), {"new": plait.State({"p": plait.Param(5 * v_t.value)}), "v": v_t.value}

    f.defjvp(jvp)

    def loss(v):
        out = f(v)
        return out["new"].p.value + out["v"]

    assert float(plait.grad(loss)(plait.Param(A)).value) == 6.0


def test_custom_jvp_leaves_arguments_out():
    """X16: by integers, for modules too; symbolic zeros tell what moves."""
    f = plait.custom_jvp(lambda how, m, a: how(m.x.value) * a, nondiff_argnums=(0, 1))
    got = []

    def jvp(how, m, primals, tangents):
        got.append((how, type(m), len(primals)))
        return f(how, m, *primals), 10 * m.y.value * tangents[0]

    f.defjvp(jvp)
    assert float(plait.grad(f, argnums=2)(jnp.sin, Foo(), A)) == 20.0
    assert got == [(jnp.sin, Foo, 1)]
    with pytest.raises(ValueError, match=r"(?s)custom_jvp.*a derivative was requested.*at +m\.x\n"):
        plait.grad(f, argnums=1)(jnp.sin, Foo(), A)
    g = plait.custom_jvp(sine)
    kinds = []

    def symbolic(primals, tangents):
        kinds.append([type(t) is SymbolicZero for t in (tangents[0].x.get_raw_value(), tangents[1])])
        return g(*primals), 3 * tangents[1]

    g.defjvp(symbolic, symbolic_zeros=True)
    assert float(plait.grad(g, argnums=1)(Foo(), A)) == 3.0
    assert kinds == [[True, False]]


@pytest.mark.parametrize("rule", [lambda: ruled(updates=False), lambda: make_jvp()])
def test_a_shared_variable_is_passed_once_where_values_alone_are_carried(rule):
    """U32."""
    m = Foo()
    m.y = m.x
    np.testing.assert_array_equal(rule()(m, A), sine(m, A))
    assert m.x is m.y
