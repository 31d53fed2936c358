"""Views and modes, captured values, and variables by themselves: operators, hooks, metadata."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.filters import _in_parts, draw_filter
from tests.differential.strategies.models import define_model, make_input, make_model

MODES = (
    "deterministic=True",
    "deterministic=False",
    "use_running_average=True",
    "use_running_average=False",
    "deterministic=True, use_running_average=True",
    "decode=True",
    "nothing=1",
)


@st.composite
def view_programs(draw: Draw) -> Program:
    pen = Pen(draw, "views")
    pen.pick(modes, modes, capture, capture, variables, variables, hooks)(pen)
    return pen.program()


def modes(pen: Pen) -> None:
    m = make_model(pen, define_model(pen, most=3))
    x = make_input(pen)
    for _ in range(pen.number(1, 3)):
        only = pen.pick(
            "",
            "",
            "",
            ", only=nnx.Dropout",
            ", only=nnx.BatchNorm",
            ", only=lambda path, node: len(path) < 2",
            f", only={_in_parts(draw_filter(pen))}" if pen.chance(20) else "",
        )
        loose = pen.pick(", raise_if_not_found=False", ", raise_if_not_found=False", "")
        v = pen.name("v")
        pen.step(pen.pick(
            f"{v} = nnx.view({m}, {pen.pick(*MODES)}{only}{loose})",
            f"{v} = nnx.view({m}, {pen.pick(*MODES)}{only}{loose})",
            f"{v} = nnx.with_attributes({m}, {pen.pick(*MODES)}{only}{loose})",
            f"{m}.eval(); {v} = {m}", f"{m}.train(); {v} = {m}",
            f"{m}.train({pen.pick(*MODES[-2:])}); {v} = {m}",
            f"{m}.set_attributes({pen.pick(*MODES)}{loose}); {v} = {m}",
            f"{m}.set_attributes(nnx.Dropout, {pen.pick(*MODES)}{loose}); {v} = {m}",
            f"{m}.set_attributes(deterministic=True, {pen.pick(*MODES[2:4])}{loose}); {v} = {m}",
        ), v, m)  # fmt: skip
        pen.step(f"y = {v}({x})", "y", v, m)
    if pen.chance(20):
        pen.step(
            f"found = [a is b for a, b in zip(jax.tree.leaves({m}, is_leaf=lambda n: isinstance(n, nnx.Variable)), jax.tree.leaves({v}, is_leaf=lambda n: isinstance(n, nnx.Variable)))]",
            "found",
        )


def capture(pen: Pen) -> None:
    sow = pen.pick(
        "self.sow(nnx.Intermediate, 'h', x)",
        "self.sow(nnx.Intermediate, 'h', x, init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b.sum())",
        "x = self.perturb('h', x)",
        "self.sow(Count, 'n', x.sum())",
        "self.sow(nnx.Intermediate, 'h', x); x = self.perturb('p', x)",
        "self.sow('intermediates', 'h', x)",
    )
    pen.define(f"""\
class Inner(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        x = self.linear(x)
        {sow}
        return x


class Net(nnx.Module):
    def __init__(self, rngs):
        self.a = Inner(rngs)
        self.b = {pen.pick("Inner(rngs)", "self.a", "nnx.List([Inner(rngs)])[0]")}
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        traces['net'] += 1
        x = self.drop(self.b(self.a(x)))
        self.sow(nnx.Intermediate, 'out', x)
        return x""")
    pen.step("m = Net(nnx.Rngs(0))", "m")
    x = make_input(pen)
    for _ in range(pen.number(1, 2)):
        pen.step(pen.pick(
            f"y = m({x})",
            f"y = m({x}), nnx.pop(m, nnx.Intermediate)",
            f"y = nnx.jit(lambda m, x: m(x))(m, {x})",
            f"y = nnx.capture(m, nnx.Intermediate)({x})",
            f"y = nnx.capture(m, nnx.Intermediate, nnx.Perturbation)({x})",
            f"y = nnx.capture(m, nnx.Perturbation)({x})",
            f"y = nnx.capture(m.a, nnx.Intermediate)({x})",
            f"y = nnx.capture(m, nnx.Intermediate, method_outputs=nnx.Intermediate)({x})",
            f"y = nnx.jit(nnx.capture(lambda m, x: m(x), nnx.Intermediate))(m, {x})",
            f"y = nnx.capture(nnx.jit(lambda m, x: m(x)), nnx.Intermediate)(m, {x})",
            f"p = nnx.capture(m, nnx.Perturbation)({x})[1]\ny = nnx.capture(m, nnx.Intermediate, init=p)({x})",
            f"y = nnx.grad(lambda m, x: total(nnx.capture(m, nnx.Intermediate)(x)))(m, {x})",
            f"y = nnx.vmap(lambda m, x: nnx.capture(m, nnx.Intermediate)(x), in_axes=(None, 0))(m, jnp.stack([{x}, {x}]))",
            f"y = nnx.value_and_grad(lambda m, x: total(m(x)))(m, {x})",
            f"y = nnx.eval_shape(lambda m, x: m(x), m, {x})",
        ), "y", "m")  # fmt: skip


VALUES = (
    "jnp.array([1.0, -2.0, 3.0])",
    "jnp.array([1, 2, 3])",
    "2.0",
    "jnp.float32(3.0)",
    "np.ones(3)",
    "{'a': jnp.ones(2), 'b': 3}",
    "jnp.ones((2, 3), jnp.bfloat16)",
)


def variables(pen: Pen) -> None:
    kind = pen.pick("nnx.Param", "nnx.Variable", "Count", "nnx.BatchStat")
    metadata = pen.pick("", "", ", tag='decay'", ", note=(1, 2), out_sharding=None")
    pen.step(f"v = {kind}({pen.pick(*VALUES[:5]) if pen.chance(80) else pen.pick(*VALUES)}{metadata})", "v")
    for _ in range(pen.number(1, 4)):
        pen.step(
            f"r = {pen.pick('v + 1', '1 - v', 'v * v', 'v @ v', '-v', 'v / 2', 'v ** 2', 'v > 1', 'v == v', 'abs(v)', 'v[...]', 'v[0]', 'v[1:]', 'v.shape', 'v.dtype', 'v.ndim', 'v.sum()', 'v.T', 'len(v)', 'jnp.sin(v)', 'jnp.sum(v, axis=0)', 'jnp.stack([v, v])', 'list(v)', 'float(v[0])', 'v.get_value()', 'v.get_raw_value()', 'v.get_metadata()', 'v.get_metadata(' + repr('tag') + ')', 'v.has_metadata(' + repr('tag') + ')', 'v.copy()', 'v.replace(jnp.zeros(3))', 'v.tag', 'v.nothing', 'v.type', 'v % 2', 'v // 2', 'v & 1', '~v', 'v << 1', 'jnp.asarray(v)', 'np.asarray(v)', 'v.at[0].set(5)', 'v.astype(jnp.float16)', 'v.reshape(-1)', 'v.mean()', 'v != 1', 'bool(v[0] > 0)', 'v.size', 'jax.tree.map(doubled, v)', 'jax.tree.leaves(v)', 'v if v is v else None', 'round(v)', 'v.item()', 'hash(v) == hash(v)', 'jax.eval_shape(lambda v: v, v)', 'nnx.split(v)[1]', 'nnx.merge(*nnx.split(v))', 'nnx.clone(v)', 'jax.jit(lambda v: v + 1)(v)', 'nnx.grad(lambda v: (v * v).sum())(v)', 'type(v).from_metadata(jnp.ones(2), v.get_metadata())', 'nnx.as_pure(v)', 'nnx.variable_name_from_type(type(v))', 'v + v.copy()', 'nnx.Param(v)')}",
            "r",
        ) if pen.chance(70) else pen.step(
            pen.pick(
                "v[...] = v[...] + 1",
                "v[...] += 1",
                "v[0] = 7",
                "v.set_value(jnp.zeros(3))",
                "v.set_raw_value(jnp.zeros(3))",
                "v.value = jnp.ones(3)",
                "v.note = 3",
                "v.set_metadata(tag='x', note=4)",
                "v.set_metadata('note', 5)",
                "del v.tag",
                "v.update_from_state(nnx.Param(jnp.full(3, 9.0)))",
                "v[...] = 5",
                "v[...] = jnp.ones(2)",
                "v[jnp.array([0, 1])] = 2.0",
                "v.value += 1",
                "v.raw_value = jnp.zeros(2)" if pen.chance(5) else "v[...] = v[...] * 2",
            ),
            "v",
        )


def hooks(pen: Pen) -> None:
    pen.define("""\
class Hooked(nnx.Variable):
    def on_get_value(self, value):
        return value * 2

    def on_set_value(self, value):
        return value + 1

    def on_create_value(self, value):
        return value * 10

    def on_add_axis(self, axis_index, axis_name):
        self.set_metadata(added=(axis_index, axis_name))

    def on_remove_axis(self, axis_index, axis_name):
        self.set_metadata(removed=(axis_index, axis_name))""")
    pen.step(
        f"v = {pen.pick('Hooked(jnp.ones((2, 2)))', 'nnx.Param(jnp.ones((2, 2)), on_get_value=lambda v, x: x * 2, on_set_value=lambda v, x: x + 1)', 'nnx.Param(jnp.ones((2, 2)), on_create_value=lambda v, x: x * 5)', 'nnx.Param(nnx.with_metadata(nnx.initializers.ones, on_set_value=lambda v, x: x * 3, tag=1)(jax.random.key(0), (2, 2)))')}",
        "v",
    )
    pen.step("m = nnx.Dict(v=v)", "m")
    for _ in range(pen.number(1, 3)):
        pen.step(pen.pick(
            "r = v[...]", "r = v.get_value()", "r = v.get_raw_value()", "v[...] = jnp.zeros((2, 2)); r = v", "v.set_value(v.get_value()); r = v", "r = v + 1",
            "r = nnx.clone(m)", "r = nnx.state(m)", "r = nnx.merge(*nnx.split(m))", "nnx.update(m, nnx.state(m)); r = m",
            "r = nnx.jit(lambda m: m.v + 1)(m)", "r = nnx.jit(lambda m: m.v.set_value(m.v[...]))(m)",
            "r = nnx.vmap(lambda m: m.v + 1, in_axes=0)(m)", "r = nnx.vmap(lambda m: m.v.set_value(m.v * 2), in_axes=0)(m)",
            "r = nnx.vmap(lambda m: m.v[...], in_axes=0, transform_metadata={nnx.PARTITION_NAME: 'layers'})(m)",
            "r = nnx.scan(lambda m, c: c + m.v[...].sum(), in_axes=(0, nnx.Carry), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: 'layers'})(m, jnp.zeros(()))",
            "r = nnx.vmap(lambda i: nnx.Dict(v=Hooked(jnp.ones(2))), transform_metadata={nnx.PARTITION_NAME: 'layers'})(jnp.arange(2))",
            "r = nnx.grad(lambda m: m.v[...].sum(), argnums=nnx.DiffState(0, nnx.Variable))(m)", "r = v.replace(jnp.zeros(2))", "r = v.copy()",
            "r = nnx.to_pure_dict(nnx.state(m))", "v[0] = 4.0; r = v", "v.value = v.value; r = v", "r = nnx.eval_shape(lambda: Hooked(jnp.ones(2)))",
        ), "r", "m")  # fmt: skip
