"""``vmap`` and ``pmap``: functions of one example turned into functions of a batch, with stacked module state."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

import jax
import numpy as np

from ..core.graph.modes import Crossing
from ..errors import ArgumentError, ArgumentTypeError, MissingDependencyError
from ..typing import Tree, Value
from ..util.jax_versions import jax_version, pmap as jax_pmap
from ..util.words import describe_filter, describe_type, text_of
from .axis_names import AxisNames, read_axis_name
from .call.arguments import positional, with_statics
from .call.body import Body
from .call.call import Call, check_function, curried, prefixed_call, prefixes_of
from .call.outcome import Address, Outcome
from .call.prefixes import Carry

if TYPE_CHECKING:
    from .signatures import VmapOptions
from ..core.transform import Transformation

VMAP = Transformation("vmap", of_model="plait.vmap(f, in_axes=(None, 0))(model, x)", maps=True)
PMAP = Transformation(
    "pmap",
    of_model="plait.pmap(f, in_axes=(None, 0))(model, x)",
    static="static_broadcasted_argnums={}",
    keeps_programs=True,
    maps=True,
)


P = ParamSpec("P")
R = TypeVar("R")

# vmap's error for an output that is batched with axis None: its port, and its position in the port.
_BATCHED = re.compile(r"out_axes\[0\]\[(\d+)\]\[(\d+)\].*got axis spec None but output was batched")

_KEPT = 64  # functions that JAX has mapped, for each use of pmap; the oldest goes first


@overload
def vmap(f: Callable[P, R], **options: Unpack[VmapOptions]) -> Callable[P, R]: ...
@overload
def vmap(f: None = None, **options: Unpack[VmapOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@curried
def vmap(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    f: Any = None,
    *,
    in_axes: Tree = 0,
    out_axes: Tree = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable = None,
    transform_metadata: Mapping[str, object] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.vmap`` for functions of modules.

    Inside, a mapped variable does not have the mapped axis; a variable with axis ``None`` is shared by the whole batch.
    Changes come back with the variable's axis: written variables, new variables and structural changes.

    Args:
        f: the function; without it ``vmap`` returns a decorator.
        in_axes: the axis of each argument: a prefix of the arguments whose leaves are integers, ``None``, or for
            modules a ``StateAxes``. Keyword arguments have the position from the signature.
        out_axes: the same for the output.
        axis_name, axis_size, spmd_axis_name: as in ``jax.vmap``.
        transform_metadata: ``{PARTITION_NAME: name}`` names the axis in the variables' axis names. Without it, the axis
            keeps its name in the variable, or gets ``None``; there are always as many names as axes.
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: the axes do not match the arguments, an axis is out of range, batch sizes differ, or a variable
            with axis ``None`` gets a value that depends on the example; the message names the path.
        SharingError: a variable has two different axes.

    Example:
        >>> @plait.split_rngs(splits=5)
        ... @plait.vmap(in_axes=0, out_axes=0)
        ... def make(rngs):
        ...     return plait.Linear(2, 3, rngs=rngs)
        >>> model = make(plait.Rngs(0))
        >>> model.kernel.shape
        (5, 2, 3)
        >>> plait.vmap(lambda model, x: model(x), in_axes=(0, None))(model, jnp.ones(2)).shape
        (5, 3)
    """
    crossing = Crossing(graph, graph_updates)
    check_function(f, VMAP)
    f, axis = read_axis_name(f, transform_metadata)
    rules = AxisNames(axis=axis)
    axes = {"in_axes": in_axes, "out_axes": out_axes}
    check_axes_alone(VMAP, axes, crossing)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = prefixed_call(VMAP, f, args, kwargs, axes, crossing, rules=rules)
        check_axes(call, axis_size)
        outcomes: list[Outcome] = []

        def body(inputs: Sequence[Sequence[Value]]) -> Tree:
            outputs, outcome = call.body(inputs)
            outcomes.append(outcome)
            return outputs, outcome

        mapped = jax.vmap(
            body,
            in_axes=(call.ports.kinds,),
            out_axes=(call.ports.kinds, 0),
            axis_name=axis_name,
            axis_size=axis_size,
            spmd_axis_name=spmd_axis_name,
        )
        try:
            outputs, outcome = call.run(mapped, call.inputs)
        except ValueError as error:
            if outcomes:
                explain_batched(error, call, outcomes[-1])
            raise
        return call.finish(outputs, outcome)

    return wrapper


def explain_batched(error: ValueError, call: Call, outcome: Outcome) -> None:
    """Raise an error that names the value which depends on the example although its axis is ``None``.

    Raises:
        ArgumentError: names the path.
    """
    found = _BATCHED.search(text_of(error))
    if found is None:
        return
    address = Address(int(found[1]), int(found[2]))
    label = outcome.describe(address, call.body.structure, call.body.root_labels())
    positions = [position for position, where in outcome.written if where == address]
    kind = call.gathered.walk.types[positions[0]] if positions and call.gathered.walk is not None else None
    shown = "plait.BatchStat" if kind is None else describe_filter(kind)
    is_output = label.startswith("the output")
    raise ArgumentError(
        "vmap: a value without a mapped axis depends on the example",
        at=label,
        found="axis None, but a value that differs between examples",
        expected="an axis, or a value that is the same for all examples",
        do="give the output an axis in out_axes, or reduce it: jax.lax.pmean(value, axis_name)"
        if is_output
        else f"give the variable an axis, as in in_axes=(plait.StateAxes({{{shown}: 0, "
        "...: None}), 0); or write a value that is the same for all: jax.lax.pmean(value, axis_name)",
    ) from error


@curried
def pmap(
    f: Any = None,
    *,
    axis_name: Hashable | None = None,
    in_axes: Tree = 0,
    out_axes: Tree = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    transform_metadata: Mapping[str, object] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.pmap`` for functions of modules: like ``vmap``, with each element on a separate device.

    Compiled once per structure and shapes. For new programs, JAX recommends ``jit`` with shardings, or ``shard_map``.

    Args:
        f: the function; without it ``pmap`` returns a decorator.
        in_axes, out_axes, transform_metadata: as in ``vmap``. A value written to a variable with axis ``None`` must be
            the same on all devices; JAX does not check this, and uses the value of one device.
        static_broadcasted_argnums: positions of hashable arguments that become part of the cache key.
        donate_argnums: positions of arguments to donate: arrays, and the variables of modules.
        axis_name, devices, backend, axis_size: as in ``jax.pmap``.
        graph, graph_updates: as in ``jit``.

    Warns:
        CapturedModelWarning: the function captures a model, whose values become constants of the program.

    Raises:
        ArgumentError: the axes do not match the arguments, sizes differ (the message names both paths), there are more
            elements than devices, no argument is mapped, or a static argument cannot be hashed.
        SharingError: a variable has two different axes.
        MissingDependencyError: the installed JAX has no ``pmap``.

    Example:
        >>> n = jax.local_device_count()
        >>> make = plait.pmap(lambda key: plait.Linear(2, 3, rngs=plait.Rngs(key)))
        >>> stacked = make(jax.random.split(jax.random.key(0), n))
        >>> plait.pmap(lambda model, x: model(x))(stacked, jnp.ones((n, 2))).shape == (n, 3)
        True
    """
    crossing = Crossing(graph, graph_updates)
    check_function(f, PMAP)
    if jax_pmap is None:
        raise MissingDependencyError(
            "this version of JAX does not have pmap",
            found=f"jax {jax_version}",
            expected="a version of JAX with jax.pmap",
            do="use plait.shard_map, or plait.jit with shardings",
        )
    f, axis = read_axis_name(f, transform_metadata)
    rules = AxisNames(axis=axis)
    axes = {"in_axes": in_axes, "out_axes": out_axes}
    check_axes_alone(PMAP, axes, crossing)
    donated = frozenset({donate_argnums} if isinstance(donate_argnums, int) else donate_argnums)
    options = {"axis_name": axis_name, "devices": devices, "backend": backend, "axis_size": axis_size}
    mapped_functions: dict[Hashable, Callable[..., Tree]] = {}

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = positional(f, args, kwargs)
        args = with_statics("pmap", f, args, static_broadcasted_argnums)
        call = prefixed_call(PMAP, f, args, kwargs, axes, crossing, rules=rules)
        _check_devices(check_axes(call, axis_size), call, devices, backend)
        body, *inputs = call.donating(donated)
        key = body.key
        if key not in mapped_functions:  # JAX recompiles for a different function object
            if len(mapped_functions) == _KEPT:
                del mapped_functions[next(iter(mapped_functions))]
            mapped_functions[key] = _mapped(body, donated, options)
        return call.finish(*call.run(mapped_functions[key], *inputs))

    return wrapper


def _mapped(body: Body, donated: frozenset[int], options: dict[str, Any]) -> Callable[..., Tree]:
    """JAX's ``pmap`` of a body, for the two arguments from ``Call.donating``."""

    def merged(given: Sequence[Sequence[Value]], kept: Sequence[Sequence[Value]]) -> Tree:
        ports = zip(given, kept, strict=True)
        return body([[y if x is None else x for x, y in zip(*port, strict=True)] for port in ports])

    ports, numbers = list(body.ports.kinds), (0,) if donated else ()
    return jax_pmap(merged, in_axes=(ports, ports), out_axes=(tuple(ports), 0), donate_argnums=numbers, **options)


def _check_devices(size: int, call: Call, devices: Sequence[Any] | None, backend: str | None) -> None:
    count = jax.local_device_count(backend) if devices is None else len(devices)
    if size > count:
        raise ArgumentError(
            "pmap: there are more elements than devices",
            at=next(label for label, axis, _ in call.labelled() if isinstance(axis, int))(),
            found=f"{size} elements, {count} devices",
            expected=f"at most {count} elements",
            do="map one part of the axis over the devices and the rest within each device: plait.pmap(plait.vmap(f))",
        )


def check_axes_alone(name: Transformation, options: Mapping[str, object], crossing: Crossing) -> None:
    """Check what does not depend on the call.

    Raises:
        ArgumentError, ArgumentTypeError: a value of the prefixes is not an axis; names its place.
    """
    others = ", plait.Carry" if name == "scan" else ""
    for prefix in prefixes_of(name, options, crossing):
        for place, axis in prefix.values():
            if type(axis) is not int and not (others and axis is Carry):
                raise (ArgumentError if others else ArgumentTypeError)(
                    f"{name}: Invalid axes: {prefix.argument} must be an int, None{others}, or a tree of these",
                    at=place,
                    found=f"{describe_type(axis)}: {axis!r:.60}",
                    expected="the number of a dimension, or None" + (" or plait.Carry" if others else ""),
                    do=f"pass the number as a Python integer, such as {prefix.argument}=0",
                )


def check_axes(call: Call, size: int | None = None) -> int:
    """Check every mapped input; returns the size of the mapped axis.

    Raises:
        ArgumentError: there is no such input and no size, an input does not have the axis, or sizes differ; names the
            paths.
    """
    name = call.name
    option = "length" if name == "scan" else "axis_size"
    places: list[tuple[int, Callable[[], str]]] = [] if size is None else [(size, lambda: option)]
    mapped = [
        (label, axis, leaf)
        for label, axis, value in call.labelled()
        if isinstance(axis, int)
        for leaf in jax.tree_util.tree_leaves(value)
    ]
    if not mapped and (size is None or name == "pmap"):
        message, do = _UNMAPPED[name]
        raise ArgumentError(
            message,
            found="no array in xs"
            if name == "lax_map"
            else "no array with an axis" + (f", and no {option}" if name in ("vmap", "scan") else ""),
            expected="at least one array with an axis",
            do=do,
        )
    for label, axis, leaf in mapped:
        if not hasattr(leaf, "shape") and not isinstance(leaf, (bool, int, float, complex, np.generic)):
            raise ArgumentError(
                f"{name}: a value that is not an array has a mapped axis",
                at=label(),
                found=f"{describe_type(leaf)}: {leaf!r:.60}",
                expected=f"an array with axis {axis}",
                do="use axis None for it in in_axes, or pass an array",
            )
        shape = np.shape(leaf)
        if not -len(shape) <= axis < len(shape):
            raise ArgumentError(
                f"{name}: axis {axis} is out of range",
                at=label(),
                found=f"an array of shape {shape}",
                expected=f"at least {axis + 1 if axis >= 0 else -axis} dimensions",
                do="change the axis in in_axes (None passes the whole array to each call), or pass a stacked array",
            )
        if all(shape[axis] != known for known, _ in places):
            places.append((shape[axis], lambda axis=axis, label=label: f"axis {axis} of {label()}"))
    sizes = [known for known, _ in places]
    if len(sizes) > 1:
        raise ArgumentError(
            f"{name}: the mapped axes have different sizes",
            at=" and ".join([place() for _, place in places][:2]),
            found=f"{sizes[0]} and {sizes[1]}",
            expected="one size for all",
            do="pass arrays of one batch size, or use axis None for arguments that are not mapped",
        )
    return sizes[0]


# What is wrong if nothing has a mapped axis, and what to do.
_UNMAPPED = {
    "vmap": (
        "vmap: no argument has a mapped axis",
        "map an argument, as in in_axes=(None, 0), or pass the number of calls, as in axis_size=8",
    ),
    "pmap": (
        "pmap: no argument has a mapped axis",
        "map an argument, for example one key per device: jax.random.split(key, jax.local_device_count())",
    ),
    "scan": (
        "scan got no values to scan over, and no number of iterations",
        "pass the number of iterations: plait.scan(f, length=10)",
    ),
    "lax_map": ("lax_map does not know how many calls to make", "pass jnp.arange(n) as xs to make n calls"),
}
