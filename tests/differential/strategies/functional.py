"""Programs in a functional style, and what other strategies do not draw: methods in attributes, line searches, popped
states, models made on a mesh, stacks of layers, other keys, and 64 bits."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.models import EVERYWHERE, PARTS, PURE, define_model, make_input, make_model


@st.composite
def functional_programs(draw: Draw) -> Program:
    pen = Pen(draw, "functional")
    pen.pick(values_only, values_only, methods, line_searches, popped, created, stacked, keys, wide)(pen)
    return pen.program()


def values_only(pen: Pen) -> None:
    """Modules go in, and are returned."""
    model = define_model(pen, EVERYWHERE, most=2)
    m, x = make_model(pen, model), make_input(pen)
    body = pen.pick(
        "return m(x), nnx.clone(m)", "y = m(x)\n    return y, nnx.state(m)", "return m(x), nnx.pure(nnx.state(m))",
        "return nnx.merge(nnx.graphdef(m), jax.tree.map(doubled, nnx.state(m))), x", "return m(x), nnx.Linear(4, 4, rngs=nnx.Rngs(0))",
        "return nnx.clone(m), m(x), nnx.split(m)[1]", "return m, x", "return jax.tree.map(doubled, m), m(x)",
    )  # fmt: skip
    pen.step(f"def f(m, x):\n    traces['f'] += 1\n    {body}")
    mode = pen.pick("graph_updates=False", "graph_updates=False", "graph=False")
    pen.step("f2 = " + pen.pick(
        f"nnx.jit(f, {mode})", f"nnx.remat(f, {mode})", f"nnx.vmap(f, in_axes=(None, 0), {mode})",
        f"(lambda m, x: nnx.cond(True, f, f, m, x, {mode}))", f"nnx.jit_partial(f, {m}, {mode})" if pen.chance(30) else f"nnx.jit(nnx.remat(f, {mode}), {mode})",
        f"nnx.value_and_grad(lambda m, x: (total(f(m, x)), f(m, x)), has_aux=True, {mode})", f"nnx.grad(lambda m, x: total(f(m, x)), {mode})",
        f"nnx.scan(lambda x, m: (x + 1, f(m, x)), in_axes=(nnx.Carry, None), length=2, {mode})",
    ))  # fmt: skip
    text = pen.steps[-1].text
    given = f"{m}, {x}" if "partial" not in text else x
    given = f"{m}, jnp.stack([{x}, {x}])" if "vmap" in text else f"{x}, {m}" if "scan" in text else given
    for _ in range(pen.number(1, 2)):
        pen.step(f"y = f2({given})", "y", m)


def methods(pen: Pen) -> None:
    """A bound method, or a partial of one, of another module in an attribute."""
    pen.define("""\
class Other(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(rngs.params.normal((4,)))

    def act(self, x):
        return x * self.w[...]


class Net(nnx.Module):
    def __init__(self, rngs, other, act):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.other = other
        self.act = act

    def __call__(self, x):
        return self.act(self.linear(x))""")
    pen.step("other = Other(nnx.Rngs(1))", "other")
    act = pen.pick("nnx.relu", "jnp.tanh", "len and nnx.gelu", "functools_partial", "other.act")
    act = "jax.tree_util.Partial(jnp.multiply, jnp.ones(4))" if act == "functools_partial" else act
    pen.step(f"m = Net(nnx.Rngs(0), other, {act})")
    x = make_input(pen)
    pen.step(f"y = m({x})", "y")
    pen.step(pen.pick(
        f"y = nnx.jit(lambda m, x: m(x))(m, {x})", f"y = nnx.grad(lambda m: total(m({x})))(m)", "y = nnx.state(m)",
        f"y = nnx.clone(m)({x})", f"y = nnx.merge(*nnx.split(m))({x})", f"y = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, {x})",
        f"nnx.update(m, jax.tree.map(doubled, nnx.state(m))); y = nnx.jit(lambda m, x: m(x))(m, {x})",
    ), "y")  # fmt: skip


def line_searches(pen: Pen) -> None:
    """Optimizers whose update takes the value, the gradient and the loss."""
    model = define_model(pen, tuple(name for name in PURE if name != "Static"), most=1, nested=False, shared=False)
    m, x = make_model(pen, model), make_input(pen)
    tx = pen.pick(
        "optax.lbfgs()", "optax.lbfgs(memory_size=2)", "optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(max_backtracking_steps=4))",
        "optax.polyak_sgd(max_learning_rate=0.5)", "optax.polyak_sgd()",
    )  # fmt: skip
    pen.step(f"optimizer = nnx.Optimizer({m}, {tx}, wrt=nnx.Param)")
    given = "value=value" if "polyak" in tx else "grad=grads, value=value, value_fn=loss"
    pen.step(f"""\
def step(m, optimizer, x):
    traces['step'] += 1
    graphdef, params, rest = nnx.split(m, nnx.Param, ...)
    loss = lambda params: total(nnx.merge(graphdef, params, rest)(x) ** 2)
    value, grads = jax.value_and_grad(loss)(params)
    optimizer.update(m, grads, {given})
    return value""")
    pen.step(pen.pick("step = nnx.jit(step)", "step = step"))
    for _ in range(pen.number(1, 3)):
        pen.step(f"y = step({m}, optimizer, {x})", "y", m)


def popped(pen: Pen) -> None:
    """What is popped is put back, changed or not."""
    model = define_model(pen, tuple(PARTS), most=3)
    m, x = make_model(pen, model), make_input(pen)
    if pen.chance(50):
        pen.step(f"y = {m}({x})", "y")
    kinds = pen.pick(
        "nnx.Intermediate", "nnx.BatchStat", "nnx.Param", "nnx.RngState", "Count", "(nnx.BatchStat, nnx.Param)",
        "nnx.PathContains('bias')", "nnx.BatchStat, nnx.Param",
    )  # fmt: skip
    pen.step(f"s = nnx.pop({m}, {kinds})", "s", m)
    changed = pen.pick("s", "s", "jax.tree.map(doubled, s)", "jax.tree.map(zeroed, s)")
    pen.step(pen.pick(
        f"for each in s if isinstance(s, tuple) else [s]:\n    nnx.update({m}, each)", f"nnx.update({m}, {changed})",
        f"nnx.update({m}, nnx.pure(s))", f"nnx.update({m}, nnx.to_pure_dict(s))",
    ), m)  # fmt: skip
    pen.step(f"y = {m}({x})", "y", m)


def created(pen: Pen) -> None:
    """``create_sharded``-like creation, where Flax has it: inside jit, on a mesh, alone or with others."""
    pen.define("""\
class Net(nnx.Module):
    def __init__(self, rngs, names):
        self.up = nnx.Linear(4, 8, kernel_metadata={'out_sharding': names}, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.down = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(self.norm(self.up(x)))""")
    pen.step("mesh = jax.make_mesh((2, 2), ('a', 'b'), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])")
    names = pen.pick("('a', 'b')", "(None, 'b')", "('a', None)", "None")
    result = pen.pick(
        "m",
        "{'model': m, 'average': nnx.EMA(m, decay=0.5)}",
        "(m, nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param))",
        "{'b': m, 'a': nnx.clone(m)}",
    )
    pen.step(f"def make(rngs):\n    m = Net(rngs, {names})\n    return {result}")
    make = pen.pick(
        "nnx.create_sharded(make, mesh)(nnx.Rngs(0))" if pen.chance(20) else "nnx.jit(make)(nnx.Rngs(0))",
        "nnx.jit(lambda: make(nnx.Rngs(0)))()",
        "nnx.eval_shape(lambda: make(nnx.Rngs(0)))",
        "make(nnx.Rngs(0))",
    )
    pen.step(f"with jax.set_mesh(mesh):\n    out = {make}", "out")
    pen.step(
        "found = [type(each).__name__ for _, each in nnx.iter_graph(out) if isinstance(each, nnx.Module)]", "found"
    )


def stacked(pen: Pen) -> None:
    """Layers made by ``vmap``, seen through views, run by ``scan``."""
    model = define_model(pen, EVERYWHERE, most=2, nested=False)
    count = pen.number(2, 3)
    make = pen.pick("nnx.vmap", f"nnx.split_rngs(splits={count})(nnx.vmap", "nnx.vmap")
    options = f"in_axes=0, out_axes=0, axis_size={count}" if make == "nnx.vmap" else "in_axes=0, out_axes=0)"
    made = f"{make}(lambda rngs: {model.name}(rngs), {options})"
    given = f"nnx.Rngs(0).fork(split={count})" if make == "nnx.vmap" else "nnx.Rngs(0)"
    pen.step(f"m = {made}({given})", "m")
    x = make_input(pen)
    pen.step(pen.pick(
        "v = nnx.view(m, deterministic=True, use_running_average=True, raise_if_not_found=False)", "v = nnx.clone(m)",
        "v = nnx.view(m, deterministic=False, raise_if_not_found=False)", "v = m", "m.eval(); v = m",
        "v = jax.tree.map(lambda a: a[:2], m)", "v = nnx.merge(nnx.graphdef(m), jax.tree.map(lambda a: a[::-1], nnx.state(m)))",
    ), "v")  # fmt: skip
    pen.step(f"y = nnx.scan(lambda x, m: m(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)({x}, v)", "y", "v", "m")
    pen.step(pen.pick(
        "y = jax.tree.map(lambda a: a[1], nnx.state(v))", f"y = nnx.vmap(lambda m, x: m(x), in_axes=(0, None))(v, {x})",
        "nnx.update(m, jax.tree.map(doubled, nnx.state(v, nnx.Param))); y = 0", f"y = nnx.grad(lambda v: total(nnx.scan(lambda x, m: m(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)({x}, v)))(v)",
    ), "y", "m")  # fmt: skip


def keys(pen: Pen) -> None:
    """Keys of other implementations, typed and raw."""
    impl = pen.pick("rbg", "unsafe_rbg", "rbg", "threefry2x32")
    key = pen.pick(f"jax.random.key(3, impl='{impl}')", f"jax.random.wrap_key_data(jax.random.key_data(jax.random.key(3, impl='{impl}')), impl='{impl}')")  # fmt: skip
    pen.step(f"rngs = nnx.Rngs({pen.pick('', 'dropout=', 'params=')}{key}, default={key})" if pen.chance(15) else f"rngs = nnx.Rngs({key})")  # fmt: skip
    model = define_model(pen, EVERYWHERE, most=2)
    pen.step(f"m = {model.name}(rngs)", "m", "rngs")
    x = make_input(pen)
    pen.step(pen.pick(
        f"y = m({x})", f"y = nnx.jit(lambda m, x: m(x))(m, {x})", "y = rngs.fork(split=2)", "y = rngs.params.normal((2,))",
        "y = nnx.reseed(m, default=1, dropout=2)", "y = nnx.split_rngs(rngs, splits=2)", "y = nnx.state(rngs)",
        f"y = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: {model.name}(rngs)))(rngs)", f"y = nnx.merge(*nnx.split(m))({x})",
        f"y = nnx.scan(lambda m, x: (m, m(x)))(m, jnp.stack([{x}, {x}]))[1]", "y = nnx.to_pure_dict(nnx.state(m))",
    ), "y", "m")  # fmt: skip
    pen.step(f"y = m({x})", "y", "m")


def wide(pen: Pen) -> None:
    """With 64 bits."""
    model = define_model(pen, EVERYWHERE, most=2)
    rngs = pen.pick("nnx.Rngs(0)", "nnx.Rngs(2**40)", "nnx.Rngs(0, dropout=jax.random.key(1))")
    pen.step(f"with jax.enable_x64(True):\n    m = {model.name}({rngs})", "m")
    pen.step(
        f"with jax.enable_x64(True):\n    x = jnp.linspace(0, 1, 12{pen.pick('', ', dtype=jnp.float32')}).reshape(3, 4)"
    )
    pen.step("with jax.enable_x64(True):\n    " + pen.pick(
        "y = m(x)", "y = nnx.jit(lambda m, x: m(x))(m, x)", "y = nnx.grad(lambda m: total(m(x)))(m)",
        "o = nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param); o.update(m, nnx.grad(lambda m: total(m(x)))(m)); y = o",
        "y = nnx.metrics.Average(); y.update(values=x); y = y, y.compute()", "y = nnx.EMA(m, decay=0.5); y.update(m)",
        "y = nnx.fori_loop(0, 2, lambda i, v: (v[0], v[0](v[1])), (m, x))[1]", "y = nnx.scan(lambda m, x: (m, m(x)))(m, jnp.stack([x, x]))[1]",
        "y = nnx.eval_shape(lambda m, x: m(x), m, x)", "y = nnx.Rngs(0).fork(split=3)", "y = nnx.metrics.Welford(); y.update(values=x); y = y, y.compute()",
    ), "y", "m")  # fmt: skip
