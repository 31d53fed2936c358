"""Graph and state: split, merge, update, pop, clone, iteration, pure and flat forms, mapping, metadata, attributes."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.filters import _in_parts, draw_filter, draw_filters
from tests.differential.strategies.models import Model, define_model, make_input, make_model


@dataclasses.dataclass
class World:
    """The names that a program has, by what they are."""

    pen: Pen
    model: Model
    m: str
    x: str
    states: list[str] = dataclasses.field(default_factory=list)
    pures: list[str] = dataclasses.field(default_factory=list)
    flats: list[str] = dataclasses.field(default_factory=list)

    def state(self) -> str:
        """A state of the model: one that is there, or a new one."""
        if not self.states or self.pen.chance(30):
            get_state(self)
        return self.pen.pick(*self.states)

    def attribute(self) -> str:
        return self.pen.pick(*self.model.attributes())


def split_and_merge(world: World) -> None:
    pen = world.pen
    filters = draw_filters(pen)
    count = max(1, _count(filters))
    states = [pen.name("s") for _ in range(count)]
    pen.step(f"graphdef, {', '.join(states)} = nnx.split({world.m}{filters})", *states)
    if pen.chance(40):
        changed = pen.pick(*states)
        pen.step(f"{changed} = jax.tree.map(doubled, {changed})", changed)
    order = pen.draw(st.permutations(states)) if pen.chance(20) else states
    merged = pen.name("merged")
    copy = pen.options(20, copy=["True", "False"])
    pen.step(f"{merged} = nnx.merge(graphdef, {', '.join(order)}{copy})", merged)
    if pen.chance(60):
        pen.step(f"y = {merged}({world.x})", "y", merged)
    if pen.chance(30):
        pen.step(f"nnx.update({world.m}, nnx.state({merged}))", world.m)


def _count(filters: str) -> int:
    """How many filters a text of ``draw_filters`` holds: commas outside brackets and lambdas."""
    depth = count = 0
    for sign in filters:
        depth += (sign in "([{") - (sign in ")]}")
        count += sign == "," and depth == 0
    return count


def get_state(world: World) -> None:
    pen = world.pen
    name = pen.name("s")
    text = _in_parts(draw_filter(pen)) if pen.chance(60) else ""
    pen.step(f"{name} = nnx.{pen.pick('state', 'state', 'variables')}({world.m}{', ' if text else ''}{text})", name)
    world.states.append(name)


def get_states(world: World) -> None:
    pen = world.pen
    filters = draw_filters(pen, rest=50)
    pen.step(f"states = nnx.state({world.m}{filters})", "states")


def update(world: World) -> None:
    pen, state = world.pen, world.state()
    f = pen.pick("doubled", "zeroed", "doubled")
    what = pen.pick(
        f"jax.tree.map({f}, {state})",
        f"nnx.to_pure_dict(jax.tree.map({f}, {state}))",
        f"nnx.pure(jax.tree.map({f}, {state}))",
    )
    pen.step(f"nnx.update({world.m}, {what})", world.m)
    world.states.clear()  # in Flax they have changed with the model


def update_in_parts(world: World) -> None:
    pen = world.pen
    f = pen.pick("doubled", "zeroed")
    pen.step(
        f"a, b = nnx.state({world.m}, {pen.pick('nnx.Param', repr('decay'), 'nnx.PathContains(' + repr('kernel') + ')')}, ...)",
        "a",
        "b",
    )
    pen.step(f"nnx.update({world.m}, jax.tree.map({f}, a), b)", world.m)


def pop(world: World) -> None:
    pen = world.pen
    pen.step(f"y = {world.m}({world.x})", "y", world.m)
    what = pen.pick(
        "nnx.Intermediate",
        "nnx.Intermediate",
        "Count",
        "nnx.BatchStat",
        "nnx.Intermediate, nnx.BatchStat",
        "...",
        _in_parts(draw_filter(pen)),
    )
    pen.step(f"popped = nnx.pop({world.m}, {what})", "popped", world.m)


def call(world: World) -> None:
    world.pen.step(f"y = {world.m}({world.x})", "y", world.m)


def clone(world: World) -> None:
    pen = world.pen
    name = pen.name("c")
    options = pen.pick("", "", "", ", variables=False", ", arrays=True")
    pen.step(f"{name} = nnx.clone({world.m}{options})", name)
    pen.step(f"y = {name}({world.x})", "y", name, world.m)


def iterate(world: World) -> None:
    pen = world.pen
    where = pen.pick(
        world.m, world.m, f"[{world.m}, {world.m}]", f"{{'a': {world.m}}}", f"{world.m}.{world.attribute()}"
    )
    pen.step(pen.pick(
        f"found = [(path, type(value).__name__) for path, value in nnx.iter_graph({where}) if isinstance(value, (nnx.Pytree, nnx.Variable))]",
        f"found = [(path, type(value).__name__) for path, value in nnx.iter_modules({where})]",
        f"found = [(key, type(value).__name__) for key, value in nnx.iter_children({where})]",
        f"found = [(key, type(value).__name__) for key, value in nnx.iter_module_children({where})]",
        f"found = [(path, type(value).__name__) for path, value in jax.tree.leaves_with_path({where})]",
        f"found = [jax.tree_util.keystr(path) for path, value in jax.tree.leaves_with_path({where})]",
        f"found = [jax.tree_util.keystr(path) for path, value in jax.tree.leaves_with_path(nnx.state({where}))]",
        f"found = [nnx.is_data(value) for _, value in nnx.iter_children({where})]",
    ), "found")  # fmt: skip


def pure(world: World) -> None:
    pen, state = world.pen, world.state()
    name = pen.name("d")
    world.pures.append(name)
    make = pen.pick(
        f"nnx.to_pure_dict({state})",
        f"nnx.pure({state})",
        f"nnx.to_pure_dict({state}, lambda v: v.get_raw_value() if isinstance(v, nnx.Variable) else v)",
    )
    pen.step(f"{name} = {make}", name)
    if pen.chance(60):
        pen.step(f"{name} = jax.tree.map(doubled, {name})", name)
        if pen.chance(20):
            pen.step(f"{name} = nnx.restore_int_paths(jax.tree.map(lambda a: a, {name}))", name)
        pen.step(f"nnx.replace_by_pure_dict({state}, {name})", state)
        pen.step(f"nnx.update({world.m}, {state})", world.m)
        world.states.clear()


def flat(world: World) -> None:
    pen, state = world.pen, world.state()
    pen.step(f"flat = nnx.to_flat_state({state})", "flat")
    pen.step(pen.pick(
        "found = [(path, type(leaf).__name__) for path, leaf in flat]",
        "found = (len(flat), flat.paths, [type(leaf).__name__ for leaf in flat.leaves])",
        "found = nnx.from_flat_state(flat)",
        "found = nnx.from_flat_state([(path, leaf) for path, leaf in flat if 'kernel' in path])",
        "found = nnx.from_flat_state({('z', *path): leaf for path, leaf in flat})",
        "found = nnx.from_flat_state(dict(flat), cls=dict)",
    ), "found")  # fmt: skip


def split_states(world: World) -> None:
    pen, state = world.pen, world.state()
    text = _in_parts(draw_filter(pen))
    pen.step(pen.pick(
        f"a = nnx.filter_state({state}, {text})",
        f"a = nnx.filter_state({state}, {text}{draw_filters(pen)})",
        f"a = nnx.split_state({state}, {text}, ...)",
        f"a = nnx.merge_state(*nnx.split_state({state}, {text}, ...))",
        f"a = nnx.map_state(lambda path, v: jax.tree.map(doubled, v), {state})",
        f"a = nnx.map_state(lambda path, v: len(path), {state})",
        f"a = {state}.filter({text})",
        f"a = nnx.merge_state({state}, nnx.filter_state({state}, {text}))",
        f"a = {state} - nnx.filter_state({state}, {text})",
        f"a = {state} | nnx.filter_state({state}, {text})",
    ), "a")  # fmt: skip


def state_as_mapping(world: World) -> None:
    pen, state = world.pen, world.state()
    pen.step(pen.pick(
        f"found = (len({state}), sorted(map(str, {state})), 'p0' in {state}, list(map(str, {state}.keys())))",
        f"found = {state}[next(iter({state}))] if {state} else None",
        f"found = dict({state})",
        f"found = {state} == nnx.state({world.m})",
        f"found = jax.tree.structure({state}) == jax.tree.structure(nnx.state({world.m}))",
        f"found = [leaf.shape for leaf in jax.tree.leaves({state})]",
        f"found = {state}.p0",
        f"found = {state}['nothing']",
        f"found = {state}.nothing",
        f"found = jax.tree.map(lambda a, b: a.dtype == b.dtype, {state}, {state})",
        f"{state}['p0'] = jnp.ones(2); found = {state}",
        f"del {state}['p0']; found = {state}",
        f"found = nnx.State({{'a': {state}, 'b': {{'c': jnp.ones(2)}}}})",
        f"found = jax.tree.map(doubled, {state})",
        f"found = jax.eval_shape(lambda s: s, {state})",
        f"found = bool({state})",
    ), "found")  # fmt: skip


def maps(world: World) -> None:
    pen = world.pen
    name = pen.name("r")
    pen.step(pen.pick(
        f"{name} = nnx.recursive_map(lambda path, node: node, {world.m})",
        f"{name} = nnx.recursive_map(lambda path, node: node.replace(jax.tree.map(doubled, node.get_raw_value())) if isinstance(node, nnx.Param) else node, {world.m})",
        f"{name} = nnx.recursive_map(lambda path, node: nnx.Linear(4, 4, rngs=nnx.Rngs(0)) if isinstance(node, nnx.Linear) else node, {world.m})",
        f"{name} = nnx.map(lambda path, v: v, {world.m})",
        f"{name} = nnx.map(lambda path, v: len(path), {world.m})",
        f"{name} = nnx.map(lambda path, v: v.replace(jax.tree.map(doubled, v.get_raw_value())) if isinstance(v, nnx.Param) else v, {world.m})",
        f"{name} = jax.tree.map(doubled, {world.m})",
        f"{name} = nnx.eval_shape(lambda m: m, {world.m})",
        f"{name} = nnx.eval_shape(lambda: {world.model.name}(nnx.Rngs(0)))",
        f"{name} = nnx.as_abstract({world.m})",
        f"{name} = jax.tree.unflatten(jax.tree.structure({world.m}), jax.tree.leaves({world.m}))",
    ), name)  # fmt: skip


def duplicates(world: World) -> None:
    pen = world.pen
    where = pen.pick(world.m, f"[{world.m}, {world.m}]", f"{{'a': {world.m}, 'b': {world.m}.{world.attribute()}}}")
    only = pen.pick("", "", ", only=nnx.Param", f", only={_in_parts(draw_filter(pen))}")
    pen.step(f"found = [sorted(paths, key=str) for paths in nnx.find_duplicates({where}{only})]", "found")


def metadata(world: World) -> None:
    pen = world.pen
    only = pen.pick("", ", only=nnx.Param", f", only={_in_parts(draw_filter(pen))}")
    pen.step(
        f"nnx.set_metadata({world.m}{only}, {pen.pick('tag=' + repr('decay'), 'note=1', 'tag=None, note=2')})", world.m
    )
    if pen.chance(50):
        pen.step(f"found = nnx.state({world.m}, nnx.WithTag('decay'))", "found")


def graphdefs(world: World) -> None:
    pen = world.pen
    other = pen.pick(f"{world.model.name}(nnx.Rngs(5))", f"nnx.clone({world.m})", world.m)
    pen.step(f"a, b = nnx.graphdef({world.m}), nnx.graphdef({other})")
    pen.step("found = (a == b, hash(a) == hash(b))", "found")


def flatten(world: World) -> None:
    pen = world.pen
    paths = pen.pick("", ", with_paths=False", ", with_paths=True")
    pen.step(f"graphdef, leaves = nnx.flatten({world.m}{paths})", "leaves")
    pen.step("r = nnx.unflatten(graphdef, leaves)", "r")


def set_attributes(world: World) -> None:
    pen = world.pen
    name = world.attribute()
    pen.step(pen.pick(
        f"{world.m}.{name} = nnx.Linear(4, 4, rngs=nnx.Rngs(9))",
        f"{world.m}.{name} = nnx.Param(jnp.ones(4))",
        f"{world.m}.{name} = jnp.ones(4)",
        f"{world.m}.{name} = nnx.data(jnp.ones(4))",
        f"{world.m}.{name} = nnx.static((1, 2))",
        f"{world.m}.{name} = 7",
        f"{world.m}.extra = [jnp.ones(2)]",
        f"{world.m}.extra = nnx.List([{world.m}.{name}])",
        f"{world.m}.extra = (jnp.ones(2), {{'a': 1}})",
        f"{world.m}.extra = {world.m}",
        f"{world.m}.extra = np.ones(2)",
        f"{world.m}.extra = {{'a': nnx.Param(jnp.ones(2))}}",
        f"del {world.m}.{name}",
        f"del {world.m}.nothing",
        f"{world.m}.extra = {world.m}.nothing",
    ), world.m)  # fmt: skip
    pen.step(f"s = nnx.state({world.m})", "s")
    if pen.chance(40):
        pen.step(f"y = {world.m}({world.x})", "y")


def functional_call(world: World) -> None:
    pen = world.pen
    pen.step(f"graphdef, s = nnx.split({world.m})", "s")
    pen.step(pen.pick(
        f"y, (graphdef, s2) = nnx.call((graphdef, s))({world.x})",
        f"y, (graphdef, s2) = nnx.call((graphdef, s)).__call__({world.x})",
        f"y, (graphdef, s2) = jax.jit(lambda s, x: nnx.call((graphdef, s))(x))(s, {world.x})",
        f"y, (graphdef, s2) = nnx.call((graphdef, s)).nothing({world.x})",
    ), "y", "s2")  # fmt: skip


def plain_jax(world: World) -> None:
    """The functional interface inside JAX's own transforms."""
    pen = world.pen
    pen.step(f"graphdef, params, rest = nnx.split({world.m}, nnx.Param, ...)", "params", "rest")
    pen.step("""\
def forward(params, rest, x):
    traces["forward"] += 1
    model = nnx.merge(graphdef, params, rest)
    y = model(x)
    return y, nnx.state(model)""")
    pen.step(pen.pick(
        f"y = jax.jit(forward)(params, rest, {world.x})",
        f"y = jax.grad(lambda p, r, x: total(forward(p, r, x)[0]))(params, rest, {world.x})",
        f"y = jax.value_and_grad(lambda p, r, x: (total(forward(p, r, x)[0]), 1), has_aux=True)(params, rest, {world.x})",
        f"y = jax.vmap(forward, in_axes=(None, None, 0))(params, rest, jnp.stack([{world.x}] * 2))",
        f"y = jax.jit(jax.vmap(forward, in_axes=(None, None, 0)))(params, rest, jnp.stack([{world.x}] * 2))",
        f"y = jax.eval_shape(forward, params, rest, {world.x})",
        f"y = jax.checkpoint(forward)(params, rest, {world.x})",
    ), "y", world.m)  # fmt: skip


OPERATIONS = (
    split_and_merge, split_and_merge, get_state, get_states, update, update, update_in_parts, pop, call, clone, iterate, iterate,
    pure, flat, split_states, split_states, state_as_mapping, maps, maps, duplicates, metadata, graphdefs, flatten,
    set_attributes, functional_call, plain_jax,
)  # fmt: skip


READ_ONLY = (get_state, get_states, iterate, flat, split_states, duplicates, graphdefs)


@st.composite
def graph_programs(draw: Draw) -> Program:
    pen = Pen(draw, "graph")
    model = define_model(pen)
    world = World(pen, model, make_model(pen, model), make_input(pen))
    for _ in range(pen.number(1, 3)):
        operation = pen.pick(*OPERATIONS)
        operation(world)
        if operation not in READ_ONLY:
            world.states.clear()  # in Flax they change with the model
    return pen.program()
