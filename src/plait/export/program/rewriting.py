"""Rewrites a program to operations that a converter supports.

The converters of other formats lack a few JAX operations, or support them only with fixed sizes. Each has an equivalent
in supported operations. Shardings have no meaning in a file. So a program is traced, and *rules* replace or remove such
operations, also in loops and branches; all other operations are unchanged, with their source locations.

A rule gets an operation and its known inputs; it returns a JAX function of the inputs, or ``None`` to keep the
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...core.module_calls.layer_scopes import layer_of
from ...errors import ExportError

Rule = Callable[[Any, list[Any]], Any]  # (eqn, values of the inputs that are known) -> a function, or None


def rewritten(function: Callable[..., Any], rules: Mapping[str, Rule]) -> Callable[..., Any]:
    """The function, with operations replaced by ``rules``.

    Args:
        function: traceable by JAX; of arrays or pytrees of them, without static arguments.
        rules: by the name of the operation.

    Example:
        >>> from plait.export.program.rewriting import FOR_ONNX, rewritten
        >>> jax.make_jaxpr(rewritten(lambda x: jnp.stack([x, x]), FOR_ONNX))(jnp.ones(2)).eqns[-1].primitive
        concatenate
    """

    def call(*arguments: Any) -> Any:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
        closed, out = jax.make_jaxpr(function, return_shape=True)(*shapes)
        return _as_function(_closed(closed, rules), out)(*arguments)

    return call


NO_MESH = jax.sharding.Mesh(np.empty((), object), ())


def without_layouts(function: Callable[..., Any], *shapes: Any) -> Callable[..., Any]:
    """The function without shardings and sharding constraints, which change no value.

    Args:
        function: traceable by JAX; of pytrees of arrays.
        shapes: its arguments as ``jax.ShapeDtypeStruct``. The current mesh, if any, determines the meaning of its
            shardings. Call the returned function without a mesh: ``jax.set_mesh(NO_MESH)``.
    """
    closed, out = jax.make_jaxpr(function, return_shape=True)(*shapes)
    with jax.set_mesh(NO_MESH):
        return _as_function(_closed(closed, FOR_ONE_DEVICE), out)


def _as_function(closed: Any, out: Any) -> Callable[..., Any]:
    """A program as a function that returns trees like ``out``."""

    def call(*arguments: Any) -> Any:
        outputs = jex.jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return call


def _closed(closed: Any, rules: Mapping[str, Rule]) -> Any:
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    jaxpr, more = _jaxpr(closed.jaxpr, rules, constants)
    return jex.ClosedJaxpr(jaxpr, [*closed.consts, *more])


def _jaxpr(jaxpr: Any, rules: Mapping[str, Rule], constants: dict[Any, Any]) -> tuple[Any, list[Any]]:
    """A program with its operations replaced, and the constants of the replacements, which are its last inputs."""
    eqns: list[Any] = []
    names: dict[Any, Any] = {}  # variables of the old program that are replaced in the new one
    constvars, consts = [], []
    for eqn in jaxpr.eqns:
        rule = rules.get(eqn.primitive.name)
        params = eqn.params
        if rule is _inlined and isinstance(params.get("jaxpr"), jex.Jaxpr):  # that of a checkpoint has no constants
            params = {**params, "jaxpr": jex.ClosedJaxpr(params["jaxpr"], ())}
        eqn = eqn.replace(
            invars=[var if _is_literal(var) else names.get(var, var) for var in eqn.invars],
            params={key: _inside(value, rules) for key, value in params.items()},
        )
        known = [var.val if _is_literal(var) else constants.get(var) for var in eqn.invars]
        replacement = rule(eqn, known) if rule else None
        if replacement is None:
            eqns.append(eqn)
            _evaluate(eqn, known, constants)
            continue
        closed = jax.make_jaxpr(replacement)(*(_abstract(var) for var in eqn.invars))
        inner = dict(zip(closed.jaxpr.invars, eqn.invars, strict=True))
        constvars += closed.jaxpr.constvars
        consts += closed.consts
        for each in closed.jaxpr.eqns:
            invars = [var if _is_literal(var) else inner.get(var, var) for var in each.invars]
            eqns.append(each.replace(invars=invars, source_info=_within(eqn.source_info, each.source_info)))
        outvars = [var if _is_literal(var) else inner.get(var, var) for var in closed.jaxpr.outvars]
        names.update(zip(eqn.outvars, outvars, strict=True))
    outvars = [var if _is_literal(var) else names.get(var, var) for var in jaxpr.outvars]
    return jaxpr.replace(constvars=[*jaxpr.constvars, *constvars], eqns=eqns, outvars=outvars), consts


def _inside(value: Any, rules: Mapping[str, Rule]) -> Any:
    """A parameter of an operation, with inner programs (of a loop, a branch, a call) rewritten."""
    if isinstance(value, jex.ClosedJaxpr):
        return _closed(value, rules)
    if isinstance(value, (tuple, list)) and any(isinstance(each, jex.ClosedJaxpr) for each in value):
        return type(value)(_inside(each, rules) for each in value)
    return value


def _within(outer: Any, inner: Any) -> Any:
    """Where an operation of a replacement stands: in the layers of the replaced one, and in its own."""
    return outer.replace(name_stack=outer.name_stack + inner.name_stack)


def _is_literal(var: Any) -> bool:
    return isinstance(var, jex.Literal)


def _abstract(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)


MOST_CONSTANT = 1_024  # maximum number of elements; only indices are needed, and they are few


def _evaluate(eqn: Any, known: list[Any], constants: dict[Any, Any]) -> None:
    """Record the result of a small operation on constants."""
    sizes = [var.aval.size if all(isinstance(n, int) for n in var.aval.shape) else None for var in eqn.outvars]
    if len(sizes) != 1 or sizes[0] is None or sizes[0] > MOST_CONSTANT or any(value is None for value in known):
        return
    if eqn.effects or "jaxpr" in eqn.params or eqn.primitive.name == "dim_as_value":
        return
    with jax.ensure_compile_time_eval():
        constants[eqn.outvars[0]] = eqn.primitive.bind(*known, **eqn.params)


# Rules ------------------------------------------------------------------------------------------------------------


def _inlined(eqn: Any, known: list[Any]) -> Any:
    """The operations of a call, in its place: a converter need not know how a release of JAX writes calls."""
    return jex.jaxpr_as_fun(eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"])


def _stack(eqn: Any, known: list[Any]) -> Any:
    axis = eqn.params["axis"]
    return lambda *xs: lax.concatenate([lax.expand_dims(x, (axis,)) for x in xs], axis)


def _select_bools(eqn: Any, known: list[Any]) -> Any:
    """select_n on bools, which ONNX Runtime lacks, becomes logic operations."""
    which, *cases = (var.aval for var in eqn.invars)
    if which.dtype != np.bool_ or len(cases) != 2 or cases[0].dtype != np.bool_ or which.shape != cases[0].shape:
        return None
    return lambda which, no, yes: (which & yes) | (~which & no)


def _pad(eqn: Any, known: list[Any]) -> Any:
    """Exterior padding becomes a concatenation."""
    config = eqn.params["padding_config"]
    if any(interior or _is_negative(low) or _is_negative(high) for low, high, interior in config):
        return None

    def pad(x: jax.Array, value: jax.Array) -> jax.Array:
        for axis, (low, high, _) in enumerate(config):
            rims = [lax.broadcast(value, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in (low, high)]
            parts = [part for part, size in ((rims[0], low), (x, 1), (rims[1], high)) if size]
            x = lax.concatenate(parts, axis) if len(parts) > 1 else x
        return x

    return pad


def _is_negative(size: Any) -> bool:
    return not isinstance(size, (int, np.integer)) or int(size) < 0


def _remainder(eqn: Any, known: list[Any]) -> Any:
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer):
        return None
    return lambda x, y: lax.sub(x, lax.mul(lax.div(x, y), y))


def _remainder_of_sizes(eqn: Any, known: list[Any]) -> Any:
    """LiteRT's remainder has the sign of the divisor, JAX's that of the dividend."""
    if jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.unsignedinteger):
        return None
    return lambda x, y: lax.mul(lax.sign(x), lax.rem(lax.abs(x), lax.abs(y)))


def _dilated_convolution(eqn: Any, known: list[Any]) -> Any:
    """A transposed convolution becomes a convolution of the image with zeros inserted between its pixels."""
    params = dict(eqn.params)
    dilation = params["lhs_dilation"]
    if all(step == 1 for step in dilation):
        return None
    axes = params["dimension_numbers"].lhs_spec[2:]

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        for axis, step in zip(axes, dilation, strict=True):
            x = _with_zeros_between(x, axis, step)
        return eqn.primitive.bind(x, kernel, **{**params, "lhs_dilation": (1,) * len(dilation)})

    return convolve


def _with_zeros_between(x: jax.Array, axis: int, step: int) -> jax.Array:
    if step == 1:
        return x
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    zeros = lax.broadcast(jnp.zeros((), x.dtype), (*before, size, step - 1, *after))
    wide = lax.concatenate([lax.expand_dims(x, (axis + 1,)), zeros], axis + 1)
    return lax.slice_in_dim(lax.reshape(wide, (*before, size * step, *after)), 0, size * step - (step - 1), axis=axis)


def _largest(eqn: Any, known: list[Any]) -> Any:
    """argmax by comparison: the first index of the largest value, or of NaN."""
    (axis,), dtype = eqn.params["axes"], eqn.params["index_dtype"]
    reduce = jnp.max if eqn.primitive.name == "argmax" else jnp.min

    def first(x: jax.Array) -> jax.Array:
        found = x == reduce(x, axis=axis, keepdims=True)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            found |= x != x
        last = jnp.asarray(x.shape[axis] - 1, dtype)
        index = lax.broadcast_in_dim(lax.iota(dtype, x.shape[axis]), x.shape, (axis,))
        return jnp.where(found, index, last).min(axis)

    return first


MOST_TURNS = 64


def _top(eqn: Any, known: list[Any]) -> Any:
    """top_k: the largest values, one after another."""
    k, aval = eqn.params["k"], eqn.invars[0].aval
    if k > MOST_TURNS or eqn.params["axis"] != aval.ndim - 1 or not isinstance(aval.shape[-1], int):
        return None
    low = -jnp.inf if jnp.issubdtype(aval.dtype, jnp.inexact) else jnp.iinfo(aval.dtype).min
    index = jnp.arange(aval.shape[-1], dtype=jnp.int32)

    def turns(x: jax.Array) -> list[jax.Array]:
        each = lax.broadcast_in_dim(index, x.shape, (x.ndim - 1,))
        free, values, places = jnp.ones_like(x, dtype=bool), [], []
        for _ in range(k):
            largest = jnp.where(free, x, jnp.asarray(low, x.dtype)).max(-1, keepdims=True)
            found = free & ((x == largest) | (x != x))
            place = jnp.where(found, each, aval.shape[-1] - 1).min(-1, keepdims=True)
            free = free & (each != place)
            values.append(largest)
            places.append(place)
        return [lax.concatenate(values, x.ndim - 1), lax.concatenate(places, x.ndim - 1)]

    return turns


def _grid_of_indices(eqn: Any, known: list[Any]) -> Any:
    """iota for dynamic sizes: broadcasts one row of indices."""
    shape, axis, dtype = (eqn.params[key] for key in ("shape", "dimension", "dtype"))
    if len(shape) == 1 or all(isinstance(size, int) for size in shape):
        return None
    return lambda *_: lax.broadcast_in_dim(lax.iota(dtype, shape[axis]), shape, (axis,))


def _constant_gather(eqn: Any, known: list[Any]) -> Any:
    """A gather with constant indices is a slice, or a concatenation of rows."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, axes = eqn.invars[0].aval.shape, numbers.start_index_map
    if known[1] is None or numbers.operand_batching_dims:
        return None
    starts = np.asarray(known[1]).astype(np.int64)
    if any(sizes[axis] != shape[axis] for axis in range(len(shape)) if axis not in axes):
        return None
    for axis, places in zip(axes, np.moveaxis(starts, -1, 0), strict=True):
        length = shape[axis] if isinstance(shape[axis], int) else 1  # a dynamic size is at least 1
        if not isinstance(sizes[axis], int) or places.min() < 0 or places.max() + sizes[axis] > length:
            return None
    if starts.ndim == 1:
        return lambda x, _: lax.squeeze(_slices(x, axes, starts, sizes), numbers.collapsed_slice_dims)
    if starts.ndim > 2 or numbers.collapsed_slice_dims != axes or len(axes) != 1 or sizes[axes[0]] != 1:
        return None
    place = next(n for n in range(len(shape)) if n not in numbers.offset_dims)  # where the rows are, in the result

    def rows(x: jax.Array, _: jax.Array) -> jax.Array:
        return jnp.moveaxis(lax.concatenate([_slices(x, axes, row, sizes) for row in starts], axes[0]), axes[0], place)

    return rows


def _slices(x: jax.Array, axes: tuple[int, ...], starts: np.ndarray, sizes: tuple[Any, ...]) -> jax.Array:
    for axis, start in zip(axes, starts, strict=True):
        x = lax.slice_in_dim(x, int(start), int(start) + sizes[axis], axis=axis)
    return x


def _batched_update(eqn: Any, known: list[Any]) -> Any:
    """An update of a slice at an index for each example, which is a scatter in JAX, becomes selections by position."""
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    shape, _, new = (var.aval.shape for var in eqn.invars)
    n_batch = len(numbers.operand_batching_dims)
    batch, window = tuple(range(n_batch)), tuple(range(n_batch, len(shape)))
    is_update = mode == lax.GatherScatterMode.CLIP and eqn.params["update_jaxpr"] is None and len(new) == len(shape)
    axes = [axis for axis in window if shape[axis] != new[axis]] if is_update else []
    if (
        len(axes) != 1
        or not all(isinstance(sizes[axes[0]], int) for sizes in (shape, new))
        or new[axes[0]] > MOST_TURNS
    ):
        return None
    places = (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, numbers.inserted_window_dims)
    ours = (numbers.update_window_dims, numbers.scatter_dims_to_operand_dims)
    if places != (batch, batch, ()) or ours != (window, window):
        return _scattered_inside(eqn, known)
    (axis,) = axes

    def update(x: jax.Array, starts: jax.Array, new: jax.Array) -> jax.Array:
        n, size = new.shape[axis], x.shape[axis]
        start = lax.index_in_dim(starts, axis - n_batch, starts.ndim - 1, keepdims=False)
        start = lax.broadcast_in_dim(jnp.clip(start, 0, size - n), x.shape, batch)
        place = lax.broadcast_in_dim(lax.iota(start.dtype, size), x.shape, (axis,))
        for number in range(n):
            row = lax.slice_in_dim(new, number, number + 1, axis=axis)
            x = lax.select(place - start == number, lax.broadcast_in_dim(row, x.shape, range(x.ndim)), x)
        return x

    return update


def _moved_inside(eqn: Any, known: list[Any]) -> Any:
    """A slice is moved inside of its array, as in JAX: ONNX counts from the end, cuts the slice short, or fails."""
    first = 2 if eqn.primitive.name == "dynamic_update_slice" else 1
    sizes = eqn.params["slice_sizes"] if first == 1 else eqn.invars[1].aval.shape
    last = [length - size for length, size in zip(eqn.invars[0].aval.shape, sizes, strict=True)]
    if all(_is_inside(start, [most]) for start, most in zip(known[first:], last, strict=True)):
        return None

    def moved(*xs: jax.Array) -> Any:
        starts = [_between(start, most) for start, most in zip(xs[first:], last, strict=True)]
        return eqn.primitive.bind(*xs[:first], *starts, **eqn.params)

    return moved


def _gathered_inside(eqn: Any, known: list[Any]) -> Any:
    """``_moved_inside`` for slices at many places, or a fill for what lies outside."""
    numbers, sizes, mode = (eqn.params[name] for name in ("dimension_numbers", "slice_sizes", "mode"))
    axes, ndim = numbers.start_index_map, len(eqn.outvars[0].aval.shape)
    last = [eqn.invars[0].aval.shape[axis] - sizes[axis] for axis in axes]
    if _is_inside(known[1], last):
        return None
    params = {**eqn.params, "mode": lax.GatherScatterMode.PROMISE_IN_BOUNDS, "fill_value": None}

    def gather(x: jax.Array, starts: jax.Array) -> Any:
        inside = _all_between(starts, last)
        y = eqn.primitive.bind(x, inside, **params)
        if mode != lax.GatherScatterMode.FILL_OR_DROP:
            return y
        rows = [n for n in range(ndim) if n not in numbers.offset_dims]
        found = lax.broadcast_in_dim((starts == inside).all(-1), y.shape, rows)
        return lax.select(found, y, lax.full_like(y, _fill(eqn)))

    return gather


def _scattered_inside(eqn: Any, known: list[Any]) -> Any:
    """``_moved_inside`` for updates at many places."""
    numbers = eqn.params["dimension_numbers"]
    shape, _, new = (var.aval.shape for var in eqn.invars)
    absent = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [axis for axis in range(len(shape)) if axis not in absent]
    sizes = dict(zip(window, (new[axis] for axis in numbers.update_window_dims), strict=True))
    last = [shape[axis] - sizes.get(axis, 1) for axis in numbers.scatter_dims_to_operand_dims]
    if eqn.params["mode"] != lax.GatherScatterMode.CLIP or _is_inside(known[1], last):
        return None
    params = {**eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP}
    return lambda x, starts, new: eqn.primitive.bind(x, _all_between(starts, last), new, **params)


def _fill(eqn: Any) -> Any:
    """The fill value of a gather, as in ``jax.lax.gather``."""
    value, dtype = eqn.params["fill_value"], eqn.outvars[0].aval.dtype
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == jnp.bool_:
        return True
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max


def _is_inside(starts: Any, last: list[Any]) -> bool:
    """Whether places are known, and none has to be moved."""
    if starts is None or not all(isinstance(most, int) for most in last):
        return False
    return bool(((np.asarray(starts) >= 0) & (np.asarray(starts) <= np.asarray(last))).all())


def _all_between(starts: jax.Array, last: list[Any]) -> jax.Array:
    """The last axis of ``starts`` are the axes of an array."""
    columns = [lax.index_in_dim(starts, n, starts.ndim - 1) for n in range(len(last))]
    return lax.concatenate([_between(*each) for each in zip(columns, last, strict=True)], starts.ndim - 1)


def _between(start: jax.Array, last: Any) -> jax.Array:
    last = min(last, jnp.iinfo(start.dtype).max) if isinstance(last, int) else last
    return lax.max(lax.min(start, lax.full_like(start, last)), lax.full_like(start, 0))


def _truth_values_alone(eqn: Any, known: list[Any]) -> None:
    if eqn.outvars[0].aval.dtype != jnp.bool_:
        raise ExportError(
            "ONNX reduces truth values by and, or and xor, not the bits of integers",
            at=layer_of(eqn),
            found=f"the operation {eqn.primitive.name} of {eqn.outvars[0].aval.dtype}",
            expected="bool",
            do="combine the entries one by one, with &, | and ^, or export to another format",
        )


def _refused(eqn: Any, known: list[Any]) -> None:
    raise ExportError(
        "LiteRT's interpreter cannot run the converted form of an operation",
        at=layer_of(eqn),
        found=f"the operation {eqn.primitive.name}",
        expected="LiteRT's built-in operations",
        do="write the sum as a product with a matrix of zeros and ones, or export to another format",
    )


def _anywhere(eqn: Any, known: list[Any]) -> Any:
    """Removes a sharding constraint."""
    return lambda x: x


def _jit_anywhere(eqn: Any, known: list[Any]) -> Any:
    """Removes the shardings of a jitted function's arguments and results."""
    shardings = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    if eqn.params["ctx_mesh"].empty and not any(isinstance(each, jax.sharding.Sharding) for each in shardings):
        return None
    return jax.jit(jex.jaxpr_as_fun(eqn.params["jaxpr"]))


# What a backward pass would compute again: a file has none. The names are those of different releases of JAX.
RECOMPUTED: dict[str, Rule] = {"checkpoint": _inlined, "remat2": _inlined}
FOR_ONE_DEVICE: dict[str, Rule] = {"sharding_constraint": _anywhere, "jit": _jit_anywhere}
FOR_ONNX: dict[str, Rule] = {
    "jit": _inlined,
    "custom_jvp_call": _inlined,
    "custom_vjp_call": _inlined,
    "stack": _stack,
    "select_n": _select_bools,
    "pad": _pad,
    "rem": _remainder,
    "conv_general_dilated": _dilated_convolution,
    "scatter": _batched_update,
    **dict.fromkeys(["scatter-add", "scatter-mul", "scatter-min", "scatter-max"], _scattered_inside),
    "dynamic_slice": _moved_inside,
    "dynamic_update_slice": _moved_inside,
    "gather": _gathered_inside,
    "reduce_and": _truth_values_alone,
    "reduce_or": _truth_values_alone,
    "reduce_xor": _truth_values_alone,
}
FOR_LITERT: dict[str, Rule] = {
    **RECOMPUTED,
    "argmax": _largest,
    "argmin": _largest,
    "iota": _grid_of_indices,
    "gather": _constant_gather,
    "top_k": _top,
    "scatter-add": _refused,
    "rem": _remainder_of_sizes,
    "conv_general_dilated": _dilated_convolution,
}
