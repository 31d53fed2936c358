"""``jit`` with ``in_shardings`` and ``out_shardings``. (rules X2, X3, X10; M25)"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.errors import ArgumentError, ArgumentTypeError
from tests.strategies import Node

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def named(*spec):
    return NamedSharding(MESH, P(*spec))


def model():
    return Node(w=plait.Param(jnp.arange(32.0).reshape(8, 4)), n=plait.BatchStat(jnp.zeros(())))


BY_FILTER = plait.StateSharding({plait.Param: named("data", "model"), ...: named()})


def step(model, x):
    model.w[...] = model.w * 2
    model.n += 1
    return x @ model.w[...]


def spec(variable):
    return variable.get_raw_value().sharding.spec


def same(variable, *entries):
    """Whether a variable lies on the mesh as a spec says."""
    value = variable.get_raw_value()
    return value.sharding.is_equivalent_to(named(*entries), value.ndim)


@pytest.mark.parametrize("call", ["positional", "keyword", "in a dict"])
def test_shardings_by_filter(call):
    """X2, X10: what is written goes out as it came in; twice, the second time on the fast path."""
    m, x = model(), jnp.ones((4, 8))
    w = m.w
    expected = np.asarray(m.w[...])
    if call == "in a dict":
        ins = ({"m": BY_FILTER}, named("data"))
        f = plait.jit(lambda d, x: step(d["m"], x), in_shardings=ins, out_shardings=named())
        run = lambda: f({"m": m}, x)
    else:
        f = plait.jit(step, in_shardings=(BY_FILTER, named("data")), out_shardings=named())
        run = (lambda: f(m, x)) if call == "positional" else (lambda: f(x=x, model=m))
    for _ in range(2):
        out = run()
        expected = expected * 2
        np.testing.assert_allclose(out, np.ones((4, 8)) @ expected)
        assert out.sharding.is_fully_replicated
        assert m.w is w
        assert spec(m.w) == P("data", "model")
        assert m.n.get_raw_value().sharding.is_fully_replicated


def test_one_sharding_for_all_state_and_a_state_of_shardings():
    """M25: specs as ``get_named_sharding`` gives them."""

    def made():
        return Node(w=plait.Param(jnp.ones((8, 4)), out_sharding=("data", None)), b=plait.Param(jnp.ones((8,))))

    m = made()
    f = plait.jit(lambda m: m.w.set_value(m.w[...] + 1), in_shardings=named("data"))
    f(m)
    assert (spec(m.w), spec(m.b)) == (P("data"), P("data"))
    m = made()
    shardings = plait.get_named_sharding(plait.state(m), MESH)
    g = plait.jit(lambda m: m.w.set_value(m.w[...] + 1), in_shardings=(shardings,))
    g(m)
    assert same(m.w, "data")
    out = plait.jit(lambda s: jax.tree.map(lambda x: x * 2, s), in_shardings=(shardings,), out_shardings=shardings)(
        plait.state(m)
    )
    assert same(out["w"], "data")


def test_new_modules_are_made_in_their_shardings():
    """X10, ask 12."""
    make = plait.jit(model, out_shardings=BY_FILTER)
    made = make()
    assert spec(made.w) == P("data", "model")
    assert {shard.data.shape for shard in made.w.get_raw_value().addressable_shards} == {(2, 2)}
    extended = model()
    plait.jit(lambda m: setattr(m, "extra", plait.Param(m.w[...] * 2)), in_shardings=(BY_FILTER,))(extended)
    assert spec(extended.extra) == P("data", "model")


def test_explicit_axes():
    """X10: on a mesh with explicit axes the types carry the sharding."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    m = Node(w=plait.Param(jax.device_put(jnp.ones((8, 2)), NamedSharding(mesh, P("x")))))
    with jax.set_mesh(mesh):
        plait.jit(lambda m: m.w.set_value(m.w[...] * 2), in_shardings=(NamedSharding(mesh, P("x")),))(m)
    assert spec(m.w)[0] == "x"


def test_ahead_of_time_and_donation():
    """X10."""
    m, x = model(), jnp.ones((4, 8))
    f = plait.jit(step, in_shardings=(BY_FILTER, None), donate=True)
    m.w[...] = jax.device_put(m.w[...], named("data", "model"))
    before = m.w.get_raw_value()
    compiled = f.lower(m, x).compile()
    compiled(m, x)
    assert before.is_deleted()
    assert spec(m.w) == P("data", "model")
    assert f.eval_shape(m, x).shape == (4, 4)
    assert plait.jit(lambda m, k: m if k == "m" else 0, static_argnums=1).eval_shape(m, "m").w.shape == (8, 4)


def test_outputs_that_a_sharding_cannot_cut():
    """X10: an error, as in JAX, and not another layout."""
    with pytest.raises(ArgumentError, match=r"(?s)out_shardings does not match.*\(3,\).*'data'"):
        plait.jit(lambda x: x * 1, out_shardings=named("data"))(jnp.ones(3))
    with pytest.raises(ArgumentError, match=r"(?s)more entries.*shape \(\)"):
        plait.jit(lambda x: plait.Param(x), out_shardings=named("data"))(jnp.ones(()))


def _jit_w(spec, **options):
    return plait.jit(lambda m: m.w[...] * 2, in_shardings=spec, **options)


LAYOUTS_THAT_DO_NOT_FIT = {
    "unknown axis": (P("nope"), r"(?s)in_shardings names an axis.*at +m\.w.*'nope' in P\('nope',\).*'data': 4"),
    "length": (P(None, ("data", "model")), r"(?s)in_shardings does not match.*at +m\.w.*\(8, 4\).*of 8"),
    "rank": (P(None, None, "data"), r"(?s)more entries.*at +m\.w.*P\(None, None, 'data'\).*at most 2"),
    "twice": (P("data", "data"), r"(?s)in_shardings shards two axes.*at +m\.w.*'data' twice in P.*'data': 4"),
}


@pytest.mark.parametrize("name", LAYOUTS_THAT_DO_NOT_FIT)
@pytest.mark.parametrize("filtered", [False, True])
def test_specs_that_do_not_fit_are_told_by_path(name, filtered):
    """Section 9: path, spec and the axes of the mesh, in and out; nothing is changed."""
    bad, message = LAYOUTS_THAT_DO_NOT_FIT[name]
    node = Node(w=model().w)
    given = plait.StateSharding({plait.Param: bad, ...: P()}) if filtered else bad
    with jax.set_mesh(MESH):
        with pytest.raises(ArgumentError, match=message):
            _jit_w(given)(node)
        with pytest.raises(ArgumentError, match=message):
            _jit_w(given).lower(node)
        out = message.replace("in_shardings", "out_shardings").replace("m\\.w", r"the output\['y'\]")
        with pytest.raises(ArgumentError, match=out):
            plait.jit(lambda m: {"y": m.w * 2}, out_shardings=bad)(node)
        with pytest.raises(
            ArgumentError, match=message.replace("in_shardings", "out_shardings").replace("m\\.w", r"the output\.w")
        ):
            plait.jit(lambda: model(), out_shardings=plait.StateSharding({plait.Param: bad, ...: P()}))()


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
@pytest.mark.parametrize("spec", [0, "data"])
def test_an_axis_in_place_of_a_spec_is_an_error_that_names_its_place(option, spec):
    """X2."""
    for given in (spec, plait.StateSharding({plait.Param: spec, ...: None})):
        with pytest.raises(ArgumentTypeError, match=rf"at +{option}\[0\]\n +found +an? (int|str): '?{spec}"):
            plait.jit(lambda m, x: (m, x), **{option: (given, None)})


def test_a_later_call_whose_shape_does_not_fit_is_told_by_path():
    """Section 9: the specs are those of a compiled function that has run."""
    f = plait.jit(lambda m, x: x * m.w[0, 0], in_shardings=(None, P("data")))
    node, fits, odd = model(), jnp.ones(8), jnp.ones(6)
    with jax.set_mesh(MESH):
        assert f(node, fits).shape == (8,)
        with pytest.raises(ArgumentError, match=r"(?s)in_shardings does not match.*at +x.*\(6,\).*'data': 4"):
            f(node, odd)
        with pytest.raises(ArgumentError, match=r"(?s)differs from in_shardings.*at +x.*P\(\).*P\('data',\)"):
            f(node, jax.device_put(fits, named()))
        g = plait.jit(lambda x, y: x + y, in_shardings=(P("data"), P("data")))
        with pytest.raises(ArgumentError, match=r"(?s)differs from in_shardings.*at +y\n"):
            g(jax.device_put(fits, named("data")), jax.device_put(fits, named()))


def test_specs_that_stop_early_or_leave_an_axis_to_jax_fit():
    """X10: as in JAX."""
    with jax.set_mesh(MESH):
        for given in (P(), P("data"), P(("data", "model")), P(P.UNCONSTRAINED, "model")):
            assert plait.jit(lambda m: m.w * 2, out_shardings=given)(model()).shape == (8, 4)


# As in Flax ---------------------------------------------------------------------------------------------------------


def test_static_arguments_have_no_entry_in_in_shardings():
    """X2, X10: as in ``jax.jit``; by position and by name."""
    sharding = NamedSharding(MESH, P("data"))
    x = jnp.arange(8.0)

    def f(x, scale, negate):
        return -x * scale if negate else x * scale

    for options in ({"static_argnums": (2,)}, {"static_argnames": "negate"}):
        jitted = plait.jit(f, in_shardings=(sharding, None), **options)
        results = jitted(x, 0.5, True), jitted(x, 0.5, negate=False)
        for result, factor in zip(results, (-0.5, 0.5), strict=True):
            np.testing.assert_array_equal(result, x * factor)
            assert result.sharding.is_equivalent_to(sharding, 1)


@pytest.mark.parametrize("spec", [P("data"), P(None)])
def test_what_is_only_read_is_left_in_the_layout_that_it_was_taken_in(spec):
    """X10: such a call is how programs lay a model out; later calls need not move it again."""
    sharding = NamedSharding(MESH, spec)
    node = Node(w=plait.Param(jnp.arange(8.0)), n=plait.BatchStat(jnp.float32(0)))

    @plait.jit(in_shardings=(plait.StateSharding({plait.Param: sharding, ...: None}),))
    def f(node):
        node.n[...] += 1
        return node.w[...].sum()

    assert float(f(node)) == 28
    assert node.w[...].sharding == sharding
    assert float(f(node)) == 28
    assert int(node.n[...]) == 2


def test_a_compiled_stage_leaves_what_it_only_read_in_its_layout_too():
    """X10: as the call does."""
    sharding = NamedSharding(MESH, P("data"))
    node = Node(w=plait.Param(jnp.arange(8.0)))
    compiled = plait.jit(lambda node: node.w[...].sum(), in_shardings=(sharding,)).lower(node).compile()
    assert [float(compiled(node)) for _ in range(2)] == [28, 28]
    assert node.w[...].sharding == sharding


def test_jitted_fn_says_how_many_programs_are_kept():
    """The name under which programs written for Flax find what stands behind a jitted function."""
    f = plait.jit(lambda node: node.w * 2)
    node = Node(w=plait.Param(jnp.ones(2)))
    f(node), f(Node(w=plait.Param(jnp.ones(3))))
    assert f.jitted_fn._cache_size() == 2
    np.testing.assert_array_equal(f.jitted_fn(node), f(node))


class Layers(plait.Module):
    """Variables of each kind: with and without axis names, statistics, counts, flags, random streams."""

    def __init__(self, rngs):
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.linear = plait.Linear(8, 8, kernel_metadata={"out_sharding": (None, "model")}, rngs=rngs)
        self.dropout = plait.Dropout(0.1, rngs=rngs)
        self.pair = plait.BatchStat({"a": jnp.zeros(8), "b": (jnp.zeros(4),)})
        self.count, self.flags = plait.BatchStat(jnp.zeros((), jnp.int32)), plait.BatchStat(jnp.zeros(3, bool))

    def __call__(self, x):
        self.count[...], self.flags[...] = self.count + 1, ~self.flags[...]
        self.pair.set_value(jax.tree.map(jnp.ones_like, self.pair.get_value()))
        return self.linear(self.dropout(self.norm(x)))


@pytest.mark.parametrize("options", [{}, {"donate": True}, {"graph": False}], ids=str)
@pytest.mark.parametrize("is_stack", [False, True])
def test_a_step_on_a_mesh_is_compiled_once(options, is_stack):
    """X10: without shardings, too, a written variable keeps the sharding that it came in with. XLA alone would divide
    the biases."""

    def make():
        rngs = plait.Rngs(0)
        net = plait.Stack(Layers, 2, rngs=rngs) if is_stack else plait.List([Layers(rngs)])
        return {"net": net, "optimizer": plait.Optimizer(net, optax.sgd(1e-3, momentum=0.9), wrt=plait.Param)}

    @plait.jit(**options)
    def train(net, optimizer, x):
        def loss_of(net):
            return ((net(x) if is_stack else net[0](x)) ** 2).mean()

        optimizer.update(net, plait.grad(loss_of)(net))

    with jax.set_mesh(MESH):
        made = plait.partitioning.create_sharded(make)
        x = jax.device_put(jnp.ones((4, 8)), named("data"))
        before = [value.sharding for value in jax.tree.leaves(plait.state(made))]
        for _ in range(2):
            train(made["net"], made["optimizer"], x)
    assert [value.sharding for value in jax.tree.leaves(plait.state(made))] == before
    assert train.jitted_fn._cache_size() == 1
    plait.update(made, jax.device_put(plait.state(made), jax.devices()[0]))
    train(made["net"], made["optimizer"], jnp.ones((4, 8)))  # the same trace, compiled for one device


@pytest.mark.parametrize("came_in", [(), ("model",), ("data", "model")])
def test_a_sharding_that_the_function_gives_is_kept(came_in):
    """X10."""

    @plait.jit
    def lay_out(m):
        m.w[...] = jax.lax.with_sharding_constraint(m.w * 2, named("data"))

    m = Node(w=plait.Param(jax.device_put(jnp.ones((8, 4)), named(*came_in))))
    lay_out(m)
    assert same(m.w, "data")


def test_a_variable_that_gets_the_value_of_another_keeps_its_sharding():
    """X10b: also arrays inside of one value."""

    @plait.jit
    def swap(m):
        m.w.value, m.v.value = m.v.get_value(), m.w.get_value()
        m.pair.set_value(jax.tree.map(lambda x: jnp.zeros_like(x) + x.sum(), m.pair.get_value()))

    def on_mesh(*spec):
        return jax.device_put(jnp.ones((8, 4)), named(*spec))

    pair = {"a": on_mesh("data", "model"), "b": [on_mesh(None, "model")]}
    m = Node(w=plait.Param(on_mesh("data")), v=plait.Param(on_mesh()), pair=plait.Param(pair))
    for _ in range(2):
        swap(m)
    assert same(m.w, "data")
    assert same(m.v)
    assert [value.sharding.spec for value in jax.tree.leaves(m.pair.get_value())] == [
        P("data", "model"),
        P(None, "model"),
    ]
    assert swap.jitted_fn._cache_size() == 1


def test_an_optimizer_that_is_made_for_a_model_on_a_mesh_is_compiled_once():
    """X10b: its counts are there too."""
    net = plait.Linear(8, 8, rngs=plait.Rngs(0))
    plait.update(net, jax.device_put(plait.state(net), named()))
    optimizer = plait.Optimizer(net, optax.trace(0.9), wrt=plait.Param)
    counted = plait.Optimizer(net, optax.scale_by_schedule(lambda count: 0.1), wrt=plait.Param)

    @plait.jit
    def train(net, optimizers, x):
        grads = plait.grad(lambda net: (net(x) ** 2).mean())(net)
        for optimizer in optimizers:
            optimizer.update(net, grads)

    for _ in range(2):
        train(net, [optimizer, counted], jnp.ones((4, 8)))
    assert train.jitted_fn._cache_size() == 1
