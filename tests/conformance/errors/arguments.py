"""Mistakes with arguments: each is named as the function names it, whatever kind of function and parameter it is."""

from plait.errors import ArgumentError, ArgumentTypeError

from .rows import Row

WORD = "def f(model, x, mode):\n    return (x * (mode == 'fast')).sum()\nmode = 'fast'\n"
REFUSED = (r"at +argument mode\n", "'fast'", "not an array")
CALLABLE = """
class Step:
    def __call__(self, model, mode):
        return model.calls * (mode == "fast")
    def method(self, model, mode):
        return self(model, mode)
f = Step()
"""
MANY = "def f(*models):\n    return models[0].calls + models[1].calls\n"
TWO_SIZES = "a = plait.Param(jnp.ones(3)); b = plait.Param(jnp.ones(4))\n"


def of_a_word(transform: str, setup: str = "", cure: str = "$(model, x)") -> Row:
    """A word as an argument of a transform that has no static arguments."""
    wrong = f"plait.{transform}"
    return Row(wrong, ArgumentTypeError, REFUSED, cure, "lambda model, x: f(model, x, mode)", WORD + setup)


def of_a_static(transform: str, option: str, given: str = "model, x, mode", does: str = "$") -> Row:
    """A word as an argument of a transform that has static arguments."""
    fix = f"plait.{transform}(f, {option})"
    return Row(f"plait.{transform}(f)({given})", ArgumentTypeError, REFUSED, f"{does}({given})", fix, WORD)


ROWS = {
    "a word for a lambda": Row(
        "plait.jit(lambda m, s: 1.0)(model, 'a')",
        ArgumentTypeError,
        (r"at +argument s\n", "<lambda> was called"),
        fix="plait.jit(f, static_argnames='s')",
        cure="f = lambda m, s: 1.0; $(model, 'a')",
    ),
    "a word for *args": Row(
        "plait.jit(lambda *ms: 1.0)(model, 'a')",
        ArgumentTypeError,
        r"at +argument ms\[1\]\n",
        fix="plait.jit(f, static_argnums=1)",
        cure="f = lambda *ms: 1.0; $(model, 'a')",
    ),
    "a word after the parameters": Row(
        "plait.jit(f)(x, x, 'a')",
        ArgumentTypeError,
        r"at +argument rest\[1\]\n",
        setup="def f(x, *rest, flag=1):\n    return x",
        fix="plait.jit(f, static_argnums=2)",
        cure="$(x, x, 'a')",
    ),
    "a word for a keyword-only argument": Row(
        "plait.jit(f)(model, mode='a')",
        ArgumentTypeError,
        r"at +argument mode\n",
        setup="def f(model, *, mode):\n    return 1.0",
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(model, mode='a')",
    ),
    "a word for **kwargs": Row(
        "plait.jit(f)(model, mode='a')",
        ArgumentTypeError,
        r"at +argument mode\n",
        setup="def f(model, **named):\n    return 1.0",
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(model, mode='a')",
    ),
    "a word for a partial": Row(
        "plait.jit(f)(model, 'fast')",
        ArgumentTypeError,
        r"at +argument mode\n",
        setup="import functools\nf = functools.partial(lambda x, model, mode: x, x)",
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(model, 'fast')",
    ),
    "a word for a callable": Row(
        "plait.jit(f)(model, 'fast')",
        ArgumentTypeError,
        r"at +argument mode\n",
        setup=CALLABLE,
        fix="plait.jit(f, static_argnames='mode')",
        cure="$(model, 'fast')",
    ),
    "a word for a bound method": Row(
        "plait.jit(f.method)(model, 'fast')",
        ArgumentTypeError,
        r"at +argument mode\n",
        setup=CALLABLE,
        fix="plait.jit(method, static_argnames='mode')",
        cure="method = f.method; $(model, 'fast')",
    ),
    "a word when lowering": Row(
        "plait.jit(f).lower(model, x, mode)",
        ArgumentTypeError,
        REFUSED,
        setup=WORD,
        fix="plait.jit(f, static_argnames='mode')",
        cure="$.lower(model, x, mode)",
    ),
    "a word for remat": of_a_static("remat", "static_argnums=2"),
    "a word by name for remat": Row(
        "plait.remat(f)(model, x, mode=mode)",
        ArgumentTypeError,
        (*REFUSED, "by position"),
        setup=WORD,
        fix="plait.remat(f, static_argnums=2)",
        cure="$(model, x, mode)",
    ),
    "a word for make_jaxpr": of_a_static("make_jaxpr", "static_argnums=2"),
    "a word for pmap": Row(
        "plait.pmap(f, in_axes=(None, 0, None))(model, x[:1], mode)",
        ArgumentTypeError,
        REFUSED,
        setup=WORD,
        fix="static_broadcasted_argnums=2",
        cure="plait.pmap(f, in_axes=(None, 0, None), $)(model, x[:1], mode)",
    ),
    "a word for custom_jvp": Row(
        "ruled(plait.custom_jvp(f))(model, x, mode)",
        ArgumentTypeError,
        REFUSED,
        setup=WORD + "def ruled(f):\n    f.defjvp(lambda mode, primals, tangents: None)\n    return f",
        fix="plait.custom_jvp(f, nondiff_argnums=(2,))",
        cure="ruled($)(model, x, mode)",
    ),
    "a word for vjp": of_a_word("vjp(f, model, x, mode)", cure="plait.vjp($, model, x)"),
    "a word for linearize": of_a_word("linearize(f, model, x, mode)", cure="plait.linearize($, model, x)"),
    "a word for jvp": of_a_word(
        "jvp(f, (model, x, mode), (plait.state(model), x, mode))",
        cure="plait.jvp($, (model, x), (jax.tree.map(jnp.zeros_like, plait.state(model)), x))",
    ),
    "a word for eval_shape": of_a_word("eval_shape(f, model, x, mode)", cure="plait.eval_shape($, model, x)"),
    "a word for cond": of_a_word("cond(True, f, f, model, x, mode)", cure="g = $; plait.cond(True, g, g, model, x)"),
    "a word for shard_map": of_a_word(
        "shard_map(f, mesh=mesh, in_specs=(P(), P(), P()), out_specs=P())(model, x, mode)",
        "mesh = jax.make_mesh((1,), ('d',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])\n",
        "plait.shard_map($, mesh=mesh, in_specs=(P(), P()), out_specs=P())(model, x)",
    ),
    "a word alone": Row(
        "plait.vjp(lambda mode: 1.0, 'a')",
        ArgumentTypeError,
        r"at +argument mode\n",
        fix="lambda: f(mode)",
        cure="f = lambda mode: 1.0; mode = 'a'; plait.vjp($)()",
    ),
    "a word among many for vjp": Row(
        "plait.vjp(lambda *xs: xs[0], x, 'a')",
        ArgumentTypeError,
        (r"at +argument xs\[1\]\n", "from outside"),
        "mode = 'a'; plait.vjp(lambda *xs: xs[0], x)",
    ),
    "a word in the carry": Row(
        "plait.while_loop(lambda c: True, lambda c: c, (x, 'a'))",
        ArgumentTypeError,
        (r"at +argument c\[1\]\n", "remove such values"),
        "plait.while_loop(lambda c: c[0].sum() < 0, lambda c: c, (x,))",
    ),
    "sizes of *args that differ": Row(
        "plait.vmap(f)(a, b)",
        ArgumentError,
        r"at +axis 0 of vs\[0\] and axis 0 of vs\[1\]\n",
        "plait.vmap(f)(a, a + 1)",
        setup="f = lambda *vs: vs[0] + vs[1]\n" + TWO_SIZES,
    ),
    "sizes of arguments after the parameters": Row(
        "plait.vmap(f)(jnp.ones(3), jnp.ones(3), jnp.ones(4))",
        ArgumentError,
        r"at +axis 0 of x and axis 0 of rest\[1\]\n",
        "plait.vmap(f)(jnp.ones(3), jnp.ones(3), jnp.ones(3))",
        setup="def f(x, *rest, flag=1):\n    return x",
    ),
    "an axis of a model in *args": Row(
        "plait.vmap(f)(model, model)",
        ArgumentError,
        r"at +models\[0\]\.calls",
        "plait.vmap(f, in_axes=None, axis_size=2)(model, plait.clone(model))",
        setup=MANY,
    ),
    "a map of nothing that has an axis": Row(
        "plait.vmap(f, in_axes=None)(x)",
        ArgumentError,
        "vmap: no argument has a mapped axis",
        setup="f = lambda x: x",
        fix="axis_size=8",
        cure="plait.vmap(f, in_axes=None, $)(x)",
    ),
    "integers in a later argument": Row(
        "plait.grad(loss, argnums=1)(model, steps)",
        ArgumentTypeError,
        (r"at +ms\[1\]\.calls\n", "int32"),
        setup="loss = lambda *ms: 1.0\nsteps = Two(rngs); steps.calls = plait.Param(jnp.int32(1))",
        fix="argnums=plait.DiffState(1, plait.All(plait.Param, lambda path, v: jnp.issubdtype(v.dtype, jnp.inexact)))",
        cure="plait.grad(loss, $)(model, steps)",
    ),
    "integers where only values are carried": Row(
        "plait.grad(loss, graph_updates=False)(plait.Param(jnp.int32(1)))",
        ArgumentTypeError,
        (r"at +m\n", "int32"),
        setup="loss = lambda m: 1.0",
        fix="allow_int=True",
        cure="plait.grad(loss, graph_updates=False, $)(plait.Param(jnp.int32(1)))",
    ),
    "a list as a static argument among many": Row(
        "plait.remat(f, static_argnums=1)(x, [1])",
        ArgumentError,
        (r"at +argument xs\[1\]\n", "a list"),
        "plait.remat(f, static_argnums=1)(x, (1,))",
        setup="f = lambda *xs: xs[0]",
        fix="frozen=True",
    ),
    "a donated buffer twice in *args": Row(
        "plait.jit(write, donate_argnums=(0, 1))(a, b)",
        ArgumentError,
        r"at +vs\[0\] and vs\[1\]\n",
        setup="a = plait.Param(x); b = plait.Param(x); variable = b\n"
        "def write(*vs):\n    for v in vs:\n        v[...] = v[...] * 2",
        fix="variable.value = jnp.copy(variable.value)",
        cure="$; plait.jit(write, donate_argnums=(0, 1))(a, b)",
    ),
    "a variable that is no array in *args": Row(
        "plait.jit(lambda *vs: 1.0)(x, v)",
        ArgumentError,
        r"at +vs\[1\]\n",
        "plait.jit(lambda *vs: 1.0)(x, plait.Param(x))",
        setup="v = plait.Param(x); v.set_raw_value('a')",
        fix="model.name = value",
    ),
    "a variable beside the bound arguments": Row(
        "plait.jit_partial(f, model)(x, other)",
        ArgumentError,
        r"at +argument others\[2\]\n",
        setup="f = lambda *others: 1.0\nother = Two(rngs)",
        fix="plait.jit_partial(f, model, other)",
        cure="f = lambda *others: 1.0; $(x)",
    ),
}
