"""LoRA: a trainable low-rank matrix, as two factors, added to a frozen layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.merge import clone
from ..core.graph.locate import describe_place
from ..core.objects.module import Module
from ..core.objects.rngs import Rngs
from ..core.objects.statics import HashableMapping
from ..core.objects.variable_kinds import LoRAParam
from ..core.objects.variables import Variable
from ..errors import ArgumentError
from ..ground.paths import describe_path
from ..ground.words import describe_type
from ..surgery.surgery import Selection
from ..transforms.jit.shapes import eval_shape
from ..typing import Array, DTypeLike, Initializer
from .checks import check_last_axis, weight_length
from .initializers import default_lora_init, initial, zeros
from .linear import Linear
from .promotion import promote_dtype


class LoRA(Module):
    """A low-rank linear map, ``y = x @ lora_a @ lora_b``, alone or added to the output of ``base_module``.

    ``lora_b`` starts at zero, so a wrapped layer's output does not change. To train only the factors, pass their kind:
    ``plait.grad(loss, argnums=plait.DiffState(0, plait.LoRAParam))`` and ``plait.Optimizer(..., wrt=plait.LoRAParam)``.

    Shapes:
        x: ``(..., in_features)``. y: ``(..., out_features)``.

    Variables:
        lora_a: ``lora_param_type``, ``(in_features, lora_rank)``, ``param_dtype``.
        lora_b: ``lora_param_type``, ``(lora_rank, out_features)``, ``param_dtype``.
        base_module: those of the wrapped layer, if any.

    Args:
        in_features: length of the last axis of ``x``.
        lora_rank: the rank.
        out_features: length of the last axis of ``y``.
        base_module: a layer whose output is added. It gets the input in ``dtype``, and the call's keyword arguments.
        dtype: dtype of the two products; ``None`` means the common dtype of input and factors.
        param_dtype: dtype in which the factors are stored.
        a_initializer: initializer of ``lora_a``.
        b_initializer: initializer of ``lora_b``.
        lora_param_type: kind of the two variables.
        promote_dtype: replaces the function that brings input and factors to one dtype.
        rngs: draws one key from the ``params`` stream for each factor.
        a_metadata: metadata of ``lora_a``.
        b_metadata: metadata of ``lora_b``.

    Raises:
        ArgumentError: ``base_module`` cannot be called.
        ShapeError: the last axis of ``x`` is not ``in_features`` long.

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

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
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
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.promote_dtype: Callable[..., Any] = promote_dtype
        a = initial(a_initializer, rngs.params, (in_features, lora_rank), param_dtype)
        b = initial(b_initializer, rngs.params, (lora_rank, out_features), param_dtype)
        self.lora_a = lora_param_type(a, **a_metadata)
        self.lora_b = lora_param_type(b, **b_metadata)

    def __call__(self, x: Array, **kwargs: Any) -> Array:
        a = self.lora_a.value
        check_last_axis(x, weight_length(a, 0, self.in_features), layer=self)
        values, a, b = self.promote_dtype((x, a, self.lora_b.value), dtype=self.dtype)
        y = values @ a @ b
        return y if self.base_module is None else _sum(y, self.base_module(values, **kwargs))

    def merge(self) -> Linear:
        """An equivalent ``Linear``: a copy of ``base_module`` with ``lora_a @ lora_b`` added to its kernel.

        Leading axes of factors and kernels, as ``vmap`` adds them, are batched over.

        Raises:
            ArgumentError: ``base_module`` is not a ``Linear``.

        Example:
            >>> adapted = plait.LoRA(3, 2, 4, base_module=plait.Linear(3, 4, rngs=plait.Rngs(0)), rngs=plait.Rngs(1))
            >>> adapted.lora_b[...] = jnp.ones((2, 4))
            >>> x = jnp.ones((5, 3))
            >>> bool(jnp.allclose(adapted.merge()(x), adapted(x), atol=1e-5))
            True
        """
        if not isinstance(self.base_module, Linear):
            raise ArgumentError(
                "only a LoRA around a Linear can be merged",
                at=describe_place(self),
                found=f"base_module={describe_type(self.base_module)}",
                expected="a Linear",
                do="keep the LoRA, or add lora_a @ lora_b to the weights of its layer yourself",
            )
        return _with_product(clone(self.base_module), self.lora_a, self.lora_b)


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
        linear = eval_shape(lambda: Linear(self.in_features, self.out_features, rngs=Rngs(0), **given))
        linear.kernel = self.kernel.copy()
        linear.bias = None if self.bias is None else self.bias.copy()
        return _with_product(linear, self.lora.lora_a, self.lora.lora_b)


def add_lora(selection: Selection, lora_rank: int, *, rngs: Rngs, **options: Any) -> Selection:
    """Wrap each ``Linear`` of a selection in a ``LoRA``; the model's outputs stay the same.

    A ``Linear`` that is shared gets one ``LoRA``, shared as well. If its variables have leading axes, as in a stack
    of layers made by ``vmap``, the factors get the same axes, with the axis names of its kernel.

    Args:
        selection: the layers, from ``plait.select``.
        lora_rank: the rank.
        rngs: draws one key from the ``params`` stream for each factor of each layer.
        **options: keywords of ``LoRA``.

    Returns:
        The selection of the new layers. ``plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())``
        returns to ``Linear``.

    Raises:
        ArgumentError: a selected part is not a ``Linear``, or is the root of the model; the model is unchanged.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> model = plait.Sequential(plait.Linear(3, 3, rngs=rngs), plait.relu, plait.Linear(3, 2, rngs=rngs))
        >>> _ = plait.add_lora(plait.select(model, plait.Linear), 2, rngs=plait.Rngs(2))
        >>> sorted(plait.state(model, plait.LoRAParam)["layers"]), model.layers[2].lora_a.shape
        ([0, 2], (3, 2))
    """
    for path, layer in selection:
        if not isinstance(layer, Linear):
            raise ArgumentError(
                "add_lora wraps Linear layers",
                at=describe_path(path),
                found=describe_type(layer),
                expected="a Linear",
                do="select only those: plait.add_lora(plait.select(model, plait.Linear), ...)",
            )
    return selection.replace(lambda _, layer: _wrapped(layer, lora_rank, rngs, options))


def _wrapped(layer: Linear, rank: int, rngs: Rngs, options: Mapping[str, Any]) -> LoRA:
    stack, names = layer.kernel.shape[:-2], layer.kernel.get_metadata().get("out_sharding")
    arguments: dict[str, Any] = {"param_dtype": layer.param_dtype, "dtype": layer.dtype, **options}
    if isinstance(names, tuple) and len(names) == layer.kernel.ndim:
        arguments.setdefault("a_metadata", {"out_sharding": (*names[:-1], None)})
        arguments.setdefault("b_metadata", {"out_sharding": (*names[:-2], None, names[-1])})
    for name, default in (("a_initializer", default_lora_init), ("b_initializer", zeros)):
        arguments[name] = _stacked(arguments.get(name, default), stack)
    lora = LoRA(layer.in_features, rank, layer.out_features, rngs=rngs, **arguments)
    lora.base_module = layer
    return lora


def _stacked(init: Initializer, stack: tuple[int, ...]) -> Initializer:
    """An initializer that draws each entry of a stack from its own key."""
    if not stack:
        return init

    def make(key: Any, shape: Any, dtype: Any) -> Array:
        entries = [init(each, shape, dtype) for each in jax.random.split(key, math.prod(stack))]
        return jnp.reshape(jnp.stack(entries), (*stack, *shape))

    return make


def _with_product(linear: Linear, a: Variable[Any], b: Variable[Any]) -> Linear:
    """The layer with ``a @ b`` added to its kernel; the kernel keeps its dtype."""
    kernel, product = promote_dtype((linear.kernel.value, a.value @ b.value))
    linear.kernel.value = (kernel + product).astype(linear.kernel.dtype)
    return linear


def _sum(x: Array, y: Array) -> Array:
    x, y = promote_dtype((x, y))
    return x + y
