"""Mistakes with ``scan``, ``while_loop``, ``fori_loop``, ``cond`` and ``switch``."""

from plait.errors import ArgumentError, ArgumentTypeError, LostUpdateWarning

from .rows import Row

SCAN = """
def scan(body, *args, **options):
    return plait.scan(body, **options)(*args)

def add(model, x):
    model.extra = plait.Intermediate(x)
    return model, x
"""
SOWN = """
def sow(model, x):
    model.sow(plait.Intermediate, 'seen', x)
    return x

def capture(axes):
    return plait.capture(plait.scan(sow, in_axes=(axes, 0), out_axes=0), plait.Intermediate)(model, x)
"""
SHARED = "def f(model, x):\n    model.calls += x.sum()\n    return x\n"

ROWS = {
    "a new variable in the carry": Row(
        "scan(add, model, x)",
        ArgumentTypeError,
        (r"at +.*extra", "a new Intermediate"),
        setup=SCAN,
        fix="plait.StateAxes({plait.Intermediate: 0, ...: plait.Carry})",
        cure="scan(lambda model, x: (add(model, x), x)[1], model, x, in_axes=($, 0), out_axes=0)",
    ),
    "a new variable in a shared module": Row(
        "scan(lambda model, x: add(model, x)[1], model, x, in_axes=(None, 0), out_axes=0)",
        ArgumentTypeError,
        (r"at +model\.extra", "all iterations share", "a new Intermediate"),
        setup=SCAN,
        fix="plait.StateAxes({plait.Intermediate: 0, ...: None})",
        cure="scan(lambda model, x: add(model, x)[1], model, x, in_axes=($, 0), out_axes=0); assert model.extra.shape",
    ),
    "a value sown in a shared module": Row(
        "capture(None)",
        ArgumentTypeError,
        (r"at +model\.\S*seen", "all iterations share", "a new Intermediate"),
        setup=SOWN,
        fix="plait.StateAxes({plait.Intermediate: 0, ...: None})",
        cure="assert capture($)[1]['seen'].value[0].shape == x.shape",
    ),
    "a value sown in a loop without outputs": Row(
        "plait.capture(lambda model, x: plait.fori_loop(0, 2, body, (model, x))[1], plait.Intermediate)(model, x)",
        ArgumentTypeError,
        (r"at +\S*seen", "structure of the carry", "use plait.scan"),
        "capture(plait.StateAxes({plait.Intermediate: 0, ...: None}))",
        setup=SOWN + "def body(i, carry):\n    return carry[0], sow(*carry)\n",
    ),
    "a new attribute in the carry": Row(
        "scan(f, model, x)",
        ArgumentError,
        (r"at +model\.label", "'x'"),
        "model.label = 'x'; scan(f, model, x)",
        setup=SCAN + "def f(model, x):\n    model.label = 'x'\n    return model, x",
    ),
    "a shared variable is written": Row(
        "scan(f, model, x, in_axes=(None, 0), out_axes=0)",
        LostUpdateWarning,
        (r"at +model\.calls", "all iterations share, and the new value is discarded"),
        setup=SCAN + SHARED,
        fix="plait.StateAxes({plait.BatchStat: plait.Carry, ...: None})",
        cure="scan(f, model, x, in_axes=($, 0), out_axes=0); assert model.calls == 8",
    ),
    "a shared array attribute is set": Row(
        "scan(f, model, x, in_axes=(None, 0), out_axes=0)",
        LostUpdateWarning,
        (r"at +model\.seen", "all iterations share, and the new value is discarded"),
        setup=SCAN
        + "model.seen = jnp.zeros(())\ndef f(model, x):\n    model.seen = model.seen + x.sum()\n    return x\n",
        fix="plait.StateAxes({jax.Array: plait.Carry, ...: None})",
        cure="scan(f, model, x, in_axes=($, 0), out_axes=0); assert model.seen == 8",
    ),
    "an array attribute of another dtype": Row(
        "plait.fori_loop(0, 3, f, model)",
        ArgumentTypeError,
        (r"at +model\.seen\n", "int32", "float32"),
        "plait.fori_loop(0, 3, lambda i, m: (f(i, m), setattr(m, 'seen', m.seen.astype(jnp.float32)), m)[2], model)",
        setup="model.seen = jnp.zeros(())\ndef f(i, model):\n    model.seen = jnp.int32(1)\n    return model\n",
    ),
    "no pair": Row(
        "scan(lambda c, x: c, 0.0, x)",
        ArgumentTypeError,
        ("the number of outputs does not match out_axes", "found +a traced array"),
        setup=SCAN,
        fix="out_axes=plait.Carry",
        cure="scan(lambda c, x: c, 0.0, x, $)",
    ),
    "structure without updates": Row(
        "scan(lambda m, x: (setattr(m, 'label', 'x') or m, x), model, x, graph_updates=False)",
        ArgumentError,
        "cannot change the structure of its arguments",
        setup=SCAN,
        fix="graph_updates=True",
        cure="scan(lambda m, x: (x, setattr(m, 'label', 'x'))[0], plait.Dict(a=x), x, in_axes=(0, 0), out_axes=0, $)",
    ),
    "a carry of another structure": Row(
        "scan(lambda c, x: ((c, c), x), 0.0, x)",
        ArgumentError,
        "the returned carry and the input carry have different structures",
        "scan(lambda c, x: ((c[0], c[0]), x), (0.0, 0.0), x)",
        setup=SCAN,
    ),
    "another module in the carry": Row(
        "scan(lambda m, x: (plait.clone(m), x), model, x)",
        ArgumentError,
        ("references in the carry changed", r"at +the carry", "a Two that is not the input Two"),
        setup=SCAN,
        fix="plait.update(module, state)",
        cure="def f(module, x):\n    state = plait.state(plait.clone(module))\n    $\n    return module, x\n"
        "scan(f, model, x)",
    ),
    "no length": Row(
        "scan(lambda c: (c, None), 0.0, in_axes=plait.Carry, out_axes=(plait.Carry, 0))",
        ArgumentError,
        "no array with an axis, and no length",
        setup=SCAN,
        fix="length=10",
        cure="scan(lambda c: (c, None), 0.0, in_axes=plait.Carry, out_axes=(plait.Carry, 0), $)",
    ),
    "a condition that writes": Row(
        "plait.while_loop(f, lambda m: m, model)",
        ArgumentError,
        (r"at +m\.calls", "cond_fun changed"),
        "def body(m):\n    m.calls += 1\n    return m\nplait.while_loop(lambda m: m.calls[...] < 3, body, model)",
        setup="def f(m):\n    m.calls += 1\n    return m.calls[...] < 3",
    ),
    "two carries": Row(
        "plait.scan(lambda a, b: (a, b), in_axes=(plait.Carry, plait.Carry))",
        ArgumentError,
        r"Carry at in_axes\[0\], in_axes\[1\]",
        "plait.scan(lambda c, x: (c, x))((0.0, 1.0), x)",
    ),
    "a carry on one side": Row(
        "plait.scan(f, in_axes=(plait.Carry, 0), out_axes=0)",
        ArgumentError,
        "in_axes=\\(Carry, 0\\)",
        setup="f = lambda c, x: (c, x)",
        fix="out_axes=(plait.Carry, 0)",
        cure="plait.scan(f, in_axes=(plait.Carry, 0), $)(0.0, x)",
    ),
    "an output without an axis": Row(
        "plait.scan(lambda c, x: (c, x), out_axes=(plait.Carry, None))",
        ArgumentError,
        r"at +out_axes\[1\]",
        "plait.scan(lambda c, x: (c, x), out_axes=(plait.Carry, 0))(0.0, x)",
    ),
    "a carry of another dtype": Row(
        "plait.fori_loop(0, 3, lambda i, v: v + 0.5, jnp.int32(0))",
        ArgumentTypeError,
        (r"at +v\n", "float32", "int32"),
        "plait.fori_loop(0, 3, lambda i, v: (v + 0.5).astype(jnp.int32), jnp.int32(0))",
    ),
    "no branches": Row(
        "plait.switch(0, [], x)",
        ArgumentError,
        "an empty sequence",
        fix="plait.switch(index, [f, g], x)",
        setup="f = g = lambda x: x; index = 0",
    ),
    "branches with other types": Row(
        "plait.cond(True, f, lambda m: None, model)",
        ArgumentTypeError,
        (r"at +m\.calls", "int32"),
        "plait.cond(True, g, lambda m: None, model)",
        setup="def f(m):\n    m.calls.value = jnp.ones((), jnp.int32)\n"
        "def g(m):\n    m.calls.value = jnp.ones((), jnp.int32).astype(jnp.float32)",
    ),
    "branches with other structures": Row(
        "plait.cond(True, f, lambda m: None, model)",
        ArgumentError,
        ("produce different structures", "label"),
        "plait.cond(True, f, f, model)",
        setup="def f(m):\n    m.label = 'a'",
    ),
    "branches that return different modules": Row(
        "plait.cond(True, lambda a, b: a, lambda a, b: b, model, Two(rngs))",
        ArgumentError,
        (r"at +the output\n", r"found +b from branch 1", r"expected +a, as from branch 0"),
        setup="choose = lambda model: plait.state(model)\nother = Two(rngs)\nother.calls[...] = 3.0",
        fix="plait.update(model, state)",
        cure="state = plait.cond(False, lambda a, b: choose(a), lambda a, b: choose(b), model, other)\n"
        "$\nassert model.calls == 3",
    ),
}
