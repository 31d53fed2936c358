"""Meshes: axis names of parameters, specs and shardings, layouts through ``jit`` and ``shard_map``."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program

NAMES = (
    "('a', 'b')",
    "('a', None)",
    "(None, 'b')",
    "('b',)",
    "(('a', 'b'), None)",
    "('data', 'model')",
    "P('a')",
    "None",
)


@st.composite
def sharding_programs(draw: Draw) -> Program:
    pen = Pen(draw, "sharding")
    explicit = pen.chance(20)
    axis_type = "AxisType.Explicit" if explicit else "AxisType.Auto"
    pen.define("""\
class Net(nnx.Module):
    def __init__(self, rngs, up, down):
        self.up = nnx.Linear(4, 8, kernel_metadata={'out_sharding': up}, rngs=rngs)
        self.down = nnx.Linear(8, 4, kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), down), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.count = Count(jnp.array(0))

    def __call__(self, x):
        self.count[...] += 1
        return self.norm(self.down(nnx.relu(self.up(x))))""")
    pen.step(f"mesh = jax.make_mesh((2, 2), ('a', 'b'), axis_types=({axis_type},) * 2, devices=jax.devices()[:4])")
    make = f"Net(nnx.Rngs(0), {pen.pick(*NAMES[:5])}, {pen.pick(*NAMES[:3])})"
    with_rules = pen.chance(15) and "(('a'" not in make
    if with_rules:
        make = make.replace("'a'", "'data'").replace("'b'", "'model'")
    rules = (
        "with nnx.logical_axis_rules([('data', 'a'), ('model', 'b')]), jax.set_mesh(mesh):"
        if with_rules
        else "with jax.set_mesh(mesh):"
    )
    kind = pen.pick("eager", "eager", "jit", "specs", "abstract")
    if kind == "eager":
        pen.step(f"{rules}\n    m = {make}", "m")
    elif kind == "jit":
        pen.step(
            f"@nnx.jit\ndef create():\n    m = {make}\n    s = nnx.state(m)\n    nnx.update(m, jax.lax.with_sharding_constraint(s, nnx.get_partition_spec(s)))\n    return m\n\n\n{rules}\n    m = create()",
            "m",
        )
    elif kind == "abstract":
        pen.step(f"{rules}\n    graphdef, s = nnx.get_abstract_model(lambda: {make}, mesh)", "s")
        return pen.program()
    else:
        pen.step(f"with jax.set_mesh(mesh):\n    m = {make}", "m")
        pen.step(
            pen.pick(
                "r = nnx.get_partition_spec(nnx.state(m))",
                "r = nnx.get_named_sharding(nnx.state(m), mesh)",
                "r = nnx.get_partition_spec(m)",
                "r = nnx.as_abstract(m)" if pen.chance(30) else "r = nnx.get_partition_spec(nnx.state(m, nnx.Param))",
            ),
            "r",
        )
    pen.step("x = jax.random.normal(jax.random.key(0), (4, 4))")
    if pen.chance(40):
        pen.step(
            f"x = jax.device_put(x, NamedSharding(mesh, {pen.pick('P()', 'P(' + repr('a') + ')', 'P(None, ' + repr('b') + ')')}))",
            "x",
        )
    context = "with jax.set_mesh(mesh):\n    " if pen.chance(80) else ""
    for _ in range(pen.number(1, 2)):
        shardings = pen.pick(
            "None",
            "nnx.StateSharding({nnx.Param: NamedSharding(mesh, P('a')), ...: NamedSharding(mesh, P())})",
            "nnx.StateSharding({...: NamedSharding(mesh, P())})",
            "NamedSharding(mesh, P())",
            "nnx.StateSharding({nnx.PathContains('kernel'): NamedSharding(mesh, P(None, 'b')), ...: None})",
        )
        pen.step(context + pen.pick(
            "y = m(x)", "y = nnx.jit(lambda m, x: m(x))(m, x)", f"y = nnx.jit(lambda m, x: m(x), in_shardings=({shardings}, None))(m, x)",
            f"y = nnx.jit(lambda m, x: m(x), in_shardings=({shardings}, None), out_shardings=NamedSharding(mesh, P('a')))(m, x)",
            f"m = nnx.jit(lambda m: m, in_shardings=({shardings},), out_shardings={shardings})(m); y = x",
            "y = nnx.grad(lambda m, x: total(m(x)))(m, x)", "y = nnx.jit(lambda m, x: nnx.grad(lambda m: total(m(x)))(m))(m, x)",
            "s = nnx.state(m); s = jax.device_put(s, nnx.get_named_sharding(s, mesh)); nnx.update(m, s); y = x",
            "m.eval(); y = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, jnp.stack([x, x]))",
            "y = nnx.get_partition_spec(nnx.state(m))", "y = nnx.clone(m)", "y = nnx.merge(*nnx.split(m))",
            "o = nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param); nnx.jit(lambda m, o, x: o.update(m, nnx.grad(lambda m: total(m(x)))(m)))(m, o, x); y = o",
        ), "y", "m")  # fmt: skip
    return pen.program()
