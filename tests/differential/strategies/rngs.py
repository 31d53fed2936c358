"""Random streams: made, drawn from, forked, split and restored, seeded again, inside and outside of transforms."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program

MAKE = (
    "nnx.Rngs(0)", "nnx.Rngs(params=0)", "nnx.Rngs(0, params=1, dropout=2)", "nnx.Rngs(jax.random.key(3))",
    "nnx.Rngs(params=jax.random.key(1), noise=5)", "nnx.Rngs()", "nnx.Rngs({'params': 1, 'dropout': 2})",
    "nnx.Rngs(default=jax.random.PRNGKey(0))", "nnx.Rngs(7, carry=1, noise=2)",
)  # fmt: skip
DRAWS = (
    "{0}.params()", "{0}.dropout()", "{0}()", "{0}['params']()", "{0}.params.uniform((2,))", "{0}.normal((2, 2))",
    "{0}.params.bernoulli(0.5, (4,))", "{0}.params.randint((3,), 0, 9)", "{0}.noise()", "{0}.split(2)", "{0}.params.split(3)",
    "{0}.fork()", "{0}.params.fork(split=2)", "{0}.fork(split=3)", "{0}.fork(split={{'params': 2, ...: None}})", "{0}.truncated_normal(-1.0, 1.0, (2,))",
    "{0}.permutation(4)", "{0}.categorical(jnp.zeros(3))", "{0}.params.key.value", "{0}.params.count.value",
    "'params' in {0}", "len({0})", "sorted({0})", "{0}.params.tag", "{0}.gumbel((2,))", "{0}.choice(4, (2,))",
)  # fmt: skip
ONLY = (
    "",
    "",
    "'params'",
    "'dropout'",
    "...",
    "nnx.RngState",
    "('params', 'dropout')",
    "nnx.Not('params')",
    "nnx.RngKey",
)


@st.composite
def rngs_programs(draw: Draw) -> Program:
    pen = Pen(draw, "rngs")
    pen.step(f"rngs = {pen.pick(*MAKE)}", "rngs")
    held = "rngs"
    if pen.chance(40):
        pen.define(
            "class Noisy(nnx.Module):\n    def __init__(self, rngs):\n        self.rngs = rngs\n        self.drop = nnx.Dropout(0.5, rngs=rngs)\n        self.own = rngs.fork()\n        self.w = nnx.Param(rngs.params.normal((3,)))\n\n    def __call__(self, x):\n        return self.drop(x) + self.rngs.noise.normal(x.shape) * self.own.normal(()) + self.w"
        )
        pen.step("m = Noisy(rngs)", "m")
        held = "m"
    for _ in range(pen.number(1, 3)):
        kind = pen.pick(draws, draws, split, fork, reseed, with_rngs, transformed, copied)
        kind(pen, held)
    return pen.program()


def draws(pen: Pen, held: str) -> None:
    if held == "m" and pen.chance(60):
        pen.step("y = m(jnp.ones((2, 3)))", "y", "m")
        return
    pen.step(f"y = {pen.pick(*DRAWS).format('rngs')}", "y", "rngs")


def split(pen: Pen, held: str) -> None:
    only = pen.pick(*ONLY)
    options = (
        f"splits={pen.pick('2', '3', '(2, 2)', '1')}"
        + (f", only={only}" if only else "")
        + pen.options(10, squeeze=["True"])
    )
    kind = pen.pick("restore", "with", "decorator", "keep")
    if kind == "restore":
        pen.step(f"backups = nnx.split_rngs({held}, {options})", held)
        pen.step("nnx.restore_rngs(backups)", held)
    elif kind == "with":
        pen.step(
            f"with nnx.split_rngs({held}, {options}):\n    inside = [leaf.shape for leaf in jax.tree.leaves(nnx.state({held}))]",
            "inside",
            held,
        )
    elif kind == "keep":
        pen.step(f"nnx.split_rngs({held}, {options})", held)
    else:
        pen.step(
            f"y = nnx.split_rngs({options})(nnx.vmap(lambda node: node.{'rngs.' if held == 'm' else ''}params.normal((2,)), in_axes=(nnx.StateAxes({{nnx.RngState: 0, ...: None}}),)))({held})",
            "y",
            held,
        )


def fork(pen: Pen, held: str) -> None:
    options = pen.pick("", "", ", split=2", ", split={'params': 2}", ", split={'params': 3, ...: 2}")
    kind = pen.pick("with", "keep", "decorator")
    if kind == "with":
        pen.step(
            f"with nnx.fork_rngs({held}{options}):\n    inside = nnx.to_pure_dict(nnx.state({held}, nnx.RngKey))",
            "inside",
            held,
        )
    elif kind == "keep":
        pen.step(f"backups = nnx.fork_rngs({held}{options})", held)
        if pen.chance(50):
            pen.step("nnx.restore_rngs(backups)", held)
    else:
        pen.step(
            f"y = nnx.fork_rngs()(lambda node: nnx.to_pure_dict(nnx.state(node, nnx.RngState)))({held})",
            "y",
            held,
        )


def reseed(pen: Pen, held: str) -> None:
    given = pen.pick("params=5", "default=1", "dropout=jax.random.key(2)", "params=1, dropout=2", "nothing=3")
    policy = pen.pick(
        "",
        "",
        "",
        ", policy='match_shape'",
        ", policy=lambda path, scalar, shape: jax.random.split(scalar, shape) if shape else scalar",
    )
    pen.step(f"nnx.reseed({held}, {given}{policy})", held)


def with_rngs(pen: Pen, held: str) -> None:
    pen.step(pen.pick(
        f"r = nnx.with_rngs({held}, split=2, graph_updates=False)",
        f"r = nnx.with_rngs({held}, split={{'params': 2, ...: 3}}, graph_updates=False)",
        f"r = nnx.with_rngs({held}, fork='params', graph_updates=False)",
        f"r = nnx.with_rngs({held}, broadcast=2, graph_updates=False)",
        f"r = nnx.with_rngs({held}, split={{'params': 2}}, broadcast={{'dropout': 3}}, graph_updates=False)",
    ), "r", held)  # fmt: skip


def transformed(pen: Pen, held: str) -> None:
    body = "m(jnp.ones((2, 3)))" if held == "m" else pen.pick("m.params()", "m.normal((2,))", "m.dropout()", "m.fork()")
    pen.step(pen.pick(
        f"y = nnx.jit(lambda m: {body})({held})",
        f"f = nnx.jit(lambda m: {body})\ny = f({held}), f({held})",
        f"y = nnx.vmap(lambda m, i: {body}, in_axes=(None, 0))({held}, jnp.arange(2))",
        f"y = nnx.vmap(lambda m: {body}, in_axes=(nnx.StateAxes({{nnx.RngState: 0, ...: None}}),))({held})",
        f"y = nnx.scan(lambda m, i: (m, {body}))({held}, jnp.arange(3))[1]",
        f"y = nnx.scan(lambda m, i: {body}, in_axes=(nnx.StateAxes({{nnx.RngCount: nnx.Carry, ...: None}}), 0), out_axes=0)({held}, jnp.arange(3))",
        f"y = nnx.fori_loop(0, 3, lambda i, value: (value[0], value[1] + total({body})), ({held}, jnp.zeros(())))[1]",
        f"y = nnx.cond(True, lambda m: {body}, lambda m: {body}, {held})",
        f"y = nnx.remat(lambda m: {body})({held})",
        f"y = nnx.eval_shape(lambda m: {body}, {held})",
    ), "y", held)  # fmt: skip


def copied(pen: Pen, held: str) -> None:
    pen.step(pen.pick(
        f"r = nnx.clone({held})", f"r = nnx.split({held}, nnx.RngKey, ...)[1:]", f"r = nnx.state({held}, 'params')",
        f"r = nnx.merge(*nnx.split({held}))", f"r = nnx.state({held}, nnx.RngCount)", f"r = nnx.to_pure_dict(nnx.state({held}))",
        f"r = nnx.state({held}, nnx.WithTag('dropout'))",
        f"r = jax.tree.map(lambda a: a, {held})", "r = nnx.Rngs(**{name: rngs[name]() for name in rngs})", "r = rngs.items()" if pen.chance(20) else "r = dict(rngs)",
    ), "r", held)  # fmt: skip
