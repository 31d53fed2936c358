"""Transforms, two deep, with drawn prefixes, over a model that counts, averages and draws."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.filters import _in_parts, draw_filter
from tests.differential.strategies.models import EVERYWHERE, PARTS, PURE, define_model, make_model

MODES = (
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    ", graph=False",
    ", graph_updates=False",
    ", graph=True, graph_updates=True",
    ", graph=False, graph_updates=False",
)
STATE_FILTERS = (
    "nnx.Param",
    "nnx.Param",
    "nnx.BatchStat",
    "nnx.RngState",
    "(nnx.Param, nnx.BatchStat)",
    "nnx.PathContains('kernel')",
    "'decay'",
    "nnx.Not(nnx.RngState)",
)


@dataclasses.dataclass
class Chain:
    """A function ``name(m, x)`` of the program, and what it takes.

    Attributes:
        pen: writes the program.
        name: the function so far.
        stacked: how many axes of length 2 the model's variables have in front of their own.
        shape: the shape of ``x``.
    """

    pen: Pen
    name: str
    stacked: int
    shape: tuple[int, ...]

    def wrap(self, text: str) -> None:
        """A new function from text, in which ``$`` is the old one's name and ``@`` the new one's."""
        name = self.pen.name("f")
        self.pen.step(text.replace("$", self.name).replace("@", name))
        self.name = name

    def mode(self) -> str:
        return self.pen.pick(*MODES)

    def value_mode(self) -> str:
        """For transforms that Flax has without changes of structure only."""
        return self.pen.pick(", graph_updates=False", ", graph_updates=False", ", graph=False", self.mode())

    def axes(self) -> str:
        """A prefix for the model under a transform that maps axes: over its first axis, or not at all."""
        pen = self.pen
        if pen.chance(45):
            return "None"
        if pen.chance(20):
            return pen.pick("nnx.StateAxes({...: None})", "nnx.StateAxes({nnx.Param: None, ...: None})")
        self.stacked += 1
        return self.stacked_axes()

    def stacked_axes(self) -> str:
        pen = self.pen
        return pen.pick(
            "0", "0", "nnx.StateAxes({...: 0})", "nnx.StateAxes({nnx.Param: 0, ...: 0})",
            f"nnx.StateAxes({{{_in_parts(pen.pick(*STATE_FILTERS))}: 0, ...: 0}})", "nnx.StateAxes({nnx.Param: 0, nnx.RngState: 0, ...: 0})",
        )  # fmt: skip

    def mixed_axes(self) -> str:
        pen = self.pen
        return f"nnx.StateAxes({{{_in_parts(pen.pick(*STATE_FILTERS))}: {pen.pick('None', '0')}, ...: {pen.pick('None', '0')}}})"


def jit(chain: Chain) -> None:
    pen = chain.pen
    chain.wrap(
        "@ = nnx.jit($"
        + pen.pick("", "", "", "", ", static_argnums=()", ", donate_argnums=()", ", keep_unused=True")
        + chain.mode()
        + ")"
    )


def remat(chain: Chain) -> None:
    chain.wrap(
        "@ = nnx.remat($"
        + chain.pen.pick("", "", ", prevent_cse=False", ", policy=jax.checkpoint_policies.dots_saveable")
        + chain.mode()
        + ")"
    )


def grad(chain: Chain) -> None:
    pen = chain.pen
    argnums = pen.pick("", "", ", argnums=0", ", argnums=1", ", argnums=(0, 1)", ", argnums=nnx.DiffState(0, nnx.Param)", f", argnums=nnx.DiffState(0, {_in_parts(pen.pick(*STATE_FILTERS[:2], draw_filter(pen)))})", ", argnums=(nnx.DiffState(0, nnx.PathContains('kernel')), 1)", ", argnums=-1")  # fmt: skip
    which = pen.pick("grad", "grad", "value_and_grad")
    mode = "" if "DiffState" in argnums else chain.mode()
    if pen.chance(30):
        chain.wrap(
            f"def loss(m, x):\n    y = $(m, x)\n    return total(y), {pen.pick('y', '{}', 'x')}\n\n\n@ = nnx.{which}(loss{argnums}, has_aux=True{mode})"
        )
    else:
        chain.wrap(f"@ = nnx.{which}(lambda m, x: total($(m, x)){argnums}{mode})")


def vjp(chain: Chain) -> None:
    chain.wrap(
        "def @(m, x):\n    y, back = nnx.vjp(lambda m, x: total($(m, x)), m, x"
        + chain.value_mode()
        + ")\n    return y, back(jnp.ones_like(y))"
    )


def vmap(chain: Chain) -> None:
    pen = chain.pen
    x_axis = pen.pick("0", "0", "0", "None", "1", "-1")
    model = chain.axes()
    if x_axis == "None" and model == "None":
        x_axis = "0"
    place = {"0": 0, "1": 1, "-1": len(chain.shape)}.get(x_axis)
    if place is not None:
        chain.shape = (*chain.shape[:place], 2, *chain.shape[place:])
    out = pen.pick("", "", "", ", out_axes=0", ", out_axes=-1", ", out_axes=1")
    axes = f"({model}, {x_axis})"
    if model == "0" and x_axis == "0":
        axes = pen.pick("0", axes)
    body = "$"
    name = ""
    if pen.chance(20):
        name = ", axis_name='i'"
        body = "lambda m, x: jax.tree.map(lambda a: jax.lax.pmean(a, 'i') if is_float(a) else a, $(m, x))"
    size = pen.pick("", "", "", ", axis_size=2")
    chain.wrap(f"@ = nnx.vmap({body}, in_axes={axes}{out}{name}{size}{chain.mode()})")


def mixed_vmap(chain: Chain) -> None:
    """Some of the model's state mapped, some broadcast."""
    chain.stacked += 1
    chain.shape = (2, *chain.shape)
    chain.wrap(f"@ = nnx.vmap($, in_axes=({chain.mixed_axes()}, 0){chain.mode()})")


def scan(chain: Chain) -> None:
    pen = chain.pen
    options = pen.options(20, reverse=["True", "False"], unroll=["2", "True"], length=["2"]) + chain.mode()
    kind = pen.pick("over x", "carried", "over layers", "carry and x", "state axes", "plain")
    if kind == "over x":
        axes = chain.pen.pick(
            "None",
            "nnx.StateAxes({...: None})",
            "nnx.StateAxes({(Count, nnx.BatchStat, nnx.RngState): nnx.Carry, ...: None})",
            "nnx.StateAxes({nnx.Param: None, ...: nnx.Carry})",
        )
        chain.shape = (2, *chain.shape)
        chain.wrap(f"@ = nnx.scan(lambda m, x: $(m, x), in_axes=({axes}, 0), out_axes=0{options})")
    elif kind == "carried":
        chain.shape = (2, *chain.shape)
        chain.wrap(
            f"@ = nnx.scan(lambda m, x: (m, $(m, x)){pen.pick('', ', in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0)')}{options})\n".rstrip()
            + "\n_@ = @\n\n\ndef @(m, x):\n    return _@(m, x)[1]"
        )
    elif kind == "over layers":
        chain.stacked += 1
        chain.wrap(
            f"_@ = nnx.scan(lambda m, c: c + 0.1 * total($(m, c)), in_axes=({chain.stacked_axes()}, nnx.Carry), out_axes=nnx.Carry{options})\n\n\ndef @(m, x):\n    return _@(m, x)"
        )
    elif kind == "carry and x":
        chain.shape = (2, *chain.shape)
        chain.wrap(
            f"_@ = nnx.scan(lambda m, c, x: (c + total($(m, x)), c), in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0){options})\n\n\ndef @(m, x):\n    return _@(m, jnp.zeros(()), x)"
        )
    elif kind == "state axes":
        chain.stacked += 1
        chain.shape = (2, *chain.shape)
        chain.wrap(
            f"@ = nnx.scan($, in_axes=({pen.pick(chain.stacked_axes(), chain.mixed_axes())}, 0), out_axes={pen.pick('0', '0', '1')}{options})"
        )
    else:
        chain.shape = (2, *chain.shape)
        chain.wrap(
            "def @(m, x):\n    def body(c, x):\n        return c + 1, total($(m, x))\n\n    return nnx.scan(body)(jnp.array(0), x)"
        )


def cond(chain: Chain) -> None:
    pen = chain.pen
    mode = chain.mode()
    chain.wrap(pen.pick(
        f"def @(m, x):\n    return nnx.cond(x.sum() > {pen.pick('0', '-100', '100')}, lambda m, x: total($(m, x)), lambda m, x: jnp.zeros(()), m, x{mode})",
        f"def @(m, x):\n    return nnx.cond(jnp.array({pen.pick('True', 'False')}), $, lambda m, x: $(m, x), m, x{mode})",
        f"def @(m, x):\n    return nnx.switch(jnp.array({pen.pick('0', '1', '2', '-1')}), [lambda m, x: jnp.ones(()), lambda m, x: total($(m, x)), lambda m, x: total($(m, 2 * x))], m, x{mode})",
        f"def @(m, x):\n    return nnx.cond(True, lambda x: total($(m, x)), lambda x: jnp.zeros(()), x{mode})",
    ))  # fmt: skip


def loop(chain: Chain) -> None:
    pen = chain.pen
    mode = chain.mode()
    chain.wrap(pen.pick(
        f"def @(m, x):\n    def body(i, value):\n        m, c = value\n        return m, c + total($(m, x))\n\n    return nnx.fori_loop({pen.pick('0', '1')}, {pen.pick('2', '3', '1')}, body, (m, jnp.zeros(())){mode})[1]",
        f"def @(m, x):\n    def body(value):\n        i, m, c = value\n        return i + 1, m, c + total($(m, x))\n\n    return nnx.while_loop(lambda value: value[0] < {pen.pick('2', '0', '1')}, body, (jnp.array(0), m, jnp.zeros(())){mode})[2]",
        f"def @(m, x):\n    def body(i, c):\n        return c + total($(m, x))\n\n    return nnx.fori_loop(0, 2, body, jnp.zeros(()){mode})",
    ))  # fmt: skip


def split(chain: Chain) -> None:
    """Random streams split around a mapped function."""
    pen = chain.pen
    chain.shape = (2, *chain.shape)
    only = pen.pick("", "", ", only=nnx.RngState", ", only='dropout'", ", only='params'", ", squeeze=False")
    chain.wrap(
        f"@ = nnx.split_rngs(splits=2{only})(nnx.vmap($, in_axes=(nnx.StateAxes({{nnx.RngState: 0, ...: None}}), 0)))"
    )


def checkify(chain: Chain) -> None:
    chain.wrap("_@ = nnx.checkify($)\n\n\ndef @(m, x):\n    error, y = _@(m, x)\n    return error.get(), y")


def jvp(chain: Chain) -> None:
    chain.wrap(
        "def @(m, x):\n    return nnx.jvp(lambda x: total($(m, x)), (x,), (jnp.ones_like(x),)"
        + chain.value_mode()
        + ")"
    )


def custom_vjp(chain: Chain) -> None:
    pen = chain.pen
    scale = pen.pick("1", "2")
    chain.wrap(f"""\
@ = nnx.custom_vjp(lambda m, x: total($(m, x)))


def forward(m, x):
    return @(m, x), (m, x)


def backward(res, g):
    input_g, out_g = g
    m, x = res
    return jax.tree.map(lambda a: {scale} * jnp.ones_like(a) if is_float(a) else a, nnx.clone(input_g[0])), jnp.ones_like(x) * out_g


@.defvjp(forward, backward)""")


def eval_shape(chain: Chain) -> None:
    chain.wrap("def @(m, x):\n    return nnx.eval_shape($, m, x" + chain.mode() + ")")


def partials(chain: Chain) -> None:
    chain.wrap(
        chain.pen.pick(
            "def @(m, x):\n    return nnx.jit_partial($, m, graph_updates=False)(x)",
            "def @(m, x):\n    return nnx.cached_partial(nnx.jit($), m)(x)",
        )
    )


def fork(chain: Chain) -> None:
    pen = chain.pen
    chain.wrap(
        pen.pick(
            "@ = nnx.fork_rngs()($)", "@ = nnx.with_rngs(fork=...)($)", "@ = nnx.fork_rngs(split={'nothing': 2})($)"
        )
    )


INNER = (
    jit,
    remat,
    remat,
    grad,
    grad,
    grad,
    vmap,
    vmap,
    vmap,
    mixed_vmap,
    scan,
    scan,
    scan,
    scan,
    cond,
    loop,
    split,
    vjp,
    jvp,
    custom_vjp,
)
OUTER = (
    jit,
    jit,
    jit,
    remat,
    grad,
    grad,
    grad,
    vmap,
    vmap,
    mixed_vmap,
    scan,
    scan,
    scan,
    cond,
    loop,
    split,
    vjp,
    jvp,
    checkify,
    eval_shape,
    partials,
    fork,
)


@st.composite
def transform_programs(draw: Draw) -> Program:
    pen = Pen(draw, "transforms")
    parts = EVERYWHERE if pen.chance(60) else PURE if pen.chance(70) else tuple(PARTS)
    model = define_model(pen, parts, most=2)
    pen.step("""\
def f(m, x):
    traces["f"] += 1
    return m(x)""")
    pen._names["f"] = 1
    chain = Chain(pen, "f", 0, (3, 4))
    for kinds in (INNER, OUTER)[pen.pick(0, 0, 0, 0, 1) :]:
        pen.pick(*kinds)(chain)
    if pen.chance(20):
        jit(chain)
    if chain.stacked:
        m = make_stacked(pen, model.name, chain.stacked)
    else:
        m = make_model(pen, model)
    pen.step(f"x = jax.random.normal(jax.random.key({pen.number(0, 3)}), {chain.shape})")
    pen.step(f"y = {chain.name}({m}, x)", "y", m)
    if pen.chance(50):
        pen.step(f"y = {chain.name}({m}, x)", "y", m)
    return pen.program()


def make_stacked(pen: Pen, cls: str, times: int) -> str:
    """A model whose variables have leading axes of length 2."""
    pen.step(f"make = lambda rngs: {cls}(rngs)")
    axes = pen.pick("", "", "(nnx.StateAxes({...: 0}),)")
    for _ in range(times):
        pen.step(f"make = nnx.split_rngs(splits=2)(nnx.vmap(make{', in_axes=' + axes if axes else ''}))")
    pen.step("m = make(nnx.Rngs(0, dropout=1))", "m")
    return "m"
