"""Mistakes with ``grad``, ``vjp``, ``jvp``, ``linearize``, ``custom_vjp`` and ``custom_jvp``."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    NothingSelectedWarning,
    SharingError,
)

from .rows import Row

LOSS = "loss = lambda model, x: model(x).sum()\n"
JVP = (
    LOSS
    + "call = lambda model, x: model(x)\nnode = plait.Linear(2, 2, rngs=rngs); f = lambda model: model.bias[...] * 2\n"
)
RULE = """
def ruled(tangents, nondiff_argnums=(), graph_updates=None, fwd=None):
    def f(model, x):
        return (model.bias * x).sum()
    rule = plait.custom_vjp(f, nondiff_argnums=nondiff_argnums, graph_updates=graph_updates)
    rule.defvjp(fwd or (lambda model, x: (rule(model, x), x)), lambda *args: tangents)
    return rule

node = plait.Linear(2, 2, rngs=rngs)
zeros = jax.tree.map(jnp.zeros_like, plait.state(node))
"""

ROWS = {
    "a variable as the loss": Row("plait.grad(f)(node)", ArgumentTypeError, "found +a Param",
        setup="node = plait.Param(jnp.ones(())); f = lambda variable: variable"),
    "no pair of an output and aux": Row("plait.grad(loss, has_aux=True)(model, x)", ArgumentTypeError,
        ("a pair", "found +a traced array"), setup=LOSS),
    "a position that is not there": Row("plait.grad(loss, argnums=2)(model, x)", ArgumentTypeError,
        "argnums=2 and 2 positional arguments", setup=LOSS),
    "a position that is a tuple": Row("plait.grad(loss, argnums=plait.DiffState((0, 1), plait.Param))(model, x)",
        ArgumentError, (r"at +argnums\n", "takes the positions of arguments", "found +a DiffState"), setup=LOSS),
    "an argument given twice": Row("plait.grad(loss, argnums=(0, plait.DiffState(0, plait.BatchStat)))(model, x)",
        ArgumentError, r"found +argnums=\(0, DiffState\(0, plait\.BatchStat\)",
        setup=LOSS),
    "a filter where only values are carried": Row(
        "plait.grad(loss, argnums=plait.DiffState(0, plait.Param), graph_updates=False)(model, x)", ArgumentError,
        ("at +argnums", r"found +DiffState\(0, plait\.Param\)"),
        setup=LOSS),
    "integers": Row("plait.grad(loss)(model, x)", ArgumentTypeError, (r"at +model\.steps", r"found +int32\[\]"),
        setup=LOSS + "model.steps = plait.Param(jnp.zeros((), jnp.int32))"),
    "a filter that selects nothing": Row("plait.grad(loss, argnums=plait.DiffState(0, plait.LoRAParam))(model, x)",
        NothingSelectedWarning,
        (r"plait\.LoRAParam", "argument model", "found +4 Param, 1 BatchStat, 1 RngCount, 1 RngKey"), setup=LOSS),
    "a model without parameters": Row("plait.grad(lambda drop, x: drop(x).sum())(model.drop, x)",
        NothingSelectedWarning, ("argument drop", "found +1 RngCount, 1 RngKey")),
    "one variable, differentiated and not": Row("plait.grad(lambda a, b: loss(a, x) + loss(b, x))(model, model)",
        SharingError, (r"at +a\..* and b\.", "found +differentiated at the first, left alone at the second")),
    "an input variable is returned": Row("plait.vjp(lambda m: m.bias, model.layers[0])", ArgumentError,
        (r"at +m\.bias\n", "the Param that was passed as an argument")),
    "primals that are no tuple": Row("plait.jvp(f, node, (node,))", ArgumentTypeError, "found +a Linear", setup=JVP),
    "too few tangents": Row("plait.jvp(call, (model, x), (model,))", ArgumentError, "1 tangents for 2 primals",
        setup=JVP),
    "tangents of another structure": Row("plait.jvp(lambda xs: xs[0], ([x, x],), (x,))", ArgumentError,
        ("a different structure than the primal", r"found +PyTreeDef\(\(\(\*,\), \{\}\)\)")),
    "a tree for an array": Row("plait.jvp(lambda x: x, (x,), ([x, x],))", ArgumentError,
        ("a different structure than the primal", r"found +PyTreeDef\(\(\(\[\*, \*\],\), \{\}\)\)")),
    "a tangent with other leaves": Row("plait.jvp(f, (node,), (plait.State({'scale': x}),))", ArgumentError,
        ("at +scale", "bias, kernel", "found +a leaf there, in a State"), setup=JVP),
    "a vector with leaves that are not differentiated": Row(
        "plait.hvp(loss, (model, x), jax.tree.map(jnp.zeros_like, plait.state(model, plait.Not(plait.RngState))))",
        ArgumentError, ("hvp: the tangents", "found +a leaf there, in a State", "at +calls"), setup=LOSS),
    "a vector of another structure": Row("plait.hvp(lambda xs: xs[0].sum(), ([x, x],), (x,))", ArgumentError,
        ("hvp: the tangents has a different structure", r"found +PyTreeDef\(\(\(\(\*,\),\), \{\}\)\)")),
    "primals of hvp that are no tuple": Row("plait.hvp(loss, model, x)", ArgumentTypeError,
        ("hvp takes primals as a tuple", "found +a Two"), setup=LOSS),
    "a Jacobian of a pair that is none": Row("plait.jacrev(lambda model, x: model(x), has_aux=True)(model, x)",
        ArgumentTypeError, ("a pair", "found +a traced array")),
    "a rule that was never set": Row("plait.custom_vjp(f)(x)", ArgumentError, "no rule for <lambda>", setup=JVP),
    "a rule that returns no pair": Row("plait.grad(ruled((zeros, None), fwd=lambda model, x: x[0]))(node, x[0])",
        ArgumentTypeError, "found +a jax.Array", setup=RULE),
    "a derivative that the rule leaves out": Row(
        "jax.grad(lambda v: ruled((zeros, None), (plait.DiffState(0, False),))(make(v), x[0]))(x[0])", ArgumentError,
        (r"at +model\.bias", "found +a request for its derivative"),
        setup=RULE + "make = lambda value: plait.Dict(bias=plait.Param(value))"),
    "a rule that leaves another structure": Row(
        "rule.defvjp(fwd, bwd); jax.vjp(jax.jit(lambda v: rule(node, v) + rule(node, v)), 1.0)", ArgumentError,
        ("produce different structures",
        "found +different types, attributes or references in the arguments or the outp"),
        setup=RULE + ("rule = plait.custom_vjp(lambda m, v: v)\n"
        "fwd = lambda m, v: (setattr(m, 'label', 'x') or v, v); bwd = lambda v, g: (zeros, v)")),
    "an argument without a position": Row("f(x=x)", ArgumentTypeError, r"the arguments \['x'\]",
        setup="f = plait.custom_vjp(lambda *, x: x); f.defvjp(lambda x: (x, x), lambda x, g: (x,))"),
    "an integer for a module": Row("ruled((None,), (0,))(node, x[0])", ArgumentTypeError,
        (r"at +model\n", "found +nondiff_argnums has 0, and the argument a Linear"), setup=RULE),
    "too few tangents of a rule": Row("plait.grad(ruled((zeros,)))(node, x[0])", ArgumentTypeError,
        ("1 tangents", "a tuple of 2"), setup=RULE),
    "a tangent of a rule with another structure": Row("plait.grad(ruled((zeros, [x[0], x[0]])))(node, x[0])",
        ArgumentTypeError, ("the tangent of argument x", r"found +PyTreeDef\(\[\*, \*\]\)"), setup=RULE),
    "a tangent of a rule without a leaf": Row("plait.grad(ruled((plait.State({}), None)))(node, x[0])", ArgumentError,
        ("at +bias", "nothing there, in a State"), setup=RULE),
}  # fmt: skip
