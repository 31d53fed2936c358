"""Adapters: LoRAs around many layers of a model, under one name; adding them, choosing one, and merging them.

An adapter is the ``LoRA`` layers of one name. Several adapters on one layer are LoRAs around each other, so each adds
its product, if it is active, to the output of what it wraps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import Rngs
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError
from ..nn.attention import MultiHeadAttention
from ..nn.initializers import default_lora_init, zeros
from ..nn.linear import Linear, reshaped
from ..nn.lora import LayerLoRA, LoRA, add_to_weight
from ..nn.low_rank import axes_of, factor_names, form_of, kinds_with_form, stack_of, weight_of
from ..typing import Initializer
from ..util.paths import Path, describe_path
from ..util.words import describe_type
from .selection import Selection


def add_lora(
    selection: Selection, lora_rank: int, *, rngs: Rngs, adapter: str = "default", **options: Any
) -> Selection:
    """Wrap each layer of a selection in a ``LoRA``; the model's outputs stay the same.

    A ``Linear``, ``LinearGeneral`` (so also the projections of a ``MultiHeadAttention``), ``Einsum``, ``Conv`` or
    ``Embed`` can be wrapped, and a layer that is wrapped already, for a second adapter. A layer that is shared gets one
    ``LoRA``, shared as well. In a ``Stack`` each layer gets its own factors. If a layer's variables have leading axes,
    as in layers made by ``vmap``, the factors get the same axes. The axis names of a weight become those of its
    factors.

    Args:
        selection: the layers, from ``plait.select``.
        lora_rank: the rank.
        rngs: draws one key from the ``params`` stream for each factor of each layer, and one from ``dropout``.
        adapter: the name of the adapter. It becomes the active one of the model, and the metadata ``tag`` of the
            factors, so that the filter ``plait.WithTag(adapter)`` selects them.
        **options: keywords of ``LoRA``, such as ``alpha``, ``rank_stabilized`` and ``dropout_rate``.

    Returns:
        The selection of the new layers. ``plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())``
        returns to the original layers, with the factors merged into their weights.

    Raises:
        ArgumentError: a selected part is not such a layer, or has an adapter of this name, or is the root of the model;
            the model is unchanged.
        ArgumentTypeError: ``selection`` is something else, for example a model.

    Example:
        >>> attention = plait.MultiHeadAttention(2, 8, decode=False, rngs=plait.Rngs(0))
        >>> model = plait.Dict(attention=attention, head=plait.Linear(8, 3, rngs=plait.Rngs(1)))
        >>> chosen = plait.select(model, ["**.query", "**.value", "head"])
        >>> _ = plait.add_lora(chosen, 2, alpha=4, rngs=plait.Rngs(2))
        >>> sorted(plait.state(model, plait.LoRAParam)["attention"]), model.attention.query.lora_b.shape
        (['query', 'value'], (2, 2, 4))
    """
    if not isinstance(selection, Selection):
        raise ArgumentTypeError(
            "add_lora takes a selection of layers",
            found=describe_type(selection),
            expected="what plait.select returns",
            do='plait.add_lora(plait.select(model, "**.query"), 4, rngs=rngs)',
        )
    _check_not_merged(_loras(selection._model))
    for path, layer in selection:
        _check_wrappable(path, layer)
    above = _adapters_above(selection)
    for path, layer in selection:
        if adapter in (*above.get(path, ()), *_adapters_below(layer)):
            raise ArgumentError(
                "a layer has an adapter of this name already",
                at=describe_path(path),
                found=f"the adapter {adapter!r}",
                expected="a new name for each adapter of a layer",
                do=f"for example plait.add_lora(..., adapter={adapter + '2'!r})",
            )
    added = selection.replace(lambda _, layer: _wrapped(layer, lora_rank, rngs, adapter, options))
    use_lora(selection._model, adapter)
    return added


def use_lora(model: Any, adapter: str | None) -> None:
    """Make one adapter of a model the active one; the others add nothing.

    Args:
        model: the model; changed in place. ``plait.clone(model, variables=False)`` is a model with the same variables
            that can use another adapter.
        adapter: the name; ``None`` for the model without adapters.

    Raises:
        ArgumentError: the model has no adapter of this name, or its adapters are merged; nothing is changed.

    Example:
        >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)))
        >>> for name in ("english", "german"):
        ...     _ = plait.add_lora(plait.select(model, plait.Linear), 1, adapter=name, rngs=plait.Rngs(1))
        >>> plait.use_lora(model, "english")
        >>> {layer.adapter: layer.is_active for _, layer in plait.iter_modules(model) if isinstance(layer, plait.LoRA)}
        {'german': False, 'english': True}
    """
    layers = _loras(model)
    names = sorted({layer.adapter for _, layer in layers})
    if adapter is not None and adapter not in names:
        raise ArgumentError(
            "the model has no adapter of this name",
            at=describe_type(model),
            found=f"{adapter!r}; its adapters are {', '.join(map(repr, names)) or 'none'}",
            expected="the name of one of its adapters, or None",
            do=f"plait.use_lora(model, {names[0]!r})" if names else "add one: plait.add_lora(selection, rank, ...)",
        )
    _check_not_merged(layers)
    for _, layer in layers:
        layer.is_active = layer.adapter == adapter


def merge_lora(model: Any) -> None:
    """Add the products of the active adapter to the weights, in place, so that calls cost what they cost without it.

    The factors stay: ``plait.unmerge_lora`` subtracts the products again, and so restores the weights up to rounding
    in their dtype. For exact weights, merge a copy: ``plait.merge_lora(merged := plait.clone(model))``. To remove the
    factors as well: ``plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())``.

    Raises:
        ArgumentError: adapters of the model are merged already, or weights are quantized; nothing is changed.

    Example:
        >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)))
        >>> _ = plait.add_lora(plait.select(model, plait.Linear), 1, rngs=plait.Rngs(1))
        >>> model.layers[0].lora_b[...] = jnp.ones((1, 2))
        >>> x, y = jnp.ones(2), model(jnp.ones(2))
        >>> plait.merge_lora(model)
        >>> bool(jnp.allclose(model.layers[0].base_module(x), y, atol=1e-6))
        True
    """
    layers = _loras(model)
    _check_not_merged(layers)
    _check_writable(layers)
    merged = [(layer, layer.product()) for _, layer in layers if layer.is_active]
    for layer, product in merged:
        add_to_weight(layer, product)
        layer.is_merged = True


def unmerge_lora(model: Any) -> None:
    """Undo ``plait.merge_lora``, up to rounding in the dtype of the weights.

    Raises:
        ArgumentError: no adapter of the model is merged.

    Example:
        >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)))
        >>> _ = plait.add_lora(plait.select(model, plait.Linear), 1, rngs=plait.Rngs(1))
        >>> plait.merge_lora(model)
        >>> plait.unmerge_lora(model)
        >>> model.layers[0].is_merged
        False
    """
    merged = [layer for _, layer in _loras(model) if layer.is_merged]
    if not merged:
        raise ArgumentError(
            "no adapter of the model is merged",
            at=describe_type(model),
            found=f"{len(_loras(model))} LoRA layers",
            expected="a model whose adapters were merged by plait.merge_lora",
            do="unmerge the model that was merged, or load its weights again",
        )
    for layer, product in [(layer, layer.product()) for layer in merged]:
        add_to_weight(layer, -product)
        layer.is_merged = False


def _loras(model: Any) -> list[tuple[Path, Any]]:
    """The layers of all adapters; a ``LoRA`` without a base, as in ``LoRALinear``, belongs to its layer."""
    nodes = iter_graph_nodes(model)
    return [(path, node) for path, node in nodes if isinstance(node, LoRA) and node.base_module is not None]


def _check_not_merged(layers: list[tuple[Path, Any]]) -> None:
    for path, layer in layers:
        if layer.is_merged:
            raise ArgumentError(
                "adapters of the model are merged",
                at=describe_path(path),
                found=f"the adapter {layer.adapter!r}, which is a part of the weights",
                expected="a model whose adapters are not merged",
                do="call plait.unmerge_lora(model) first",
            )


def _check_writable(layers: list[tuple[Path, Any]]) -> None:
    for path, layer in layers:
        base = layer.innermost()
        if form_of(base) is not None and not isinstance(weight_of(base), Variable):
            raise ArgumentError(
                "adapters cannot be merged into quantized weights",
                at=describe_path(path),
                found=describe_type(weight_of(base)),
                expected="weights that are not quantized",
                do="call plait.dequantize(model) first",
            )


def _check_wrappable(path: Path, layer: Any) -> None:
    base = layer.innermost() if isinstance(layer, LoRA) else layer
    if form_of(base) is not None:
        return
    kinds = ", ".join(kinds_with_form())
    do = "select only those: plait.add_lora(plait.select(model, plait.Linear), ...)"
    if isinstance(layer, MultiHeadAttention):
        do = "select its projections: plait.select(model, ['**.query', '**.value'])"
    raise ArgumentError(
        "add_lora cannot wrap this part",
        at=describe_path(path),
        found=describe_type(layer)
        + (" with groups, a mask, or an equation without low-rank form" if type(base).__name__ in kinds else ""),
        expected=f"one of {kinds}",
        do=do,
    )


def _adapters_below(layer: Any) -> list[str]:
    return [layer.adapter, *_adapters_below(layer.base_module)] if isinstance(layer, LoRA) else []


def _adapters_above(selection: Selection) -> dict[Path, list[str]]:
    """The names of the adapters around each selected layer."""
    loras = dict(_loras(selection._model))
    return {
        path: [
            loras[path[:end]].adapter
            for end in range(len(path))
            if path[:end] in loras and set(path[end:]) == {"base_module"}
        ]
        for path in selection.paths
    }


def _wrapped(layer: Any, rank: int, rngs: Rngs, adapter: str, options: Mapping[str, Any]) -> LoRA:
    base = layer.innermost() if isinstance(layer, LoRA) else layer
    arguments: dict[str, Any] = {"param_dtype": base.param_dtype, "dtype": base.dtype, "adapter": adapter, **options}
    names = factor_names(base) or (None, None)
    for factor, own in zip("ab", names, strict=True):
        metadata = {"tag": adapter} | ({} if own is None else {"out_sharding": own})
        arguments[f"{factor}_metadata"] = {**metadata, **arguments.get(f"{factor}_metadata", {})}
    ends = {"a": -1, "b": axes_of(base).count("b") + 1}  # where the rows of the matrix end
    for factor, default in (("a", default_lora_init), ("b", zeros)):
        init = arguments.get(f"{factor}_initializer", default)
        arguments[f"{factor}_initializer"] = _shaped(init, stack_of(base), ends[factor])
    if not isinstance(base, Linear):
        return LayerLoRA(layer, rank, rngs=rngs, **arguments)
    lora = LoRA(base.in_features, rank, base.out_features, rngs=rngs, **arguments)
    lora.base_module = layer
    return lora


def _shaped(init: Initializer, stack: tuple[int, ...], end: int) -> Initializer:
    """An initializer of matrices, for a factor of any shape; each entry of a stack is drawn from its own key."""

    def make(key: Any, shape: Any, dtype: Any) -> Any:
        matrix = (math.prod(shape[:end]), math.prod(shape[end:]))
        if not stack:
            return init(key, shape, dtype) if matrix == tuple(shape) else reshaped(init(key, matrix, dtype), shape)
        entries = [init(each, matrix, dtype) for each in jax.random.split(key, math.prod(stack))]
        return jnp.reshape(jnp.stack(entries), (*stack, *shape))

    return make
