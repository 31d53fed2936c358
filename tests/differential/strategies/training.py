"""Training: optimizers with their filters, metrics, averages, in steps with and without ``jit``."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.filters import _in_parts, draw_filter
from tests.differential.strategies.models import EVERYWHERE, PARTS, define_model, make_input, make_model

TRANSFORMATIONS = (
    "optax.sgd(0.1)", "optax.sgd(0.1, momentum=0.9)", "optax.adam(1e-2)", "optax.adamw(1e-2)", "optax.lion(1e-2)",
    "optax.rmsprop(1e-2)", "optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))",
    "optax.sgd(optax.linear_schedule(0.1, 0.0, 4))", "optax.adafactor(1e-2)", "optax.inject_hyperparams(optax.adam)(1e-2)",
    "optax.MultiSteps(optax.sgd(0.1), 2)", "optax.apply_if_finite(optax.sgd(0.1), 2)", "optax.set_to_zero()",
    "optax.chain(optax.add_decayed_weights(0.1), optax.scale(-0.1))", "optax.sgd(0.1, nesterov=True, momentum=0.5)",
    "optax.masked(optax.sgd(0.1), lambda tree: jax.tree.map(lambda a: a.ndim > 1, tree))",
)  # fmt: skip
WRT = (
    "nnx.Param",
    "nnx.Param",
    "nnx.Param",
    "(nnx.Param, nnx.BatchStat)",
    "nnx.PathContains('kernel')",
    "nnx.All(nnx.Param, nnx.PathContains('bias'))",
    "nnx.LoRAParam",
    "nnx.Any(nnx.Param, 'decay')",
)


@st.composite
def training_programs(draw: Draw) -> Program:
    pen = Pen(draw, "training")
    pen.pick(train, train, train, metrics, averages)(pen)
    return pen.program()


def train(pen: Pen) -> None:
    model = define_model(pen, EVERYWHERE if pen.chance(75) else tuple(PARTS), most=2)
    m, x = make_model(pen, model), make_input(pen)
    wrt = pen.pick(*WRT) if pen.chance(92) else _in_parts(draw_filter(pen, wrong=0))
    both = pen.chance(25)
    pen.step(f"tx = {pen.pick(*TRANSFORMATIONS)}")
    pen.step(f"optimizer = nnx.{'ModelAndOptimizer' if both else 'Optimizer'}({m}, tx, wrt={wrt})", "optimizer")
    aux = pen.chance(30)
    target = pen.pick("((m(x) - 1.0) ** 2).mean()", "total(m(x) ** 2)", "(m(x) ** 2).sum(axis=-1).mean()")
    pen.step(f"def loss(m, x):\n    traces['loss'] += 1\n    return {target}{', {}' if aux else ''}")
    argnums = f"argnums=nnx.DiffState(0, {wrt})" if wrt != "nnx.Param" or pen.chance(30) else ""
    options = ", ".join(filter(None, [argnums, "has_aux=True" if aux else ""]))
    comma = f", {options}" if options else ""
    update = "optimizer.update(grads)" if both and pen.chance(60) else "optimizer.update(m, grads)"
    how = pen.pick(
        f"value, grads = nnx.value_and_grad(loss{comma})(m, x)",
        f"grads = nnx.grad(loss{comma})(m, x)\n    value = 0" + ("\n    grads = grads[0]" if aux else ""),
    )
    pen.step(f"def step(m, optimizer, x):\n    traces['step'] += 1\n    {how}\n    {update}\n    return value, grads")
    pen.step(
        pen.pick(
            "step = nnx.jit(step)",
            "step = nnx.jit(step)",
            "step = step",
            "step = nnx.jit(step, donate_argnums=(0, 1))",
            "inner = step\nstep = nnx.scan(lambda m, o, x: inner(m, o, x), in_axes=(None, None, 0), out_axes=0)"
            if pen.chance(5)
            else "step = step",
        )
    )
    given = m if not (both and pen.chance(50)) else "optimizer.model"
    for _ in range(pen.number(1, 3)):
        pen.step(f"out = step({given}, optimizer, {x})", "out", m, "optimizer")
    if pen.chance(30):
        pen.step(pen.pick(
            "graphdef, s = nnx.split(optimizer)\nr = nnx.merge(graphdef, s)",
            "r = nnx.state(optimizer)",
            "r = nnx.state(optimizer, nnx.OptState)",
            f"r = nnx.state(({m}, optimizer), {_in_parts(draw_filter(pen))})",
            "r = nnx.clone(optimizer)",
            "r = nnx.to_pure_dict(nnx.state(optimizer))",
            "nnx.update(optimizer, jax.tree.map(doubled, nnx.state(optimizer)))\nr = optimizer",
            "r = jax.tree.leaves(optimizer.opt_state)",
            "r = [type(v).__name__ for v in jax.tree.leaves(optimizer.opt_state, is_leaf=lambda v: isinstance(v, nnx.Variable))]",
            "r = optimizer.step.value if hasattr(optimizer.step, 'value') else optimizer.step",
            "r = nnx.eval_shape(lambda: nnx.Optimizer(" + f"{model.name}(nnx.Rngs(0)), tx, wrt=nnx.Param))",
        ), "r")  # fmt: skip


METRICS = {
    "Average": ("nnx.metrics.Average()", "values={}", "('loss')"),
    "Accuracy": ("nnx.metrics.Accuracy()", "logits={}, labels=labels"),
    "Welford": ("nnx.metrics.Welford()", "values={}"),
    "threshold": ("nnx.metrics.Accuracy(threshold=0.5)", "logits={}[:, 0], labels=labels % 2"),
}


def metrics(pen: Pen) -> None:
    chosen = pen.some(
        [
            "nnx.metrics.Average('loss')",
            "nnx.metrics.Accuracy()",
            "nnx.metrics.Welford('loss')",
            "nnx.metrics.Average('other')",
        ],
        3,
    ) or ["nnx.metrics.Average('loss')"]
    pen.step("x = jax.random.normal(jax.random.key(0), (5, 3))\nlabels = jnp.array([0, 1, 2, 1, 0])")
    values = pen.pick("x[:, 0]", "x", "jnp.float32(0.5)", "1.5", "x.astype(jnp.bfloat16)")
    if len(chosen) == 1 and pen.chance(60):
        kind = chosen[0]
        pen.step(f"m = {kind}", "m")
        given = "logits=x, labels=labels" if "Accuracy" in kind else f"{kind.split(chr(39))[1]}={values}"
    else:
        pen.step(
            f"m = nnx.MultiMetric({', '.join(f'{name}={kind}' for name, kind in zip('abc', chosen, strict=False))})",
            "m",
        )
        given = f"logits=x, labels=labels, loss={values}, other=x[0]"
    if pen.chance(20):
        given += pen.pick(", extra=1", ", mask=jnp.array([1, 1, 0, 1, 0])", ", other=3")
    if pen.chance(40):
        pen.step(
            "@nnx.jit\ndef step(m, x, labels):\n    traces['step'] += 1\n    m.update("
            + given
            + ")\n    return m.compute()"
        )
        pen.step("y = step(m, x, labels), step(m, 2 * x, labels)", "y", "m")
    else:
        for _ in range(pen.number(1, 2)):
            pen.step(f"m.update({given})", "m")
    pen.step("y = m.compute()", "y")
    if pen.chance(40):
        pen.step("m.reset()", "m")
    if pen.chance(30):
        pen.step(
            pen.pick(
                "graphdef, s = nnx.split(m)\ny = nnx.merge(graphdef, s).compute()",
                "y = nnx.state(m)",
                "y = nnx.clone(m)",
                "y = nnx.state(m, nnx.metrics.MetricState)",
            ),
            "y",
        )


def averages(pen: Pen) -> None:
    model = define_model(pen, most=2, nested=False)
    m, x = make_model(pen, model), make_input(pen)
    only = pen.pick("", "", ", only=nnx.Param", ", only=nnx.PathContains('kernel')")
    pen.step(f"ema = nnx.EMA({m}, decay={pen.pick('0.5', '0.9', '0.0')}{only})", "ema")
    pen.step(f"y = {m}({x})", "y")
    pen.step(f"nnx.update({m}, jax.tree.map(doubled, nnx.state({m}, nnx.Param)))", m)
    pen.step(pen.pick(f"ema.update({m})", f"nnx.jit(lambda ema, m: ema.update(m))(ema, {m})"), "ema")
    pen.step(f"e = ema.apply_to({m})", "e")
    pen.step(f"y = e({x})", "y", "e", m)
