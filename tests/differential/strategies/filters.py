"""Filters, drawn recursively: kinds, tags, paths, callables, and what combines them."""

from __future__ import annotations

from tests.differential.pen import Pen

KINDS = (
    "nnx.Param", "nnx.Param", "nnx.Param", "nnx.BatchStat", "nnx.Variable", "nnx.RngState", "nnx.RngKey",
    "nnx.RngCount", "nnx.LoRAParam", "nnx.Intermediate", "Count",
)  # fmt: skip
LEAVES = (
    *KINDS, "...", "True", "False", "None", "'decay'", "'params'", "'dropout'", "nnx.Nothing()", "nnx.Everything()",
    "nnx.PathContains('kernel')", "nnx.PathContains('bias')", "nnx.PathContains(0)", "nnx.PathContains('p1')",
    "nnx.PathContains('ern', exact=False)", "nnx.WithTag('decay')", "nnx.OfType(nnx.Param)",
    "lambda path, value: len(path) == 2", "lambda path, value: 'bias' in path",
    "lambda path, value: isinstance(value, nnx.Param)",
)  # fmt: skip
NONE_OF_THEM = ("42", "{'a': 1}", "3.5", "jnp.ones(2)")


def draw_filter(pen: Pen, depth: int = 2, *, wrong: int = 2) -> str:
    """A filter as text; with a chance of ``wrong`` percent none."""
    if pen.chance(wrong):
        return pen.pick(*NONE_OF_THEM)
    if depth == 0 or pen.chance(55):
        return pen.pick(*LEAVES)
    kind = pen.pick("Not", "Any", "All", "tuple", "list")
    parts = [
        _in_parts(draw_filter(pen, depth - 1, wrong=wrong)) for _ in range(1 if kind == "Not" else pen.number(1, 3))
    ]
    inside = ", ".join(parts)
    return {"tuple": f"({inside},)", "list": f"[{inside}]"}.get(kind, f"nnx.{kind}({inside})")


def _in_parts(text: str) -> str:
    return f"({text})" if text.startswith("lambda") else text


def draw_filters(pen: Pen, most: int = 3, *, rest: int = 85) -> str:
    """Several filters for ``split`` and its like, as `` , filter, …``; with a chance of ``rest`` percent they cover all."""
    filters = [_in_parts(draw_filter(pen)) for _ in range(pen.number(0, most))]
    if filters and pen.chance(rest):
        filters = [text for text in filters if text not in ("...", "True")] + ["..."]
    return "".join(f", {text}" for text in filters)
