"""Sharing between arguments and results of transforms: tied modules, one module twice, parts beside their wholes."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.models import EVERYWHERE, define_model, make_input, make_model

# What a function of ``(a, b, x)`` does, and what it returns.
BODIES = (
    "return total(a(x)) + total(b(x))", "return a(b(x))", "y = a(x)\n    return y, b", "return a", "return a, b", "return {'out': [a, b], 'y': a(x)}",
    "a.extra = b\n    return total(a(x))", "b.note = 3\n    return a(x)", "a.other = nnx.Param(jnp.ones(2))\n    return b(x)",
    "return nnx.state(a)", "return a is b", "new = nnx.Linear(4, 4, rngs=nnx.Rngs(0))\n    return new, new",
    "y = a(x)\n    a.p0 = b.p0\n    return total(y)", "del a.p0\n    return total(x)", "return nnx.List([a, nnx.Dict(b=b)])",
"return nnx.clone(a), total(b(x))", "swapped = (b, a)\n    return swapped",
)  # fmt: skip


@st.composite
def sharing_programs(draw: Draw) -> Program:
    pen = Pen(draw, "sharing")
    model = define_model(pen, EVERYWHERE, most=2)
    m = make_model(pen, model)
    make_input(pen)
    layers = model.attributes(layers=True)
    other = pen.pick(
        m,
        m,
        f"nnx.clone({m})",
        f"{model.name}(nnx.Rngs(7))",
        *[f"{m}.{name}" for name in layers],
        f"nnx.List([{m}])[0]",
    )
    pen.step(f"a, b = {m}, {other}", "a", "b")
    if pen.chance(25):
        pen.step("a.tied = nnx.Param(jnp.ones(4)); b.tied = a.tied", "a", "b")
    cyclic = pen.chance(15)
    if cyclic:
        pen.step(pen.pick("a.link = b", "b.link = a", "a.same = a", "a.tied = nnx.List([b, b])"), "a", "b")
    pen.step(f"def f(a, b, x):\n    traces['f'] += 1\n    {pen.pick(*BODIES)}")
    mode = "" if cyclic else pen.pick("", "", "", "", "", ", graph=False", ", graph_updates=False")
    graphs = (
        f"nnx.jit(f{mode})",
        f"nnx.remat(f{mode})",
        "nnx.jit(nnx.remat(f))",
        "nnx.jit(lambda a, b, x: nnx.jit(f)(b, a, x))",
    )
    transform = pen.pick(*graphs) if cyclic else pen.pick(
        f"nnx.jit(f{mode})", f"nnx.jit(f{mode})", f"nnx.remat(f{mode})", f"nnx.vmap(f, in_axes=({pen.pick('None, None', '0, None', 'None, None', 'nnx.StateAxes({...: None}), None')}, 0){mode})",
        f"nnx.grad(lambda a, b, x: total(f(a, b, x)){pen.pick('', ', argnums=(0, 1)', ', argnums=1', ', argnums=(nnx.DiffState(0, nnx.Param), 2)')}{mode})",
        f"nnx.scan(f, in_axes=(None, None, 0), out_axes=0{mode})", f"(lambda a, b, x: nnx.cond(True, f, f, a, b, x{mode}))",
        f"nnx.scan(lambda ab, x: (ab, total(f(*ab, x))){mode})", "nnx.jit(nnx.remat(f))", "nnx.jit(lambda a, b, x: nnx.jit(f)(b, a, x))",
        f"(lambda a, b, x: nnx.fori_loop(0, 2, lambda i, v: (v[0], v[1], v[2] + total(f(v[0], v[1], x))), (a, b, jnp.zeros(())){mode}))",
        "(lambda a, b, x: nnx.cached_partial(nnx.jit(f), a)(b, x))",
    )  # fmt: skip
    given = "a, b, x"
    if "lambda ab" in transform:
        given = "(a, b), jnp.stack([x, x])"
    elif "vmap" in transform or "scan" in transform:
        given = "a, b, jnp.stack([x, x])"
    pen.step(f"f2 = {transform}")
    pen.step(f"y = f2({given})", "y", "a", "b")
    if pen.chance(50):
        pen.step(f"y = f2({given})", "y", "a", "b")
    if pen.chance(20):
        pen.step("found = (a is b, [sorted(paths, key=str) for paths in nnx.find_duplicates((a, b))])", "found")
    return pen.program()
