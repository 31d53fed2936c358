"""One row per layer of this folder: how to make it, and what to give it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import plait
from tests.nn.twins import some_input


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[plait.Rngs], Any]
    x: Any


def _case(name: str, make: Callable[[plait.Rngs], Any], *shape: int) -> Case:
    return Case(name, make, some_input(*shape))


random = plait.initializers.normal()

CASES = [
    _case("Linear", lambda rngs: plait.Linear(3, 4, rngs=rngs), 2, 3),
    _case("LinearGeneral", lambda rngs: plait.LinearGeneral((2, 3), 4, axis=(-2, -1), rngs=rngs), 5, 2, 3),
    _case("Einsum", lambda rngs: plait.Einsum("...a,ab->...b", (3, 4), (4,), rngs=rngs), 2, 3),
    _case("Conv", lambda rngs: plait.Conv(2, 3, (3, 3), rngs=rngs), 2, 5, 5, 2),
    _case("ConvTranspose", lambda rngs: plait.ConvTranspose(2, 3, (3,), strides=2, rngs=rngs), 2, 5, 2),
    Case("Embed", lambda rngs: plait.Embed(5, 3, rngs=rngs), jnp.asarray(np.arange(4).reshape(2, 2))),
    _case("BatchNorm", lambda rngs: plait.BatchNorm(3, rngs=rngs), 4, 3),
    _case("LayerNorm", lambda rngs: plait.LayerNorm(3, rngs=rngs), 4, 3),
    _case("RMSNorm", lambda rngs: plait.RMSNorm(3, rngs=rngs), 4, 3),
    _case("GroupNorm", lambda rngs: plait.GroupNorm(4, num_groups=2, rngs=rngs), 2, 3, 4),
    _case("InstanceNorm", lambda rngs: plait.InstanceNorm(3, rngs=rngs), 2, 4, 3),
    _case(
        "MultiHeadAttention",
        lambda rngs: plait.MultiHeadAttention(2, 4, num_kv_heads=1, normalize_qk=True, decode=False, rngs=rngs),
        2,
        3,
        4,
    ),
    _case("WeightNorm", lambda rngs: plait.WeightNorm(plait.Linear(3, 4, rngs=rngs), rngs=rngs), 2, 3),
    _case("SpectralNorm", lambda rngs: plait.SpectralNorm(plait.Linear(3, 4, rngs=rngs), rngs=rngs), 2, 3),
    _case("PReLU", lambda rngs: plait.PReLU(0.2), 4, 3),
    _case("LoRA", lambda rngs: plait.LoRA(3, 2, 4, b_initializer=random, rngs=rngs), 2, 3),
    _case("LoRALinear", lambda rngs: plait.LoRALinear(3, 4, lora_rank=2, b_initializer=random, rngs=rngs), 2, 3),
    _case("SimpleCell", lambda rngs: plait.RNN(plait.SimpleCell(3, 4, rngs=rngs)), 2, 5, 3),
    _case("LSTMCell", lambda rngs: plait.RNN(plait.LSTMCell(3, 4, rngs=rngs)), 2, 5, 3),
    _case("GRUCell", lambda rngs: plait.RNN(plait.GRUCell(3, 4, rngs=rngs), reverse=True), 2, 5, 3),
    _case(
        "Bidirectional",
        lambda rngs: plait.Bidirectional(*(plait.RNN(plait.OptimizedLSTMCell(3, 4, rngs=rngs)) for _ in range(2))),
        2,
        5,
        3,
    ),
    _case("Dropout", lambda rngs: plait.Dropout(0.5, rngs=rngs), 4, 8),
    _case(
        "Sequential",
        lambda rngs: plait.Sequential(plait.Linear(3, 4, rngs=rngs), plait.gelu, plait.BatchNorm(4, rngs=rngs)),
        8,
        3,
    ),
]
