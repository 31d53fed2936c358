"""Mistakes with ``vmap``, ``pmap``, ``shard_map`` and ``lax_map``: axes, specs and prefixes."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisNameMismatchError,
    FilterError,
    PartitioningUnspecifiedError,
    SharingError,
)

from .rows import Row

COUNT = """
def f(model, x):
    model.calls += x.sum()
    return model(x)
"""
NAMED = """
class Named(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.ones((3, 2)), out_sharding=("rows", None))
named = Named()
"""
MESH = "mesh = jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); xs = jnp.ones((8, 2))\n"
SHARD = (
    MESH
    + """
def shard(f, specs, x, out=P(), mesh=mesh, **options):
    return plait.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, **options)(x)
"""
)

ROWS = {
    "the output depends on the example": Row(
        "plait.vmap(lambda x: x, out_axes=None)(x)",
        ArgumentError,
        (r"at +the output", "differs between examples"),
        fix="jax.lax.pmean(value, axis_name)",
        setup="axis_name = 'batch'",
        cure="plait.vmap(lambda value: $, out_axes=None, axis_name=axis_name)(x)",
    ),
    "a variable depends on the example": Row(
        "plait.vmap(f, in_axes=(None, 0))(model, x)",
        ArgumentError,
        r"at +model\.calls",
        setup=COUNT + "model.calls = plait.BatchStat(jnp.zeros(4))",
        fix="in_axes=(plait.StateAxes({plait.BatchStat: 0, ...: None}), 0)",
        cure="plait.vmap(f, $)(model, x)",
    ),
    "a variable of another kind depends on the example": Row(
        "plait.vmap(f, in_axes=(None, 0))(model, x)",
        ArgumentError,
        r"at +model\.calls",
        setup=COUNT + "model.calls = plait.Cache(jnp.zeros(4))",
        fix="in_axes=(plait.StateAxes({plait.Cache: 0, ...: None}), 0)",
        cure="plait.vmap(f, $)(model, x)",
    ),
    "an axis that is none": Row(
        "plait.vmap(lambda x: x, in_axes=('rows',))(x)",
        ArgumentTypeError,
        (r"Invalid axes: in_axes must be an int, None", r"at +in_axes\[0\]\n", "a str: 'rows'"),
        fix="in_axes=0",
        cure="plait.vmap(lambda x: x, $)(x)",
    ),
    "an axis of scan that is none": Row(
        "plait.scan(lambda c, x: (c, x), in_axes=(plait.Carry, 1.0))(1.0, x)",
        ArgumentError,
        (r"Invalid axes: in_axes must be an int, None, plait\.Carry", r"at +in_axes\[1\]\n", "a float"),
        fix="in_axes=0",
        cure="plait.scan(lambda x: x, $, out_axes=0)(x)",
    ),
    "pmap of nothing": Row(
        "plait.pmap(lambda x: x, in_axes=None)(x)",
        ArgumentError,
        "no argument has a mapped axis",
        fix="jax.random.split(key, jax.local_device_count())",
        cure="key = jax.random.key(0); plait.pmap(lambda key: jax.random.normal(key))($)",
    ),
    "more elements than devices": Row(
        "plait.pmap(f)(jnp.ones((16, 2)))",
        ArgumentError,
        (r"at +x\n", "16 elements, 8 devices"),
        setup="f = lambda x: x",
        fix="plait.pmap(plait.vmap(f))",
        cure="$(jnp.ones((8, 2, 2)))",
    ),
    "an axis of a word": Row(
        "plait.vmap(lambda x, mode: x)(x, 'fast')",
        ArgumentError,
        (r"at +mode\n", "a str: 'fast'"),
        "plait.vmap(lambda x, mode: x, in_axes=(0, None))(x, 'fast')",
    ),
    "an axis out of range": Row(
        "plait.vmap(lambda x: x, in_axes=2)(x)",
        ArgumentError,
        (r"at +x\n", "at least 3 dimensions"),
        "plait.vmap(lambda x: x, in_axes=1)(x)",
    ),
    "sizes that differ": Row(
        "plait.vmap(lambda x, y: x)(x, jnp.ones(3))",
        ArgumentError,
        r"at +axis 0 of x and axis 0 of y",
        "plait.vmap(lambda x, y: x, in_axes=(0, None))(x, jnp.ones(3))",
    ),
    "an output axis out of range": Row(
        "plait.vmap(lambda x: x, out_axes=3)(x)",
        ArgumentError,
        ("axis 3 of the output", "shape \\(2,\\)"),
        "plait.vmap(lambda x: x, out_axes=0)(x)",
    ),
    "a keyword without a position": Row(
        "plait.vmap(lambda **options: 0)(x=x)",
        ArgumentTypeError,
        (r"at +x\n", "keyword"),
        "plait.vmap(lambda x: 0)(x)",
    ),
    "an axis with another name": Row(
        "plait.vmap(f, transform_metadata={plait.PARTITION_NAME: 'layers'})(named)",
        AxisNameMismatchError,
        (r"at +named\.w, axis 0 of a Param", "'rows'"),
        setup=NAMED + "f = lambda named: named.w[...]",
        fix="{plait.PARTITION_NAME: 'rows'}",
        cure="plait.vmap(f, transform_metadata=$)(named)",
    ),
    "an axis without a name": Row(
        "plait.vmap(lambda x: x, transform_metadata={'kind': 1})(x)",
        PartitioningUnspecifiedError,
        "'kind'",
        fix="transform_metadata={plait.PARTITION_NAME: 'layers'}",
        cure="plait.vmap(lambda x: x, $)(x)",
    ),
    "one variable, two axes": Row(
        "plait.vmap(f, in_axes=(0, None))(w, w)",
        SharingError,
        (r"at +a and b \(the same Param\)", "0 at the first, None at the second"),
        "plait.vmap(f, in_axes=(0, 0))(w, w)",
        setup="f = lambda a, b: a[...] + b[...]; w = plait.Param(jnp.ones(3))",
    ),
    "a variable without an axis": Row(
        "plait.vmap(f, in_axes=(plait.StateAxes({plait.Param: None}), 0))(model, x)",
        FilterError,
        (r"at +model\.calls", "no filter of a StateAxes", "a BatchStat"),
        setup="f = lambda model, x: model(x)",
        fix="plait.StateAxes({plait.Param: None, ...: None})",
        cure="plait.vmap(f, in_axes=($, 0))(model, x)",
    ),
    "a prefix without a leaf": Row(
        "plait.vmap(f, in_axes=(axes, 0), graph_updates=False)(node, x)",
        ArgumentError,
        (r"at +node\.bias", "a prefix has no value for a leaf"),
        setup="f = lambda node, x: node(x); node = plait.Linear(2, 2, rngs=rngs)\n"
        "axes = plait.prefix(plait.Embed(2, 2, rngs=rngs), {...: None})",
        fix="plait.prefix(node, {...: None})",
        cure="plait.vmap(f, in_axes=($, 0), graph_updates=False)(node, x)",
    ),
    "a prefix without a leaf of a state": Row(
        "plait.vmap(f, in_axes=(axes, 0), graph_updates=False)(plait.state(node), x)",
        ArgumentError,
        (r"at +bias\n", "a prefix has no value for a leaf"),
        setup="f = lambda state, x: x @ state['kernel'][...]; node = plait.Linear(2, 2, rngs=rngs)\n"
        "axes = plait.prefix(plait.Embed(2, 2, rngs=rngs), {...: None})",
        fix="plait.prefix(node, {...: None})",
        cure="plait.vmap(f, in_axes=($, 0), graph_updates=False)(plait.state(node), x)",
    ),
    "filters that prefix does not cover": Row(
        "plait.prefix(model, {plait.Param: 0})",
        FilterError,
        (r"at +calls", "no filter matches a leaf"),
        fix="{plait.Param: 0, ...: None}",
        cure="plait.prefix(model, $)",
    ),
    "two prefix values for one variable": Row(
        "plait.prefix((plait.Dict(a=tied), plait.Dict(b=tied)), {plait.PathContains('a'): 0, ...: 1})",
        SharingError,
        (r"at +\[0\]\.a and \[1\]\.b", "0 at the first, 1 at the second"),
        "plait.prefix((plait.Dict(a=tied), plait.Dict(b=tied)), {...: 0})",
        setup="tied = plait.Param(jnp.ones((2, 2)))",
    ),
    "a mapping for an array": Row(
        "plait.vmap(lambda x: x, in_axes=plait.StateAxes({...: 0}))(x)",
        ArgumentError,
        "for a plain array",
        "plait.vmap(lambda x: x, in_axes=0)(x)",
    ),
    "axes for other arguments": Row(
        "plait.vmap(lambda x: x, in_axes=(0, 0))(x)",
        ArgumentError,
        ("in_axes does not match the arguments", "1 where in_axes has 2 entries", "one entry for each argument,"),
        "plait.vmap(lambda x: x, in_axes=(0,))(x)",
    ),
    "a mapping without updates": Row(
        "plait.vmap(f, in_axes=(plait.StateAxes({...: None}), 0), graph_updates=False)(node, x)",
        ArgumentError,
        (r"at +in_axes\[0\]", "does not accept a mapping from filters"),
        setup="f = lambda node, x: node(x); node = model",
        fix="plait.prefix(node, {...: None})",
        cure="plait.vmap(f, in_axes=($, 0), graph_updates=False)(node, x)",
    ),
    "a module as a prefix": Row(
        "plait.vmap(f, in_axes=(model, 0))(model, x)",
        ArgumentError,
        (r"at +in_axes\[0\]", "module or variable inside a prefix"),
        setup="f = lambda model, x: model(x)\n"
        "make = plait.vmap(lambda key: plait.Linear(2, 2, rngs=plait.Rngs(key)))\n"
        "model = make(jax.random.split(jax.random.key(0), 4))",
        fix="plait.StateAxes({plait.Param: 0, ...: None})",
        cure="plait.vmap(f, in_axes=($, 0))(model, x)",
    ),
    "a spec that is none": Row(
        "shard(f, (0,), xs)",
        ArgumentTypeError,
        "an int: 0",
        setup=SHARD + "f = lambda x: x.sum()",
        fix="jax.sharding.PartitionSpec('data')",
        cure="shard(lambda x: x, ($,), xs, $)",
    ),
    "a spec of an axis that is not mapped": Row(
        "shard(f, P('model'), xs)",
        ArgumentError,
        ("'model' in P", "axes of \\['data'\\]"),
        "shard(f, P('data'), xs, P('data'))",
        setup=SHARD + "f = lambda x: x",
    ),
    "a spec that is too long": Row(
        "shard(lambda x: x, P('data', None, None), xs)",
        ArgumentError,
        (r"at +x\n", "at most 2 entries"),
        setup=SHARD + "filter, spec = plait.Param, P('data')\nf = lambda model: model.kernel[...]",
        fix="plait.StateSharding({filter: spec, ...: None})",
        cure="node = plait.Linear(8, 4, rngs=rngs); shard(f, ($,), node, P('data'))",
    ),
    "an output spec that is too long": Row(
        "shard(lambda x: x.sum(), P(), xs, P('data'))",
        ArgumentError,
        r"at +the output",
        setup=SHARD + "filter, spec = plait.Param, P('data')",
        fix="plait.StateSharding({filter: spec, ...: None})",
        cure="$; shard(lambda x: x.sum(), P(), xs, P())",
    ),
    "an axis that the devices do not divide": Row(
        "shard(lambda x: x, P('data'), jnp.ones((6, 2)))",
        ArgumentError,
        (r"at +x\n", "multiple of 4"),
        "shard(lambda x: x, P('data'), jnp.pad(jnp.ones((6, 2)), ((0, 2), (0, 0))), P('data'))",
        setup=SHARD,
    ),
    "an output that differs between devices": Row(
        "shard(lambda x: x.sum(), P('data'), xs)",
        ArgumentError,
        (r"at +the output", "'data'"),
        setup=SHARD,
        fix="jax.lax.pmean(value, 'data')",
        cure="def f(x):\n    value = x.sum()\n    return $\nshard(f, P('data'), xs)",
    ),
    "a batch size of a word": Row(
        "plait.lax_map(lambda x: x, x, batch_size='all')",
        ArgumentTypeError,
        (r"at +batch_size", "'all'"),
        fix="batch_size=32",
        cure="plait.lax_map(lambda x: x, x, $)",
    ),
    "a map of nothing": Row(
        "plait.lax_map(lambda x: x, ())",
        ArgumentError,
        "no array in xs",
        fix="jnp.arange(n)",
        cure="n = 3; plait.lax_map(lambda i: i, $)",
    ),
    "a write by slices that run at once": Row(
        "plait.lax_map(f, x, model, batch_size=2)",
        ArgumentError,
        (r"at +model\.calls", "an operand was written"),
        "plait.lax_map(f, x, model)",
        setup="def f(x, model):\n    model.calls += x.sum()\n    return x",
    ),
}
