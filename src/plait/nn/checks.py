"""Checks that layers share: the shapes they take, and the switches that must be set.

A check that passes costs one comparison. Only a failing check looks up the layer's path, for an error that says
``encoder.layers[3] (a Linear)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..errors import ArgumentError, ArgumentTypeError, ShapeError, StreamError, UnusedArgumentWarning
from ..util.notices import warn
from ..util.words import describe_type, with_article

# Mode switches: the value that trains, and what the other one does.
_SWITCHES = {
    "deterministic": (False, "switches dropout off, for evaluation"),
    "decode": (False, "takes one step after the other, with a cache"),
    "use_running_average": (False, "is for evaluation"),
    "update_stats": (True, "is for evaluation"),
}

_NN = __name__.rpartition(".")[0] + "."


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of an array, scalar or nested list."""
    return np.shape(x)


def check_array(x: Any, *, layer: Module) -> None:
    """The input must not be a list or tuple, which JAX does not accept as an array.

    Raises:
        ArgumentTypeError: names the layer's path and the type.
    """
    if isinstance(x, (list, tuple)):
        raise ArgumentTypeError(
            f"{with_article(type(layer).__name__)} takes an array",
            at=describe_place(layer),
            found=describe_type(x),
            expected="a JAX or NumPy array",
            do="convert it first: jnp.asarray(x)",
        )


def weight_length(weight: Any, axis: int, otherwise: int) -> int:
    """The length of an axis of a weight, which may differ from the constructor's: ``shard_map`` passes a shard.

    Args:
        weight: its value.
        otherwise: the length if the weight has no such axis, for example because a custom ``promote_dtype`` unpacks it.
    """
    shape = getattr(weight, "shape", ())
    return shape[axis] if -len(shape) <= axis < len(shape) else otherwise


def check_members(weight: Any, rank: int, *, layer: Module) -> None:
    """A weight must have as many axes as it was made with: one more belongs to a population of layers.

    Raises:
        ShapeError: names the layer's path, and the shape of the weight.
    """
    shape = getattr(weight, "shape", None)
    if shape is not None and len(shape) != rank:
        raise ShapeError(
            f"the weights are not those of one {type(layer).__name__}",
            at=describe_place(layer),
            found=f"a weight of shape {tuple(shape)}",
            expected=f"{rank} axes",
            do="call a population of models under vmap: plait.vmap(lambda model, x: model(x), in_axes=(0, None))(...)",
        )


def _because(layer: Module, size_name: str, size: int) -> str:
    """What determines a length: the constructor, or a weight whose length has changed since."""
    made = getattr(layer, size_name, size)
    made = made[-1] if isinstance(made, tuple) and made else made
    if made == size or isinstance(made, (tuple, Mapping)):
        return f"{size_name}={size}"
    return f"its weights now have that length; it was created with {size_name}={made}"


def check_last_axis(x: Any, size: int, *, layer: Module, size_name: str = "in_features") -> None:
    """The last axis of ``x`` must be ``size`` long.

    Raises:
        ShapeError: names the layer's path, the shape, and the size.
    """
    check_array(x, layer=layer)
    shape = shape_of(x)
    if not shape or shape[-1] != size:
        kind = type(layer).__name__
        actual = remade(layer, **{size_name: shape[-1]}) if shape else f"jnp.reshape(x, ({size},))"
        raise ShapeError(
            f"the last axis of the input does not fit the {kind}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"shape (..., {size}), since {_because(layer, size_name, size)}",
            do=f"pass an input with {size} features{_channels_last(shape, size, layer)}, or create the layer for this "
            f"input: {actual}",
        )


def _channels_last(shape: tuple[int, ...], size: int, layer: Module) -> str:
    """How images become ones with the channels last, if that is what is wrong."""
    n_spatial = len(getattr(layer, "kernel_size", ()))
    if n_spatial and len(shape) > n_spatial and shape[-1 - n_spatial] == size:
        return f", the channels last: jnp.moveaxis(x, {-1 - n_spatial}, -1)"
    return ", with an axis for the channel: x[..., None]" if n_spatial and size == 1 else ""


def check_axis(x: Any, axis: int, size: int, *, layer: Module, size_name: str) -> None:
    """Axis ``axis`` of ``x`` must exist and be ``size`` long.

    Raises:
        ShapeError: names the layer's path, the shape, the axis and the size.
    """
    check_array(x, layer=layer)
    shape = shape_of(x)
    if not -len(shape) <= axis < len(shape) or shape[axis] != size:
        kind = type(layer).__name__
        raise ShapeError(
            f"axis {axis} of the input does not fit the {kind}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"{size} along axis {axis}, since {_because(layer, size_name, size)}",
            do=f"move that axis into place with jnp.moveaxis, or create the layer for this input: {kind}(...) with "
            f"a different {size_name}",
        )


def check_min_rank(x: Any, rank: int, wanted: str, *, layer: Module) -> None:
    """``x`` must have at least ``rank`` axes.

    Raises:
        ShapeError: names the layer's path, the shape, and what the axes should be.
    """
    check_array(x, layer=layer)
    shape = shape_of(x)
    if len(shape) < rank:
        raise ShapeError(
            f"the input has too few axes for the {type(layer).__name__}",
            at=describe_place(layer),
            found=f"an input of shape {shape}",
            expected=f"at least {rank} axes: {wanted}",
            do="add the missing axes, for example with x[None]",
        )


def resolve_switch(name: str, call: bool | None, attribute: bool | None, *, layer: Module) -> bool:
    """The value of a mode switch: from the call, otherwise from the attribute. (rule L7)

    Raises:
        ArgumentError: both are ``None``; names the switch and the three ways to set it.
    """
    if call is not None:
        return call
    if attribute is not None:
        return attribute
    kind = type(layer).__name__
    trains, other = _SWITCHES[name]
    raise ArgumentError(
        f"No `{name}` argument was provided to {kind}",
        at=describe_place(layer),
        found=f"{name}=None in the constructor and in the call",
        expected="True or False in one of the two",
        do=f"to train, set it in the constructor: {kind}(..., {name}={trains}); or in the call: layer(x, "
        f"{name}={trains}); or for the whole model: plait.view(model, {name}={trains}). {name}={not trains} {other}",
    )


def warn_unused(layer: Module, names: Iterable[str]) -> None:
    """Warn of the keywords of a call that nothing in the layer takes."""
    if names := list(names):
        warn(
            UnusedArgumentWarning,
            f"nothing in a {type(layer).__name__} takes a keyword argument of this call",
            at=describe_place(layer),
            found=", ".join(f"{name}=" for name in names),
            expected="the name of a parameter of one of its layers",
            do="check the spelling, or leave it out",
        )


def remade(layer: Module, **changes: Any) -> str:
    """The call that creates a layer like this one, with different sizes: ``plait.Linear(3, 4, rngs=rngs)``."""
    cls = type(layer)
    name = f"plait.{cls.__name__}" if cls.__module__.startswith(_NN) else cls.__name__
    given = []
    # Not the class itself: of a subclass, Python 3.11.2 gives the signature of Pytree.__new__.
    for parameter in [*inspect.signature(cls.__init__).parameters.values()][1:]:
        value = changes.get(parameter.name, getattr(layer, parameter.name, ...))
        if parameter.name == "rngs":
            given.append("rngs=rngs")
        elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            given.append(repr(value))
        elif parameter.name in changes or parameter.default is parameter.empty:
            given.append(f"{parameter.name}={value!r}")
    return f"{name}({', '.join(given)})"


def check_rngs(rngs: Any, *, layer: Module) -> None:
    """``rngs`` must be a source of random keys for the parameters of a layer.

    Raises:
        ArgumentTypeError: names the layer and the type.
    """
    if not isinstance(rngs, Rngs) and not hasattr(rngs, "params"):
        raise wrong_rngs(rngs, layer, "an Rngs")


def wrong_rngs(rngs: Any, layer: Module, expected: str) -> ArgumentTypeError:
    """The error of a layer whose ``rngs`` has the wrong type."""
    kind = type(layer).__name__
    seed = rngs if isinstance(rngs, int) and not isinstance(rngs, bool) else 0
    return ArgumentTypeError(
        f"{with_article(kind)} cannot draw keys from rngs of this type",
        at=describe_place(layer),
        found=describe_type(rngs),
        expected=expected,
        do=f"for example rngs=plait.Rngs({seed})",
    )


def missing_stream(layer: Module, stream: str, use: str) -> StreamError:
    """The error of a layer that has no source of random keys."""
    kind = type(layer).__name__
    return StreamError(
        f"no `rngs` argument was provided to {kind}: it has no random stream to draw {use} from",
        at=describe_place(layer),
        found="rngs=None in the constructor and in the call",
        expected="an Rngs, a RngStream or a key in one of the two",
        do=f"pass rngs to the constructor: {kind}(..., rngs=rngs); or to the call: "
        f"layer(x, rngs=plait.Rngs({stream}=0))",
    )
