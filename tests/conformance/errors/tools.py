"""Mistakes with what looks into a model and changes it: capture, selections, views."""

from plait.errors import ArgumentError, ArgumentTypeError, GraphError, NonFiniteError

from .rows import Row

CAPTURE = "f = lambda model, x: model(x)\n"
SELECT = "select = plait.select\n"

ROWS = {
    "capture of no class": Row(
        "plait.capture(model, 'h')",
        ArgumentTypeError,
        "'h'",
        fix="plait.capture(model, plait.Intermediate)",
        cure="$(x)",
    ),
    "capture of no module": Row(
        "plait.capture(lambda x: x, plait.Intermediate)(x)",
        ArgumentTypeError,
        "a jax.Array as the first argument",
        setup=CAPTURE,
        fix="plait.capture(f, plait.Intermediate)(model, x)",
        cure="$; plait.capture(model, plait.Intermediate)(x)",
    ),
    "capture of modules that are not there": Row(
        "plait.capture(model, plait.Intermediate, method_outputs=plait.Intermediate, only='head')(x)",
        GraphError,
        ("only=", r"modules at the root.*layers\[0\]"),
        "plait.capture(model, plait.Intermediate, method_outputs=plait.Intermediate, only='layers[*]')(x)",
    ),
    "values for a place that is no module": Row(
        "plait.capture(model, init=plait.State({'head': {'h': plait.Perturbation(x)}}))(x)",
        GraphError,
        r"at +head\.h",
        "plait.capture(model, init=plait.capture(model, plait.Intermediate)(x)[1])(x)",
    ),
    "a NaN": Row(
        "with plait.debug_nans(): Log()(x - 2)",
        NonFiniteError,
        ("a NaN appeared", "Log"),
        "with plait.debug_nans(): Log()(x)",
        setup="class Log(plait.Module):\n    def __call__(self, x):\n        return jnp.log(x)",
    ),
    "a path pattern that is none": Row(
        "plait.select(model, '.kernel')",
        ArgumentError,
        "'.kernel'",
        "plait.select(model, '**.kernel'); plait.select(model, 'layers[:6]')",
    ),
    "a selection of nothing": Row(
        "plait.select(model, 'layers[*].kernal')",
        ArgumentError,
        (r"layers\[0\]\.kernel", "no part of the model matches"),
        fix="print(plait.select(model, ...))",
    ),
    "the root is replaced": Row(
        "plait.select(model, plait.Module).replace(lambda path, part: None)",
        ArgumentError,
        (r"at +the root", "a Two, the model itself"),
        "model = None",
    ),
    "values of a module": Row(
        "plait.select(model, 'layers[0]').map(lambda path, value: value)",
        ArgumentError,
        (r"at +layers\[0\]", "a Linear"),
        setup=SELECT,
        fix="replace(lambda path, part: ...)",
        cure="select(model, 'layers[0]').$; "
        "select(model, 'layers[1].**', plait.Variable).map(lambda path, value: value)",
    ),
    "several to share with": Row(
        "plait.select(model, 'layers[0]').share_with('layers[*]')",
        ArgumentError,
        r"which matches 2: layers\[0\], layers\[1\]",
        setup=SELECT,
        fix="share_with('layers[0]')",
        cure="select(model, 'layers[1]').$",
    ),
    "other shapes to share with": Row(
        "plait.select(model, 'layers[0]').share_with(other)",
        ArgumentError,
        r"at +layers\[0\]",
        setup=SELECT + "other = plait.Linear(2, 3, rngs=rngs)",
        fix="replace(lambda path, part: other)",
        cure="select(model, 'layers[0]').$",
    ),
    "a variable is initialized again": Row(
        "plait.select(model, plait.Param).reinitialize(rngs)",
        ArgumentError,
        (r"at +layers\[0\]\.bias", "a Param"),
        setup=SELECT,
        fix="map(lambda path, value: ...)",
        cure="select(model, 'layers[0]').reinitialize(rngs); select(model, plait.Param).$",
    ),
    "values of another model": Row(
        "plait.select(model, 'layers[0]').copy_from(other)",
        ArgumentError,
        r"at +layers\[0\]\.\w+",
        "plait.select(model, 'layers[0]').copy_from(Two(rngs))",
        setup="other = plait.Dict(layers=[plait.Linear(2, 3, rngs=rngs)])",
    ),
    "an immutable root": Row(
        "plait.select((x, x), '[0]').replace(lambda path, part: part + 1)",
        GraphError,
        "the root is an immutable tuple",
        "plait.select([x, x], '[0]').replace(lambda path, part: part + 1)",
    ),
    "a module that keeps no arguments": Row(
        "plait.select(model, 'cell').reinitialize(rngs)",
        ArgumentError,
        (r"at +cell \(a Cell\)", "no attributes size"),
        setup="class Cell(plait.Module):\n    def __init__(self, size):\n        self.w = plait.Param(jnp.ones(size))\n"
        "model = plait.Dict(cell=Cell(2)); new_model = plait.Dict(cell=Cell(2))",
        fix="plait.select(model, ...).copy_from(new_model)",
    ),
    "a setting that no layer takes": Row(
        "plait.view(model, training=True)",
        ArgumentError,
        r"nnx.view: \['training'\]",
        fix="print(plait.view_info(model))",
        cure="$; plait.view(model, deterministic=True)",
    ),
    "a cycle is mapped": Row(
        "plait.recursive_map(lambda path, node: node, model)",
        GraphError,
        r"at +me",
        "del model.me; plait.recursive_map(lambda path, node: node, model)",
        setup="model.me = model",
    ),
    "shared variables with_vars": Row(
        "plait.with_vars(node)",
        GraphError,
        r"at +a and b",
        setup="a = plait.Param(x); node = plait.Dict(a=a, b=a)",
        fix="allow_duplicates=True",
        cure="plait.with_vars(node, $)",
    ),
}
