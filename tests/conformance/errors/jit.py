"""Mistakes with ``jit`` and its relatives, and those that every transform answers: functions, arguments, captures."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    CapturedModelWarning,
    DispatchError,
    DonatedArrayError,
    FilterError,
    GraphError,
    TraceContextError,
)

from .rows import Row

LAYER = "linear = plait.Linear(2, 2, rngs=rngs); Linear = plait.Linear\n"
MESH = (
    "mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)\n"
    "f = lambda x: x * 2; xs = jnp.ones((8, 2))\n"
    "named = lambda *names: jax.sharding.NamedSharding(mesh, P(*names))\n"
)


def of_a_bound_method(transform: str, cure: str, fix: str) -> Row:
    return Row(
        f"plait.{transform}",
        ArgumentError,
        ("does not support bound methods", "a Linear"),
        fix=fix,
        setup=LAYER,
        cure=cure,
    )


DONATING = """
@plait.jit(donate_argnums=0)
def step(m):
    m.calls += 1
other = plait.clone(model)
other.calls.value = model.calls.value
"""

ROWS = {
    "no function": Row(
        "plait.jit(f(x))",
        ArgumentTypeError,
        "found +a jax.Array",
        setup="f = lambda x: x",
        fix="plait.jit(f)(x)",
    ),
    "no function for cond": Row(
        "plait.cond(True, x, x, x)", ArgumentTypeError, "found +a jax.Array", "plait.cond(True, abs, abs, x)"
    ),
    "no function for jvp": Row(
        "plait.jvp(x, (x,), (x,))",
        ArgumentTypeError,
        "found +a jax.Array",
        setup="f = lambda x: x; x_tangent = x",
        fix="plait.jvp(f, primals=(x,), tangents=(x_tangent,))",
    ),
    "no function for transform_metadata": Row(
        "plait.transform_metadata(x, partition='layers')",
        ArgumentTypeError,
        "found +a jax.Array",
        setup="f = lambda x: x",
        fix="plait.transform_metadata(f, partition='layers')",
    ),
    "a bound method in jit": of_a_bound_method(
        "jit(linear.__call__)", "$", fix="plait.jit(Linear.__call__)(linear, x)"
    ),
    "a bound method in eval_shape": of_a_bound_method(
        "eval_shape(linear.__call__, x)", "$", fix="plait.eval_shape(Linear.__call__, linear, x)"
    ),
    "a bound method in vjp": of_a_bound_method(
        "vjp(linear.__call__, x)", "$", fix="plait.vjp(Linear.__call__, linear, x)"
    ),
    "a bound method in jvp": of_a_bound_method(
        "jvp(linear.__call__, (x,), (x,))",
        "linear_tangent, x_tangent = linear, x; $",
        fix="plait.jvp(Linear.__call__, primals=(linear, x,), tangents=(linear_tangent, x_tangent,))",
    ),
    "a bound method in jit_partial": of_a_bound_method(
        "jit_partial(linear.__call__)", "$", fix="plait.jit_partial(Linear.__call__, linear)(x)"
    ),
    "a bound method in cond": of_a_bound_method(
        "cond(True, linear.__call__, abs, x)",
        "plait.cond(True, $, lambda linear, x: x, linear, x)",
        fix="lambda linear, x: linear.__call__(x)",
    ),
    "a bound method in lax_map": of_a_bound_method(
        "lax_map(linear.__call__, x)",
        "xs = x; $",
        fix="plait.lax_map(lambda x, linear: linear.__call__(x), xs, linear)",
    ),
    "a captured model": Row(
        "plait.jit(f)(x)",
        CapturedModelWarning,
        ("captures model", "later changes do not affect"),
        "plait.jit(lambda model, x: model(x))(model, x)",
        setup="f = lambda x: model(x)",
    ),
    "a captured list is changed": Row(
        "plait.jit(g)(x)",
        TraceContextError,
        (r"at +model\.layers \(a list\)", "change the contents of a list"),
        setup="g = lambda x: model.layers.append(model.layers[0]); f = lambda model, x: g(x)",
        fix="plait.jit(f)(model, x)",
        cure="f = lambda model, x: model.layers.append(model.layers[0]); $",
    ),
    "a captured model is returned": Row(
        "plait.jit(lambda x: model)(x)",
        ArgumentError,
        ("captured from outside", r"at +(a Two|model)"),
        setup="f = lambda model, x: model",
        fix="plait.jit(f)(model, x)",
    ),
    "a compiled function for another shape": Row(
        "g(model, jnp.ones(3))",
        ArgumentTypeError,
        (r"at +x\n", r"found +float32\[3\] where it was float32\[2\]"),
        "plait.jit(f)(model, jnp.ones(3))",
        setup="f = lambda model, x: x * 2; g = plait.jit(f).lower(model, jnp.ones(2)).compile()",
        fix="call the jitted function",
    ),
    "a donated buffer inside a value": Row(
        "plait.jit(f, donate=True)(model)",
        ArgumentError,
        (r"at +model\.\w+ and model\.\w+", "two variables share one buffer"),
        "plait.jit(f, donate=True)(plait.clone(model, arrays=True))",
        setup="model.w = plait.Param(jnp.zeros(3)); model.v = plait.Variable({'a': model.w.value})\n"
        "def f(model):\n    model.w[...] += 1\n    return model.v['a'].sum()",
        fix="plait.clone(model, arrays=True)",
    ),
    "a donated buffer as an argument": Row(
        "plait.jit(f, donate=True)(model, model.w.value)",
        ArgumentError,
        (r"at +model\.w and y", "a variable and an argument share one buffer"),
        "plait.jit(f, donate=True)(model, jnp.copy(model.w.value))",
        setup="model.w = plait.Param(jnp.zeros(3))\ndef f(model, y):\n    model.w[...] += y",
        fix="copy one of them first",
    ),
    "a module as a static argument": Row(
        "plait.jit(lambda model, x: x, static_argnums=0)(model, x)",
        ArgumentError,
        (r"at +argument model", "modules and variables", "a Two"),
        "plait.jit(lambda model, x: x)(model, x)",
        fix="do not mark the argument as static",
    ),
    "a list as a static argument": Row(
        "plait.jit(lambda x, sizes: x, static_argnums=1)(x, [1, 2])",
        ArgumentError,
        (r"at +argument sizes", "a list"),
        "plait.jit(lambda x, sizes: x, static_argnums=1)(x, (1, 2))",
        fix="frozen=True",
    ),
    "a word as an argument": Row(
        "plait.jit(f)(x, 'fast')",
        ArgumentTypeError,
        (r"at +argument mode", "'fast'"),
        setup="def f(x, mode):\n    return x",
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(x, 'fast')",
    ),
    "a word in an argument": Row(
        "plait.jit(f)({'x': x, 'mode': 'fast'})",
        ArgumentTypeError,
        r"at +argument batch\.mode",
        "plait.jit(f)({'x': x})",
        setup="def f(batch):\n    return batch['x']",
    ),
    "an argument that the function does not have": Row(
        "plait.jit(lambda x: x, static_argnames='mode')",
        ArgumentError,
        "'mode', for <lambda>",
        "plait.jit(lambda x, mode: x, static_argnames='mode')(x, 'fast')",
    ),
    "a donated model": Row(
        "step(model); plait.jit(lambda m: m.calls + x)(other)",
        DonatedArrayError,
        (r"at +m\.calls", "donated to an earlier call"),
        setup=DONATING,
        fix="plait.clone(model, arrays=True)",
        cure="step($); plait.jit(lambda m: m.calls + x)(other)",
    ),
    "a donated variable in an operation": Row(
        "step(model); other.calls + 1",
        DonatedArrayError,
        ("Array has been deleted", "donated to an earlier call"),
        setup=DONATING,
        fix="plait.clone(model, arrays=True)",
        cure="step($); other.calls + 1",
    ),
    "one buffer twice": Row(
        "step(model)",
        ArgumentError,
        r"at +m\.layers\[0\]\.bias and m\.layers\[1\]\.bias",
        setup="""
            @plait.jit(donate_argnums=0)
            def step(m):
                for layer in m.layers:
                    layer.bias += 1
            variable = model.layers[1].bias
            variable.value = model.layers[0].bias.value
        """,
        fix="variable.value = jnp.copy(variable.value)",
        cure="$; step(model)",
    ),
    "a tracer that was left behind": Row(
        "plait.jit(lambda m: m.leak[...])(model)",
        TraceContextError,
        r"at +\w+\.leak",
        "del model.leak; plait.jit(add)(model); plait.jit(lambda m: m.leak[...])(model)",
        setup="""
            def add(m):
                m.leak = plait.Variable(jnp.ones(2) * x[0])
            def leak(value):
                model.leak = plait.Variable(x)
                model.leak._cell.raw = value
            kept = []
            jax.jit(lambda value: kept.append(value))(x)
            leak(kept[0])
        """,
    ),
    "a word in a variable": Row(
        "plait.jit(f)(model, x)",
        ArgumentError,
        (r"at +model\.name", "a str"),
        setup="f = lambda model, x: model(x); model.name = plait.Variable('fast'); value = 'fast'",
        fix="model.name = value",
        cure="$; plait.jit(f)(model, x)",
    ),
    "a structure changed behind the hooks": Row(
        "model.__dict__['extra'] = plait.Param(x); check_cells(walk.graphdefs, walk.cells, (model,))",
        DispatchError,
        "a Two",
        "model.extra = plait.Param(x); walk = find_walk((model,)); check_cells(walk.graphdefs, walk.cells, (model,))",
        setup="from plait.core.graph.walks import find_walk\n"
        "from plait.transforms.jit.function import check_cells\nwalk = find_walk((model,))",
    ),
    "a compiled function, called with another structure": Row(
        "compiled(model.layers[0], x)",
        ArgumentError,
        "differ from those that it was compiled for",
        setup="compiled = plait.jit(lambda m, x: m(x)).lower(model, x).compile(); before, now = model, model.layers[0]",
        fix="plait.diff(plait.graphdef(before), plait.graphdef(now))",
        cure="print($); plait.jit(lambda m, x: m(x)).lower(now, x).compile()(now, x)",
    ),
    "shardings for a keyword": Row(
        "plait.jit(lambda **kwargs: 0, in_shardings=None, out_shardings=named())(x=xs)",
        ArgumentError,
        (r"at +x\n", "keyword"),
        "plait.jit(lambda x: 0 * x, in_shardings=None, out_shardings=named())(xs)",
        setup=MESH,
    ),
    "specs without a mesh": Row(
        "plait.jit(f, in_shardings=P('data'))(xs)",
        ArgumentError,
        (r"at +x\n", "no mesh is set"),
        setup=MESH,
        fix="jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data',))",
        cure="plait.jit(f, in_shardings=$)(xs)\nwith jax.set_mesh(mesh): plait.jit(f, in_shardings=P('data'))(xs)",
    ),
    "an array in another sharding": Row(
        "plait.jit(f, in_shardings=sharding)(value)",
        ArgumentError,
        (r"at +x\n", "differs from in_shardings"),
        setup=MESH + "sharding = named('data'); value = jax.device_put(xs, named(None, 'model'))",
        fix="jax.device_put(value, sharding)",
        cure="plait.jit(f, in_shardings=sharding)($)",
    ),
    "a spec of an unknown axis": Row(
        "with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('rows'))(xs)",
        ArgumentError,
        (r"at +x\n", "'rows'"),
        setup=MESH,
        fix="with jax.set_mesh(mesh): ...",
        cure="mesh = jax.make_mesh((8,), ('rows',), axis_types=(jax.sharding.AxisType.Auto,))\n$\n"
        "with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('rows'))(xs)",
    ),
    "a mesh axis twice": Row(
        "with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('model', 'model'))(xs)",
        ArgumentError,
        (r"at +x\n", "'model' twice"),
        "with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('data', 'model'))(xs)",
        setup=MESH,
    ),
    "a spec that is too long": Row(
        "plait.jit(f, in_shardings=named('data', None, None))(xs)",
        ArgumentError,
        (r"at +x\n", "at most 2 entries"),
        setup=MESH + "filter, spec = plait.PathContains('kernel'), named('model')",
        fix="plait.StateSharding({filter: spec, ...: None})",
        cure="plait.jit(lambda model: model(xs), in_shardings=$)(model)",
    ),
    "an axis that the devices do not divide": Row(
        "plait.jit(f, in_shardings=named('data'))(xs[:6])",
        ArgumentError,
        (r"at +x\n", "multiple of 4"),
        "plait.jit(f, in_shardings=named('data'))(jnp.pad(xs[:6], ((0, 2), (0, 0))))",
        setup=MESH,
    ),
    "cached_partial of no function": Row(
        "plait.cached_partial(x, model)",
        ArgumentTypeError,
        "found +a jax.Array",
        setup="f = lambda model, x: model(x)",
        fix="plait.cached_partial(plait.jit(f), model)",
        cure="$(x)",
    ),
    "cached_partial in tree mode": Row(
        "plait.cached_partial(jitted, model, graph=False)",
        ArgumentError,
        "found +graph=False",
        setup="f = lambda model, x: model(x); jitted = plait.jit(f)",
        fix="plait.cached_partial(jitted, model, graph=True, graph_updates=True)",
        cure="$(x); plait.jit_partial(f, model)(x)",
    ),
    "jit_partial with updates": Row(
        "plait.jit_partial(f, model, graph_updates=True)",
        ArgumentError,
        "propagates values only",
        setup="f = lambda model, x: model(x)",
        fix="plait.cached_partial(plait.jit(f), model)",
        cure="$(x)",
    ),
    "jit_partial of two models": Row(
        "plait.jit_partial(f, model)([other])",
        ArgumentError,
        (r"at +argument others\[0\]", "a Two"),
        setup="f = lambda model, others: x; other = Two(rngs)",
        fix="plait.jit_partial(f, model, other)",
        cure="$()",
    ),
    "tree states without a graphdef": Row(
        "plait.NodeStates.from_states(state).graphdef",
        GraphError,
        "states alone",
        setup="graphdef, state = plait.split(model)",
        fix="plait.NodeStates.from_split(graphdef, state)",
        cure="$.graphdef",
    ),
    "tree states with two states": Row(
        "plait.NodeStates.from_split(*plait.split(model, plait.Param, ...)).state",
        GraphError,
        "2 states",
        "plait.NodeStates.from_split(*plait.split(model, plait.Param, ...)).states",
    ),
    "filters that do not cover, inside a transform": Row(
        "plait.jit(lambda m: plait.split(m, plait.Param)[1])(model)",
        FilterError,
        (r"at +calls \(BatchStat\)", "plait.Param"),
        fix="plait.split(model, plait.Param, ...)",
    ),
}
