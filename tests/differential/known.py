"""The table of known differences: what differs, why, how plait says it, and a program that shows it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from importlib.metadata import version

from packaging.version import Version

from tests.differential.comparison import Difference
from tests.differential.program import Program, program

# From then on, attention with one head for each query is that of several queries for one head: other operations, of
# which XLA makes other programs, unless it is told not to optimize, as in the tests.
GROUPS_HEADS = Version(version("flax")) >= Version("0.12.12")


@dataclasses.dataclass(frozen=True)
class Row:
    """A difference that stays.

    Attributes:
        id: its name.
        what, flax, plait: the three cells of its line in ``docs/flax-differences.md``.
        reason: why it is better for the user.
        says: how a user learns of it: the class of an error or warning, or "documented".
        example: a program that must still differ in this way.
        more: other such programs, where one does not show all that it explains.
        kinds: kinds of difference that it explains.
        step: matches the step that differs.
        path: matches the path of a value that differs.
        found_in_flax, found_in_plait: match what is there.
        text: matches the program.
        example_until: the release of Flax from which the example does the same on both.
        of_detached_states: whether it is none under ``plait.compat.live_states``.
    """

    id: str
    what: str
    flax: str
    plait: str
    reason: str
    says: str
    example: Program
    kinds: tuple[str, ...] = ("error",)
    step: str = ""
    path: str = ""
    found_in_flax: str = ""
    found_in_plait: str = ""
    text: str = ""
    more: tuple[Program, ...] = ()
    example_until: str = ""
    of_detached_states: bool = False

    @property
    def line(self) -> str:
        """Its line in ``docs/flax-differences.md``."""
        return f"| {self.what} | {self.flax} | {self.plait} |"

    def explains(self, difference: Difference, program: Program) -> bool:
        return difference.kind in self.kinds and all(
            re.search(pattern, found, re.DOTALL)
            for pattern, found in (
                (self.step, difference.step),
                (self.path, difference.path),
                (self.found_in_flax, difference.flax),
                (self.found_in_plait, difference.plait),
            )
        ) and re.search(self.text, program.text()) is not None  # fmt: skip


def explaining(differences: Sequence[Difference], of: Program, *, live: bool = False) -> str | None:
    """The row that explains the first of them, where each has one."""
    table = [row for row in KNOWN if not (live and row.of_detached_states)]
    rows = [next((row.id for row in table if row.explains(difference, of)), None) for difference in differences]
    return None if None in rows else rows[0]


NO_ERROR = "^no error$"

KNOWN: tuple[Row, ...] = (
    Row(
        "sharding names without a mesh",
        "`out_sharding=` without any mesh", "an error", "kept as metadata; nothing is placed",
        reason="a model can be made, tested and stored on one device before there is a mesh",
        says="documented",
        example=program("known", ("v = nnx.Param(jnp.ones(2), out_sharding=('a',))", "v")),
        found_in_flax="An auto mesh context or metadata is required",
    ),
    Row(
        "shape errors",
        "a layer given an input that does not fit", "the error of the JAX operation that meets it first: `TypeError`, `IndexError`, …", "`ShapeError`, a `ValueError`, before anything is computed",
        reason="one class to catch, and a text that names the layer, both sizes and the cure",
        says="ShapeError",
        example=program("known", "m = nnx.Linear(3, 2, rngs=nnx.Rngs(0))", "y = m(jnp.ones((2, 4)))"),
        more=(
            program(
                "known", "m = nnx.metrics.Welford('loss')", "m.update(loss=jnp.ones((5, 3)), mask=jnp.array([1, 1, 0, 1, 0]))",
            ),
            program(
                "known", "m = nnx.metrics.Average('loss')", "m.update(loss=jnp.ones(3), mask=jnp.array([1, 1, 0, 1, 0]))",
            ),
        ),
        found_in_plait="^ShapeError",
    ),
    Row(
        "weak types of cotangents",
        "zero cotangents of weakly typed values in a `custom_vjp` rule", "have a weak type", "have no weak type",
        reason="plait asks JAX for symbolic zeros, so that it knows which cotangents are zero; arrays made of them have no weak type",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.asarray(2.0)))",
            "f = nnx.custom_vjp(lambda m, x: m.a * x)",
            "f.defvjp(lambda m, x: (f(m, x), m), lambda m, g: (nnx.clone(g[0][0]), g[1]))",
            ("g = nnx.grad(f)(m, 1.0)", "g"),
        ),
        kinds=("weak",), found_in_flax="^array float32.*, weak, ", text=r"nnx\.custom_vjp\(",
    ),
    Row(
        "precision of attention",
        "`precision` of attention without dropout", "not used", "used",
        reason="what is asked for is done; a precision of JAX's choice is one that a CPU lacks for float16",
        says="documented",
        example=program(
            "known", "m = nnx.MultiHeadAttention(1, 2, dtype=jnp.float16, precision='highest', decode=False, rngs=nnx.Rngs(0))",
            "y = jax.jit(m)(jnp.ones((1, 2, 2)))",
        ),
        found_in_flax="The precision 'F16_F16_F32' is not supported by dot_general on CPU", found_in_plait=NO_ERROR,
        text=r"MultiHeadAttention\([^\n]*float16[^\n]*precision=",
    ),
    Row(
        "attention weights in bfloat16",
        "bfloat16 attention weights with dropout, or sown", "computed in bfloat16", "in float32, as without dropout",
        reason="a softmax in half precision loses what small weights add up to",
        says="documented",
        example=program(
            "known", "m = nnx.MultiHeadAttention(1, 2, dtype=jnp.bfloat16, decode=False, rngs=nnx.Rngs(0))",
            "x = jax.random.normal(jax.random.key(0), (1, 8, 2))", ("y = m(x, sow_weights=True)", "m"),
        ),
        kinds=("value", "bits"), found_in_flax="^array bfloat16",
        text=r"(?s)(?=.*MultiHeadAttention\([^\n]*bfloat16)(?=.*(sow_weights=True|dropout_rate=))",
    ),
    Row(
        "attention of float64",
        "attention of float64", "softmax in float32", "in float64",
        reason="who computes in float64 asks for its digits",
        says="documented",
        example=program(
            "known", "with jax.enable_x64(True):\n    q = jnp.linspace(0, 1, 12).reshape(3, 2, 2)",
            ("with jax.enable_x64(True):\n    y = nnx.dot_product_attention(q, q, q)", "y"),
        ),
        more=(
            program(
                "known", "with jax.enable_x64(True):\n    m = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))",
                "with jax.enable_x64(True):\n    x = jnp.linspace(0, 1, 12).reshape(3, 4)",
                ("with jax.enable_x64(True):\n    y = nnx.grad(lambda m: jnp.sum(m(x) ** 2))(m)", "y"),
            ),
        ),
        kinds=("bits", "value"), found_in_flax="^array float(32|64)", step="enable_x64", text=r"(MultiHeadAttention|dot_product_attention)\(",
    ),
    Row(
        "methods in attributes",
        "a method of a module in an attribute: `self.act = self.gate`", "transforms, `split` and `clone` keep the original module in it, silently", "part of the graph: its owner is a reference like any other",
        reason="a method reads the module that it is a method of; its parameters are trained",
        says="documented",
        example=program(
            "known", "other = Other()", "m = nnx.Dict(other=other, act=other.act)",
            ("y = nnx.grad(lambda m: m.act(jnp.ones(2)).sum())(m)", "y"),
            definitions="class Other(nnx.Module):\n    def __init__(self):\n        self.w = nnx.Param(jnp.ones(2))\n    def act(self, x):\n        return x * self.w[...]",
        ),
        kinds=("value",), found_in_flax="^array", text=r"other\.act\b",
    ),
    Row(
        "dtypes of caches",
        "`init_cache` with a different dtype from the layer's", "an error in the first step", "steps are converted",
        reason="a cache may be narrower than the layer, to save memory; float32 is only the default",
        says="documented",
        example=program(
            "known", "m = nnx.MultiHeadAttention(1, 2, dtype=jnp.bfloat16, decode=True, rngs=nnx.Rngs(0))", "m.init_cache((1, 3, 2))",
            ("y = m(jnp.ones((1, 1, 2)))", "y"),
        ),
        more=(
            program(
                "known", "m = nnx.MultiHeadAttention(1, 2, dtype=jnp.float16, decode=True, rngs=nnx.Rngs(0))", "m.init_cache((1, 3, 2))",
                "y = nnx.jit(lambda m: m(jnp.ones((1, 1, 2))))(m)",
            ),
        ),
        # Then a CPU may lack the products of float16, where Flax does not arrive.
        found_in_flax="dynamic_update_slice requires arguments to have the same dtypes",
        found_in_plait="^(no error|ValueError .*The precision 'F16_F16_F32' is not supported by dot_general on CPU)", text=r"\.init_cache\(",
    ),
    Row(
        "norms of arrays",
        "a norm whose scale is a bare array", "an error, but for `BatchNorm`", "works",
        reason="layers read a parameter as one reads a variable or an array",
        says="documented",
        example=program(
            "known", "m = nnx.LayerNorm(2, rngs=nnx.Rngs(0))", "nnx.update(m, nnx.to_pure_dict(nnx.pop(m, nnx.Param)))",
            ("y = m(jnp.ones(2))", "y"),
        ),
        # Then what was a statistic is an array, which takes no values, where Flax does not arrive.
        found_in_flax="^ValueError.*truth value of an array", found_in_plait="^(no error|TypeError .*JAX arrays are immutable)",
        text=r"(?s)(Layer|RMS|Group|Instance)Norm\(.*nnx\.update\(m, nnx\.(to_pure_dict|pure)\(",
    ),
    Row(
        "derivatives in default mode",
        "`vjp`, `jvp`, `make_jaxpr`, `jit_partial` and `with_rngs` without `graph_updates=False`", "an error", "values are carried out, and changes of structure are not",
        reason="the program that works in Flax works; the other works too",
        says="documented",
        example=program("known", ("y = nnx.jvp(lambda x: x * 2, (jnp.ones(2),), (jnp.ones(2),))", "y")),
        found_in_flax="graph-mode with graph_updates is not supported|graph=True and graph_updates=True is not supported|`graph_updates` not supported|does not support graph_updates=True",
    ),
    Row(
        "what pmap leaves alone",
        "an array of a model that `pmap` neither maps nor writes", "is on all its devices afterwards", "stays where it was",
        reason="a value that nothing wrote costs no copies",
        says="documented",
        example=program("known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", ("y = nnx.pmap(lambda m, x: m.a.sum() * x, in_axes=(None, 0))(m, jnp.ones(1))", "m")),
        kinds=("sharding",), step=r"nnx\.pmap\(", path=r"^m\.", found_in_plait="1 device",
    ),
    Row(
        "written values keep their sharding",
        "a value that a jitted function writes on a mesh with automatic axes", "has the sharding that the compiler chose; the next call may compile again", "keeps the sharding that it had before",
        reason="a training step compiles once",
        says="documented",
        example=program(
            "sharding", "mesh = jax.make_mesh((2, 2), ('a', 'b'), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])",
            "with jax.set_mesh(mesh):\n    m = nnx.Dict(up=nnx.Linear(4, 4, kernel_metadata={'out_sharding': (None, 'b')}, rngs=nnx.Rngs(0)), mean=nnx.BatchStat(jnp.zeros(4)))",
            "x = jax.random.normal(jax.random.key(0), (4, 4))",
            "def f(m, x):\n    m.mean[...] = m.up(x).mean(0)",
            ("y = nnx.jit(f)(m, x)", "m"),
        ),
        kinds=("sharding",), step=r"nnx\.jit\(", path=r"^m\.",
    ),
    Row(
        "merge makes variables",
        "`merge(graphdef, state)`", "reuses the state's variables in the new model", "makes new variables; `copy=False` reuses them, as Flax does",
        reason="two models merged from one state do not write into each other, and a state can be merged in any trace",
        says="documented", of_detached_states=True,
        example=program(
            "known", "graphdef, s = nnx.split(nnx.Dict(a=Count(jnp.array(0))))",
            "def f(x):\n    m = nnx.merge(graphdef, s)\n    m.a[...] += 1\n    return x * m.a",
            ("y = jax.jit(f)(1)", "y"),
        ),
        found_in_flax="Cannot mutate .* from a different trace level", found_in_plait=NO_ERROR, text=r"nnx\.(merge|call)\(",
    ),
    Row(
        "merged models write",
        "the model whose state was merged, after the new model has run", "has what the new model wrote", "is as it was; `copy=False` shares the variables, as Flax does",
        reason="two models merged from one state do not write into each other",
        says="documented", of_detached_states=True,
        example=program(
            "known", "m = nnx.Dict(a=Count(jnp.array(0)))", "merged = nnx.merge(*nnx.split(m))", "merged.a[...] += 1",
            ("s = nnx.state(m)", "s"),
        ),
        more=(
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "merged = nnx.merge(*nnx.split(m))", "merged(jnp.ones(4))",
                ("y = m(jnp.ones(64))", "y"),
            ),
            program(
                "known", "m = nnx.Dict(a=Count(jnp.array(0)))", "merged = nnx.merge(*nnx.split(m))", "merged.a[...] += 1",
                ("c = nnx.clone(m)", "c"),
            ),
        ),
        kinds=("value", "bits"), step=r"nnx\.(state|split|flatten|clone|set_metadata)\(m\b|^y = m\(|jax\.tree\.map\(\w+, m\)|^m\.\w+ = ", text=r"nnx\.merge\(",
    ),
    Row(
        "states as outputs without updates",
        "`nnx.state(model)` as the output of a function with `graph_updates=False`, or of `vmap` with `in_axes=None` for the model",
        "an error: a duplicate, or inconsistent aliasing", "a state of its own",
        reason="a state is detached from its model, so it shares nothing with it",
        says="documented", of_detached_states=True,
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            ("s = nnx.jit(lambda m: nnx.state(m), graph_updates=False)(m)", "s"),
        ),
        found_in_flax=r"^ValueError.*(Duplicate .*\.out\[|Inconsistent aliasing)", found_in_plait=NO_ERROR, text=r"return ([^\n]*, )?nnx\.(state\(|split\(m\)\[1\])|: nnx\.state\(",
    ),
    Row(
        "new modules beside gradients without updates",
        "`grad` and `value_and_grad` with `has_aux` and `graph_updates=False` of a function that returns a new module", "`RuntimeError`: GraphDef index 0 already used", "works: the module is returned",
        reason="what a function returns beside the loss is an output as of `jit`",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            "f = nnx.value_and_grad(lambda m: (m.a.sum(), nnx.Dict(b=nnx.Param(jnp.ones(2)))), has_aux=True, graph_updates=False)",
            ("y = f(m)", "y"),
        ),
        found_in_flax="^RuntimeError.*already used", found_in_plait=NO_ERROR, text=r"graph_updates=False",
    ),
    Row(
        "shapes of shared variables without updates",
        "`eval_shape`, `make_jaxpr`, `cond` and `switch` of shared variables with `graph_updates=False`, and a variable twice in an output with `graph=False`",
        "an error: a duplicate", "work, as `jit` and the other transforms do",
        reason="the function that `jit` compiles has a shape and a jaxpr",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2))); m.b = m.a",
            ("y = nnx.eval_shape(lambda m: m.a + m.b, m, graph_updates=False)", "y"),
        ),
        more=(
            program(
                "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2))); m.b = m.a",
                "nnx.make_jaxpr(lambda m: m.a + m.b, graph_updates=False)(m)",
            ),
            program(
                "known", "def f(x):\n    m = nnx.Param(x)\n    return m, m",
                ("y = nnx.cond(True, f, f, jnp.ones(2), graph=False)", "y"),
            ),
            program(
                "known", "def f(x):\n    m = nnx.Dict(a=nnx.Param(x))\n    return m, m",
                ("y = nnx.remat(f, graph=False)(jnp.ones(2))", "y"),
            ),
        ),
        found_in_flax=r"^ValueError.*Duplicate .*(nnx\.(eval_shape|make_jaxpr|cond|switch) with graph_updates=False|\.out\[)",
        found_in_plait=f"{NO_ERROR}|A ShapeDtypeStruct does not have a value",  # of both, without sharing
        text=r"graph(_updates)?=False",
    ),
    Row(
        "shapes of array attributes",
        "`eval_shape` of a function that makes a module with an array attribute", "a tracer in the attribute; an error for the second function", "a `jax.ShapeDtypeStruct`, as for variables",
        reason="a tracer cannot be used outside of its trace",
        says="documented",
        example=program(
            "known", ("r = nnx.eval_shape(lambda: Net())", "r"),
            definitions="class Net(nnx.Module):\n    def __init__(self):\n        self.a = jnp.ones(2)",
        ),
        kinds=("text", "error"), text=r"(?s)self\.\w+ = (nnx\.data\()?jnp\..*nnx\.eval_shape\(",
        found_in_flax="^'?a tracer that has left its trace|^ValueError .*checking equality of metadata fields", found_in_plait="^abstract|^no error$",
    ),
    Row(
        "one object twice under cached_partial",
        "`f = cached_partial(g, model)`, then `f(model)`", "two models in the function", "one model in the function, as without `cached_partial`",
        reason="a cache changes how long a call takes, and not what it does",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            ("y = nnx.cached_partial(nnx.jit(lambda a, b: a is b), m)(m)", "y"),
        ),
        kinds=("text", "there", "value"), step=r"^y = f2\(a, b, x\)$|cached_partial", text=r"cached_partial\(",
    ),
    Row(
        "values with hooks",
        "`to_pure_dict` of a state whose variables have an `on_get_value`", "values as the hook gives them", "values as they are stored",
        reason="a state that is stored and put back is the same state",
        says="documented",
        example=program(
            "known", "class Hooked(nnx.Variable):\n    def on_get_value(self, value):\n        return value * 2",
            "m = nnx.Dict(v=Hooked(jnp.ones(2)))", ("r = nnx.to_pure_dict(nnx.state(m))", "r"),
        ),
        kinds=("value",), step="to_pure_dict", text="on_get_value",
    ),
    Row(
        "views of streams",
        "`view` of a model that holds an `Rngs`", "draws a key from its default stream, so later draws are others", "draws nothing",
        reason="a view changes no numbers of the model that it is a view of",
        says="documented",
        example=program("known", "m = nnx.Dict(r=nnx.Rngs(0))", ("v = nnx.view(m, deterministic=True, raise_if_not_found=False)", "m")),
        more=(
            program(
                "known", "r = nnx.Rngs(0)", "nnx.split_rngs(r, splits=2)",
                "m = nnx.Dict(r=r)", "v = nnx.view(m, deterministic=True, raise_if_not_found=False)",
            ),
        ),
        kinds=("value", "error"), step=r"nnx\.view\(", path=r"count\.value|^$", found_in_flax="^array|fold_in accepts a single key",
    ),
    Row(
        "averages of new variables",
        "`EMA.update` of a model that gained variables since", "an error of the tree's structure", "averages the new ones too",
        reason="what a model sows, or builds at its first call, is averaged like the rest",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", "ema = nnx.EMA(m, decay=0.5)", "m.b = nnx.Param(jnp.ones(2))",
            ("ema.update(m)", "ema"),
        ),
        found_in_flax="pytree structure error", found_in_plait=NO_ERROR, step=r"\.update\(", text=r"nnx\.EMA\(",
    ),
    Row(
        "a list as a filter",
        "`wrt=[nnx.Not(nnx.Param)]` in a jitted step, and `DiffState` with a list", "an error: a list has no hash", "any of its filters, as everywhere",
        reason="a list is a filter everywhere else",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            ("y = nnx.jit(lambda m: nnx.grad(lambda m: m.a.sum(), argnums=nnx.DiffState(0, [nnx.Param]))(m))(m)", "y"),
        ),
        found_in_flax="unhashable type: 'list'", found_in_plait=NO_ERROR,
    ),
    Row(
        "statistics of sharded inputs",
        "a `BatchNorm` whose input is explicitly sharded along its features", "an error of the shardings", "works: its statistics are sharded like the features they describe",
        reason="a layer works on whatever layout its input has",
        says="documented",
        example=program(
            "known", "mesh = jax.make_mesh((2,), ('b',), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])",
            "with jax.set_mesh(mesh):\n    x = nnx.Linear(4, 4, kernel_metadata={'out_sharding': (None, 'b')}, rngs=nnx.Rngs(0))(jnp.ones((2, 4)))",
            "m = nnx.BatchNorm(4, rngs=nnx.Rngs(0))", ("y = m(x)", "y"),
        ),
        found_in_flax="Incompatible types for broadcasting: input type|for the scatter update as out sharding could not be resolved", found_in_plait=NO_ERROR, text="BatchNorm",
    ),
    Row(
        "axes that a value lacks",
        "`scan` over an axis that one of the values does not have", "`IndexError`", "`ArgumentError`, a `ValueError` as from `vmap`, with the path of the value",
        reason="the text says which variable it was",
        says="ArgumentError",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(())))", "nnx.jit(nnx.scan(lambda m, x: x, in_axes=(0, 0), out_axes=0, length=2), graph=False)(m, jnp.ones(2))",
        ),
        found_in_flax="tuple index out of range", found_in_plait="axis . is out of range",
    ),
    Row(
        "groups of a Conv",
        "a `Conv` whose `feature_group_count` does not divide its features", "an error at the first call", "an `ArgumentError` when it is made",
        reason="the text names both numbers, where they were written",
        says="ArgumentError",
        example=program("known", "m = nnx.Conv(4, 3, (3,), feature_group_count=2, rngs=nnx.Rngs(0))"),
        found_in_flax=NO_ERROR, found_in_plait="the groups of a Conv do not divide",
    ),
    Row(
        "calls on states",
        "`call((graphdef, state))`", "writes into the variables of the given state", "leaves the given state as it was; the new state is returned",
        reason="a function of a state that returns a new one leaves the old one as it was",
        says="documented",
        example=program(
            "known", "graphdef, s = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))",
            "y = nnx.call((graphdef, s))(jnp.ones(2))", ("s", "s"),
        ),
        more=(
            program(
                "known", "m = nnx.BatchNorm(2, momentum=1 - 1e-6, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(0.1 * jnp.arange(4.0).reshape(2, 2))", ("s = nnx.state(m)", "s"),
            ),
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", ("c = nnx.clone(m)", "c"),
            ),
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", ("y = m(jnp.ones(64))", "y"),
            ),
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", ("a, b = nnx.state(m, 'decay', ...)", "b"),
            ),
            program(
                "known", "class Sower(nnx.Module):\n    def __call__(self, x):\n        self.sow(nnx.Intermediate, 'h', x)",
                "m = Sower()", "m(jnp.ones(2))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", ("s = nnx.state(m)", "s"),
            ),
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", ("graphdef, leaves = nnx.flatten(m)", "leaves"),
            ),
            program(
                "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "graphdef, s = nnx.split(m)",
                "y = nnx.call((graphdef, s))(jnp.ones(2))", "graphdef, leaves = nnx.flatten(m)",
                ("r = nnx.unflatten(graphdef, leaves)", "r"),
            ),
        ),
        kinds=("value", "bits", "there"), step=r"^(?!y\b)|^y = (m|c2?)\(", path=r"^(s|states|m|[abr]|c2?|y|leaves)\b", found_in_flax="array",
        text=r"nnx\.call\(",
    ),
    Row(
        "EMA of keys",
        "`EMA` of a model with random streams, without `only=`", "an error in `update`: keys cannot be multiplied", "averages floating-point values; keeps the latest of keys and counters",
        reason="a model with dropout can be averaged as it is",
        says="documented",
        example=program(
            "known", "m = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "ema = nnx.EMA(m, decay=0.5)", ("ema.update(m)", "ema")
        ),
        found_in_flax="multiply does not accept dtypes .*key", found_in_plait=NO_ERROR, step=r"\.update\(",
    ),
    Row(
        "EMA of integers",
        "`EMA` of integers, such as a step counter", "a mean that is truncated at each update", "the latest value",
        reason="a counter has no mean; truncated, it stays behind for ever",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=Count(jnp.array(0)))", "ema = nnx.EMA(m, decay=0.5)", "m.a[...] += 1", ("ema.update(m)", "ema")
        ),
        kinds=("value",), step=r"\.update\(", found_in_flax=r"array u?int", text=r"nnx\.EMA\(",
    ),
    Row(
        "EMA of half precision",
        "`EMA` of half precision", "averages in it", "`rest` holds what rounding loses",
        reason="an average with a decay of 0.999 stands still in bfloat16",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2, jnp.bfloat16)))", ("ema = nnx.EMA(m, decay=0.5)", "ema"),
        ),
        kinds=("there", "value", "bits"), text=r"(?s)float16.*nnx\.EMA\(",
    ),
    Row(
        "sums of metrics",
        "metrics of values in half precision", "sums each batch in its own dtype", "sums in float32",
        reason="a sum in bfloat16 keeps three digits",
        says="documented",
        example=program(
            "known", "x = jax.random.normal(jax.random.key(0), (5, 3)).astype(jnp.bfloat16)",
            "m = nnx.metrics.Average('loss')", ("m.update(loss=x)", "m"),
        ),
        kinds=("value", "bits"), text=r"(?s)float16.*nnx\.metrics\.|nnx\.metrics\..*float16",
    ),
    Row(
        "counts of metrics",
        "`count` of `Average`, `Accuracy` and `Welford`", "int32, negative from 2³¹ on; sums in float32 stop at 2²⁴", "uint32, and a variable `rest` beside it: exact",
        reason="a mean over billions of tokens is right",
        says="documented",
        example=program(
            "known", "m = nnx.metrics.Average('loss')", "m.update(loss=jnp.ones(3))", ("y = nnx.state(m)", "y"),
        ),
        kinds=("there", "dtype", "bits"), found_in_flax="^(array|nothing)", text=r"metrics\.",
    ),
    Row(
        "labels that are no class",
        "`metrics.Accuracy` of a label that is not a class, such as -1", "counts the example as wrong", "ignores it, as `Precision` and the other metrics do",
        reason="such labels mark padding",
        says="documented",
        example=program(
            "known", "m = nnx.metrics.Accuracy()", "m.update(logits=jnp.eye(3), labels=jnp.array([0, 1, -1]))",
            ("y = m.compute()", "y"),
        ),
        kinds=("value",), found_in_flax="^array float32", text=r"metrics\.Accuracy\(\)(?s:.*)labels=.*-1",
    ),
    Row(
        "masks of Welford",
        "`metrics.Welford` with a `mask`", "ignores it", "counts what the mask leaves, as `Average` does",
        reason="`MultiMetric` passes one mask to all its metrics",
        says="documented",
        example=program(
            "known", "m = nnx.metrics.Welford('loss')",
            ("m.update(loss=jnp.arange(3.0), mask=jnp.array([1, 1, 0]))", "m"),
        ),
        kinds=("value", "bits"), found_in_flax="^array", found_in_plait="^array", text=r"(?s)metrics\.Welford.*mask=",
    ),
    Row(
        "captured models",
        "a transform inside another one gets a model that the outer function captures", "an error", "reads it; writing it is a `TraceContextError`",
        reason="reading what stands outside is what a closure in plain JAX may do",
        says="TraceContextError, when it is written",
        example=program(
            "known", "m = nnx.Param(jnp.ones(2))",
            ("y = jax.jit(lambda x: nnx.vmap(lambda m, x: m * x, in_axes=(None, 0))(m, x))(jnp.ones(3))", "y"),
        ),
        more=(
            program(
                "known", "m = nnx.Param(jnp.ones(2))", "f = nnx.custom_vjp(lambda m, x: (m * x).sum())",
                "f.defvjp(lambda m, x: (f(m, x), (m, x)), lambda res, g: (g[0][0], res[1]))",
                "nnx.jvp(lambda x: f(m, x), (jnp.ones(2),), (jnp.ones(2),), graph_updates=False)",
            ),
            program(
                "known", "m = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.Linear(4, 2, rngs=rngs)))(nnx.Rngs(0))",
                "f = nnx.vmap(lambda m, x: m(x), in_axes=(nnx.StateAxes({nnx.PathContains('kernel'): 0, ...: None}), 0))",
                "nnx.fori_loop(0, 2, lambda i, c: c + f(m, jnp.ones((2, 3, 4))).sum(), 0.0, graph_updates=False)",
            ),
        ),
        # Then JAX may refuse the derivative, a scan of nothing, a shape or an output of vmap, where Flax does not arrive.
        found_in_flax="(extract graph node|Cannot mutate).* from a? ?different trace level",
        found_in_plait=r"^(no error|TraceContextError|TypeError .*can't apply forward-mode autodiff \(jvp\) to a custom_vjp"
        r"|ArgumentError .*scan got no values to scan over|TypeError .*cannot reshape array of shape|TypeError .*incompatible shapes for broadcasting"
        r"|ArgumentError .*vmap: a value without a mapped axis depends on the example)",
    ),
    Row(
        "tracers in captured models",
        "an array attribute of a captured model, after a `jit` inside `scan`", "a tracer stays in it", "keeps its array",
        reason="a tracer cannot be used outside of its trace", says="documented",
        example=program(
            "known", "m = Net()", "f = nnx.jit(lambda m, x: m.a + x)",
            ("y = nnx.scan(lambda c, x: (c, f(m, x)))(jnp.array(0), jnp.ones(3))[1]", "m"),
            definitions="class Net(nnx.Module):\n    def __init__(self):\n        self.a = jnp.ones(2)",
        ),
        kinds=("text",), found_in_flax="^'?a tracer that has left its trace", found_in_plait="^array", text=r"self\.\w+ = jnp\.",
    ),
    Row(
        "variables that grad leaves alone",
        "a variable that `grad` does not differentiate, such as a statistic, in an argument that is differentiated and in one that is not", "an error: inconsistent aliasing", "works: it is left alone in both",
        reason="it is treated alike in both, so two models may share statistics or random streams",
        says="documented",
        example=program(
            "known", "s = nnx.BatchStat(jnp.ones(2))", "a, b = nnx.Dict(w=nnx.Param(jnp.ones(2)), s=s), nnx.Dict(s=s)",
            ("y = nnx.grad(lambda a, b: (a.w * a.s * b.s).sum())(a, b)", "y"),
        ),
        found_in_flax=r"Inconsistent aliasing detected\.(?!.*: True)(?=.*: False)(?=.*: None)", found_in_plait=NO_ERROR, text=r"nnx\.(value_and_)?grad\(",
    ),
    Row(
        "cells in bfloat16",
        "recurrent cells with `param_dtype=jnp.bfloat16`", "an error of the orthogonal initializer", "work: it computes in float32 and rounds",
        reason="large models are stored in bfloat16", says="documented",
        example=program("known", ("m = nnx.GRUCell(2, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))", "m")),
        found_in_flax="Unsupported dtype|does not accept dtype bfloat16", found_in_plait=NO_ERROR,
    ),
    Row(
        "float64 through an RNN",
        "float64 inputs of an `RNN` whose parameters are float32", "an error of `lax.scan`", "work",
        reason="other layers take them", says="documented",
        example=program(
            "known", "with jax.enable_x64(True):\n    m = nnx.RNN(nnx.LSTMCell(2, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))",
            ("with jax.enable_x64(True):\n    y = m(jnp.linspace(0, 1, 6).reshape(1, 3, 2))", "y"),
        ),
        found_in_flax="scan body function carry .*must have equal types", found_in_plait=NO_ERROR, text=r"enable_x64",
    ),
    Row(
        "state of a variable",
        "`nnx.state` of a variable", "`IndexError`", "a detached variable",
        reason="a variable is a graph node, as for `split`", says="documented",
        example=program("known", ("s = nnx.state(nnx.Param(jnp.ones(2)))", "s")),
        found_in_flax="^IndexError .*tuple index out of range", found_in_plait=NO_ERROR, step=r"nnx\.state\(",
    ),
    Row(
        "last digits",
        "last digits of jitted attention (with dropout, or of Flax 0.12.12), of a jitted `BatchNorm` under `vmap`, of nested `grad`, and of gradients through a norm next to a `bfloat16` layer or an attention mask", "as XLA fuses its operations", "may differ; keys and dropout masks are the same",
        reason="the operations are the same ones in another order, and neither is nearer to the exact numbers", says="documented",
        example=program(
            "known",
            "rngs = nnx.Rngs(1)",
            "norm = nnx.LayerNorm(4, epsilon=1e-3, rngs=rngs)",
            "conv = nnx.Conv(4, 4, (3,), dtype=jnp.bfloat16, rngs=rngs)",
            "x = jax.random.normal(jax.random.key(2), (3, 4))",
            "def loss(m, x):\n    return jnp.sum(m[0](m[1](m[0](x)[None])[0]) ** 2)",
            "m = nnx.List([norm, conv])",
            ("g = nnx.scan(lambda m, x: nnx.grad(loss)(m, x), in_axes=(None, 0), out_axes=0)(m, x)", "g"),
        ),
        more=(
            program(
                "known",
                "rngs = nnx.Rngs(0)",
                "m = nnx.List([nnx.Einsum('ab,bc->ac', (4, 4), None, rngs=rngs), nnx.RNN(nnx.LSTMCell(4, 4, rngs=rngs), rngs=rngs)])",
                "x = jax.random.normal(jax.random.key(2), (3, 4))",
                "def loss(m, x):\n    return total(m[1](m[0](x)[None])[0])",
                "f = nnx.grad(lambda m, x: total(nnx.grad(loss)(m, x)))",
                ("g = nnx.jit(f)(m, x)", "g"),
            ),
            program(
                "known",
                "m = nnx.LayerNorm(4, use_bias=False, reduction_axes=(0, 1), rngs=nnx.Rngs(0))",
                "x = jax.random.normal(jax.random.key(2), (2, 3, 4))",
                "mask = jnp.array([True, True, False, True])",
                ("g = nnx.grad(lambda m, x: total(m(x, mask=mask)))(m, x)", "g"),
            ),
            *[
                program(
                    "known",
                    "m = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.BatchNorm(4, rngs=rngs)))(nnx.Rngs(0, dropout=1))",
                    "x = jax.random.normal(jax.random.key(1), (3, 4, 2))",
                    "f = nnx.jit(nnx.vmap(lambda m, x: m(x), in_axes=(0, -1)))",
                    ("y = f(m, x)", "m"),
                ),
            ] * (not GROUPS_HEADS),  # with a later JAX, only in programs that XLA optimizes
        ),
        kinds=("bits",), found_in_flax="^array", text=r"(?s)(?=.*(bfloat16|mask=))(?=.*Norm\()(?=.*grad\()|(grad|vjp)\(.*(grad|vjp)\("
        + r"|(?=.*BatchNorm\()(?=.*vmap\()"
        + r"|(?=.*jit\()(?=.*MultiHeadAttention\()" * GROUPS_HEADS,
    ),
    Row(
        "axes as a list",
        "`in_axes` of `vmap` as a list", "an error", "the same as a tuple, as in JAX",
        reason="`jax.vmap` takes it", says="documented",
        example=program("known", ("y = nnx.vmap(lambda m, x: m * x, in_axes=[None, 0])(nnx.Param(jnp.ones(2)), jnp.ones(3))", "y")),
        found_in_flax="prefix pytree tree_map tree has a subtree of type.*'list'", found_in_plait=NO_ERROR,
    ),
    Row(
        "cached arrays",
        "`cached_partial` of a model with array attributes", "an error", "works",
        reason="array attributes are allowed everywhere else", says="documented",
        example=program("known", ("y = nnx.cached_partial(nnx.jit(lambda m: m.a + 1), nnx.Dict(a=jnp.ones(2)))()", "y")),
        found_in_flax="has no attribute '?get_raw_value",
    ),
    Row(
        "scales",
        "`WeightNorm` and `SpectralNorm`", "bare arrays for scales; weights change their dtype; weights are written in evaluation too", "`Param` scales; weights keep their dtype; in evaluation nothing is written",
        reason="scales are trained; a model in evaluation can be called in any trace",
        says="documented",
        example=program("known", ("m = nnx.WeightNorm(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))", "m")),
        kinds=("text", "there", "error", "value", "dtype", "bits", "traces"), text="(Weight|Spectral)Norm",
        example_until="0.12.12",
    ),
    Row(
        "arrays that two attributes hold",
        "an array that two attributes hold, after a call of `jit`", "two equal arrays", "one array, as before; an attribute that the function sets has a new one",
        reason="what a function does not write is not copied",
        says="documented",
        example=program(
            "known", "m = Net(); m.b = m.a", "nnx.jit(lambda m: None)(m)", ("found = nnx.find_duplicates(m)", "found"),
            definitions="class Net(nnx.Module):\n    def __init__(self):\n        self.a = jnp.ones(2)",
        ),
        kinds=("text", "there"), step="nnx.find_duplicates", path="^found", text=r"(?s)self\.\w+ = (nnx\.data\()?jnp\..*nnx\.jit\(",
    ),
    Row(
        "numbers in variables",
        "`v[...]` and `np.asarray(v)` where `v` holds a Python number", "an error; an array of objects", "the number",
        reason="a variable of a number reads as the number",
        says="documented",
        example=program("known", ("y = nnx.Variable(2.0)[...]", "y")),
        more=(program("known", "v = nnx.Param(2.0)", ("r = np.asarray(v)", "r")),),
        kinds=("error", "text"), found_in_flax="'(float|int|TypedFloat|TypedInt)' object|^a ndarray$",
        found_in_plait=f"{NO_ERROR}|^NumPy array",
    ),
    Row(
        "containers in variables",
        "`v[...]` where `v` holds a dict", "an error; `v[...] = x` adds an entry with the key `...`", "the dict; `v[...] = x` replaces it",
        reason="`v[...]` is the whole value of every variable; a dict with the key `...` next to names cannot be flattened",
        says="documented",
        example=program("known", "v = nnx.Variable({'a': jnp.ones(2)})", ("v[...] = jnp.ones(2)", "v")),
        more=(program("known", "v = nnx.Variable({'a': jnp.ones(2)})", ("r = v[...]", "r")),),
        kinds=("error", "text", "there"), step=r"v\[\.\.\.\]", path=r"^(v\.value.*)?$", text=r"v = [\w.]+\(\{",
    ),
    Row(
        "no graph",
        "`nnx.state`, `nnx.variables` or `nnx.pop` of a string or a number", "`IndexError` or `RuntimeError`", "`GraphTypeError`, a `TypeError`",
        reason="the text says what was given and what may stand there",
        says="GraphTypeError",
        example=program("known", "nnx.state('text')"),
        more=(program("known", "nnx.variables(3)"), program("known", "nnx.pop(3, nnx.Param)")),
        found_in_flax="^IndexError .*tuple index out of range|^RuntimeError .*Unsupported type",
        found_in_plait="^GraphTypeError .*takes a module, a variable or a container of them",
    ),
    Row(
        "no filter",
        "something that is not a filter, such as `42`", "`ValueError` while Flax writes the text of its error", "`FilterTypeError`, a `TypeError`",
        reason="the text says what was given and what may stand there",
        says="FilterTypeError",
        example=program("known", "nnx.state(nnx.Dict(a=nnx.Param(1.0)), nnx.Not(42))"),
        found_in_plait="^FilterTypeError",
    ),
    Row(
        "plain containers",
        "`self.layers = [Linear(...), ...]`, or a module assigned where a number was", "an error; needs `nnx.List` or `nnx.data`", "an ordinary attribute; `nnx.List` and `nnx.data` work too",
        reason="models are written with Python's own lists and dicts",
        says="documented",
        example=program("known", ("m = nnx.Dict(a=1); m.b = [jnp.ones(2)]", "m")),
        found_in_flax="Found data on value of type|Cannot assign data value of type", found_in_plait=NO_ERROR,
    ),
    Row(
        "loops over shared objects in tree mode",
        "`fori_loop` and `while_loop` of shared objects with `graph=False`", "each path gets a copy", "an error, as from every function with `graph=False`",
        reason="what one place writes would be missing in the other",
        says="GraphError",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Dict(v=nnx.Param(1.0))); m.b = m.a",
            "nnx.fori_loop(0, 2, lambda i, m: m, m, graph=False)",
        ),
        # Flax may fail later, where plait does not arrive.
        found_in_flax=f"{NO_ERROR}|dot_general requires|A ShapeDtypeStruct does not have a value|'GetAttrKey' object has no attribute",
        found_in_plait="tree mode takes no shared objects",
    ),
    Row(
        "arrays of carried modules without updates",
        "a module with array attributes that `fori_loop`, `while_loop` or `scan` carries with `graph_updates=False`", "keeps its arrays, but not the values of its variables; another module with the same variables is returned", "has the arrays and values of the last iteration, and is returned",
        reason="the arrays and the variables of one model are of one step",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.data(jnp.array(0)))", "def body(i, m):\n    m.a = m.a + 1\n    return m",
            ("nnx.fori_loop(0, 2, body, m, graph_updates=False)", "m"),
        ),
        kinds=("value",), path=r"^m\.", found_in_flax="^array", found_in_plait="^array",
        text=r"(?s)(?=.*nnx\.data\(jnp)(?=.*nnx\.(fori_loop|while_loop|scan)\()(?=.*graph(_updates)?=False)",
    ),
    Row(
        "live variables",
        "`nnx.variables`", "the same as `nnx.state`", "the live view",
        reason="what is written into it is written into the model, and it holds what is a variable",
        says="documented",
        example=program("known", ("s = nnx.variables(nnx.Dict(a=nnx.Param(1.0), b=jnp.ones(2)))", "s")),
        kinds=("there",), step=r"nnx\.variables\(",
    ),
    Row(
        "variables that recursive_map replaces",
        "a variable that the function of `recursive_map` replaces", "is replaced in the given model too", "the result has another variable; the given model is unchanged",
        reason="a function that returns a new model leaves the old one as it was",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            ("r = nnx.recursive_map(lambda path, v: v.replace(jnp.zeros(2)) if isinstance(v, nnx.Param) else v, m)", "m", "r"),
        ),
        kinds=("value",), text="recursive_map",
    ),
    Row(
        "structure changed in a loop",
        "the body of a loop adds or removes attributes", "an error that names neither, such as `StopIteration`, or JAX's `TypeError`; `scan` takes it", "an `ArgumentError` that names the path",
        reason="the text says which attribute it was",
        says="ArgumentError",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            "def body(i, m):\n    del m.a\n    return m", "nnx.fori_loop(0, 2, body, m)",
        ),
        more=(
            program(
                "known", "a, b = nnx.Dict(v=nnx.Param(jnp.ones(2))), nnx.Dict(v=nnx.Param(jnp.ones(2)))",
                "def body(a, b, x):\n    a.new = nnx.Param(jnp.ones(2))\n    return x",
                "nnx.scan(body, in_axes=(None, None, 0), out_axes=0)(a, b, jnp.ones(2))",
            ),
            program(
                "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
                "def body(i, m):\n    m.note = 3\n    return m", "nnx.fori_loop(0, 2, body, m)",
            ),
            program(
                "known", "m = nnx.Dict(a=nnx.Linear(2, 2, rngs=nnx.Rngs(0)), t=nnx.Param(jnp.ones(2)))", "m.p = m.a",
                "def body(i, v):\n    v[0].other = nnx.Param(jnp.ones(2))\n    return v[0], v[1], v[2] + 1",
                "nnx.fori_loop(0, 2, body, (m, m, jnp.zeros(())))",
            ),
            program(
                "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
                "def body(v):\n    v[1].b = nnx.Param(jnp.ones(2))\n    return v[0] + 1, v[1]",
                "nnx.while_loop(lambda v: v[0] < 2, body, (jnp.array(0), m))",
            ),
        ),
        found_in_flax="generator raised StopIteration|'(NodeRef|GetAttrKey)' object has no attribute|Incorrect number of leaves|(must|to) have the same (reference and )?pytree structure|^no error$",
        found_in_plait="changed the structure of (a carried or shared object|an object that all iterations share|the carry)|cannot change the structure of its arguments",
    ),
    Row(
        "structure changed in cached_partial",
        "a function under `cached_partial` that adds attributes", "an error", "works",
        reason="a cache changes how long a call takes, and not what it does",
        says="documented",
        example=program(
            "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))",
            "def f(m):\n    m.b = 1", ("nnx.cached_partial(nnx.jit(f), m)()", "m"),
        ),
        found_in_flax="was mutated inside the transformation", found_in_plait=NO_ERROR,
    ),
    Row(
        "operators that a value lacks",
        "an operator of a variable whose value has no such operator, as `v % 2` of a dict", "`AttributeError`", "`TypeError`, as for the value itself",
        reason="the error is the one that Python gives for the value, so that the same `except` catches both",
        says="TypeError",
        example=program("known", "v = nnx.Variable({'a': jnp.ones(2)})", "r = v % 2"),
        found_in_flax="^AttributeError .*object has no attribute '__", found_in_plait="^TypeError .*(unsupported operand|bad operand type|doesn't define __round__)",
    ),
    Row(
        "operators of variables",
        "`v > 1`, `v != 1`, `divmod(v, 2)` for a variable", "an error; for `!=` of one element a `bool`", "work as for the array",
        reason="a variable stands for its array in every operator",
        says="documented",
        example=program("known", ("y = nnx.Param(jnp.ones(2)) > 1", "y")),
        more=(program("known", "v = nnx.Param(jnp.array(3.0))", ("y = v != 1", "y")),),
        kinds=("error", "text"), step="v > 1|divmod|v != 1|> 1$",
        found_in_flax="'>' not supported|divmod|truth value of an array|^(True|False)$", found_in_plait="^(no error|array bool.*)$",
    ),
    Row(
        "update with parts that a model lacks",
        "`nnx.update(model, {'name': {…}})` where the model has no `name`", "sets the attribute to the dict, silently", "`GraphError` that names the path; `nnx.update(model, {'name': value})` sets it, as in Flax",
        reason="the values of a misspelled module would go nowhere",
        says="GraphError",
        example=program("known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", "nnx.update(m, {'b': {'c': 1}})"),
        found_in_flax=NO_ERROR, found_in_plait="^GraphError .*entries for a part that the graph does not have",
    ),
    Row(
        "update without a state",
        "`nnx.update(model, x)` where `x` is no state, such as the tuple of states that `pop` returns", "`AttributeError`: no attribute 'items'", "`ArgumentTypeError`, a `TypeError`",
        reason="the text says what was given and what may stand there",
        says="ArgumentTypeError",
        example=program("known", "nnx.update(nnx.Dict(a=nnx.Param(1.0)), ({'a': 2.0},))"),
        more=(
            program(
                "known", "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", "s = nnx.pop(m, nnx.BatchStat, nnx.Param)",
                "nnx.update(m, nnx.to_pure_dict(s))",
            ),
        ),
        found_in_flax="^AttributeError .*no attribute '(items|_mapping)'",
        found_in_plait="^ArgumentTypeError .*(update takes states|to_pure_dict takes one state)",
    ),
    Row(
        "overlapping filters of streams",
        "`fork_rngs(split={…})` and similar functions, where two filters match one stream", "an error: it is split twice", "the first filter counts",
        reason="filters are tried in order, as everywhere",
        says="documented",
        example=program("known", "rngs = nnx.Rngs(params=0)", ("nnx.fork_rngs(rngs, split={'params': 3, ...: 2})", "rngs")),
        found_in_flax="fold_in accepts a single key", found_in_plait=NO_ERROR, step="fork|split|with_rngs",
    ),
    Row(
        "round",
        "`round(v)` for a variable of floats", "floats", "integers, as `round` of its array",
        reason="a variable stands for its array in every operator",
        says="documented",
        example=program("known", ("y = round(nnx.Param(jnp.ones(2)))", "y")),
        kinds=("dtype", "text"), step=r"round\(",
    ),
)  # fmt: skip
