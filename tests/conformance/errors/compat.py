"""Mistakes with what is kept for Flax's programs: modes, bound arguments, mappings and small functions."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphError,
)

from .rows import Row

JITTED = "f = plait.jit(lambda model: model.calls * 2); jitted = f\n"

ROWS = {
    "a shared object in tree mode": Row("plait.jit(f, graph=False)(model)", GraphError,
        (r"at +m\.layers\[0\] and m\.layers\[1\]\n", r"found +the same Linear at both \(a duplicate\)"),
        setup="f = lambda m: m.calls * 2\nmodel.layers[1] = model.layers[0]"),
    "a shared object in *args in tree mode": Row("plait.jit(f, graph=False)(model, model)", GraphError,
        (r"at +ms\[0\] and ms\[1\]\n", r"found +the same Two at both \(a duplicate\)"),
        setup="f = lambda *ms: ms[0].calls * 2"),
    "a class without a pytree in tree mode": Row("plait.jit(f, graph=False)(node)", GraphError,
        (r"at +node\n", "found +a Plain, whose class says pytree=False"),
        setup="class Plain(plait.Module, pytree=False):\n    pass\nnode = Plain(); f = lambda node: 1.0"),
    "cached_partial where only values are carried": Row("plait.cached_partial(jitted, model, graph_updates=False)",
        ArgumentError, "found +graph=True, graph_updates=False", setup=JITTED),
    "a list where a mapping is flattened": Row("flatten_mapping([1])", ArgumentTypeError, "a list",
        setup="from plait.core.states.mappings import flatten_mapping"),
    "a padding for other axes": Row("canonicalize_padding((1, 2, 3), 2)", ArgumentError, r"\(1, 2, 3\)",
        setup="from plait.flax.compat.flax_functions import canonicalize_padding"),
}  # fmt: skip
