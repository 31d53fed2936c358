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
DONATING = """
@plait.jit(donate_argnums=0)
def step(m):
    m.calls += 1
other = plait.clone(model)
other.calls.value = model.calls.value
"""

ROWS = {
    "no function": Row("plait.jit(f(x))", ArgumentTypeError, "found +a jax.Array", setup="f = lambda x: x"),
    "no function for cond": Row("plait.cond(True, x, x, x)", ArgumentTypeError, "found +a jax.Array"),
    "no function for jvp": Row("plait.jvp(x, (x,), (x,))", ArgumentTypeError, "found +a jax.Array"),
    "no function for transform_metadata": Row("plait.transform_metadata(x, partition='layers')", ArgumentTypeError,
        "found +a jax.Array"),
    "a bound method in jit": Row(
        "plait.jit(linear.__call__)",
        ArgumentError,
        setup=LAYER,
        fix="plait.jit(Linear.__call__)(linear, x)",
        text="""
            jit does not support bound methods, but got a bound method of a module
              at        a Linear
              found     the method '__call__' bound to a Linear
              expected  a function that takes the module as an argument
              do        decorate the method in the class (@plait.jit), or call plait.jit(Linear.__call__)(linear, x)
        """,
    ),
    "a bound method in eval_shape": Row("plait.eval_shape(linear.__call__, x)", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a bound method in vjp": Row("plait.vjp(linear.__call__, x)", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a bound method in jvp": Row("plait.jvp(linear.__call__, (x,), (x,))", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a bound method in jit_partial": Row("plait.jit_partial(linear.__call__)", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a bound method in cond": Row("plait.cond(True, linear.__call__, abs, x)", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a bound method in lax_map": Row("plait.lax_map(linear.__call__, x)", ArgumentError,
        ("does not support bound methods", "found +the method '__call__' bound to a Linear"), setup=LAYER),
    "a captured model": Row("plait.jit(f)(x)", CapturedModelWarning, ("captures model", "later changes do not affect"),
        setup="f = lambda x: model(x)"),
    "a captured list is changed": Row(
        "plait.jit(g)(x)",
        TraceContextError,
        setup="g = lambda x: model.layers.append(model.layers[0]); f = lambda model, x: g(x)",
        fix="plait.jit(f)(model, x)",
        cure="f = lambda model, x: model.layers.append(model.layers[0]); $",
        text="""
            Cannot mutate list: cannot change the contents of a list from a different trace than its own
              at        model.layers (a list)
              found     the current trace is a function under jit (<lambda>)
              expected  the top level (no JAX transform), where the list was created
              do        make the model an argument of the function, and use plait's own transform, which keeps the
                        change: plait.jit(f)(model, x)
        """,
    ),
    "a captured model is returned": Row("plait.jit(lambda x: model)(x)", ArgumentError,
        ("captured from outside", "at +(a Two|model)", r"found +a Two of the top level \(no JAX transform\)")),
    "a compiled function for another shape": Row("g(model, jnp.ones(3))", ArgumentTypeError,
        (r"at +x\n", r"found +float32\[3\] where it was float32\[2\]"),
        setup="f = lambda model, x: x * 2; g = plait.jit(f).lower(model, jnp.ones(2)).compile()"),
    "a donated buffer inside a value": Row("plait.jit(f, donate=True)(model)", ArgumentError,
        (r"at +model\.\w+ and model\.\w+", "two variables share one buffer", "found +the same array in both"),
        setup="model.w = plait.Param(jnp.zeros(3)); model.v = plait.Variable({'a': model.w.value})\n"
        "def f(model):\n"
        "    model.w[...] += 1"),
    "a donated buffer as an argument": Row("plait.jit(f, donate=True)(model, model.w.value)", ArgumentError,
        (r"at +model\.w and y", "found +the same array in both"),
        setup="model.w = plait.Param(jnp.zeros(3))\ndef f(model, y):\n    model.w[...] += y"),
    "a module as a static argument": Row("plait.jit(lambda model, x: x, static_argnums=0)(model, x)", ArgumentError,
        ("at +argument model", "modules and variables", "a Two")),
    "a list as a static argument": Row("plait.jit(lambda x, sizes: x, static_argnums=1)(x, [1, 2])", ArgumentError,
        ("at +argument sizes", "a list")),
    "a word as an argument": Row(
        "plait.jit(f)(x, 'fast')",
        ArgumentTypeError,
        setup="def f(x, mode):\n    return x",
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(x, 'fast')",
        text="""
            jit: f was called with an argument that is not an array
              at        argument mode
              found     a str: 'fast'
              expected  arrays, numbers, modules, and containers of them
              do        make it static: plait.jit(f, static_argnames='mode')
        """,
    ),
    "a word in an argument": Row("plait.jit(f)({'x': x, 'mode': 'fast'})", ArgumentTypeError,
        (r"at +argument batch\.mode", "found +a str: 'fast'"), setup="def f(batch):\n    return batch['x']"),
    "an argument that the function does not have": Row("plait.jit(lambda x: x, static_argnames='mode')", ArgumentError,
        "'mode', for <lambda>"),
    "a donated model": Row(
        "step(model); plait.jit(lambda m: m.calls + x)(other)",
        DonatedArrayError,
        setup=DONATING,
        fix="plait.clone(model, arrays=True)",
        cure="step($); plait.jit(lambda m: m.calls + x)(other)",
        text="""
            Array has been deleted: the buffer of a variable was donated to an earlier call
              at        m.calls
              found     a deleted array
              expected  an array
              do        use the object that the donating call updated, or donate plait.clone(model, arrays=True)
        """,
    ),
    "a donated variable in an operation": Row("step(model); other.calls + 1", DonatedArrayError,
        ("Array has been deleted", "donated to an earlier call", r"at +other\.calls", "found +a deleted array"),
        setup=DONATING),
    "a copy of a donated variable": Row("step(model); plait.clone(other, arrays=True)", DonatedArrayError,
        "found +a deleted array", setup=DONATING),
    "a part of a variable without values": Row("plait.eval_shape(lambda: model).layers[0].kernel[0]", ArgumentError,
        r"found +a ShapeDtypeStruct, float32\[2, 2\]"),
    "a stream without a key": Row("plait.eval_shape(lambda: model).drop(x)", ArgumentError,
        (r"at +rngs\.key", "found +a ShapeDtypeStruct")),
    "one buffer twice": Row("step(model)", ArgumentError,
        (r"at +m\.layers\[0\]\.bias and m\.layers\[1\]\.bias", "found +the same array in both"),
        setup="@plait.jit(donate_argnums=0)\n"
        "def step(m):\n"
        "    for layer in m.layers:\n"
        "        layer.bias += 1\n"
        "variable = model.layers[1].bias\n"
        "variable.value = model.layers[0].bias.value"),
    "a tracer that was left behind": Row("plait.jit(lambda m: m.leak[...])(model)", TraceContextError,
        (r"at +\w+\.leak", "found +a tracer, stored by a function that changed a captured container while"),
        setup="def leak(value):\n"
        "    model.leak = plait.Variable(x)\n"
        "    model.leak._cell.raw = value\n"
        "kept = []\n"
        "jax.jit(lambda value: kept.append(value))(x)\n"
        "leak(kept[0])"),
    "a word in a variable": Row("plait.jit(f)(model, x)", ArgumentError, (r"at +model\.name", "a str"),
        setup="f = lambda model, x: model(x); model.name = plait.Variable('fast')"),
    "a structure changed behind the hooks": Row(
        "model.__dict__['extra'] = plait.Param(x); check_cells(walk.graphdefs, walk.cells, (model,))", DispatchError,
        ("a Two", "found +a change of structure that did not advance the structure clock"),
        setup="from plait.core.graph.walks import find_walk\n"
        "from plait.transforms.jit.function import check_cells\n"
        "walk = find_walk((model,))"),
    "a compiled function, called with another structure": Row("compiled(model.layers[0], x)", ArgumentError,
        (r"at +m\n", r"found +plait\.nn\.linear\.Linear, object 0\n"),
        setup="compiled = plait.jit(lambda m, x: m(x)).lower(model, x).compile()"),
    "shardings for a keyword": Row("plait.jit(lambda **kwargs: 0, in_shardings=None, out_shardings=named())(x=xs)",
        ArgumentError, (r"at +x\n", r"found +the keyword arguments \['x'\]"), setup=MESH),
    "specs without a mesh": Row("plait.jit(f, in_shardings=P('data'))(xs)", ArgumentError,
        (r"at +x\n", "no mesh is set", r"found +P\('data',\), and no mesh"), setup=MESH),
    "an array in another sharding": Row("plait.jit(f, in_shardings=sharding)(value)", ArgumentError,
        (r"at +x\n", r"found +NamedSharding\(mesh=Mesh\('data': 4, 'model': 2, axis_types=\(Auto, Auto\)"),
        setup=MESH + "sharding = named('data'); value = jax.device_put(xs, named(None, 'model'))"),
    "a spec of an unknown axis": Row("with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('rows'))(xs)",
        ArgumentError, (r"at +x\n", r"found +'rows' in P\('rows',\)"), setup=MESH),
    "a mesh axis twice": Row("with jax.set_mesh(mesh): plait.jit(f, in_shardings=P('model', 'model'))(xs)",
        ArgumentError,
        (r"at +x\n", r"found +'model' twice in P\('model', 'model'\), with the mesh \{'data': 4, 'model"), setup=MESH),
    "a spec that is too long": Row("plait.jit(f, in_shardings=named('data', None, None))(xs)", ArgumentError,
        (r"at +x\n", "at most 2 entries",
        r"found +P\('data', None, None\) for an array of shape \(8, 2\)\n"),
        setup=MESH),
    "an axis that the devices do not divide": Row("plait.jit(f, in_shardings=named('data'))(xs[:6])", ArgumentError,
        (r"at +x\n", "multiple of 4",
        r"found +an array of shape \(6, 2\), and P\('data',\), with the mesh \{'data': 4, 'm"),
        setup=MESH),
    "cached_partial in tree mode": Row("plait.cached_partial(jitted, model, graph=False)", ArgumentError,
        "found +graph=False", setup="f = lambda model, x: model(x); jitted = plait.jit(f)"),
    "tree states without a graphdef": Row("plait.NodeStates.from_states(state).graphdef", GraphError, "states alone",
        setup="graphdef, state = plait.split(model)"),
    "tree states with two states": Row("plait.NodeStates.from_split(*plait.split(model, plait.Param, ...)).state",
        GraphError, "2 states"),
    "filters that do not cover, inside a transform": Row("plait.jit(lambda m: plait.split(m, plait.Param)[1])(model)",
        FilterError, (r"at +calls \(BatchStat\)", r"found +3 of 7 leaves not matched by plait\.Param")),
}  # fmt: skip
