"""Axis names in a separate collection, as in ``flax.linen.partitioning``.

The functions work in a ``bridge.Module``, without Flax, and in a Linen module, where they call Flax's own. New code
should annotate the variables themselves: ``meta.with_partitioning``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import PartitionSpec
from jax.tree_util import register_static

from ...core.variables.variables import Variable
from ...errors import ArgumentError, ArgumentTypeError
from ...partitioning.axis_rules import RulesFallback, check_names
from ...partitioning.boxes import with_logical_constraint
from ...util.words import describe_type
from .module.compact_module import Module
from .module.running import current_module
from .wrappers.linen import current_linen_module, need_linen

_SUFFIX = "_axes"


@register_static
@dataclasses.dataclass(frozen=True)
class AxisMetadata:
    """The names of a variable's axes, stored in a separate collection. A pytree without leaves.

    Not to be confused with ``plait.meta.AxisMetadata``, a box around the value itself.

    Example:
        >>> plait.flax.bridge.partitioning.AxisMetadata(("embed", "mlp"))
        AxisMetadata(names=('embed', 'mlp'))
    """

    names: tuple[Any, ...]


def param_with_axes(
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: tuple[Any, ...] | None = None,
    module: Any = None,
    **init_kwargs: Any,
) -> Any:
    """The value of a parameter of the running module; its axis names go to the collection ``params_axes``.

    Args:
        axes: a name, a tuple of names, or ``None``, for each axis. Inside ``logical_axis_rules`` the value is sharded
            by these rules.
        module: by default the innermost running ``bridge.Module`` or Linen module.

    Raises:
        ArgumentError: no module is running; the names do not match the value, or differ from the stored ones.

    Example:
        >>> class Scale(plait.bridge.Module):
        ...     @plait.bridge.compact
        ...     def __call__(self, x):
        ...         axes = plait.flax.bridge.partitioning.param_with_axes
        ...         return x * axes("scale", plait.initializers.ones, x.shape[-1:], axes=("embed",))
        >>> variables = Scale().init(0, jnp.ones((1, 2)))
        >>> variables["params_axes"]
        {'scale_axes': AxisMetadata(names=('embed',))}
        >>> plait.flax.bridge.partitioning.get_axis_names(variables["params_axes"])
        {'scale': P('embed',)}
    """
    owner = _owner("param_with_axes", module)
    if not isinstance(owner, Module):
        ours = {"axes": axes, "module": owner}
        return _flax("param_with_axes").param_with_axes(name, init_fn, *init_args, **ours, **init_kwargs)
    value = owner.param(name, init_fn, *init_args, **init_kwargs)[...]
    if axes is None:
        return value
    _keep_names(owner, "params", name, value, axes)
    return with_logical_constraint(value, tuple(axes))


def variable_with_axes(
    collection: str,
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: tuple[Any, ...] | None = None,
    module: Any = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
    **init_kwargs: Any,
) -> Any:
    """A variable of the running module; its axis names go to the collection ``<collection>_axes``.

    Args:
        axes: a name, a tuple of names, or ``None``, for each axis. In a ``bridge.Module`` they are only stored, and
            your code constrains what it writes (``meta.with_logical_constraint``); in Linen, Flax does that.
        module: by default the innermost running ``bridge.Module`` or Linen module.
        fallback: in Linen, how to treat a name that no rule matches.

    Raises:
        ArgumentError: no module is running; the names do not match the value, or differ from the stored ones.
    """
    owner = _owner("variable_with_axes", module)
    if not isinstance(owner, Module):
        partitioning = _flax("variable_with_axes")
        ours = {"axes": axes, "module": owner, "fallback": partitioning.RulesFallback[fallback.name]}
        return partitioning.variable_with_axes(collection, name, init_fn, *init_args, **ours, **init_kwargs)
    variable: Variable[Any] = owner.variable(collection, name, init_fn, *init_args, **init_kwargs)
    if axes is not None:
        _keep_names(owner, collection, name, variable.get_raw_value(), axes)
    return variable


def get_axis_names(axes_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The axis names in a collection such as ``params_axes``, as specs under the names of the variables.

    Args:
        axes_metadata: the collection, with this module's or Flax's ``AxisMetadata``.

    Raises:
        ArgumentTypeError: a leaf has no names.
    """
    found: dict[str, Any] = {}
    for key, value in axes_metadata.items():
        if isinstance(value, Mapping):
            found[key] = get_axis_names(value)
        elif hasattr(value, "names"):
            found[key.removesuffix(_SUFFIX)] = PartitionSpec(*value.names)
        else:
            raise ArgumentTypeError(
                "get_axis_names found a leaf without axis names",
                at=key,
                found=describe_type(value),
                expected="an AxisMetadata, as param_with_axes stores it",
                do="pass one collection of names: get_axis_names(variables['params_axes'])",
            )
    return found


def scan_with_axes(target: Any, *args: Any, **kwargs: Any) -> Any:
    """``flax.linen.partitioning.scan_with_axes``: ``nn.scan`` that adds the name of its axis to the stored names.

    Raises:
        ArgumentError: the target is a ``bridge.Module``.
    """
    return _lifted("scan_with_axes", target, args, kwargs)


def vmap_with_axes(target: Any, *args: Any, **kwargs: Any) -> Any:
    """``flax.linen.partitioning.vmap_with_axes``: ``nn.vmap`` that adds the name of its axis to the stored names.

    Raises:
        ArgumentError: the target is a ``bridge.Module``.
    """
    return _lifted("vmap_with_axes", target, args, kwargs)


def remat(target: Any, *args: Any, **kwargs: Any) -> Any:
    """``flax.linen.partitioning.remat``: recomputes in the backward pass; the axis names are unchanged.

    Raises:
        ArgumentError: the target is a ``bridge.Module``.
    """
    return _lifted("remat", target, args, kwargs)


def _lifted(name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(target, type) and issubclass(target, Module):
        plain = name.removesuffix("_with_axes")
        raise ArgumentError(
            f"{name} lifts Linen module classes",
            at=target.__name__,
            found="a class of bridge.Module",
            expected="a class of flax.linen modules",
            do=f"lift a function of the module: plait.{plain}; plait.vmap and plait.scan add the axis name to "
            "annotated variables (plait.meta.with_partitioning, transform_metadata)",
        )
    return getattr(_flax(name), name)(target, *args, **kwargs)


def _flax(name: str) -> Any:
    need_linen(f"partitioning.{name}")
    from flax.linen import partitioning

    return partitioning


def _owner(name: str, module: Any) -> Any:
    """The module for the variable; ``None`` for the running Linen module, which Flax finds."""
    if module is not None:
        return module
    running = current_module()
    linen = current_linen_module()
    if running is None and linen is None:
        raise ArgumentError(
            f"{name} creates a variable in the running module, but no module is running",
            found="a call from outside of modules",
            expected="a call in `setup()` or in a method wrapped in `@compact`, during init or apply",
            do="call it there, or pass module=",
        )
    return linen if linen is not None else running


def _keep_names(owner: Module, collection: str, name: str, value: Any, axes: Any) -> None:
    """Store the axis names if their collection is mutable; otherwise check them against the stored ones."""
    at = f"{type(owner).__name__}, {collection}/{name}"
    check_names(axes, at)
    rank = len(getattr(value, "shape", ()))
    if len(axes) != rank:
        raise ArgumentError(
            "a variable has more or fewer names than axes",
            at=at,
            found=f"axes={tuple(axes)!r} for the shape {getattr(value, 'shape', ())}",
            expected=f"{rank} names",
            do="pass one name, or None, for each axis",
        )
    scope = owner.scope
    assert scope is not None
    beside = collection + _SUFFIX
    known = vars(owner).get(name + _SUFFIX)
    if known is None and not (scope.initializing or scope.is_mutable(beside)):
        return  # the applied variables may lack the names
    stored = owner.variable(beside, name + _SUFFIX, AxisMetadata, tuple(axes)).get_raw_value()
    if tuple(stored.names) != tuple(axes):
        raise ArgumentError(
            "the axis names of a variable differ from the stored ones",
            at=f"{type(owner).__name__}, {beside}/{name}{_SUFFIX}",
            found=f"axes={tuple(axes)!r}",
            expected=f"{stored.names!r}",
            do="apply the variables of a module with the same names, or omit that collection",
        )


__dir__ = (
    "RulesFallback get_axis_names param_with_axes remat scan_with_axes variable_with_axes vmap_with_axes "
    "with_logical_constraint"
).split
