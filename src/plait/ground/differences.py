"""The differences from Flax that change a number or an object, said by a warning where a program meets one. (rule X32)

Off by default, and then free: a place asks ``asking.on``, and does nothing else. ``DIFFERENCES`` has the words of the
rows of ``docs/flax-differences.md`` that are said. The others cannot be seen exactly where they are met:

- a leaf of a state that is written: only a write that nobody reads is lost, and a ``LostUpdateWarning`` says that;
- a state that was taken before the model changed: it would have to know its model;
- the model whose state was merged: ``merge`` says it, before the new model runs;
- a parameter used both inside and outside a ``custom_vjp`` function: the use outside is an ordinary read;
- an array that two attributes hold: ``jit`` compares no arrays in a call that it dispatches;
- a changed global that an eager loop reads: plait does not see what a function reads;
- last digits: nobody knows them before XLA has compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import FlaxDifferenceWarning
from .environment import flag
from .notices import warn
from .restoring import Restoring


class Difference(NamedTuple):
    """A row of the page: its three cells, and what to do."""

    what: str
    flax: str
    plait: str
    do: str


DIFFERENCES = {
    "merge makes variables": Difference(
        "`merge(graphdef, state)`",
        "reuses the state's variables in the new model",
        "makes new variables; `copy=False` reuses them, as Flax does",
        "for Flax's result, plait.merge(graphdef, state, copy=False), with live_states() around the split",
    ),
    "one object twice under cached_partial": Difference(
        "`f = cached_partial(g, model)`, then `f(model)`",
        "two models in the function",
        "one model in the function, as without `cached_partial`",
        "for two models, f(plait.clone(model))",
    ),
    "values with hooks": Difference(
        "`to_pure_dict` of a state whose variables have an `on_get_value`",
        "values as the hook gives them",
        "values as they are stored",
        "for Flax's values, to_pure_dict(state, lambda variable: variable.get_value())",
    ),
    "views of streams": Difference(
        "`view` of a model that holds an `Rngs`",
        "draws a key of its default stream",
        "draws nothing",
        "for Flax's next keys, draw it: rngs()",
    ),
    "calls on states": Difference(
        "`call((graphdef, state))`",
        "writes into the variables of the given state",
        "leaves the given state as it was; the new state is returned",
        "use the returned state: out, (graphdef, state) = plait.call((graphdef, state))(x)",
    ),
    "methods in attributes": Difference(
        "a method of a module in an attribute: `self.act = self.gate`",
        "transforms, `split` and `clone` keep the original module in it, silently",
        "part of the graph: its owner is a reference like any other",
        "for a module that is not part of the graph, store a function: self.act = lambda x: module.gate(x)",
    ),
    "decoding steps with is_causal": Difference(
        "a decoding step with `is_causal=True`",
        "attends to the first position only",
        "to all steps so far, as without",
        "omit is_causal in decoding steps: then both attend to all steps so far",
    ),
    "precision of attention": Difference(
        "`precision` of attention without dropout",
        "not used",
        "used",
        "for Flax's numbers, omit precision",
    ),
    "attention weights in bfloat16": Difference(
        "bfloat16 attention weights with dropout, or sown",
        "computed in bfloat16",
        "in float32, as without dropout",
        "with dtype=jnp.float32 both compute them in float32",
    ),
    "attention of float64": Difference(
        "attention of float64",
        "softmax in float32",
        "in float64",
        "with dtype=jnp.float32 both compute in float32",
    ),
    "scales": Difference(
        "`WeightNorm` and `SpectralNorm`",
        "bare arrays for scales; weights change their dtype; weights are written in evaluation too",
        "`Param` scales; weights keep their dtype; in evaluation nothing is written",
        "if plait.Param shall not select scales: plait.All(plait.Param, plait.Not(plait.PathContains('scales')))",
    ),
    "the carry of no steps": Difference(
        "the carry of `RNN` after a sequence of length 0",
        "the carry after the last padded step",
        "the initial carry",
        "for Flax's carry, seq_lengths=jnp.where(seq_lengths == 0, padded_length, seq_lengths)",
    ),
    "variables that recursive_map replaces": Difference(
        "a variable that the function of `recursive_map` replaces",
        "is replaced in the given model too",
        "the result has another variable; the given model is unchanged",
        "use the result, or change the model: plait.update(model, plait.state(result))",
    ),
    "shapes of array attributes": Difference(
        "`eval_shape` of a function that makes a module with an array attribute",
        "a tracer in the attribute; an error for the second function",
        "a `jax.ShapeDtypeStruct`, as for variables",
        "nothing: no program can use the tracer",
    ),
    "round": Difference(
        "`round(v)` for a variable of floats",
        "floats",
        "integers, as `round` of its array",
        "for floats, round(v, 0)",
    ),
    "PReLU of integers": Difference(
        "`PReLU` of integers",
        "integers",
        "floats",
        "for integers, convert the result; Flax rounds the slope too",
    ),
    "a second call in init": Difference(
        "`to_linen`: a module that is called twice in `init`",
        "new parameters for each call; the last ones are stored",
        "the parameters of the first call",
        "initialize with a method that calls it once",
    ),
    "names of mapped axes": Difference(
        "`out_sharding` of variables that a `vmap` without `transform_metadata` makes",
        "unchanged, so it names the wrong axes",
        "has `None` for the new axis",
        "name the axis: transform_metadata={plait.PARTITION_NAME: 'layers'}",
    ),
    "equal containers": Difference(
        "`nnx.Dict` and `nnx.List` compared with `==`",
        "by content; all lists are equal",
        "by identity, as other modules",
        "compare their contents: list(a) == list(b), dict(a) == dict(b)",
    ),
    "weak types of cotangents": Difference(
        "zero cotangents of weakly typed values in a `custom_vjp` rule",
        "have a weak type",
        "have no weak type",
        "give the value a dtype, which both treat alike: jnp.asarray(x, jnp.float32)",
    ),
    "arrays of carried modules without updates": Difference(
        "a module with array attributes that `fori_loop`, `while_loop` or `scan` carries with `graph_updates=False`",
        "keeps its arrays, but not the values of its variables; another module with the same variables is returned",
        "has the arrays and values of the last iteration, and is returned",
        "to keep the model as it was, carry plait.clone(model)",
    ),
    "EMA of integers": Difference(
        "`EMA` of integers, such as a step counter",
        "a mean that is truncated at each update",
        "the latest value",
        "for a mean, store the number as a float; to leave it out, EMA(model, decay, only=plait.Param)",
    ),
    "masks of Welford": Difference(
        "`metrics.Welford` with a `mask`",
        "ignores it",
        "counts what the mask leaves, as `Average` does",
        "to count all values, omit the mask",
    ),
    "sums of metrics": Difference(
        "metrics of values in half precision",
        "sums each batch in its own dtype",
        "sums in float32",
        "with values.astype(jnp.float32) both sum in float32",
    ),
    "caches of views": Difference(
        "`batch_size` and `max_length` of a view of `MultiHeadAttention`",
        "no effect",
        "make the cache of the view",
        "to keep the cache of the model, omit them",
    ),
}

_said: set[str] = set()


class _Asking:
    """Whether differences are said, in all threads; ``when_asked`` tells of each change."""

    def __init__(self) -> None:
        self.told: list[Callable[[bool], None]] = []
        self.on = flag("PLAIT_SAY_DIFFERENCES", "0")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for tell in self.told if name == "on" else ():
            tell(value)


asking = _Asking()


def when_asked(tell: Callable[[bool], None]) -> None:
    """Call a function now, and whenever the switch is set, with its value."""
    asking.told.append(tell)
    tell(asking.on)


def say_differences(value: bool = True, /) -> Restoring:
    """Whether a program is told, by a ``FlaxDifferenceWarning``, where its numbers differ from Flax's.

    Off by default. For programs that were written for Flax: run them once with it, or with
    ``PLAIT_SAY_DIFFERENCES=1`` in the environment. Each row of docs/flax-differences.md is said once in a process, at
    the first line that meets it. A function that was traced before is not traced again, so it says nothing.

    Takes effect immediately, in all threads; as a context manager or decorator it restores the previous setting.

    Example:
        >>> import warnings
        >>> with plait.compat.say_differences(), warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     y = plait.PReLU()(jnp.array([-1]))
        >>> [warning.category.__name__ for warning in said]
        ['FlaxDifferenceWarning']
    """
    return Restoring(asking, on=bool(value))


def say(name: str, at: str | None = None) -> None:
    """Say a difference, once in a process. Only called while ``asking.on``.

    Args:
        name: its name in ``DIFFERENCES``.
        at: where it is met in the model; ``None`` if the line of the program says all.
    """
    if name not in _said:
        _said.add(name)
        what, flax, plait, do = DIFFERENCES[name]
        warn(
            FlaxDifferenceWarning,
            f"a difference from Flax: {what}",
            at=at,
            found=f"plait: {plait}",
            expected=f"Flax: {flax}",
            do=do,
        )
