"""Mistakes with arguments: each is named as the function names it, whatever kind of function and parameter it is."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
)

from .rows import Row

WORD = "def f(model, x, mode):\n    return (x * (mode == 'fast')).sum()\nmode = 'fast'\n"
CALLABLE = """
class Step:
    def __call__(self, model, mode):
        return model.calls * (mode == "fast")
    def method(self, model, mode):
        return self(model, mode)
f = Step()
"""
MANY = "def f(*models):\n    return models[0].calls + models[1].calls\n"

ROWS = {
    "a word for a lambda": Row("plait.jit(lambda m, s: 1.0)(model, 'a')", ArgumentTypeError,
        (r"at +argument s\n", "<lambda> was called", "found +a str: 'a'")),
    "a word for *args": Row("plait.jit(lambda *ms: 1.0)(model, 'a')", ArgumentTypeError,
        (r"at +argument ms\[1\]\n", "found +a str: 'a'")),
    "a word after the parameters": Row("plait.jit(f)(x, x, 'a')", ArgumentTypeError,
        (r"at +argument rest\[1\]\n", "found +a str: 'a'"), setup="def f(x, *rest, flag=1):\n    return x"),
    "a word for a keyword-only argument": Row("plait.jit(f)(model, mode='a')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'a'"), setup="def f(model, *, mode):\n    return 1.0"),
    "a word for **kwargs": Row("plait.jit(f)(model, mode='a')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'a'"), setup="def f(model, **named):\n    return 1.0"),
    "a word for a partial": Row("plait.jit(f)(model, 'fast')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'fast'"), setup=CALLABLE),
    "a word for a callable": Row("plait.jit(f)(model, 'fast')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'fast'"), setup=CALLABLE),
    "a word for a bound method": Row("plait.jit(f.method)(model, 'fast')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'fast'"), setup=CALLABLE),
    "a word when lowering": Row("plait.jit(f).lower(model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for remat": Row("plait.remat(f)(model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "do +make it static:", "found +a str: 'fast'"), setup=WORD),
    "a word by name for remat": Row("plait.remat(f)(model, x, mode=mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "by position", "found +a str: 'fast'"), setup=WORD),
    "a word for make_jaxpr": Row("plait.make_jaxpr(f)(model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for pmap": Row("plait.pmap(f, in_axes=(None, 0, None))(model, x[:1], mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for custom_jvp": Row("ruled(plait.custom_jvp(f))(model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"),
        setup=WORD + "def ruled(f):\n    f.defjvp(lambda mode, primals, tangents: None)\n    return f"),
    "a word for vjp": Row("plait.vjp(f, model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for linearize": Row("plait.linearize(f, model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for jvp": Row("plait.jvp(f, (model, x, mode), (plait.state(model), x, mode))", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for eval_shape": Row("plait.eval_shape(f, model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for cond": Row("plait.cond(True, f, f, model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"), setup=WORD),
    "a word for shard_map": Row(
        "plait.shard_map(f, mesh=mesh, in_specs=(P(), P(), P()), out_specs=P())(model, x, mode)", ArgumentTypeError,
        (r"at +argument mode\n", "not an array", "found +a str: 'fast'"),
        setup=WORD + "mesh = jax.sharding.Mesh(jax.devices()[:1], ('d',))"),
    "a word alone": Row("plait.vjp(lambda mode: 1.0, 'a')", ArgumentTypeError,
        (r"at +argument mode\n", "found +a str: 'a'")),
    "a word among many for vjp": Row("plait.vjp(lambda *xs: xs[0], x, 'a')", ArgumentTypeError,
        (r"at +argument xs\[1\]\n", "from outside", "found +a str: 'a'")),
    "a word in the carry": Row("plait.while_loop(lambda c: True, lambda c: c, (x, 'a'))", ArgumentTypeError,
        (r"at +argument c\[1\]\n", "remove such values", "found +a str: 'a'")),
    "sizes of *args that differ": Row("plait.vmap(f)(a, b)", ArgumentError,
        (r"at +axis 0 of vs\[0\] and axis 0 of vs\[1\]\n", "found +3 and 4"),
        setup="f = lambda *vs: vs[0] + vs[1]\na = plait.Param(jnp.ones(3)); b = plait.Param(jnp.ones(4))"),
    "sizes of arguments after the parameters": Row("plait.vmap(f)(jnp.ones(3), jnp.ones(3), jnp.ones(4))",
        ArgumentError, (r"at +axis 0 of x and axis 0 of rest\[1\]\n", "found +3 and 4"),
        setup="def f(x, *rest, flag=1):\n    return x"),
    "an axis of a model in *args": Row("plait.vmap(f)(model, model)", ArgumentError,
        (r"at +models\[0\]\.calls", r"found +an array of shape \(\)"), setup=MANY),
    "a map of nothing that has an axis": Row("plait.vmap(f, in_axes=None)(x)", ArgumentError,
        ("vmap: no argument has a mapped axis", "found +no array with an axis, and no axis_size"),
        setup="f = lambda x: x"),
    "integers in a later argument": Row("plait.grad(loss, argnums=1)(model, steps)", ArgumentTypeError,
        (r"at +ms\[1\]\.calls\n", r"found +int32\[\]"),
        setup="loss = lambda *ms: 1.0\nsteps = Two(rngs); steps.calls = plait.Param(jnp.int32(1))"),
    "integers where only values are carried": Row("plait.grad(loss, graph_updates=False)(plait.Param(jnp.int32(1)))",
        ArgumentTypeError, (r"at +m\n", r"found +int32\[\]"), setup="loss = lambda m: 1.0"),
    "a list as a static argument among many": Row("plait.remat(f, static_argnums=1)(x, [1])", ArgumentError,
        (r"at +argument xs\[1\]\n", "a list"), setup="f = lambda *xs: xs[0]"),
    "a donated buffer twice in *args": Row("plait.jit(write, donate_argnums=(0, 1))(a, b)", ArgumentError,
        (r"at +vs\[0\] and vs\[1\]\n", "found +the same array in both"),
        setup="a = plait.Param(x); b = plait.Param(x); variable = b\n"
        "def write(*vs):\n"
        "    for v in vs:\n"
        "        v[...] = v[...] * 2"),
    "a variable that is no array in *args": Row("plait.jit(lambda *vs: 1.0)(x, v)", ArgumentError,
        (r"at +vs\[1\]\n", "found +a str"), setup="v = plait.Param(x); v.set_raw_value('a')"),
    "a model for a selection": Row("plait.add_lora(model, 2, rngs=rngs)", ArgumentTypeError,
        "plait.select"),
    "the name of an optimizer": Row("plait.Optimizer(model, 'adam', wrt=plait.Param)", ArgumentTypeError,
        r"found +a str"),
    "a negative number of features": Row("plait.GroupNorm(-8, rngs=rngs)", ArgumentError, "num_features=-8"),
    **{
        layer.format(size): Row(f"plait.{layer.format(size)}", ArgumentTypeError, f"found +.*{size}")
        for layer in ("Linear(2, {}, rngs=rngs)", "Embed({}, 2, rngs=rngs)", "LayerNorm({}, rngs=rngs)")
        for size in ("None", "-1", "2.5", "'3'", str(2**70))
    },
}  # fmt: skip
