"""Comparing two implementations of one model: run both, and name the first module whose output departs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ...convert.name_map import Names
from ...errors import ArgumentError, ArgumentTypeError
from ...util.paths import format_path
from ...util.words import describe_type, first_few
from .calls import Call, Run
from .departures import Found, Judge
from .differences import Difference, in_digits
from .flax_runs import is_flax_nnx, is_linen, run_flax_nnx, run_linen
from .names import Matching, match
from .plait_runs import is_plait, run_plait
from .torch_runs import is_torch, run_torch

_LIBRARIES: tuple[tuple[Callable[[Any], bool], Callable[..., Run]], ...] = (
    (is_plait, run_plait), (is_flax_nnx, run_flax_nnx), (is_linen, run_linen), (is_torch, run_torch),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Departure:
    """The first module whose inputs agree and whose output departs.

    Attributes:
        path, b_path: the path of the module in each model, with the method if calling the module does not
            run it; empty for the model itself.
        kind, b_kind: the names of the classes.
        inputs: the difference of the modules' inputs; ``None`` if nothing could be compared.
        output: the difference of their outputs.
        inside: where the difference arises, if that is in the module's own code, between its submodules.
    """

    path: str
    b_path: str
    kind: str
    b_kind: str
    inputs: Difference | None
    output: Difference
    inside: str | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.path or 'the model itself'} ({self.kind}) departs from "
            f"{self.b_path or 'the model itself'} ({self.b_kind})"
        ]
        lines += [f"  inputs    {'agree' if self.inputs is None else self.inputs}"]
        lines += [f"  output    {self.output}"]
        if self.output.values is not None:
            a, b = self.output.values
            lines.append(f"  values    {in_digits(a, 8)} in a, {in_digits(b, 8)} in b, at {list(self.output.at)}")
        if self.inside is not None:
            lines.append(f"  inside    {self.inside}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Compared:
    """Two corresponding modules, and the difference of their outputs.

    Attributes:
        path, b_path: the path of the module in each model, with the method.
        output: the largest difference of their outputs, over all calls.
    """

    path: str
    b_path: str
    output: Difference


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What ``plait.compare`` found; ``print`` it.

    Attributes:
        departure: the first departure; ``None`` if the results of both models agree.
        compared: every module that was compared, in the order of execution of ``a``.
        only_a, only_b: paths of modules that ran in one model and have no counterpart in the other.
        unseen_a, unseen_b: paths of modules of plait models whose calls could not be recorded, with the transform that
            prevented it: a branch, a loop such as ``while_loop``, or one of JAX's own. They count as part of the
            module around them.
    """

    departure: Departure | None
    compared: tuple[Compared, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    unseen_a: tuple[tuple[str, str], ...] = ()
    unseen_b: tuple[tuple[str, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the results of the two models agree."""
        return self.departure is None

    def __str__(self) -> str:
        if self.departure is not None:
            return f"{self.departure}\n{self._remark()}"
        whole = self.compared[-1].output
        return f"the results agree: they differ by {whole}\n{self._remark()}"

    def _remark(self) -> str:
        texts = [f"{len(self.compared)} modules compared"]
        for name, places in (("a", self.only_a), ("b", self.only_b)):
            if places:
                texts.append(f"only in {name}: {first_few(places, 5)}")
        for name, unseen in (("a", self.unseen_a), ("b", self.unseen_b)):
            if unseen:
                places = [f"{path or 'the model itself'} (in {transform})" for path, transform in unseen]
                texts.append(f"not recorded in {name}: {first_few(places, 5)}")
        return "; ".join(texts)


def compare(
    a: Any,
    b: Any,
    *inputs: Any,
    names: Names = None,
    kwargs: Mapping[str, Any] | None = None,
    b_inputs: tuple[Any, ...] | None = None,
    b_kwargs: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> Comparison:
    """Run two implementations of one model on the same input, and find the first module whose output departs.

    Every call of a module is recorded in both, with its inputs and outputs. Modules are matched by path; the usual
    names of other libraries are known (``layers.0.self_attn.q_proj`` is ``layers[0].attention.query``), and ``names``
    maps others. The module that is reported is the innermost one whose inputs agree and whose output does not.

    The models run in their current mode: call ``eval()`` on both first. They do not change; plait and NNX models are
    copied.

    Args:
        a: a plait model, a ``flax.nnx`` model, a torch module, a bound Linen module or a tuple
            ``(linen_module, variables)``; or a bound method of the first three.
        b: another one.
        *inputs: the arguments of both: arrays, or trees of them. torch gets tensors.
        names: a map from names of ``b`` to names of ``a``, as in ``plait.convert.convert_checkpoint``:
            ``{"transformer.h.*": "blocks.*", "wrapper": None}``. It takes precedence over matching by name.
        kwargs: keyword arguments of both.
        b_inputs: the arguments of ``b``, if they differ from ``inputs``, such as images with channels first.
        b_kwargs: keyword arguments of ``b``, if they differ from ``kwargs``.
        tolerance: the largest difference of two outputs that agree, relative to the largest value; default: a fixed
            number of roundings of the dtype in which both models compute.

    Returns:
        The departure, if there is one, and the difference of every module that was compared.

    Raises:
        ArgumentError: a model does not accept the inputs or returns no arrays, or no module of one corresponds to one
            of the other.
        ArgumentTypeError: ``a`` or ``b`` is not a model.

    Example:
        >>> class Net(plait.Module):
        ...     def __init__(self, epsilon, rngs):
        ...         self.linear = plait.Linear(4, 4, rngs=rngs)
        ...         self.norm = plait.LayerNorm(4, epsilon=epsilon, rngs=rngs)
        ...     def __call__(self, x):
        ...         return self.norm(self.linear(x))
        >>> a, b = Net(1e-6, plait.Rngs(0)), Net(1e-3, plait.Rngs(0))
        >>> found = plait.compare(a, b, jnp.eye(4))
        >>> found.departure.path, found.departure.output.at
        ('norm', (0, 0))
        >>> plait.compare(a, a, jnp.eye(4)).agrees
        True
    """
    kwargs = dict(kwargs or {})
    b_given = (inputs if b_inputs is None else tuple(b_inputs), kwargs if b_kwargs is None else dict(b_kwargs))
    runs = _run("a", a, inputs, kwargs), _run("b", b, *b_given)
    matching = match(*runs, names)
    judge = Judge(matching.pairs, channels=_channels(*runs), tolerance=tolerance)
    found = judge.first()
    departure = None if found is None else _described(judge, found)
    unseen_a, unseen_b = (
        tuple((format_path(path), transform) for path, transform in run.unseen.items()) for run in runs
    )
    compared = _compared(matching, judge)
    return Comparison(departure, compared, matching.unmatched_a, matching.unmatched_b, unseen_a, unseen_b)


def _channels(a: Run, b: Run) -> tuple[int, int] | None:
    """The axis of ``b`` that may have the channels, and that of ``a``: 1 in torch, the last one elsewhere."""
    if (a.library == "torch") == (b.library == "torch"):
        return None
    return (1, -1) if b.library == "torch" else (-1, 1)


def _run(name: str, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    run = next((run for is_one, run in _LIBRARIES if is_one(model)), None)
    if run is None:
        raise ArgumentTypeError(
            "compare takes two models",
            at=name,
            found=describe_type(model),
            expected="a plait or flax.nnx model, a torch module, or (linen_module, variables)",
            do="pass the model itself, not its class or its state: plait.compare(model, other, x)",
        )
    try:
        recorded = run(model, args, kwargs)
    except Exception as error:
        raise ArgumentError(
            f"{name} cannot be run on these inputs",
            at=f"{name}, {describe_type(model)}",
            found="\n            ".join(f"{type(error).__name__}: {error}".strip().splitlines()[:8]),
            expected="inputs that both models accept",
            do="check plait.compare(a, b, *inputs); if b takes others, pass b_inputs=(...) or b_kwargs={...}",
        ) from error
    if not recorded.root.outputs:
        raise ArgumentError(
            f"{name} returns no arrays, so there is nothing to compare",
            at=f"{name}, {describe_type(model)}",
            found="a result without arrays",
            expected="an array, or a tuple, list, mapping or dataclass of arrays",
            do="return the outputs from the model, or pass a bound method that does: plait.compare(model.encode, ...)",
        )
    return recorded


def _described(judge: Judge, found: Found) -> Departure:
    a, b = found.pair
    described = Departure(a.place, b.place, a.kind, b.kind, found.inputs, found.output)
    if found.inputs is not None and not found.inputs.is_agreement:
        return described
    return dataclasses.replace(described, inside=_inside(found, judge))


def _inside(found: Found, judge: Judge) -> str | None:
    """Between which parts of the module the difference arises."""
    parts = [pair for pair in judge.pairs if found.pair[0].encloses(pair[0])]
    if not parts:
        return None
    if found.inside is None:
        return f"in its own code, after its submodules, such as {parts[-1][0].place}"
    ended = found.inside[0]
    before = [a for a, b in parts if a.exit < ended.enter and judge.output((a, b)).is_agreement]
    after = f", after {_own_part(before).place}" if before else ""
    return f"in its own code{after}: what it passes to {ended.place} departs already"


def _own_part(calls: list[Call]) -> Call:
    """The last call, or the one around it."""
    last = calls[-1]
    return next((each for each in reversed(calls) if each.encloses(last)), last)


def _compared(matching: Matching, judge: Judge) -> tuple[Compared, ...]:
    worst: dict[tuple[str, str], Difference] = {}
    for pair in matching.pairs:
        places, output = (pair[0].place, pair[1].place), judge.output(pair)
        if places not in worst or worst[places].excess < output.excess:
            worst[places] = output
    return tuple(Compared(*places, output) for places, output in worst.items())
