"""Checks that layers share: the shapes they take, and the switches that somebody has to set.

Each check costs a comparison when all is well. Only when it fails is the layer's path looked up, so that the error says
``encoder.layers[3] (a Linear)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.locate import describe_place
from ..errors import ArgumentError, ArgumentTypeError, ShapeError, StreamError


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of an array, scalar or nested list."""
    return np.shape(x)


def check_last_axis(x: Any, size: int, *, layer: Any, size_name: str = "in_features") -> None:
    """The last axis of ``x`` must be ``size`` long.

    Raises:
        ShapeError: names the layer's path, the shape, and the size.
    """
    shape = shape_of(x)
    if not shape or shape[-1] != size:
        kind = type(layer).__name__
        actual = f"{kind}(..., {size_name}={shape[-1]})" if shape else f"jnp.reshape(x, ({size},))"
        raise ShapeError(
            f"the last axis of the input does not fit the {kind}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"shape (..., {size}), since {size_name}={size}",
            do=f"give it an input with {size} features, or make the layer for this input: {actual}",
        )


def check_axis(x: Any, axis: int, size: int, *, layer: Any, size_name: str) -> None:
    """Axis ``axis`` of ``x`` must exist and be ``size`` long.

    Raises:
        ShapeError: names the layer's path, the shape, the axis and the size.
    """
    shape = shape_of(x)
    if not -len(shape) <= axis < len(shape) or shape[axis] != size:
        kind = type(layer).__name__
        raise ShapeError(
            f"axis {axis} of the input does not fit the {kind}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"{size} along axis {axis}, since {size_name}={size}",
            do=f"move that axis into place with jnp.moveaxis, or make the layer for this input: {kind}(...) with "
            f"another {size_name}",
        )


def check_min_rank(x: Any, rank: int, wanted: str, *, layer: Any) -> None:
    """``x`` must have at least ``rank`` axes.

    Raises:
        ShapeError: names the layer's path, the shape, and what the axes should be.
    """
    shape = shape_of(x)
    if len(shape) < rank:
        raise ShapeError(
            f"the input has too few axes for the {type(layer).__name__}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"at least {rank} axes: {wanted}",
            do="add the missing axes, for example with x[None]",
        )


def check_same_shape(x: Any, shape: Sequence[int], *, layer: Any, name: str, like: str) -> None:
    """``x`` must have exactly ``shape``.

    Raises:
        ShapeError: names the layer's path and both shapes.
    """
    if shape_of(x) != tuple(shape):
        raise ShapeError(
            f"the {name} does not have the shape of the {like}",
            at=describe_place(layer),
            found=f"a {name} of shape {shape_of(x)}",
            expected=f"shape {tuple(shape)}",
            do=f"broadcast it first: jnp.broadcast_to({name}, {tuple(shape)})",
        )


def resolve_switch(name: str, call: bool | None, attribute: bool | None, *, layer: Any) -> bool:
    """The value of a mode switch: the call's, otherwise the attribute's. (rule L7)

    Raises:
        ArgumentError: both are ``None``; names the switch and the three ways to set it.
    """
    if call is not None:
        return call
    if attribute is not None:
        return attribute
    kind = type(layer).__name__
    raise ArgumentError(
        f"{kind} was not told whether to use {name}",
        at=describe_place(layer),
        found=f"{name}=None in the constructor and in the call",
        expected="True or False in one of the two",
        do=f"set it in the constructor: {kind}(..., {name}=True); or in the call: layer(x, {name}=True); or for the "
        f"whole model: plait.view(model, {name}=True)",
    )


def missing_stream(layer: Any, stream: str, use: str) -> StreamError:
    """The error of a layer that has no source of random keys."""
    kind = type(layer).__name__
    return StreamError(
        f"{kind} has no random stream to draw {use} from",
        at=describe_place(layer),
        found="rngs=None in the constructor and in the call",
        expected="an Rngs, a RngStream or a key in one of the two",
        do=f"pass rngs to the constructor: {kind}(..., rngs=rngs); or to the call: "
        f"layer(x, rngs=plait.Rngs({stream}=0))",
    )


def wrong_rngs(rngs: Any, layer: Any, expected: str, *, stream: str) -> ArgumentTypeError:
    """The error of a layer that was given something else than a source of random keys."""
    return ArgumentTypeError(
        f"rngs of a {type(layer).__name__} is of a type that it cannot draw from",
        at=describe_place(layer),
        found=f"a {type(rngs).__name__}",
        expected=expected,
        do=f"for example rngs=plait.Rngs({stream}=0)",
    )
