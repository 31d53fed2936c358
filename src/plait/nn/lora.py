"""LoRA: a trainable low-rank matrix, as two factors, added to a frozen layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.merge import clone
from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import LoRAParam
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..transforms.jit.shapes import eval_shape
from ..typing import Array, DTypeLike, Initializer
from ..util.static_values import HashableMapping
from ..util.words import describe_type
from .checks import check_array, check_last_axis, check_members, warn_unused, weight_length
from .dropout import Dropout
from .initializers import default_lora_init, initial, zeros
from .linear import Einsum, Linear
from .low_rank import factor_shapes, form_of, product_of, weight_of, weight_sizes
from .promotion import promote_dtype


class LoRA(Module):
    """A low-rank linear map, ``y = scale · (x @ lora_a @ lora_b)``, alone or added to the output of ``base_module``.

    ``lora_b`` starts at zero, so a wrapped layer's output does not change. To train only the factors, pass their kind:
    ``plait.grad(loss, argnums=plait.DiffState(0, plait.LoRAParam))`` and ``plait.Optimizer(..., wrt=plait.LoRAParam)``.
    ``plait.add_lora`` wraps the layers of a model, of any kind that has a low-rank form.

    Shapes:
        x: ``(..., in_features)``. y: ``(..., out_features)``.

    Variables:
        lora_a: ``lora_param_type``, ``(in_features, lora_rank)``, ``param_dtype``.
        lora_b: ``lora_param_type``, ``(lora_rank, out_features)``, ``param_dtype``.
        base_module: those of the wrapped layer, if any.
        dropout: the stream of a ``Dropout``; ``None`` without dropout.

    Args:
        in_features: length of the last axis of ``x``.
        lora_rank: the rank.
        out_features: length of the last axis of ``y``.
        base_module: a layer whose output is added. It gets the input in ``dtype``, and the call's keyword arguments.
        alpha: ``scale`` is ``alpha / lora_rank``; ``None`` means a scale of 1.
        rank_stabilized: whether ``scale`` is ``alpha / √lora_rank`` instead (arXiv:2312.03732).
        dropout_rate: the probability with which an entry of ``x`` is dropped before ``lora_a``.
        adapter: the name of the adapter that this layer is a part of; see ``plait.use_lora``.
        dtype: dtype of the two products; ``None`` means the common dtype of input and factors.
        param_dtype: dtype in which the factors are stored.
        a_initializer: initializer of ``lora_a``.
        b_initializer: initializer of ``lora_b``.
        lora_param_type: kind of the two variables.
        promote_dtype: replaces the function that brings input and factors to one dtype.
        rngs: draws one key from the ``params`` stream for each factor, and one from ``dropout`` if there is dropout.
        a_metadata: metadata of ``lora_a``.
        b_metadata: metadata of ``lora_b``.

    Raises:
        ArgumentError: ``base_module`` cannot be called.
        ShapeError: the last axis of ``x`` is not ``in_features`` long.

    Warns:
        UnusedArgumentWarning: a call has a keyword, and there is no ``base_module`` to take it.

    Example:
        >>> base = plait.Linear(3, 4, rngs=plait.Rngs(0))
        >>> adapted = plait.LoRA(3, 2, 4, base_module=base, rngs=plait.Rngs(1))
        >>> x = jnp.ones((5, 3))
        >>> bool((adapted(x) == base(x)).all())
        True
        >>> plait.state(adapted, plait.LoRAParam)["lora_a"].shape
        (3, 2)

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv:2106.09685.
    """

    base_module: Any

    def __init__(
        self,
        in_features: Any,  # an int; of a layer with other axes, a tuple
        lora_rank: int,
        out_features: Any,
        *,
        base_module: Callable[..., Any] | None = None,
        alpha: float | None = None,
        rank_stabilized: bool = False,
        dropout_rate: float = 0.0,
        adapter: str = "default",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        a_initializer: Initializer = default_lora_init,
        b_initializer: Initializer = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = HashableMapping(),
        b_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        if base_module is not None and not callable(base_module):
            raise ArgumentError(
                "the base_module of a LoRA cannot be called",
                at=describe_place(self),
                found=f"a {type(base_module).__name__}",
                expected="a layer, a function of x, or None",
                do="for example base_module=plait.Linear(...)",
            )
        self.in_features = in_features
        self.lora_rank = lora_rank
        self.out_features = out_features
        self.base_module = base_module
        self.alpha = alpha
        self.rank_stabilized = rank_stabilized
        self.dropout_rate = dropout_rate
        self.adapter = adapter
        self.is_active = True
        self.is_merged = False
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.promote_dtype: Callable[..., Any] = promote_dtype
        shape_a, shape_b = self._factor_shapes()
        self.lora_a = lora_param_type(initial(a_initializer, rngs.params, shape_a, param_dtype), **a_metadata)
        self.lora_b = lora_param_type(initial(b_initializer, rngs.params, shape_b, param_dtype), **b_metadata)
        self.dropout = Dropout(dropout_rate, rngs=rngs) if dropout_rate > 0 else None

    def _factor_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.in_features, self.lora_rank), (self.lora_rank, self.out_features)

    @property
    def scale(self) -> float:
        """The factor of the low-rank product."""
        if self.alpha is None:
            return 1.0
        return self.alpha / (math.sqrt(self.lora_rank) if self.rank_stabilized else self.lora_rank)

    def __call__(self, x: Array, **kwargs: Any) -> Array:
        if self.base_module is not None and (self.is_merged or not self.is_active):
            return self.base_module(x, **kwargs)
        check_array(x, layer=self)
        values, a, b = self.promote_dtype((x, self.lora_a[...], self.lora_b[...]), dtype=self.dtype)
        check_members(a, 2, layer=self)
        check_last_axis(values, weight_length(a, 0, self.in_features), layer=self)
        y = self._scaled(self._dropped(values) @ a @ b)
        if self.base_module is None:
            warn_unused(self, kwargs)
            return y
        return _sum(y, self.base_module(values, **kwargs))

    def _dropped(self, x: Array) -> Array:
        return x if self.dropout is None else self.dropout(x)

    def _scaled(self, y: Array) -> Array:
        if not self.is_active:
            return jnp.zeros_like(y)
        return y if self.alpha is None else y * jnp.asarray(self.scale, y.dtype)

    def product(self) -> Array:
        """What the layer adds to the weight of its base: ``scale · (lora_a @ lora_b)``, in the shape of the weight."""
        a, b = self.lora_a[...], self.lora_b[...]
        return self._scaled(a @ b)

    def merge(self) -> Any:
        """An equivalent layer without factors: a copy of ``base_module`` with ``product()`` added to its weight.

        Leading axes of factors and weights, as ``vmap`` adds them, are batched over. Dropout is left out.

        Raises:
            ArgumentError: ``base_module`` has no weight of this form.

        Example:
            >>> adapted = plait.LoRA(3, 2, 4, base_module=plait.Linear(3, 4, rngs=plait.Rngs(0)), rngs=plait.Rngs(1))
            >>> adapted.lora_b[...] = jnp.ones((2, 4))
            >>> x = jnp.ones((5, 3))
            >>> bool(jnp.allclose(adapted.merge()(x), adapted(x), atol=1e-5))
            True
        """
        base = self.innermost()
        if form_of(base) is None or self.product_shape() != weight_of(base).shape:
            raise ArgumentError(
                "only a LoRA around a Linear can be merged, or one that plait.add_lora made",
                at=describe_place(self),
                found=f"base_module={describe_type(self.base_module)}",
                expected="a Linear",
                do="keep the LoRA, or add lora_a @ lora_b to the weights of its layer yourself",
            )
        inner = self.base_module
        merged = inner.merge() if isinstance(inner, LoRA) else clone(inner, graph=True)
        if not self.is_merged:
            add_to_weight(merged, self.product())
        return merged

    def product_shape(self) -> tuple[int, ...]:
        """The shape of ``product()``."""
        return jax.eval_shape(self.product).shape

    def innermost(self) -> Any:
        """The layer below all adapters; ``None`` if there is none."""
        return self.base_module.innermost() if isinstance(self.base_module, LoRA) else self.base_module


class LayerLoRA(LoRA):
    """A ``LoRA`` around a layer of any kind that has a low-rank form; ``plait.add_lora`` makes it.

    The factors have the axes of the layer's weight: around a ``LinearGeneral`` from 4 features to 2 heads of 3,
    ``lora_a`` is ``(4, rank)`` and ``lora_b`` is ``(rank, 2, 3)``. A ``Conv`` is followed by a product over its
    channels, an ``Embed`` looks up rows of ``lora_a``.

    Args:
        base_module: the layer.
        lora_rank: the rank.
        **options: as in ``LoRA``. The indices of an ``Embed`` are not dropped.
    """

    def __init__(self, base_module: Any, lora_rank: int, *, rngs: Rngs, **options: Any) -> None:
        ins, outs = weight_sizes(_below_adapters(base_module))
        super().__init__(ins, lora_rank, outs, base_module=base_module, rngs=rngs, **options)

    def _factor_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return factor_shapes(self.innermost(), self.lora_rank)

    def __call__(self, x: Array, *args: Any, **kwargs: Any) -> Array:
        y = self.base_module(x, *args, **kwargs)
        if self.is_merged or not self.is_active:
            return y
        base = self.innermost()
        if kwargs.get("einsum_str") is not None or (isinstance(base, Einsum) and args):
            raise ArgumentError(
                "a LoRA around an Einsum has the equation of its layer",
                at=describe_place(self),
                found="another equation in the call",
                expected=f"calls with {base.einsum_str!r}",
                do="leave that layer out of the selection of plait.add_lora",
            )
        form, a, b = form_of(base), self.lora_a[...], self.lora_b[...]
        assert form is not None
        if form.takes_indices:
            a, b = self.promote_dtype((a, b), dtype=self.dtype)
            h = form.down(base, jnp.asarray(x), a)
        else:
            x, a, b = self.promote_dtype((x, a, b), dtype=self.dtype)
            h = form.down(base, self._dropped(x), a)
        return _sum(self._scaled(form.up(base, h, b, kwargs.get("out_sharding"))), y)

    def attend(self, query: Array, out_sharding: Any = None) -> Array:
        """``attend`` of an ``Embed``, with the same product added to its table."""
        y = self.base_module.attend(query, out_sharding)
        if self.is_merged or not self.is_active:
            return y
        query, a, b = self.promote_dtype((query, self.lora_a[...], self.lora_b[...]), dtype=self.dtype)
        h = jnp.einsum("...f,rf->...r", query, b)
        return _sum(self._scaled(jnp.einsum("...r,nr->...n", h, a, out_sharding=out_sharding)), y)

    def product(self) -> Array:
        """What the layer adds to the weight of its base, in the shape of the weight."""
        return self._scaled(product_of(self.innermost(), self.lora_a[...], self.lora_b[...]))


def _below_adapters(layer: Any) -> Any:
    return layer.innermost() if isinstance(layer, LoRA) else layer


class LoRALinear(Linear):
    """A ``Linear`` plus a ``LoRA``: ``y = x @ kernel + bias + x @ lora_a @ lora_b``.

    Its own variables are those of ``Linear``, so the state of a trained ``Linear`` can be loaded into it.

    Shapes:
        x: ``(..., in_features)``. y: ``(..., out_features)``.

    Variables:
        kernel, bias: those of ``Linear``.
        lora: a ``LoRA`` with ``lora_a``, ``(in_features, lora_rank)``, and ``lora_b``, ``(lora_rank, out_features)``.

    Args:
        in_features: length of the last axis of ``x``.
        out_features: length of the last axis of ``y``.
        lora_rank: the rank.
        lora_dtype: dtype of the products with the factors; ``None`` means the common dtype of input and factors.
        lora_param_dtype: dtype in which the factors are stored.
        a_initializer: initializer of ``lora_a``.
        b_initializer: initializer of ``lora_b``.
        lora_param_type: kind of the two variables.
        lora_promote_dtype: replaces the function that brings input and factors to one dtype.
        rngs: draws one key from the ``params`` stream for each parameter, first those of ``Linear``.
        a_metadata: metadata of ``lora_a``.
        b_metadata: metadata of ``lora_b``.
        **kwargs: the keywords of ``Linear``.

    Raises:
        ShapeError: the last axis of ``x`` is not ``in_features`` long.

    Example:
        >>> linear = plait.Linear(3, 4, rngs=plait.Rngs(0))
        >>> adapted = plait.LoRALinear(3, 4, lora_rank=2, rngs=plait.Rngs(0))
        >>> bool((adapted.kernel[...] == linear.kernel[...]).all()), adapted.lora.lora_b.shape
        (True, (2, 4))

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv:2106.09685.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: DTypeLike | None = None,
        lora_param_dtype: DTypeLike = jnp.float32,
        a_initializer: Initializer = default_lora_init,
        b_initializer: Initializer = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        a_metadata: Mapping[str, Any] = HashableMapping(),
        b_metadata: Mapping[str, Any] = HashableMapping(),
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            rngs=rngs,
            lora_param_type=lora_param_type,
            a_initializer=a_initializer,
            a_metadata=a_metadata,
            b_initializer=b_initializer,
            b_metadata=b_metadata,
            dtype=lora_dtype,
            param_dtype=lora_param_dtype,
            promote_dtype=lora_promote_dtype,
        )

    def __call__(self, x: Array, out_sharding: Any = None) -> Array:
        return _sum(super().__call__(x, out_sharding), self.lora(x))

    def merge(self) -> Linear:
        """A new, equivalent ``Linear``, with the kernel ``kernel + lora_a @ lora_b``."""
        options = ("use_bias", "dtype", "param_dtype", "precision", "dot_general", "promote_dtype")
        given: dict[str, Any] = {name: getattr(self, name) for name in (*options, "preferred_element_type")}
        linear = eval_shape(
            lambda: Linear(self.in_features, self.out_features, rngs=Rngs(0), **given), graph=True, graph_updates=True
        )
        linear.kernel = self.kernel.copy()
        linear.bias = None if self.bias is None else self.bias.copy()
        add_to_weight(linear, self.lora.product())
        return linear


def add_to_weight(layer: Any, product: Array) -> None:
    """Add to the weight of a layer, or of the layer below its adapters; the weight keeps its dtype."""
    weight = weight_of(_below_adapters(layer))
    value, product = promote_dtype((weight.value, product))
    weight.value = (value + product).astype(weight.dtype)


def _sum(x: Array, y: Array) -> Array:
    x, y = promote_dtype((x, y))
    return x + y
