"""The table of all layers: each as a way to make it, an input, and what its state is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import plait
from tests.nn.twins import some_input


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of plait.

    Attributes:
        name: its public name.
        make: ``make(rngs, **dtypes)`` makes it, where ``dtypes`` may be ``dtype`` and ``param_dtype``.
        x: an input.
        state: the variables that are no random state: path, kind and shape.
        also: public names of other layers in it.
        takes: which of ``dtype`` and ``param_dtype`` it has.
        in_bfloat16: dtype of the result with ``dtype=bfloat16``.
        refuses: the path below the layer of whoever refuses an input with a longer last axis, and its class; ``None``
            for layers that take any input.
    """

    name: str
    make: Callable[..., Any]
    x: Any
    state: dict[str, str]
    also: tuple[str, ...] = ()
    takes: tuple[str, ...] = ("dtype", "param_dtype")
    in_bfloat16: Any = jnp.bfloat16
    refuses: tuple[str, str] | None = ("", "")


random = plait.initializers.normal()


def _linear(rngs: plait.Rngs, **dtypes: Any) -> plait.Linear:
    return plait.Linear(3, 4, rngs=rngs, **dtypes)


def _rnn(cell: Any, **options: Any) -> Callable[..., plait.RNN]:
    return lambda rngs, **dtypes: plait.RNN(cell(3, 4, rngs=rngs, **dtypes), **options)


ATTENTION = {
    **{f"{name}.kernel": f"Param (4, {heads}, 2)" for name, heads in {"key": 1, "query": 2, "value": 1}.items()},
    **{f"{name}.bias": f"Param ({heads}, 2)" for name, heads in {"key": 1, "query": 2, "value": 1}.items()},
    **{f"{name}.scale": "Param (2,)" for name in ("key_ln", "query_ln")},
    "out.kernel": "Param (2, 2, 4)",
    "out.bias": "Param (4,)",
}
AFFINE = {"bias": "Param (3,)", "scale": "Param (3,)"}
STATISTICS = {"mean": "BatchStat (3,)", "var": "BatchStat (3,)"}
LINEAR = {"kernel": "Param (3, 4)", "bias": "Param (4,)"}


def _below(name: str, state: dict[str, str]) -> dict[str, str]:
    return {f"{name}.{path}": text for path, text in state.items()}


def _gates(count: int, bias: str) -> dict[str, str]:
    shapes = {"dense_i": (3, 4 * count), "dense_h": (4, 4 * count)}
    kernels = {f"{name}.kernel": f"Param {shape}" for name, shape in shapes.items()}
    return {**kernels, f"{bias}.bias": f"Param ({4 * count},)"}


LSTM = {
    **{f"{way}{gate}.kernel": "Param (3, 4)" for way in "i" for gate in ("f_", "g", "i", "o")},
    **{f"h{gate}.kernel": "Param (4, 4)" for gate in "fgio"},
    **{f"h{gate}.bias": "Param (4,)" for gate in "fgio"},
}
LORA = {"lora_a": "LoRAParam (3, 2)", "lora_b": "LoRAParam (2, 4)"}

LAYERS = [
    Layer("Linear", _linear, some_input(2, 3), LINEAR),
    Layer(
        "LinearGeneral",
        lambda rngs, **dtypes: plait.LinearGeneral((2, 3), 4, axis=(-2, -1), rngs=rngs, **dtypes),
        some_input(5, 2, 3),
        {"kernel": "Param (2, 3, 4)", "bias": "Param (4,)"},
    ),
    Layer(
        "Einsum",
        lambda rngs, **dtypes: plait.Einsum("...a,ab->...b", (3, 4), (4,), rngs=rngs, **dtypes),
        some_input(2, 3),
        LINEAR,
    ),
    Layer(
        "Conv",
        lambda rngs, **dtypes: plait.Conv(2, 3, (3, 3), rngs=rngs, **dtypes),
        some_input(2, 5, 5, 2),
        {"kernel": "Param (3, 3, 2, 3)", "bias": "Param (3,)"},
    ),
    Layer(
        "ConvTranspose",
        lambda rngs, **dtypes: plait.ConvTranspose(2, 3, (3,), strides=2, rngs=rngs, **dtypes),
        some_input(2, 5, 2),
        {"kernel": "Param (3, 2, 3)", "bias": "Param (3,)"},
    ),
    Layer(
        "Embed",
        lambda rngs, **dtypes: plait.Embed(5, 3, rngs=rngs, **dtypes),
        jnp.asarray(np.arange(4).reshape(2, 2)),
        {"embedding": "Param (5, 3)"},
        refuses=None,
    ),
    Layer(
        "BatchNorm",
        lambda rngs, **dtypes: plait.BatchNorm(3, rngs=rngs, **dtypes),
        some_input(4, 3),
        {**AFFINE, **STATISTICS},
    ),
    Layer("LayerNorm", lambda rngs, **dtypes: plait.LayerNorm(3, rngs=rngs, **dtypes), some_input(4, 3), AFFINE),
    Layer(
        "RMSNorm",
        lambda rngs, **dtypes: plait.RMSNorm(3, rngs=rngs, **dtypes),
        some_input(4, 3),
        {"scale": "Param (3,)"},
    ),
    Layer(
        "GroupNorm",
        lambda rngs, **dtypes: plait.GroupNorm(4, num_groups=2, rngs=rngs, **dtypes),
        some_input(2, 3, 4),
        {"bias": "Param (4,)", "scale": "Param (4,)"},
    ),
    Layer(
        "InstanceNorm",
        lambda rngs, **dtypes: plait.InstanceNorm(3, rngs=rngs, **dtypes),
        some_input(2, 4, 3),
        AFFINE,
    ),
    Layer(
        "MultiHeadAttention",
        lambda rngs, **dtypes: plait.MultiHeadAttention(
            2, 4, num_kv_heads=1, normalize_qk=True, decode=False, rngs=rngs, **dtypes
        ),
        some_input(2, 3, 4),
        ATTENTION,
    ),
    Layer(
        "WeightNorm",
        lambda rngs, **dtypes: plait.WeightNorm(_linear(rngs, **dtypes), rngs=rngs, **dtypes),
        some_input(2, 3),
        {**_below("layer_instance", LINEAR), "scales.('kernel',)": "Param (4,)"},
        refuses=(".layer_instance", "Linear"),
    ),
    Layer(
        "SpectralNorm",
        lambda rngs, **dtypes: plait.SpectralNorm(_linear(rngs, **dtypes), rngs=rngs, **dtypes),
        some_input(2, 3),
        {
            **_below("layer_instance", LINEAR),
            "batch_stats.('kernel', 'u')": "BatchStat (1, 4)",
            "batch_stats.('kernel', 'sigma')": "BatchStat ()",
        },
        refuses=(".layer_instance", "Linear"),
    ),
    Layer(
        "PReLU",
        lambda rngs, **dtypes: plait.PReLU(0.2, **dtypes),
        some_input(4, 3),
        {"negative_slope": "Param ()"},
        refuses=None,
    ),
    Layer(
        "RoPE",
        lambda rngs: plait.RoPE(embedding_size=4, max_seq_len=8),
        some_input(2, 3, 4),
        {"cached_cos": "Variable (8, 2)", "cached_sin": "Variable (8, 2)"},
        takes=(),
    ),
    Layer(
        "LoRA",
        lambda rngs, **dtypes: plait.LoRA(3, 2, 4, b_initializer=random, rngs=rngs, **dtypes),
        some_input(2, 3),
        LORA,
    ),
    Layer(
        "LoRALinear",
        lambda rngs, **dtypes: plait.LoRALinear(
            3,
            4,
            lora_rank=2,
            b_initializer=random,
            rngs=rngs,
            **dtypes,
            **{f"lora_{name}": dtype for name, dtype in dtypes.items()},
        ),
        some_input(2, 3),
        {**LINEAR, **_below("lora", LORA)},
    ),
    Layer(
        "SimpleCell",
        _rnn(plait.SimpleCell),
        some_input(2, 5, 3),
        _below("cell", _gates(1, "dense_i")),
        also=("RNN",),
        refuses=(".cell", "SimpleCell"),
    ),
    Layer(
        "LSTMCell",
        _rnn(plait.LSTMCell),
        some_input(2, 5, 3),
        _below("cell", LSTM),
        in_bfloat16=jnp.float32,  # that of the carry, to which a step adds
        refuses=(".cell", "LSTMCell"),
    ),
    Layer(
        "GRUCell",
        _rnn(plait.GRUCell, reverse=True),
        some_input(2, 5, 3),
        _below("cell", _gates(3, "dense_i")),
        in_bfloat16=jnp.float32,  # that of the carry, to which a step adds
        refuses=(".cell", "GRUCell"),
    ),
    Layer(
        "Bidirectional",
        lambda rngs, **dtypes: plait.Bidirectional(
            *(plait.RNN(plait.OptimizedLSTMCell(3, 4, rngs=rngs, **dtypes)) for _ in range(2))
        ),
        some_input(2, 5, 3),
        {**_below("forward_rnn.cell", _gates(4, "dense_h")), **_below("backward_rnn.cell", _gates(4, "dense_h"))},
        also=("OptimizedLSTMCell",),
        in_bfloat16=jnp.float32,  # that of the carry, to which a step adds
        refuses=(".forward_rnn.cell", "OptimizedLSTMCell"),
    ),
    Layer(
        "Dropout",
        lambda rngs, **dtypes: plait.Dropout(0.5, rngs=rngs),
        some_input(4, 8),
        {},
        takes=(),
        refuses=None,
    ),
    Layer(
        "Sequential",
        lambda rngs, **dtypes: plait.Sequential(
            _linear(rngs, **dtypes), plait.gelu, plait.BatchNorm(4, rngs=rngs, **dtypes)
        ),
        some_input(8, 3),
        {
            **_below("layers.0", LINEAR),
            **{f"layers.2.{path}": text.replace("(3,)", "(4,)") for path, text in {**AFFINE, **STATISTICS}.items()},
        },
        refuses=(r".layers[0]", "Linear"),
    ),
]

# Public classes of nn that are not layers: the base of cells, a list of the user's blocks, and a kind of variable.
NO_LAYERS = {"RNNCellBase", "PerLayer", "Stack"}
