"""Mistakes with what looks into a model and changes it: capture, selections, views."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphError,
    NonFiniteError,
)

from .rows import Row

ROWS = {
    "capture of no class": Row("plait.capture(model, 'h')", ArgumentTypeError, "'h'"),
    "capture of no module": Row("plait.capture(lambda x: x, plait.Intermediate)(x)", ArgumentTypeError,
        "a jax.Array as the first argument"),
    "capture of modules that are not there": Row(
        "plait.capture(model, plait.Intermediate, method_outputs=plait.Intermediate, only='head')(x)", GraphError,
        ("only=", r"modules at the root.*layers\[0\]")),
    "values for a place that is no module": Row(
        "plait.capture(model, init=plait.State({'head': {'h': plait.Perturbation(x)}}))(x)", GraphError,
        r"at +head\.h"),
    "a NaN": Row("with plait.debug_nans(): Log()(x - 2)", NonFiniteError, ("a NaN appeared", "Log"),
        setup="class Log(plait.Module):\n    def __call__(self, x):\n        return jnp.log(x)"),
    "a path pattern that is none": Row("plait.select(model, '.kernel')", ArgumentError, "'.kernel'"),
    "a selection of nothing": Row("plait.select(model, 'layers[*].kernal')", ArgumentError,
        (r"layers\[0\]\.kernel", "no part of the model matches")),
    "the root is replaced": Row("plait.select(model, plait.Module).replace(lambda path, part: None)", ArgumentError,
        ("at +the root", "a Two, the model itself")),
    "values of a module": Row("plait.select(model, 'layers[0]').map(lambda path, value: value)", ArgumentError,
        (r"at +layers\[0\]", "a Linear")),
    "several to share with": Row("plait.select(model, 'layers[0]').share_with('layers[*]')", ArgumentError,
        r"which matches 2: layers\[0\], layers\[1\]"),
    "other shapes to share with": Row("plait.select(model, 'layers[0]').share_with(other)", ArgumentError,
        r"at +layers\[0\]", setup="other = plait.Linear(2, 3, rngs=rngs)"),
    "a variable is initialized again": Row("plait.select(model, plait.Param).reinitialize(rngs)", ArgumentError,
        (r"at +layers\[0\]\.bias", "a Param")),
    "values of another model": Row("plait.select(model, 'layers[0]').copy_from(other)", ArgumentError,
        r"at +layers\[0\]\.\w+", setup="other = plait.Dict(layers=[plait.Linear(2, 3, rngs=rngs)])"),
    "an immutable root": Row("plait.select((x, x), '[0]').replace(lambda path, part: part + 1)", GraphError,
        "the root is an immutable tuple"),
    "a module that keeps no arguments": Row("plait.select(model, 'cell').reinitialize(rngs)", ArgumentError,
        (r"at +cell \(a Cell\)", "no attributes size"), setup="class Cell(plait.Module):\n"
        "    def __init__(self, size):\n"
        "        self.w = plait.Param(jnp.ones(size))\n"
        "model = plait.Dict(cell=Cell(2));"),
    "a setting that no layer takes": Row("plait.view(model, training=True)", ArgumentError,
        r"nnx.view: \['training'\]"),
    "a cycle is mapped": Row("plait.recursive_map(lambda path, node: node, model)", GraphError, "at +me",
        setup="model.me = model"),
    "shared variables with_vars": Row("plait.with_vars(node)", GraphError, "at +a and b",
        setup="a = plait.Param(x); node = plait.Dict(a=a, b=a)"),
}  # fmt: skip
