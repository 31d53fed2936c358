"""Mistakes with ``scan``, ``while_loop``, ``fori_loop``, ``cond`` and ``switch``."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    LostUpdateWarning,
)

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

ROWS = {
    "a new variable in the carry": Row(
        "scan(add, model, x)",
        ArgumentTypeError,
        setup=SCAN,
        fix="plait.StateAxes({plait.Intermediate: 0, ...: plait.Carry})",
        cure="scan(lambda model, x: (add(model, x), x)[1], model, x, in_axes=($, 0), out_axes=0)",
        text="""
            scan: an iteration changed the structure of the carry
              at        model.extra
              found     a new Intermediate
              expected  the same variables before and after
              do        create the variable before the loop, or give it an axis: plait.StateAxes({plait.Intermediate:
                        0, ...: plait.Carry})
        """,
    ),
    "a new variable in a shared module": Row(
        "scan(lambda model, x: add(model, x)[1], model, x, in_axes=(None, 0), out_axes=0)", ArgumentTypeError,
        (r"at +model\.extra", "all iterations share", "a new Intermediate"), setup=SCAN),
    "a value sown in a shared module": Row("capture(None)", ArgumentTypeError,
        (r"at +model\.\S*seen", "all iterations share", "a new Intermediate"), setup=SOWN),
    "a value sown in a loop without outputs": Row(
        "plait.capture(lambda model, x: plait.fori_loop(0, 2, body, (model, x))[1], plait.Intermediate)(model, x)",
        ArgumentTypeError, (r"at +\S*seen", "found +a new Intermediate"),
        setup=SOWN + "def body(i, carry):\n    return carry[0], sow(*carry)"),
    "a new attribute in the carry": Row("scan(f, model, x)", ArgumentError,
        (r"at +model\.label", "found +new attribute label = 'x'"),
        setup=SCAN + "def f(model, x):\n    model.label = 'x'"),
    "a shared variable is written": Row("scan(f, model, x, in_axes=(None, 0), out_axes=0)", LostUpdateWarning,
        (r"at +model\.calls", "found +a new value, with axis None"),
        setup=SCAN + "def f(model, x):\n    model.calls += x.sum()"),
    "a shared array attribute is set": Row("scan(f, model, x, in_axes=(None, 0), out_axes=0)", LostUpdateWarning,
        (r"at +model\.seen", "all iterations share, and the new value is discarded",
        "found +a new value, with axis None"),
        setup=SCAN + "model.seen = jnp.zeros(())\ndef f(model, x):\n    model.seen = model.seen + x.sum()"),
    "an array attribute of another dtype": Row("plait.fori_loop(0, 3, f, model)", ArgumentTypeError,
        (r"at +model\.seen\n", "float32", r"found +int32\[\]"),
        setup="model.seen = jnp.zeros(())\ndef f(i, model):\n    model.seen = jnp.int32(1)\n    return model"),
    "no pair": Row("scan(lambda c, x: c, 0.0, x)", ArgumentTypeError,
        ("the number of outputs does not match out_axes", "found +a traced array"), setup=SCAN),
    "structure without updates": Row(
        "scan(lambda m, x: (setattr(m, 'label', 'x') or m, x), model, x, graph_updates=False)", ArgumentError,
        ("cannot change the structure of its arguments", "found +new, removed or replaced attributes"), setup=SCAN),
    "a carry of another structure": Row("scan(lambda c, x: ((c, c), x), 0.0, x)", ArgumentError,
        ("the returned carry and the input carry have different structures", r"found +PyTreeDef\(\(\*, \*\)\)"),
        setup=SCAN),
    "another module in the carry": Row("scan(lambda m, x: (plait.clone(m), x), model, x)", ArgumentError,
        ("references in the carry changed", "at +the carry", "a Two that is not the input Two"), setup=SCAN),
    "no length": Row("scan(lambda c: (c, None), 0.0, in_axes=plait.Carry, out_axes=(plait.Carry, 0))", ArgumentError,
        "no array with an axis, and no length", setup=SCAN),
    "a condition that writes": Row("plait.while_loop(f, lambda m: m, model)", ArgumentError,
        (r"at +m\.calls", "cond_fun changed", "found +a new value"), setup="def f(m):\n    m.calls += 1"),
    "two carries": Row("plait.scan(lambda a, b: (a, b), in_axes=(plait.Carry, plait.Carry))", ArgumentError,
        r"Carry at in_axes\[0\], in_axes\[1\]"),
    "a carry on one side": Row("plait.scan(f, in_axes=(plait.Carry, 0), out_axes=0)", ArgumentError,
        r"found +in_axes=\(Carry, 0\), out_axes=0", setup="f = lambda c, x: (c, x)"),
    "an output without an axis": Row("plait.scan(lambda c, x: (c, x), out_axes=(plait.Carry, None))", ArgumentError,
        (r"at +out_axes\[1\]", "found +None")),
    "a value of the carry of another tree": Row(
        "plait.fori_loop(0, 3, f, plait.Variable({'a': jnp.int32(0)}))", ArgumentTypeError,
        (r"at +p\n", r"found +\{a: int32\[\], b: int32\[\]\}", r"expected +\{a: int32\[\]\}"),
        setup="def f(i, p):\n    p.value = {'a': p.value['a'], 'b': p.value['a']}\n    return p"),
    "a carry of another dtype": Row("plait.fori_loop(0, 3, lambda i, v: v + 0.5, jnp.int32(0))", ArgumentTypeError,
        (r"at +v\n", "int32", r"found +float32\[\]")),
    "no branches": Row("plait.switch(0, [], x)", ArgumentError, "an empty sequence"),
    "branches with other types": Row("plait.cond(True, f, lambda m: None, model)", ArgumentTypeError,
        (r"at +m\.calls", "int32", r"found +float32\[\] from branch 1 \(<lambda>\)"),
        setup="def f(m):\n    m.calls.value = jnp.ones((), jnp.int32)"),
    "branches with other structures": Row("plait.cond(True, f, lambda m: None, model)", ArgumentError,
        ("produce different structures", "at +m", r"found +attribute label was removed \('a'\)"),
        setup="def f(m):\n    m.label = 'a'"),
    "branches that return different modules": Row(
        "plait.cond(True, lambda a, b: a, lambda a, b: b, model, Two(rngs))", ArgumentError,
        (r"at +the output\n", r"found +b from branch 1 \(<lambda>\)")),
    "branches of which a later output differs": Row("plait.cond(True, f, g, model)", ArgumentError,
        (r"at +the output\[2\]\n", "n was removed"),
        setup="f = lambda m: (x, plait.Dict(n=x), plait.Dict(n=x))\n"
        "g = lambda m: (x, plait.Dict(n=x), plait.Dict(m=x))"),
}  # fmt: skip
