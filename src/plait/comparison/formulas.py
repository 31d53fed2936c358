"""The usual layers as formulas with settings, to find the settings that reproduce a recorded output.

A formula computes a layer's output from its inputs and parameters; its settings are where implementations differ: the
epsilon of a norm, the scale of attention, the mask. Everything is computed in float64, or in float32 where JAX computes
it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Chosen = dict[str, Any]
Choices = Mapping[str, Sequence[Any]]
Arrays = Mapping[str, np.ndarray]
Formula = Callable[[Arrays, Arrays, Chosen], np.ndarray | None]
"""Takes inputs by role, parameters by role and one choice for each setting; returns ``None`` if they do not fit."""


def each_choice(choices: Choices) -> Iterator[Chosen]:
    """Every combination of settings, the most common first."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


# Layers with parameters -----------------------------------------------------------------------------------------------


def linear(inputs: Arrays, parameters: Arrays, chosen: Chosen) -> np.ndarray | None:
    """``x @ kernel + bias``, with any number of feature axes."""
    x, y, kernel = inputs["x"], inputs["like"], parameters["kernel"]
    if not (x.size and y.size and kernel.size):
        return None
    rows = math.isqrt(x.size * y.size // kernel.size)
    if not rows or x.size % rows or y.size % rows or (x.size // rows) * (y.size // rows) != kernel.size:
        return None
    matrix = _wide(kernel).reshape(x.size // rows, y.size // rows)
    if chosen["kernel"] == "transposed":
        if matrix.shape[0] != matrix.shape[1]:
            return None
        matrix = matrix.T
    result = _wide(x).reshape(rows, -1) @ matrix
    if chosen["bias"] == "added":
        result = result + _wide(parameters["bias"]).reshape(-1)
    return result.reshape(y.shape)


def linear_choices(parameters: Arrays) -> Choices:
    return {"kernel": ("as it is", "transposed"), "bias": _bias_choices(parameters)}


def _bias_choices(parameters: Arrays) -> tuple[str, ...]:
    return ("added", "missing") if parameters.get("bias") is not None else ("missing",)


def convolution(inputs: Arrays, parameters: Arrays, chosen: Chosen) -> np.ndarray | None:
    """A convolution with channels last."""
    x, kernel = inputs["x"], parameters["kernel"]
    window = kernel.ndim - 2
    if x.ndim != window + 2 or window not in (1, 2, 3):
        return None
    if chosen["kernel"] == "window reversed":
        kernel = np.flip(kernel, tuple(range(window)))
    elif chosen["kernel"] == "window transposed":
        kernel = np.swapaxes(kernel, 0, 1) if window == 2 else kernel
    elif chosen["kernel"] == "channels exchanged":
        kernel = np.swapaxes(kernel, -1, -2)
    groups = x.shape[-1] // kernel.shape[-2]
    axes = "HWD"[:window]
    dims = jax.lax.conv_dimension_numbers(x.shape, kernel.shape, (f"N{axes}C", f"{axes}IO", f"N{axes}C"))
    dilation, padding = _each(chosen["dilation"], window), chosen["padding"]
    if padding in _WRAPPING:
        added = [(size - 1) * d for size, d in zip(kernel.shape, dilation, strict=False)]
        around = [(each // 2, each - each // 2) for each in added]
        x, padding = np.pad(x, [(0, 0), *around, (0, 0)], mode=_WRAPPING[padding]), "VALID"
    elif padding == "CAUSAL":
        padding = [((size - 1) * d, 0) for size, d in zip(kernel.shape, dilation, strict=False)]
    try:
        result = jax.lax.conv_general_dilated(
            jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32), _each(chosen["strides"], window),
            padding if isinstance(padding, str) else _pads(padding, window), rhs_dilation=dilation,
            dimension_numbers=dims, feature_group_count=groups, precision="highest",
        )  # fmt: skip
    except (TypeError, ValueError, RuntimeError):  # sizes or settings of another layer, such as an unknown padding
        return None
    result = np.asarray(result, np.float64)
    return result + _wide(parameters["bias"]) if chosen["bias"] == "added" else result


_WRAPPING: dict[Any, Any] = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


def _pads(padding: Any, window: int) -> list[tuple[int, int]]:
    """One number for all sides, one per axis, or two per axis."""
    if isinstance(padding, int):
        return [(padding, padding)] * window
    return [(each, each) if isinstance(each, int) else tuple(each) for each in padding]


def convolution_choices(parameters: Arrays, modules: Sequence[Any]) -> Choices:
    """The modules' own settings first: each side may have those of the other."""
    window = parameters["kernel"].shape[:-2]
    settings: dict[str, list[Any]] = {"strides": [], "padding": [], "dilation": []}
    for module in modules:
        for name, attributes in (
            ("strides", ("strides", "stride")),
            ("padding", ("padding",)),
            ("dilation", ("kernel_dilation", "dilation")),
        ):
            value = next((getattr(module, each) for each in attributes if hasattr(module, each)), None)
            if isinstance(value, (int, str, tuple, list)):
                settings[name].append(_hashable(value))
    settings["padding"] += ["SAME", "VALID", tuple((size - 1) // 2 for size in window)]
    unique = {name: tuple(dict.fromkeys(values or [1])) for name, values in settings.items()}
    kernels = ("as it is", "window reversed", "window transposed", "channels exchanged")
    return {**unique, "kernel": kernels, "bias": _bias_choices(parameters)}


def _hashable(value: Any) -> Any:
    if isinstance(value, str):
        return value.upper()
    return tuple(map(_hashable, value)) if isinstance(value, (tuple, list)) else value


def _each(value: Any, n: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (1 if value is None else value,) * n


def embedding(inputs: Arrays, parameters: Arrays, chosen: Chosen) -> np.ndarray | None:
    """Rows of a table."""
    tokens, table = inputs["x"], parameters["embedding"]
    if tokens.dtype.kind not in "iu" or table.ndim != 2:
        return None
    factor = {"1": 1.0, "sqrt(features)": math.sqrt(table.shape[1]), "1/sqrt(features)": table.shape[1] ** -0.5}
    rows = (tokens.astype(int) + chosen["first index"]) % table.shape[0]
    return _wide(table)[rows] * factor[chosen["factor"]]


EMBEDDING_CHOICES: Choices = {"factor": ("1", "sqrt(features)", "1/sqrt(features)"), "first index": (0, 1, -1)}

EPSILONS = (1e-5, 1e-6, 1e-3, 1e-8, 1e-12, 0.0, 1e-7, 1e-4, 1e-2)


def norm(inputs: Arrays, parameters: Arrays, chosen: Chosen) -> np.ndarray | None:
    """``(x - mean) / sqrt(var + epsilon) * scale + bias``, with statistics of several kinds."""
    x = _wide(inputs["x"])
    statistics = chosen["statistics"]
    if statistics == "running" and not {"mean", "var"} <= parameters.keys():
        return None
    unbiased = int(chosen["variance"] == "unbiased")
    if statistics == "running":
        if unbiased:
            return None
        mean, var = _wide(parameters["mean"]), _wide(parameters["var"])
    else:
        found = _statistics(x, statistics, unbiased, chosen.get("groups"))
        if found is None:
            return None
        mean, var = found
    with np.errstate(invalid="ignore", divide="ignore"):
        result = (x - mean) / np.sqrt(var + chosen["epsilon"])
    scale, bias = parameters.get("scale"), parameters.get("bias")
    if chosen["scale"] != "missing" and scale is not None:
        result = result * (_wide(scale).reshape(-1) + (chosen["scale"] == "1 + scale"))
    if chosen["bias"] == "added" and bias is not None:
        result = result + _wide(bias).reshape(-1)
    return result if np.isfinite(result).all() else None


def _statistics(x: np.ndarray, what: str, unbiased: int, groups: int | None) -> tuple[Any, Any] | None:
    if what == "root mean square":
        n = x.shape[-1]
        return (0.0, (x**2).sum(-1, keepdims=True) / (n - unbiased)) if n > unbiased else None
    if what == "batch":
        axes, shape = tuple(range(x.ndim - 1)), x.shape
    elif what == "features":
        axes, shape = (-1,), x.shape
    else:  # groups of channels of one example
        if not groups or x.shape[-1] % groups or x.ndim < 2:
            return None
        shape = (*x.shape[:-1], groups, x.shape[-1] // groups)
        axes = (*range(1, x.ndim - 1), x.ndim)
    grouped = x.reshape(shape)
    if math.prod(grouped.shape[axis] for axis in axes) <= unbiased:
        return None
    mean = grouped.mean(axes, keepdims=True)
    var = grouped.var(axes, ddof=unbiased, keepdims=True)
    if shape != x.shape:
        mean, var = (np.broadcast_to(each, shape).reshape(x.shape) for each in (mean, var))
    return mean, var


def norm_choices(parameters: Arrays, modules: Sequence[Any]) -> Choices:
    epsilons = [getattr(module, name, None) for module in modules for name in ("epsilon", "eps", "variance_epsilon")]
    groups = [getattr(module, "num_groups", None) for module in modules]
    own = [float(each) for each in epsilons if isinstance(each, (int, float))]
    counts = [each for each in groups if isinstance(each, int)]
    kinds = ["features", "root mean square"]
    if "mean" in parameters:
        kinds = ["running", "batch"]
    elif counts:
        kinds += ["groups"]
    return {
        "statistics": kinds,
        "scale": ("used", "missing", "1 + scale") if parameters.get("scale") is not None else ("missing",),
        "bias": _bias_choices(parameters),
        "variance": ("biased", "unbiased"),
        "epsilon": tuple(dict.fromkeys([*own, *EPSILONS])),
        "groups": tuple(dict.fromkeys(counts)) or (None,),
    }


# Functions between layers ---------------------------------------------------------------------------------------------


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "exact gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu by sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "elu": _elu,
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky relu (0.2)": lambda x: np.where(x > 0, x, 0.2 * x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "squared relu": lambda x: np.maximum(x, 0) ** 2,
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(_softplus(x)),
}


def rotated(x: np.ndarray, pairs: str, base: float) -> np.ndarray:
    """Rotary embedding of ``(batch, length, heads, features)``.

    The result is always interleaved: the order of the features changes no dot product.
    """
    length, features = x.shape[1], x.shape[-1]
    angles = np.arange(length)[:, None] * base ** (-np.arange(0, features, 2) / features)
    cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
    if pairs == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x[..., : features // 2], x[..., features // 2 :]
    return np.stack((first * cos - second * sin, first * sin + second * cos), -1).reshape(x.shape)


MASKS: dict[str, Callable[[int, int], np.ndarray]] = {
    "none": lambda n, m: np.ones((n, m), bool),
    "causal": lambda n, m: np.tril(np.ones((n, m), bool)),
    "causal, one step too far": lambda n, m: np.tril(np.ones((n, m), bool), 1),
    "causal, without the step itself": lambda n, m: np.tril(np.ones((n, m), bool), -1),
    "reversed (only later steps)": lambda n, m: np.triu(np.ones((n, m), bool)),
}


def attention(inputs: Arrays, parameters: Arrays, chosen: Chosen) -> np.ndarray | None:
    """Attention of the first examples: queries, keys and values of ``(batch, length, heads * features)``."""
    heads = chosen["heads"]
    if inputs["query"].shape[-1] % heads:
        return None
    head_dim = inputs["query"].shape[-1] // heads
    parts = []
    for name in ("query", "key", "value"):
        x = _wide(inputs[name])
        if x.shape[-1] % head_dim:
            return None
        parts.append(x.reshape(*x.shape[:2], -1, head_dim))
    query, key, value = parts
    if chosen["rotary halves"] != "none":
        if head_dim % 2:
            return None
        query, key = (rotated(each, chosen["rotary halves"], chosen["rotary base"]) for each in (query, key))
    if chosen["query and key"] == "exchanged":
        if query.shape != key.shape:
            return None
        query, key = key, query
    if key.shape[2] != heads:
        if heads % key.shape[2]:
            return None
        key, value = (np.repeat(each, heads // key.shape[2], axis=2) for each in (key, value))
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) * attention_scales(head_dim, heads)[chosen["scale"]]
    mask = MASKS[chosen["mask"]](*logits.shape[-2:]) if chosen["mask"] in MASKS else inputs.get("mask")
    if mask is None:
        return None
    try:
        logits = np.where(_mask_for(mask, logits.shape), logits, -1e30)
    except ValueError:
        return None
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*query.shape[:2], -1)


def attention_scales(head_dim: int, heads: int) -> dict[str, float]:
    width = head_dim * heads
    return {
        "1/sqrt(head_dim)": head_dim**-0.5,
        "1": 1.0,
        "1/sqrt(features)": width**-0.5,
        "1/head_dim": 1 / head_dim,
        "sqrt(head_dim)": head_dim**0.5,
    }


def _mask_for(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if mask.ndim == 2 and mask.shape == (shape[0], shape[-1]) and shape[0] != shape[-2]:
        mask = mask[:, None, None, :]
    return np.broadcast_to(mask[: shape[0]] if mask.ndim > 2 else mask, shape)


def attention_choices(modules: Sequence[Any], query: np.ndarray, *, has_mask: bool) -> Choices:
    names = ("num_heads", "n_heads", "heads", "n_head", "num_attention_heads", "nhead")
    heads = [getattr(module, name, None) for module in modules for name in names]
    known = [each for each in heads if isinstance(each, int) and each > 0]
    guesses = known or [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if query.shape[-1] % n == 0]
    bases = [getattr(module, n, None) for module in modules for n in ("base", "theta", "rope_theta", "rope_base")]
    return {
        "heads": tuple(dict.fromkeys(guesses)),
        "rotary halves": ("none", "half", "interleaved"),
        "rotary base": tuple(dict.fromkeys([*(float(b) for b in bases if isinstance(b, (int, float))), 1e4])),
        "mask": (*(["given"] if has_mask else []), *MASKS),
        "scale": tuple(attention_scales(1, 1)),
        "query and key": ("as they are", "exchanged"),
    }
