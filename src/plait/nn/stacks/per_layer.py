"""Values with one entry for each layer of a stack: the inputs and outputs of its layers other than the carried value.
(rule ST7)"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ArgumentError
from ...util.paths import layers_key, layers_of

T = TypeVar("T")

if TYPE_CHECKING:  # it goes where the value of one layer may
    _OfOneLayer = Any
else:
    _OfOneLayer = object


@jax.tree_util.register_pytree_with_keys_class
class PerLayer(Generic[T], _OfOneLayer):
    """One value for each layer, stored stacked: an argument of a ``Stack``, or what its layers return.

    A pytree. Values with the same structure and shapes are stored as one pytree of arrays, with a leading axis over
    their layers.

    Args:
        values: one pytree of arrays for each layer.

    Example:
        >>> values = plait.PerLayer([jnp.zeros(2), jnp.ones(2), jnp.ones(2)])
        >>> len(values), values[1].tolist(), values.stack().shape
        (3, [1.0, 1.0], (3, 2))
    """

    def __init__(self, values: Sequence[T]) -> None:
        values = list(values)
        alike = all(_form(value) == _form(values[0]) for value in values)
        ranges = [range(len(values))] if alike else [range(i, i + 1) for i in range(len(values))]
        self._groups: dict[str, Any] = {}
        for layers in ranges if values else []:
            self._groups[layers_key(layers)] = jax.tree.map(lambda *x: jnp.stack(x), *(values[i] for i in layers))

    @classmethod
    def stacked(cls, tree: T) -> PerLayer[T]:
        """A ``PerLayer`` of arrays whose first axis is the layer.

        Raises:
            ArgumentError: the arrays differ in the length of that axis, or there are none.

        Example:
            >>> plait.PerLayer.stacked({"scale": jnp.arange(3.0)})[2]["scale"].item()
            2.0
        """
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
        if len(sizes) != 1 or () in sizes:
            raise ArgumentError(
                "PerLayer.stacked takes arrays whose first axis counts the layers",
                found=f"arrays of shapes {[np.shape(leaf) for leaf in jax.tree.leaves(tree)]}",
                expected="first axes of equal length",
                do="for one value per layer, use plait.PerLayer([...])",
            )
        [(size,)] = sizes
        return cls.grouped({layers_key(range(size)): tree})

    @classmethod
    def grouped(cls, groups: dict[str, Any]) -> PerLayer[Any]:
        """A ``PerLayer`` of stacked trees, keyed by their layers: ``{"0:4:2": locals, "1:4:2": globals}``."""
        made = cls([])
        made._groups = dict(groups)
        return made

    def __len__(self) -> int:
        return sum(len(layers_of(key) or ()) for key in self._groups)

    def __iter__(self) -> Iterator[T]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, layer: int) -> T:
        """The value of one layer."""
        if layer < 0:
            layer += len(self)
        for key, tree in self._groups.items():
            layers = layers_of(key) or range(0)
            if layer in layers:
                return jax.tree.map(operator.itemgetter(layers.index(layer)), tree)
        raise IndexError(f"layer {layer} of {len(self)}")

    def stack(self) -> T:
        """The values as one pytree whose arrays have a leading axis over the layers.

        Raises:
            ArgumentError: the values of layers differ in structure or shapes.
        """
        return self.of(range(len(self)))

    def of(self, layers: range) -> T:
        """The values of these layers, stacked; without a copy if they are stored that way.

        Raises:
            ArgumentError: they differ in structure or shapes.
        """
        own: Any = self._groups.get(layers_key(layers))
        if own is not None or not layers:
            return own  # pyright: ignore[reportReturnType] - None of no layers
        for key, tree in self._groups.items():
            stored = layers_of(key) or range(0)
            if layers[0] in stored and layers[-1] in stored and layers.step % stored.step == 0:
                part = slice(stored.index(layers[0]), stored.index(layers[-1]) + 1, layers.step // stored.step)
                return jax.tree.map(operator.itemgetter(part), tree)
        values = [self[i] for i in layers]
        forms = [_form(value) for value in values]
        if any(form != forms[0] for form in forms):
            other = next(i for i, form in enumerate(forms) if form != forms[0])
            raise ArgumentError(
                "the values of these layers cannot be stacked",
                at=f"layers {layers[0]} and {layers[other]}",
                found=f"{_shapes(values[0])} and {_shapes(values[other])}",
                expected="the same structure and shapes",
                do="read them one by one: values[3]",
            )
        return jax.tree.map(lambda *x: jnp.stack(x), *values)

    def __repr__(self) -> str:
        return f"PerLayer({', '.join(f'{key}: {_shapes(tree)}' for key, tree in self._groups.items())})"

    def tree_flatten_with_keys(self) -> Any:
        """For JAX."""
        keys = sorted(self._groups)
        return [(jax.tree_util.DictKey(key), self._groups[key]) for key in keys], tuple(keys)

    @classmethod
    def tree_unflatten(cls, keys: tuple[str, ...], children: Any) -> PerLayer[Any]:
        """For JAX."""
        return cls.grouped(dict(zip(keys, children, strict=True)))


def _form(value: Any) -> Any:
    return jax.tree.structure(value), [(np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(value)]


def _shapes(value: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(np.shape(leaf))}", value))
