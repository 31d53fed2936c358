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
        r"found +a jax\.Array as the first argument of '<lambda>'"),
    "capture of modules that are not there": Row(
        "plait.capture(model, plait.Intermediate, method_outputs=plait.Intermediate, only='head')(x)", GraphError,
        ("only=", "at +only='head'", r"found +modules at the root, drop, layers\[0\], layers\[1\]")),
    "values for a place that is no module": Row(
        "plait.capture(model, init=plait.State({'head': {'h': plait.Perturbation(x)}}))(x)", GraphError,
        (r"at +head\.h", "found +a Perturbation")),
    "a NaN": Row("with plait.debug_nans(): Log()(x - 2)", NonFiniteError,
        ("a NaN appeared", "Log", "at +a Log, in __call__", r"found +invalid value \(nan\) encountered in log"),
        setup="class Log(plait.Module):\n    def __call__(self, x):\n        return jnp.log(x)"),
    "a path pattern that is none": Row("plait.select(model, '.kernel')", ArgumentError, "'.kernel'"),
    "a selection of nothing": Row("plait.select(model, 'layers[*].kernal')", ArgumentError,
        (r"layers\[0\]\.kernel", "no part of the model matches", "at +a Two",
        r"found +'layers\[\*\]\.kernal' alone matches 0")),
    "the root is replaced": Row("plait.select(model, plait.Module).replace(lambda path, part: None)", ArgumentError,
        ("at +the root", "found +a selection with a Two, the model itself")),
    "values of a module": Row("plait.select(model, 'layers[0]').map(lambda path, value: value)", ArgumentError,
        (r"at +layers\[0\]", "a Linear")),
    "several to share with": Row("plait.select(model, 'layers[0]').share_with('layers[*]')", ArgumentError,
        r"found +the pattern 'layers\[\*\]', which matches 2: layers\[0\], layers\[1\]"),
    "other shapes to share with": Row("plait.select(model, 'layers[0]').share_with(other)", ArgumentError,
        (r"at +layers\[0\]", r"found +variables of shapes bias \(2,\), kernel \(2, 2\)"),
        setup="other = plait.Linear(2, 3, rngs=rngs)"),
    "a variable is initialized again": Row("plait.select(model, plait.Param).reinitialize(rngs)", ArgumentError,
        (r"at +layers\[0\]\.bias", "a Param")),
    "values of another model": Row("plait.select(model, 'layers[0]').copy_from(other)", ArgumentError,
        (r"at +layers\[0\]\.\w+", r"found +shape \(3,\)"),
        setup="other = plait.Dict(layers=[plait.Linear(2, 3, rngs=rngs)])"),
    "an immutable root": Row("plait.select((x, x), '[0]').replace(lambda path, part: part + 1)", GraphError,
        ("the root is an immutable tuple", "found +a change at 0")),
    "a module that keeps no arguments": Row("plait.select(model, 'cell').reinitialize(rngs)", ArgumentError,
        (r"at +cell \(a Cell\)", "no attributes size"), setup="class Cell(plait.Module):\n"
        "    def __init__(self, size):\n"
        "        self.w = plait.Param(jnp.ones(size))\n"
        "model = plait.Dict(cell=Cell(2));"),
    "a setting that no layer takes": Row("plait.view(model, training=True)", ArgumentError,
        (r"nnx.view: \['training'\]", "found +no set_view method that accepts them")),
    "a cycle is mapped": Row("plait.recursive_map(lambda path, node: node, model)", GraphError,
        ("at +me", "found +a Two that contains itself"), setup="model.me = model"),
    "shared variables with_vars": Row("plait.with_vars(node)", GraphError,
        ("at +a and b", r"found +one variable at both \(a duplicate\)"),
        setup="a = plait.Param(x); node = plait.Dict(a=a, b=a)"),
}  # fmt: skip
