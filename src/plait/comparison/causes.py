"""The cause of a departure, if it is one of the usual ones.

Nothing is concluded from names. Each hypothesis is a formula that reproduces the first model's recorded output from its
recorded inputs, and, with a different setting, the second model's output. The answer includes the difference that
remains when the first is computed with the setting of the second.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..export.proof.compare import largest_of, relative_tolerance
from . import formulas
from .calls import Call, Run
from .departures import Found, Judge, Pair
from .differences import align, apart, fits
from .formulas import ACTIVATIONS, MASKS, Choices, Chosen, Formula
from .names import usual_name
from .parameters import channels_last, parameters_of

_SAMPLE = 4096  # the number of entries on which elementwise functions are tried


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why two outputs differ.

    Attributes:
        what: in a few words: ``epsilon``, ``bias``, ``mask``.
        a, b: the setting of each model.
        before: the largest difference as recorded; infinite if the shapes differ.
        after: the largest difference that remains when the first is computed with the setting of the second; ``None``
            for precision, where the outputs are equal except for rounding, and for parameters of modules without a
            formula, which were only compared.
    """

    what: str
    a: str
    b: str
    before: float
    after: float | None

    @property
    def explains(self) -> bool:
        """Whether the difference disappears, rather than only shrinks."""
        return self.after is None or 4 * self.after < self.before

    def __str__(self) -> str:
        text = f"{self.what}: {self.a} in a, {self.b} in b"
        if self.after is None:
            return text
        if not math.isfinite(self.before):
            return f"{text} (with the setting of b, a has its shape, and differs by {self.after:.3g})"
        return f"{text} (with the setting of b, a differs by {self.after:.3g} instead of {self.before:.3g})"


@dataclasses.dataclass(frozen=True)
class _Side:
    """What one model had at the departure.

    Attributes:
        library: its library.
        call: the call whose inputs agree.
        parameters: those of its module, by role.
        target: the array that departs.
        sources: arrays that agree and from which the target may have been computed, by name, the nearest last.
    """

    library: str
    call: Call
    parameters: dict[str, np.ndarray]
    target: np.ndarray
    sources: dict[str, np.ndarray]


def find_cause(runs: tuple[Run, Run], judge: Judge, found: Found) -> Cause | None:
    """The cause of a departure, or ``None``."""
    sides = _sides(runs, judge, found)
    if sides is None:
        return None
    a, b = sides
    is_layer = found.inside is None
    tries: list[Callable[[_Side, _Side], Cause | None]] = [_by_dtype, _by_mask]
    tries += [_by_parameters, _by_layer] if is_layer else []
    tries += [_by_attention, _by_function, _by_sum, _by_missing_term, _by_factor, _by_order]
    tries += [] if is_layer else [_by_parameters]
    if a.target.size != b.target.size:  # only a formula of the whole layer can say why
        tries = [_by_layer] if is_layer else []
    return next((cause for each in tries if (cause := each(a, b)) is not None and cause.explains), None)


def _sides(runs: tuple[Run, Run], judge: Judge, found: Found) -> tuple[_Side, _Side] | None:
    a, b = found.pair
    if found.inside is None:
        targets = list(zip(a.outputs, b.outputs, strict=False))
    else:
        targets = judge.paired_inputs(found.inside) or []
    aligned = [(x, y) for x, other in targets if (y := align(other, x)) is not None]
    if not targets:
        return None
    worst = max(aligned, key=lambda each: apart(*each) / max(largest_of(each[0]), 1e-30), default=targets[0])
    ended = math.inf if found.inside is None else found.inside[0].exit
    ours, theirs = _sources(judge, found, ended)
    first, second = (
        _Side(run.library, call, parameters_of(run.library, call, run.parameters(call)), target, sources)
        for run, call, target, sources in zip(runs, (a, b), worst, (ours, theirs), strict=True)
    )
    return first, second


def _sources(judge: Judge, found: Found, ended: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs of the departing calls, and the outputs inside them that agree; those of the second model aligned."""
    a, b = found.pair
    ours: dict[str, np.ndarray] = {}
    theirs: dict[str, np.ndarray] = {}
    names = list(a.inputs) + [f"argument {n}" for n in range(len(a.inputs), 99)]
    for name, (x, y) in zip(names, judge.paired_inputs(found.pair) or (), strict=False):
        _keep(ours, theirs, f"input {name}", x, y)
    for call, other in _outermost([p for p in judge.pairs if a.encloses(p[0]) and b.encloses(p[1])]):
        if call.exit < ended and judge.output((call, other)).is_agreement:
            for n, (x, y) in enumerate(zip(call.outputs, other.outputs, strict=False)):
                _keep(ours, theirs, call.place + (f"[{n}]" if n else ""), x, y)
    return ours, theirs


def _keep(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], name: str, x: np.ndarray, y: np.ndarray) -> None:
    aligned = align(y, x)
    if aligned is not None:
        ours[name], theirs[name] = x, aligned


def _outermost(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that are not inside any other pair, in the order in which they ended."""
    found: list[Pair] = []
    for pair in reversed(pairs):
        if not (found and found[-1][0].encloses(pair[0])):
            found.append(pair)
    return found[::-1]


# By formula -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Given:
    """The inputs of a formula, and the expected output."""

    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, np.ndarray]
    expected: np.ndarray


def _explain(formula: Formula, choices: tuple[Choices, Choices], a: _Given, b: _Given) -> Cause | None:
    """The settings with which a formula gives the output of each side; they differ as little as possible."""
    ours = list(_fitting(formula, choices[0], a))
    theirs = list(_fitting(formula, choices[1], b)) if ours else []
    pairs = sorted(
        ((_differing(x, y), off + other_off, x, y) for x, off in ours for y, other_off in theirs),
        key=lambda each: (len(each[0]), each[1]),
    )
    before = apart(a.expected, b.expected) if a.expected.shape == b.expected.shape else math.inf
    for differing, _, x, y in pairs:
        if not differing:
            continue
        chosen = {**x, **{name: y[name] for name in differing}}
        crossed = _result(formula, a.inputs, {**b.parameters, **a.parameters}, chosen)
        if crossed is not None and fits(crossed, b.expected):
            text = ", ".join(differing)
            mine, other = (", ".join(_shown(each[n]) for n in differing) for each in (x, y))
            cause = Cause(text, mine, other, before, apart(crossed, b.expected))
            own = _result(formula, a.inputs, a.parameters, x)
            if cause.explains and own is not None and _is_nearer(crossed, own, b.expected):
                return cause
    return None


def _is_nearer(crossed: np.ndarray, own: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the setting matters: a bias of zeros does not, and then the formula may only round better than a did."""
    return own.shape != expected.shape or 4 * apart(crossed, expected) < apart(own, expected)


def _fitting(formula: Formula, choices: Choices, given: _Given) -> Iterator[tuple[Chosen, float]]:
    """The settings that give the expected output, with the remaining difference, in units of the largest value."""
    scale = max(largest_of(given.expected), 1e-30)
    for chosen in formulas.each_choice(choices):
        result = _result(formula, given.inputs, given.parameters, chosen)
        if result is not None and fits(result, given.expected):
            yield chosen, apart(result, given.expected) / scale


def _result(formula: Formula, inputs: Any, parameters: Any, chosen: Chosen) -> np.ndarray | None:
    try:
        return formula(inputs, parameters, chosen)
    except ValueError:  # a different kind of layer: the shapes do not fit the formula
        return None


def _differing(x: Chosen, y: Chosen) -> list[str]:
    return [name for name in x if x[name] != y.get(name)]


_OTHER_HALF = {"first half": "second half", "second half": "first half"}


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and value[-1:] == ("gated",):
        first, second, _ = value
        if second in _OTHER_HALF:
            return f"f({second} of {first}) * {_OTHER_HALF[second]}"
        return f"f({first}) * {second}"
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return " + ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_layer(a: _Side, b: _Side) -> Cause | None:
    """The layer's own formula, if it is known here."""
    given = [_layer_inputs(side) for side in (a, b)]
    if given[0] is None or given[1] is None:
        return None
    for formula, choices in _layer_formulas((a, b), (given[0], given[1])):
        cause = _explain(formula, choices, given[0], given[1])
        if cause is not None:
            return cause
    return None


def _layer_formulas(
    sides: tuple[_Side, _Side], given: tuple[_Given, _Given]
) -> Iterator[tuple[Formula, tuple[Choices, Choices]]]:
    """The formulas that the parameters of both allow, with the choices of each side."""
    a, b = sides
    modules = [a.call.module, b.call.module]

    def both(choices: Callable[[_Given, list[Any]], Choices]) -> tuple[Choices, Choices]:
        return choices(given[0], modules), choices(given[1], modules[::-1])

    if all("kernel" in side.parameters for side in sides):
        yield formulas.linear, both(lambda g, _: formulas.linear_choices(g.parameters))
        if a.parameters["kernel"].ndim > 2:
            yield formulas.convolution, both(lambda g, m: formulas.convolution_choices(g.parameters, m))
    elif all("embedding" in side.parameters for side in sides):
        yield formulas.embedding, (formulas.EMBEDDING_CHOICES, formulas.EMBEDDING_CHOICES)
    else:
        yield formulas.norm, both(lambda g, m: formulas.norm_choices(g.parameters, m))


def _layer_inputs(side: _Side) -> _Given | None:
    x = next(iter(side.call.inputs.values()), None)
    if x is None:
        return None
    own = channels_last(side.library, side.call, side.call.outputs[0])
    x = channels_last(side.library, side.call, x)
    return _Given({"x": x, "like": own}, side.parameters, own)


def _by_attention(a: _Side, b: _Side) -> Cause | None:
    """Attention, between its projections and the layer that follows."""
    first, second = _attention_inputs(a), _attention_inputs(b)
    if first is None or second is None:
        return None
    modules = [a.call.module, b.call.module]
    ours, theirs = (
        formulas.attention_choices(each, g.inputs["query"], has_mask="mask" in g.inputs)
        for each, g in ((modules, first), (modules[::-1], second))
    )
    return _explain(formulas.attention, (ours, theirs), first, second)


def _attention_inputs(side: _Side) -> _Given | None:
    found = {}
    for name, array in side.sources.items():
        role = usual_name((name.rpartition(".")[2],))
        if role in ("query", "key", "value", "qkv"):
            found[role] = array
    if "qkv" in found and found["qkv"].size == 3 * side.target.size:
        whole = found["qkv"]
        parts = np.split(whole.reshape(*whole.shape[:2], -1), 3, axis=-1)
        found.update(zip(("query", "key", "value"), parts, strict=True))
    if not {"query", "key", "value"} <= found.keys() or side.target.ndim < 3:
        return None
    flat = lambda few: few.reshape(*few.shape[:2], -1)
    inputs = {name: flat(found[name][:2]) for name in ("query", "key", "value")}
    mask = next((array for array in side.sources.values() if array.dtype == bool), None)
    if mask is not None:
        inputs["mask"] = mask
    return _Given(inputs, {}, flat(side.target[:2]))


def _by_function(a: _Side, b: _Side) -> Cause | None:
    """An elementwise function of one source or of the sum of two, or its product with another."""
    names = [name for name, array in a.sources.items() if name in b.sources and array.dtype.kind == "f"]
    same = [name for name in names if a.sources[name].size == a.target.size][-5:]
    terms: list[tuple[str, ...]] = [*((name,) for name in reversed(same)), *itertools.combinations(same, 2)]
    products = [(*pair, "gated") for pair in itertools.permutations(same, 2)]
    for name in names:
        if a.sources[name].size == 2 * a.target.size and a.sources[name].shape[-1] == 2 * a.target.shape[-1]:
            products += [(name, "first half", "gated"), (name, "second half", "gated")]
    choices: Choices = {"terms": (*terms, *products), "activation": tuple(ACTIVATIONS)}
    if not choices["terms"]:
        return None
    at = np.linspace(0, a.target.size - 1, min(_SAMPLE, a.target.size)).astype(int)
    given = [_Given(side.sources, {}, side.target.reshape(-1)[at]) for side in (a, b)]
    cause = _explain(functools.partial(_entrywise, at=at), (choices, choices), *given)
    if cause is None:
        return None
    if cause.what == "terms":
        cause = dataclasses.replace(cause, what="made of")
    return dataclasses.replace(cause, before=apart(a.target, b.target))


def _entrywise(inputs: Any, parameters: Any, chosen: Chosen, at: np.ndarray) -> np.ndarray:
    terms = chosen["terms"]
    f = ACTIVATIONS[chosen["activation"]]
    if terms[-1] != "gated":
        return f(functools.reduce(np.add, (_wide_at(inputs[name], at) for name in terms)))
    first, second, _ = terms
    if second in _OTHER_HALF:
        halves = np.split(inputs[first], 2, axis=-1)
        gate, up = halves if second == "first half" else halves[::-1]
    else:
        gate, up = inputs[first], inputs[second]
    return f(_wide_at(gate, at)) * _wide_at(up, at)


def _wide_at(array: np.ndarray, at: np.ndarray) -> np.ndarray:
    return array.reshape(-1)[at].astype(np.float64)


# By relation ----------------------------------------------------------------------------------------------------------


def _by_dtype(a: _Side, b: _Side) -> Cause | None:
    """One of the two is the other, rounded."""
    x, y = a.target, b.target
    if not all(jnp.issubdtype(each.dtype, jnp.floating) for each in (x, y)):
        return None
    for dtype in (jnp.bfloat16, jnp.float16, np.float32):
        rounded = [_is_exactly(array, dtype) for array in (x, y)]
        if rounded[0] == rounded[1]:
            continue
        near = relative_tolerance(dtype) * max(largest_of(x), largest_of(y))
        if apart(x, y) <= near:
            wider = np.result_type(np.float32, *(each.dtype for each in (x, y) if not _is_exactly(each, dtype)))
            ours, theirs = (jnp.dtype(dtype).name if each else np.dtype(wider).name for each in rounded)
            return Cause("precision", ours, theirs, apart(x, y), None)
    return None


def _is_exactly(array: np.ndarray, dtype: Any) -> bool:
    """Whether a dtype represents the array exactly; arrays of integers do not count."""
    if array.dtype == dtype:
        return True
    with np.errstate(over="ignore"):
        kept = np.array_equal(array.astype(dtype).astype(array.dtype), array)
    return kept and not np.array_equal(array, np.round(array))


def _by_mask(a: _Side, b: _Side) -> Cause | None:
    """Two masks."""
    x, y = a.target, b.target
    if x.dtype != bool or y.dtype != bool or x.ndim < 2:
        return None
    found = []
    for mask in (x, y):
        makers = {name: make(*mask.shape[-2:]) for name, make in MASKS.items()}
        found.append(next((name for name, each in makers.items() if (mask == each).all()), None))
    if found[0] is None or found[1] is None:
        return None
    return Cause("mask", found[0], found[1], 1.0, 0.0)


def _by_sum(a: _Side, b: _Side) -> Cause | None:
    """Both are sums of known terms, with different factors."""
    known = {name: (array, b.sources[name]) for name, array in a.sources.items() if array.dtype.kind == "f"}
    known |= {name: (x, b.parameters[name]) for name, x in a.parameters.items() if name in b.parameters}
    spread = {name: [_spread(array, a.target.shape) for array in arrays] for name, arrays in known.items()}
    terms = {name: (x, y) for name, (x, y) in spread.items() if x is not None and y is not None and np.any(x)}
    if not 1 < len(terms) <= 8:
        return None
    names, factors = list(terms), []
    for side, target in enumerate((a.target, b.target)):
        matrix = np.stack([terms[name][side].reshape(-1) for name in names], -1)
        solved = np.linalg.lstsq(matrix, target.reshape(-1).astype(np.float64), rcond=None)[0]
        if not fits((matrix @ solved).reshape(target.shape), target):
            return None
        factors.append(solved)
    differing = [n for n in range(len(names)) if not math.isclose(*(each[n] for each in factors), abs_tol=1e-3)]
    if len(differing) != 1:
        return None
    at = differing[0]
    moved = a.target + (factors[1][at] - factors[0][at]) * terms[names[at]][0]
    ours, theirs = ("missing" if abs(each[at]) < 1e-3 else f"times {each[at]:.4g}" for each in factors)
    if not fits(moved, b.target):
        return None
    return Cause(names[at], ours, theirs, apart(a.target, b.target), apart(moved, b.target))


def _by_missing_term(a: _Side, b: _Side) -> Cause | None:
    """One of the two adds a known term."""
    more = a.target.astype(np.float64) - b.target.astype(np.float64)
    if not np.isfinite(more).all():
        return None
    known = {
        **{name: array for name, array in a.sources.items() if array.dtype.kind == "f"},
        **{f"parameter {name}": array for side in (a, b) for name, array in side.parameters.items()},
    }
    for name, array in known.items():
        term = _spread(array, more.shape)
        if term is None or not np.any(term):
            continue
        factor = float((term * more).sum() / (term * term).sum())
        simple = next((each for each in (1.0, -1.0, 0.5, -0.5, 2.0, -2.0) if abs(factor - each) < 1e-3), None)
        if simple is None:
            continue
        without = a.target - simple * term
        if fits(without, b.target):
            what = name.removeprefix("parameter ")
            amount = "" if abs(simple) == 1 else f"{abs(simple):g} times "
            ours, theirs = (f"{amount}added", "missing") if simple > 0 else ("missing", f"{amount}added")
            return Cause(what, ours, theirs, apart(a.target, b.target), apart(without, b.target))
    row = more.reshape(-1, more.shape[-1]) if more.ndim > 1 else None
    if row is not None and len(row) > 1 and np.any(row):
        mean = row.mean(0)
        if fits(a.target - mean, b.target):
            after = apart(a.target - mean, b.target)
            return Cause("bias", "with a vector added", "without it", apart(a.target, b.target), after)
    return None


def _spread(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    wide = array.astype(np.float64)
    if math.prod(shape) == wide.size:
        return wide.reshape(shape)
    if wide.ndim > 1 and wide.size == math.prod(shape[-2:]):
        wide = wide.reshape(shape[-2:])
    try:
        return np.broadcast_to(wide, shape)
    except ValueError:
        return None


def _by_factor(a: _Side, b: _Side) -> Cause | None:
    """One is a multiple of the other."""
    x, y = a.target.astype(np.float64), b.target.astype(np.float64)
    square = float((x * x).sum())
    if not np.isfinite(square) or not square or not np.any(y):
        return None
    factor = float((x * y).sum()) / square
    scale = _as_root(factor, x.shape[-1])
    if not factor or scale == "1" or not fits(factor * x, b.target):
        return None
    return Cause("scale", "1", scale, apart(a.target, b.target), apart(factor * x, b.target))


def _as_root(factor: float, features: int) -> str:
    """A factor, described as one of the usual ones."""
    named = {"-1": -1.0, "sqrt(features)": features**0.5, "1/sqrt(features)": features**-0.5}
    return next((name for name, each in named.items() if math.isclose(factor, each, rel_tol=1e-4)), f"{factor:.6g}")


def _by_order(a: _Side, b: _Side) -> Cause | None:
    """The same entries in a different order."""
    x, y = a.target, b.target
    for text, moved in _rearranged(x):
        if moved.shape == y.shape and fits(moved.astype(np.float64), y):
            return Cause("order", "as it is", text, apart(x, y), apart(moved, y))
    for axis in range(x.ndim):
        for step in (1, -1):
            kept = [slice(None)] * x.ndim
            kept[axis] = slice(1, None) if step == 1 else slice(None, -1)
            moved = np.roll(x, step, axis)[tuple(kept)]
            if moved.size and np.any(moved) and fits(moved.astype(np.float64), y[tuple(kept)]):
                text = f"moved by {step} along axis {axis}"
                return Cause("position", "as it is", text, apart(x, y), apart(moved, y[tuple(kept)]))
    return None


def _rearranged(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for axis in range(x.ndim):
        yield f"reversed along axis {axis}", np.flip(x, axis)
    for first, second in itertools.combinations(range(x.ndim), 2):
        yield f"axes {first} and {second} exchanged", np.swapaxes(x, first, second)
    if x.shape[-1] % 2 == 0:
        yield "halves exchanged", np.roll(x, x.shape[-1] // 2, -1)
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        yield "even entries before odd ones", np.swapaxes(pairs, -1, -2).reshape(x.shape)
        halves = x.reshape(*x.shape[:-1], 2, -1)
        yield "halves interleaved", np.swapaxes(halves, -1, -2).reshape(x.shape)


# By parameters --------------------------------------------------------------------------------------------------------


def _by_parameters(a: _Side, b: _Side) -> Cause | None:
    """A parameter of the module itself differs between the two sides."""
    for name, ours in a.parameters.items():
        theirs = b.parameters.get(name)
        if theirs is None or not jnp.issubdtype(ours.dtype, jnp.floating):
            continue
        text = _relation(ours, theirs)
        if text is not None:
            return Cause(name, "as it is", text, *_tested(a, b, name))
    return None


def _relation(ours: np.ndarray, theirs: np.ndarray) -> str | None:
    """How one parameter differs from another; ``None`` if they are equal up to rounding."""
    if ours.size != theirs.size:
        return f"of shape {theirs.shape}, not {ours.shape}"
    if ours.ndim != theirs.ndim or ours.shape == theirs.shape:
        theirs = theirs.reshape(ours.shape)
        if fits(theirs.astype(np.float64), ours):
            return None
    for axes in itertools.permutations(range(theirs.ndim)):
        moved = theirs.transpose(axes)
        if list(axes) != sorted(axes) and moved.shape == ours.shape and fits(moved.astype(np.float64), ours):
            return "transposed"
    for axis in range(theirs.ndim):
        if theirs.shape == ours.shape and fits(np.flip(theirs, axis).astype(np.float64), ours):
            return f"reversed along axis {axis}"
    window = tuple(range(ours.ndim - 2))
    if len(window) > 1 and theirs.shape == ours.shape and fits(np.flip(theirs, window).astype(np.float64), ours):
        return "with the window reversed"
    return "with other values"


def _tested(a: _Side, b: _Side, name: str) -> tuple[float, float | None]:
    """The difference as recorded, and that of the first layer's formula with the other parameter."""
    before = apart(a.target, b.target)
    given = _layer_inputs(a), _layer_inputs(b)
    if given[0] is None or given[1] is None:
        return before, None
    ours, theirs = given[0], given[1]
    for formula, choices in _layer_formulas((a, b), (ours, theirs)):
        chosen = next(_fitting(formula, choices[0], ours), None)
        if chosen is not None:
            swapped = {**ours.parameters, name: theirs.parameters[name]}
            result = _result(formula, ours.inputs, swapped, chosen[0])
            if result is not None and fits(result, theirs.expected):
                return before, apart(result, theirs.expected)
    return before, None
