"""``scan``, ``while_loop``, ``fori_loop``: numbers, carried modules, updates, errors. (rules X20, X21, U28; ask 7)"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.test_util import check_grads

import plait
from plait.errors import ArgumentError, ArgumentTypeError, LostUpdateWarning
from tests.strategies import Node

XS = jnp.arange(6.0).reshape(3, 2)


def counter(**others):
    return Node(total=plait.Variable(jnp.zeros(2)), **others)


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.sampled_from([0, 1, -1]),
    st.sampled_from([0, 1, -1]),
    st.booleans(),
    st.sampled_from([1, 2, True]),
)
def test_numbers_equal_those_of_jax(in_axis, out_axis, reverse, unroll):
    """X20: axes on both sides, reverse, unroll."""
    xs = jnp.arange(12.0).reshape(3, 4) if in_axis == 0 else jnp.arange(12.0).reshape(4, 3)

    def pure(c, x):
        return c * 0.5 + x, c + x * 2

    moved = jnp.moveaxis(xs, in_axis, 0)
    last, ys = jax.lax.scan(pure, jnp.zeros(4), moved, reverse=reverse, unroll=unroll)
    node = Node(c=plait.Variable(jnp.zeros(4)))

    def body(node, x):
        node.c[...], y = pure(node.c[...], x)
        return node, y

    f = plait.scan(
        body, in_axes=(plait.Carry, in_axis), out_axes=(plait.Carry, out_axis), reverse=reverse, unroll=unroll
    )
    out, found = f(node, xs)
    assert out is node
    np.testing.assert_allclose(node.c[...], last, rtol=1e-6)
    np.testing.assert_allclose(found, jnp.moveaxis(ys, 0, out_axis), rtol=1e-6)


def test_layers_scanned_equal_layers_looped():
    """X20, and gradients by finite differences."""
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = plait.vmap(lambda key: plait.Linear(2, 2, rngs=plait.Rngs(key)))(keys)
    x = jnp.ones((1, 2))
    forward = plait.scan(lambda x, layer: jnp.tanh(layer(x)), in_axes=(plait.Carry, 0), out_axes=plait.Carry)
    expected = x
    for key in keys:
        expected = jnp.tanh(plait.Linear(2, 2, rngs=plait.Rngs(key))(expected))
    np.testing.assert_allclose(forward(x, stacked), expected, rtol=1e-6)
    graphdef, params = plait.split(stacked)
    check_grads(lambda params: forward(x, plait.merge(graphdef, params)).sum(), (params,), order=1, modes=["rev"])


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "arguments"),
    [
        (plait.Carry, plait.Carry, 1),
        ((plait.Carry, 0), plait.Carry, 2),
        ((plait.Carry, 0), (plait.Carry, 0), 2),
        ((plait.Carry, 0), (0, plait.Carry), 2),
        ((0, plait.Carry), (plait.Carry, 0), 2),
        (0, 0, 2),
        ((0, None), 0, 2),
    ],
)
def test_where_the_carry_may_stand(in_axes, out_axes, arguments):
    """X20."""
    axes = [in_axes] * arguments if not isinstance(in_axes, tuple) else in_axes
    out = [out_axes] if not isinstance(out_axes, tuple) else out_axes

    def body(*args):
        carry = [a for a, axis in zip(args, axes, strict=True) if axis is plait.Carry]
        new = sum(args)
        results = [new if axis is plait.Carry and carry else new * 2 for axis in out]
        return results[0] if not isinstance(out_axes, tuple) else tuple(results)

    args = [jnp.float32(1) if axis in (plait.Carry, None) else jnp.arange(3.0) for axis in axes]
    found = plait.scan(body, in_axes=in_axes, out_axes=out_axes, length=3)(*args)
    carried, ys = args, []
    for i in range(3):
        step = [a if axis in (plait.Carry, None) else a[i] for a, axis in zip(carried, axes, strict=True)]
        new = sum(step)
        carried = [new if axis is plait.Carry else a for a, axis in zip(carried, axes, strict=True)]
        ys.append(new * 2)
    expected = [new if axis is plait.Carry else jnp.stack(ys) for axis in out]
    for x, y in zip(found if isinstance(out_axes, tuple) else [found], expected, strict=True):
        np.testing.assert_allclose(x, y)


# What comes back ------------------------------------------------------------------------------------------------------


def test_axes_by_filter_mix_layers_carries_and_constants():
    """X20, X2."""
    node = Node(
        layer=plait.Param(jnp.arange(3.0)),
        state=plait.BatchStat(jnp.zeros(())),
        scale=plait.Variable(jnp.float32(2)),
    )
    axes = plait.StateAxes({plait.Param: 0, plait.BatchStat: plait.Carry, ...: None})

    @functools.partial(plait.scan, in_axes=(plait.Carry, axes), out_axes=(plait.Carry, 0))
    def f(x, node):
        node.state += 1
        node.layer[...] = node.layer * node.scale
        return x + node.layer, node.state[...]

    x, states = f(0.0, node)
    assert (float(x), states.tolist(), float(node.state[...])) == (6.0, [1, 2, 3], 3.0)
    assert node.layer[...].tolist() == [0, 2, 4]


def test_scanned_modules_may_change_structure():
    """U18: each iteration sees a slice of its own, and all change alike."""
    node = Node(w=plait.Param(jnp.arange(3.0)), gone=plait.Variable(jnp.ones(3)))

    @functools.partial(plait.scan, in_axes=(plait.Carry, 0), out_axes=plait.Carry)
    def f(x, node):
        node.squared = plait.BatchStat(node.w[...] ** 2)
        node.label = "seen"
        del node.gone
        return x + node.w

    assert float(f(0.0, node)) == 3.0
    assert node.squared[...].tolist() == [0, 1, 4]
    assert (node.label, hasattr(node, "gone")) == ("seen", False)


@pytest.mark.filterwarnings("ignore:sow outside")
def test_what_is_sown_in_a_carried_module_is_stacked_where_an_axis_says_so():
    """X20."""
    node = counter()
    axes = plait.StateAxes({plait.Intermediate: 0, ...: plait.Carry})

    def f(node, x):
        node.total += x
        node.sow(plait.Intermediate, "h", x.sum())

    def g(node, x):
        f(node, x)
        return x

    plait.scan(g, in_axes=(axes, 0), out_axes=0)(node, XS)
    (h,) = node.h[...]
    assert h.tolist() == [1, 5, 9]
    assert node.total[...].tolist() == [6, 9]


# Each with the values that Flax gives: of the loop, and of the attributes afterwards.
ARRAY_ATTRIBUTES = {
    "fori_loop": (lambda n, body: plait.fori_loop(0, 3, lambda i, n: body(n, 1.0)[0], n), [3, 6]),
    "while_loop": (lambda n, body: plait.while_loop(lambda n: n.seen < 3, lambda n: body(n, 1.0)[0], n), [3, 6]),
    "scan": (lambda n, body: plait.scan(body)(n, jnp.ones(3))[1].tolist() == [1, 2, 3] or 1 / 0, [3, 6]),
    "scan by filter": (
        lambda n, body: plait.scan(
            lambda n, x: body(n, x)[1], in_axes=(plait.StateAxes({plait.Param: None, ...: plait.Carry}), 0), out_axes=0
        )(n, jnp.ones(3)),
        [3, 6],
    ),
    "in cond in a loop": (
        lambda n, body: plait.fori_loop(
            0, 3, lambda i, n: (plait.cond(i > 0, body, lambda n, x: (n, n.seen), n, 1.0), n)[1], n
        ),
        [2, 4],
    ),
    "in jit": (lambda n, body: plait.jit(plait.scan(body))(n, jnp.ones(3)) and None, [3, 6]),
}


@pytest.mark.parametrize("name", ARRAY_ATTRIBUTES)
def test_array_attributes_are_carried(name):
    """U28: as values, also in plain containers; the objects and the variables beside them stay."""
    run, expected = ARRAY_ATTRIBUTES[name]
    node = Node(seen=jnp.float32(0), inner=Node(sums=[jnp.zeros(2), "static"]), w=plait.Param(jnp.float32(2)))
    inner, sums, w = node.inner, node.inner.sums, node.w

    def body(node, x):
        node.seen = node.seen + x
        node.inner.sums[0] = node.inner.sums[0] + node.w[...]
        return node, node.seen

    run(node, body)
    assert [float(node.seen), float(node.inner.sums[0][1])] == expected
    assert (node.inner, node.w, node.inner.sums[1]) == (inner, w, "static")
    assert node.inner.sums is sums or sums[0] is not node.inner.sums[0]


def test_a_new_variable_and_an_array_attribute_in_one_body():
    """X20, U28: the structure changes where an axis says so, and the attribute is carried."""
    node = Node(seen=jnp.float32(0), n=plait.Variable(jnp.float32(0)))

    def body(node, x):
        node.new = plait.Param(node.seen)
        node.seen = node.seen + x
        return node.seen

    axes = plait.StateAxes({plait.Param: 0, ...: plait.Carry})
    seen = plait.scan(body, in_axes=(axes, 0), out_axes=0)(node, jnp.ones(3))
    assert (seen.tolist(), float(node.seen), node.new[...].tolist()) == ([1, 2, 3], 3.0, [0, 1, 2])


def test_new_variables_around_values_that_are_carried_are_stacked():
    """U17: a new variable that holds what a carried one held gets the value of its own iteration."""
    counter = plait.Variable(jnp.float32(0))

    def body(counter, x):
        old = plait.Variable(counter[...])
        counter[...] += x
        return counter, (old, plait.Variable(x))

    _, (old, x) = plait.scan(body)(counter, jnp.ones(3))
    assert (old[...].tolist(), x[...].tolist(), float(counter[...])) == ([0, 1, 2], [1, 1, 1], 3.0)


def test_new_objects_come_out_stacked():
    """U17."""

    @functools.partial(plait.scan, in_axes=0, out_axes=1)
    def make(x):
        return Node(v=plait.Param(x, out_sharding=("features",)))

    node = make(XS)
    np.testing.assert_array_equal(node.v[...], XS.T)
    assert node.v.out_sharding == ("features", None)


def test_no_read_only_parameter_is_an_output_of_the_scan():
    """Ask 7."""
    stacked = plait.vmap(lambda key: plait.BatchNorm(2, rngs=plait.Rngs(key)))(jax.random.split(jax.random.key(0), 3))

    def f(stacked, x):
        forward = plait.scan(lambda x, norm: norm(x), in_axes=(plait.Carry, 0), out_axes=plait.Carry)
        return forward(x, stacked)

    graphdef, state = plait.split(stacked)

    def pure(state, x):
        model = plait.merge(graphdef, state)
        out = f(model, x)
        return out, plait.state(model, plait.BatchStat)

    jaxpr = jax.make_jaxpr(pure)(state, jnp.ones((4, 2)))
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(eqn.outvars) == 3  # x, mean, var; neither scale nor bias


def test_a_loop_makes_one_trace():
    """X20: the body is traced once, however long the loop."""
    traces = []

    def body(x, layer):
        traces.append(1)
        return x + layer.w

    for length in (2, 50):
        layers = Node(w=plait.Param(jnp.ones(length)))
        plait.scan(body, in_axes=(plait.Carry, 0), out_axes=plait.Carry)(jnp.float32(0), layers)
        assert len(traces) == 1


# while_loop and fori_loop ---------------------------------------------------------------------------------------------


GROWTHS = {
    "a list before the variable": lambda node: node.a.append(node.total),
    "a list after the variable": lambda node: node.z.append(node.total),
    "a dict": lambda node: node.b.update({str(len(node.b)): node.total}),
    "a List": lambda node: node.c.append(node.total),
}
GROWING = {
    "fori_loop": lambda grow, node: plait.fori_loop(0, 3, lambda i, node: grow(node), node),
    "while_loop": lambda grow, node: plait.while_loop(lambda v: v[1] < 3, lambda v: (grow(v[0]), v[1] + 1), (node, 0)),
    "scan": lambda grow, node: plait.scan(lambda node, x: (grow(node), x))(node, jnp.ones(3)),
    "lax_map": lambda grow, node: plait.lax_map(lambda x, node: (grow(node), x)[1], jnp.ones(3), node),
}


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("loop", GROWING)
def test_no_iteration_adds_a_reference_to_what_was_there(loop, growth, jitted):
    """U28: a variable that has a new first path is none that the iteration made."""

    def grow(node):
        GROWTHS[growth](node)
        node.total += len(node.a) + len(node.b)
        return node

    node = Node(total=plait.Variable(jnp.zeros(())), a=[], b={}, c=plait.List([]), z=[])
    run = lambda node: (GROWING[loop](grow, node), None)[1]
    with pytest.raises(ArgumentError, match="an iteration changed the structure"):
        (plait.jit(run) if jitted else run)(node)
    assert (node.a, node.b, len(node.c), node.z, float(node.total[...])) == ([], {}, 0, [], 0.0)


@pytest.mark.parametrize("jitted", [True, False])
def test_loops_without_an_iteration_return_what_they_got(jitted):
    """X21: also where JAX traces nothing of such a loop, under ``jax.disable_jit``, in this or an earlier call."""

    def turn(i, value):
        value[0].total += i
        return value

    node = counter()
    with contextlib.nullcontext() if jitted else jax.disable_jit():
        for carried in (jnp.float32(5), jnp.ones(3)):
            found = plait.fori_loop(0, 0, turn, (node, carried))
            again = plait.while_loop(lambda value: False, lambda value: turn(1, value), found)
            assert (found[0], again[0]) == (node, node)
            assert (found[1].tolist(), again[1].tolist()) == (carried.tolist(), carried.tolist())
    assert node.total[...].tolist() == [0, 0]


@given(st.integers(0, 5), st.integers(0, 5))
def test_fori_loop_equals_a_python_loop(lower, upper):
    """X21: an empty range changes nothing."""
    node, expected = counter(), np.zeros(2)

    def body(i, value):
        node, x = value
        node.total += i * x
        return node, x * 2

    out, x = plait.fori_loop(lower, upper, body, (node, jnp.float32(1)))
    factor = 1.0
    for i in range(lower, upper):
        expected += i * factor
        factor *= 2
    assert out is node
    np.testing.assert_allclose(node.total[...], expected)
    assert float(x) == factor


def test_fori_loop_with_fixed_bounds_is_differentiable():
    """X21, as in JAX."""
    v = plait.Param(jnp.float32(3))

    def loss(v):
        def body(_, x):
            return x * v[...]

        return plait.fori_loop(0, 3, body, jnp.float32(1))

    assert float(plait.grad(loss)(v)[...]) == 27.0


# Errors ---------------------------------------------------------------------------------------------------------------


def scan(body, in_axes=(plait.Carry, 0), out_axes=plait.Carry, **options):
    return plait.scan(body, in_axes=in_axes, out_axes=out_axes, **options)


def writing(value):
    def body(node, x):
        node.total.value = value(node.total[...])
        return node

    return body


def doubled(d):
    d.w = plait.Param(d.w[...] * 2)
    return d


REPLACING = {
    "fori_loop": lambda d: plait.fori_loop(0, 3, lambda i, d: doubled(d), d),
    "while_loop": lambda d: plait.while_loop(lambda d: d.w[...].sum() < 20, doubled, d),
    "scan": lambda d: plait.scan(lambda d, x: (doubled(d), x))(d, jnp.arange(3))[0],
    "values only": lambda d: plait.fori_loop(0, 3, lambda i, d: doubled(d), d, graph_updates=False),
    "in jit": lambda d: plait.jit(lambda d: plait.fori_loop(0, 3, lambda i, d: doubled(d), d))(d),
}


@pytest.mark.parametrize("name", REPLACING)
def test_a_variable_of_a_carried_module_may_be_replaced(name):
    """U28: the caller's variable gets the value."""
    d = Node(w=plait.Param(jnp.array([1.0, 2.0])))
    w = d.w
    assert REPLACING[name](d).w[...].tolist() == [8.0, 16.0]
    assert d.w is w
    assert w[...].tolist() == [8.0, 16.0]


def test_an_element_of_a_carried_list_may_be_replaced():
    def step(i, items):
        items[0] = plait.Param(items[0] + 1)
        return items

    assert plait.fori_loop(0, 2, step, plait.List([plait.Param(1.0)]))[0] == 3.0


@pytest.mark.parametrize(
    ("value", "found", "before"),
    [
        (lambda v: jnp.ones((3, 2)), r"float32\[3, 2\]", r"float32\[2\]"),
        (lambda v: v.astype(jnp.float16), r"float16\[2\]", r"float32\[2\]"),
    ],
)
def test_a_carry_keeps_its_types(value, found, before):
    """U28: the error names the path and both types; nothing is changed."""
    node = counter()
    with pytest.raises(ArgumentTypeError, match=rf"(?s)at +node\.total.*{found}.*{before}"):
        scan(writing(value))(node, XS)
    assert node.total[...].tolist() == [0, 0]


def test_a_symbolic_length_exports():
    """X20, ask 17: a loop over arrays takes its length from them."""
    (length,) = jax.export.symbolic_shape("length")
    total = plait.scan(lambda carry, x: (carry + x, carry))
    exported = jax.export.export(jax.jit(total))(jnp.zeros(()), jax.ShapeDtypeStruct((length,), jnp.float32))
    for n in (1, 3):
        assert float(exported.call(jnp.zeros(()), jnp.ones(n))[0]) == n


# What is shared ------------------------------------------------------------------------------------------------------


def test_what_an_iteration_writes_to_what_all_share_is_dropped():
    """X21: each iteration starts from the first value, as in Flax; a warning names the variable, the cure keeps it."""

    def body(x, layers):
        layers.n[...] += 1
        return x + layers.w + layers.n

    def layers():
        return Node(w=plait.Param(jnp.arange(3.0)), n=plait.BatchStat(jnp.float32(10)))

    dropped, carried = layers(), layers()
    axes = plait.StateAxes({plait.Param: 0, ...: None})
    with pytest.warns(
        LostUpdateWarning, match=r"(?s)scan: an iteration writes.*at +layers\.n\n.*BatchStat: plait\.Carry"
    ):
        out = plait.scan(body, in_axes=(plait.Carry, axes), out_axes=plait.Carry)(jnp.float32(0), dropped)
    assert (float(out), float(dropped.n[...])) == (36.0, 10.0)
    cure = plait.StateAxes({plait.Param: 0, ...: plait.Carry})
    out = plait.scan(body, in_axes=(plait.Carry, cure), out_axes=plait.Carry)(jnp.float32(0), carried)
    assert (float(out), float(carried.n[...])) == (39.0, 13.0)


# States are data ------------------------------------------------------------------------------------------------------


def gradients_of(model):
    return jax.tree.map(jnp.zeros_like, plait.state(model, plait.Param))


def add_one(state):
    return jax.tree.map(lambda x: x + 1, state)


LOOPS = {
    "scan": lambda s: plait.scan(lambda s, x: (add_one(s), x))(s, jnp.arange(3))[0],
    "fori_loop": lambda s: plait.fori_loop(0, 3, lambda i, s: add_one(s), s),
    "while_loop": lambda s: plait.while_loop(lambda s: s["w"][...] < 3, add_one, s),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_state_may_be_carried_as_data(name):
    """U28: new variables of the same kind stand for those of the carry; the state that was given stays as it is."""
    given = gradients_of(Node(w=plait.Param(jnp.float32(0))))
    last = LOOPS[name](given)
    assert type(last) is plait.State
    assert (float(last["w"][...]), float(given["w"][...])) == (3.0, 0.0)


@pytest.mark.parametrize("other", [lambda v: v, lambda v: Node(w=v)], ids=["a slot", "a node"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_variable_that_something_else_leads_to_is_not_replaced(name, other):
    """U28: in one place it would be another one afterwards, in the other the same."""
    loops = {
        "scan": lambda f, s: plait.scan(lambda s, x: (f(s), x))(s, jnp.arange(3)),
        "fori_loop": lambda f, s: plait.fori_loop(0, 3, lambda i, s: f(s), s),
        "while_loop": lambda f, s: plait.while_loop(lambda s: False, f, s),
    }
    variable = plait.Param(jnp.float32(0))
    with pytest.raises(ArgumentError, match=r"(?s)references in the carry changed.*the carry\['a'\]"):
        loops[name](lambda s: {**s, "a": plait.Param(s["a"] + 1)}, {"a": variable, "b": other(variable)})


@pytest.mark.parametrize("name", ["scan", "fori_loop", "while_loop"])
def test_modules_are_carried_with_values_only(name):
    """U32: a carry is returned; changes of structure are an error."""
    runs = {
        "scan": lambda f, n: plait.scan(lambda n, x: (f(n), x), graph_updates=False)(n, jnp.arange(3)),
        "fori_loop": lambda f, n: plait.fori_loop(0, 3, lambda i, n: f(n), n, graph_updates=False),
        "while_loop": lambda f, n: plait.while_loop(lambda n: n.total[0] < 3, f, n, graph_updates=False),
    }

    def add(node):
        node.total += 1
        return node

    node = counter()
    runs[name](add, node)
    assert node.total[...].tolist() == [3, 3]
    with pytest.raises(ArgumentError, match="change the structure"):
        runs[name](lambda node: setattr(node, "k", 1) or add(node), counter())


def test_outputs_that_do_not_fit_out_axes():
    """Section 9."""
    with pytest.raises(ArgumentTypeError, match=r"(?s)number of outputs does not match out_axes.*carry"):
        plait.scan(lambda c, x: c)(jnp.zeros(()), XS)
    with pytest.raises(ArgumentTypeError, match=r"(?s)number of outputs does not match out_axes.*found +a tuple"):
        plait.scan(lambda c, x: (c,), out_axes=(0, plait.Carry))(jnp.zeros(()), XS)
    with pytest.raises(ArgumentError, match=r"1 where out_axes has 2(?s:.*)out_axes = \(plait\.Carry, 0\)"):
        plait.scan(lambda c, x: (c,), out_axes=(plait.Carry, 0))(jnp.zeros(()), XS)
    with pytest.raises(ArgumentError, match=r"(?s)axis 3 of the output is out of range.*\(2,\)"):
        plait.scan(lambda c, x: (c, x), out_axes=(plait.Carry, 3))(jnp.zeros(()), XS)


def statistics(nnx, options):
    """What is left in a model that all iterations of a scan share, and what they return."""

    class Noisy(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.weight = nnx.Param(jnp.arange(3.0)[None])

        def __call__(self, x):
            return self.dropout(self.norm(x) * self.weight)

    def body(model, total, x):
        y = model(x)
        return total + y.sum(), y

    model = Noisy(nnx.Rngs(0, dropout=1))
    scan = nnx.scan(body, in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0), **options)
    x = jax.random.normal(jax.random.key(0), (4, 5, 3))
    total, ys = scan(model, jnp.zeros(()), x)
    grads = nnx.grad(lambda model: scan(model, jnp.zeros(()), x)[0], allow_int=True, **options)(model)
    return total, ys, model.norm.mean[...], model.dropout.rngs.count[...], model.weight[...], grads.weight[...]


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"graph_updates": False}, {"graph": False}], ids=str)
@pytest.mark.filterwarnings("ignore::plait.errors.LostUpdateWarning")
def test_writes_to_what_all_iterations_share_are_flax_s(options):
    """X20: lost in the default mode, kept where only values are carried out."""
    found = statistics(plait, options), statistics(pytest.importorskip("flax.nnx"), options)
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert bool((found[0][2] == 0).all()) == (not options)


@pytest.mark.filterwarnings("error::plait.errors.LostUpdateWarning")
def test_what_all_iterations_share_may_be_written_beside_a_carry_of_modules():
    """X20: with ``graph_updates=False`` the shared values join those of the carry."""

    def body(shared, carried, x):
        shared.total[...] += x
        carried.total[...] += shared.total
        return carried, shared.total[...]

    shared, carried = counter(), counter()
    out = plait.scan(body, in_axes=(None, plait.Carry, 0), graph_updates=False)(shared, carried, jnp.ones((3, 2)))
    assert out[0] is carried
    assert (shared.total[...].tolist(), carried.total[...].tolist()) == ([3, 3], [6, 6])
    np.testing.assert_array_equal(out[1], jnp.stack([jnp.full(2, n) for n in (1.0, 2.0, 3.0)]))


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_two_zeros_are_two_values():
    """X20: a number that all iterations share is part of the program."""
    divided = plait.scan(lambda carry, x, by: (carry, x / by), in_axes=(plait.Carry, 0, None))
    for zero in (0.0, -0.0, 0.0):
        assert divided(0.0, jnp.ones(1), zero)[1] == 1 / np.float32(zero)


def test_a_value_sown_by_a_shared_module_is_named_as_its_attribute():
    """X14: and not by the record in which it is kept while it is captured."""

    class Sows(plait.Module):
        def __call__(self, x):
            self.sow(plait.Intermediate, "hidden", x)
            return x

    def run(model, x):
        return plait.scan(lambda x, model, t: model(x) + t, in_axes=(plait.Carry, None, 0), out_axes=plait.Carry)(
            x, model, jnp.ones(3)
        )

    with pytest.raises(ArgumentTypeError, match=r"at +model\.hidden\n"):
        plait.capture(run, plait.Intermediate)(Sows(), jnp.ones(()))
