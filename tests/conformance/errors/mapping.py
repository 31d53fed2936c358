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
    "the output depends on the example": Row("plait.vmap(lambda x: x, out_axes=None)(x)", ArgumentError,
        ("at +the output", "found +axis None, but a value that differs between examples")),
    "a variable depends on the example": Row(
        "plait.vmap(f, in_axes=(None, 0))(model, x)",
        ArgumentError,
        setup=COUNT + "model.calls = plait.BatchStat(jnp.zeros(4))",
        fix="in_axes=(plait.StateAxes({plait.BatchStat: 0, ...: None}), 0)",
        cure="plait.vmap(f, $)(model, x)",
        text="""
            vmap: a value without a mapped axis depends on the example
              at        model.calls
              found     axis None, but a value that differs between examples
              expected  an axis, or a value that is the same for all examples
              do        give the variable an axis, as in in_axes=(plait.StateAxes({plait.BatchStat: 0, ...: None}),
                        0); or write a value that is the same for all: jax.lax.pmean(value, axis_name)
        """,
    ),
    "a variable of another kind depends on the example": Row("plait.vmap(f, in_axes=(None, 0))(model, x)",
        ArgumentError, (r"at +model\.calls", "found +axis None, but a value that differs between examples"),
        setup=COUNT + "model.calls = plait.Cache(jnp.zeros(4))"),
    "an axis that is none": Row("plait.vmap(lambda x: x, in_axes=('rows',))(x)", ArgumentTypeError,
        ("Invalid axes: in_axes must be an int, None", r"at +in_axes\[0\]\n", "a str: 'rows'")),
    "an axis of scan that is none": Row("plait.scan(lambda c, x: (c, x), in_axes=(plait.Carry, 1.0))(1.0, x)",
        ArgumentError, (r"at +in_axes\[1\]\n", r"found +a float: 1\.0")),
    "pmap of nothing": Row("plait.pmap(lambda x: x, in_axes=None)(x)", ArgumentError,
        ("no argument has a mapped axis", "found +no array with an axis")),
    "more elements than devices": Row("plait.pmap(f)(jnp.ones((16, 2)))", ArgumentError,
        (r"at +x\n", "16 elements, 8 devices"), setup="f = lambda x: x"),
    "an axis of a word": Row("plait.vmap(lambda x, mode: x)(x, 'fast')", ArgumentError,
        (r"at +mode\n", "a str: 'fast'")),
    "an axis out of range": Row("plait.vmap(lambda x: x, in_axes=2)(x)", ArgumentError,
        (r"at +x\n", "at least 3 dimensions", r"found +an array of shape \(4, 2\)")),
    "sizes that differ": Row("plait.vmap(lambda x, y: x)(x, jnp.ones(3))", ArgumentError,
        ("at +axis 0 of x and axis 0 of y", "found +4 and 3")),
    "an output axis out of range": Row("plait.vmap(lambda x: x, out_axes=3)(x)", ArgumentError,
        ("axis 3 of the output", "at +out_axes", r"found +an output of shape \(2,\) in one call")),
    "a keyword without a position": Row("plait.vmap(lambda **options: 0)(x=x)", ArgumentTypeError,
        (r"at +x\n", "found +a keyword argument that has no position in the signature")),
    "an axis with another name": Row("plait.vmap(f, transform_metadata={plait.PARTITION_NAME: 'layers'})(named)",
        AxisNameMismatchError, (r"at +named\.w, axis 0 of a Param", "found +'rows'"),
        setup=NAMED + "f = lambda named: named.w[...]"),
    "an axis without a name": Row("plait.vmap(lambda x: x, transform_metadata={'kind': 1})(x)",
        PartitioningUnspecifiedError, r"found +\{'kind': 1\}"),
    "one variable, two axes": Row(
        "plait.vmap(f, in_axes=(0, None))(w, w)",
        SharingError,
        setup="f = lambda a, b: a[...] + b[...]; w = plait.Param(jnp.ones(3))",
        cure="plait.vmap(f, in_axes=(0, 0))(w, w)",
        text="""
            Inconsistent aliasing detected: vmap was given one variable with two different prefixes
              at        a and b (the same Param)
              found     0 at the first, None at the second
              expected  one prefix per variable, no matter how many paths lead to it
              do        use the same prefix for both, or pass the variable only once
        """,
    ),
    "a variable without an axis": Row("plait.vmap(f, in_axes=(plait.StateAxes({plait.Param: None}), 0))(model, x)",
        FilterError, (r"at +model\.calls", "found +a BatchStat"), setup="f = lambda model, x: model(x)"),
    "a prefix without a leaf": Row("plait.vmap(f, in_axes=(axes, 0), graph_updates=False)(node, x)", ArgumentError,
        (r"at +node\.bias", "found +an Embed without it"),
        setup="f = lambda node, x: node(x); node = plait.Linear(2, 2, rngs=rngs)\n"
        "axes = plait.prefix(plait.Embed(2, 2, rngs=rngs), {...: None})"),
    "a prefix without a leaf of a state": Row(
        "plait.vmap(f, in_axes=(axes, 0), graph_updates=False)(plait.state(node), x)", ArgumentError,
        (r"at +bias\n", "found +an Embed without it"),
        setup="f = lambda state, x: x @ state['kernel'][...]; node = plait.Linear(2, 2, rngs=rngs)\n"
        "axes = plait.prefix(plait.Embed(2, 2, rngs=rngs), {...: None})"),
    "filters that prefix does not cover": Row("plait.prefix(model, {plait.Param: 0})", FilterError,
        ("at +calls", "no filter matches a leaf", "found +a BatchStat")),
    "two prefix values for one variable": Row(
        "plait.prefix((plait.Dict(a=tied), plait.Dict(b=tied)), {plait.PathContains('a'): 0, ...: 1})", SharingError,
        (r"at +\[0\]\.a and \[1\]\.b", "found +0 at the first, 1 at the second"),
        setup="tied = plait.Param(jnp.ones((2, 2)))"),
    "a mapping for an array": Row("plait.vmap(lambda x: x, in_axes=plait.StateAxes({...: 0}))(x)", ArgumentError,
        ("for a plain array", r"found +StateAxes\(\{\.\.\.: 0\}\) for PyTreeDef\(\(\*,\)\)")),
    "axes for other arguments": Row("plait.vmap(lambda x: x, in_axes=(0, 0))(x)", ArgumentError,
        ("in_axes does not match the arguments", "one entry for each argument,",
        r"found +\(\*,\) \(1 where in_axes has 2 entries\)")),
    "a mapping without updates": Row(
        "plait.vmap(f, in_axes=(plait.StateAxes({...: None}), 0), graph_updates=False)(node, x)", ArgumentError,
        (r"at +in_axes\[0\]", "does not accept a mapping from filters", "found +a StateAxes"),
        setup="f = lambda node, x: node(x)"),
    "a module as a prefix": Row("plait.vmap(f, in_axes=(model, 0))(model, x)", ArgumentError,
        (r"at +in_axes\[0\]", "module or variable inside a prefix", "found +a Linear"),
        setup="f = lambda model, x: model(x)\n"
        "make = plait.vmap(lambda key: plait.Linear(2, 2, rngs=plait.Rngs(key)))\n"
        "model = make(jax.random.split(jax.random.key(0), 4))"),
    "a spec that is none": Row("shard(f, (0,), xs)", ArgumentTypeError, "an int: 0",
        setup=SHARD + "f = lambda x: x.sum()"),
    "a spec of an axis that is not mapped": Row("shard(f, P('model'), xs)", ArgumentError,
        (r"axes of the mesh \{'data': 4\}", r"found +'model' in P\('model',\)"), setup=SHARD + "f = lambda x: x"),
    "a spec that is too long": Row("shard(lambda x: x, P('data', None, None), xs)", ArgumentError,
        (r"at +x\n", "at most 2 entries", r"found +P\('data', None, None\) for an array of shape \(8, 2\)"),
        setup=SHARD),
    "an output spec that is too long": Row("shard(lambda x: x.sum(), P(), xs, P('data'))", ArgumentError,
        ("at +the output", r"found +P\('data',\) for an array of shape \(\)"), setup=SHARD),
    "an axis that the devices do not divide": Row("shard(lambda x: x, P('data'), jnp.ones((6, 2)))", ArgumentError,
        (r"axis 0.*\n +at +x\n", "multiple of 4", r"found +an array of shape \(6, 2\), and P\('data',\)"), setup=SHARD),
    "an output that differs between devices": Row("shard(lambda x: x.sum(), P('data'), xs)", ArgumentError,
        ("at +the output", r"found +P\(\), but a value that depends on 'data'"), setup=SHARD),
    "a batch size of a word": Row("plait.lax_map(lambda x: x, x, batch_size='all')", ArgumentTypeError,
        ("at +batch_size", "'all'")),
    "a map of nothing": Row("plait.lax_map(lambda x: x, ())", ArgumentError,
        ("^lax_map does not know", "no array in xs")),
    "a write by slices that run at once": Row("plait.lax_map(f, x, model, batch_size=2)", ArgumentError,
        (r"at +model\.calls", "an operand was written",
        "found +a new value for a BatchStat, from slices that run at the same time"),
        setup="def f(x, model):\n    model.calls += x.sum()"),
}  # fmt: skip
