"""Faults, planted by machine: a table of operators, and every place of an architecture where each applies.

An operator says for a module whether it applies, and changes the module in place.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import plait
from plait.util.paths import format_path
from tests.inspect.compare.architectures import ACTIVATIONS, architectures, at, made, set_value


@dataclasses.dataclass(frozen=True)
class Operator:
    """A kind of fault.

    Attributes:
        name: what it does.
        applies: whether it can be planted in a module.
        plant: plants it; takes the module and a random generator.
    """

    name: str
    applies: Callable[[Any], bool]
    plant: Callable[[Any, Any], None]


def _has(*names, of=()):
    return lambda module: isinstance(module, of or object) and all(getattr(module, n, None) is not None for n in names)


def _switch(attribute, value):
    def plant(module, rng):
        setattr(module, attribute, value)

    return plant


def _changed(name, change):
    """A variable with other values."""

    def plant(module, rng):
        variable = getattr(module, name)
        set_value(variable, change(np.asarray(variable[...]), rng))

    return plant


def _one_entry(value, rng):
    value = value.copy()
    value.reshape(-1)[rng.integers(value.size)] += 0.5
    return value


def _bias_added(module, rng):
    size = module.kernel[...].shape[-1]
    module.bias, module.use_bias = plait.Param(jnp.asarray(rng.normal(size=size) * 0.3, jnp.float32)), True


def _is_square(module):
    kernel = getattr(module, "kernel", None)
    return kernel is not None and kernel.ndim == 2 and kernel.shape[0] == kernel.shape[1]


LINEAR, CONV = (plait.Linear,), (plait.Conv,)
NORMS = (plait.LayerNorm, plait.RMSNorm, plait.GroupNorm, plait.BatchNorm)
WINDOW = lambda module: isinstance(module, CONV) and module.kernel_size[0] > 1
INSIDE_OF_CELLS = ("ii", "if_", "ig", "io", "hi", "hf", "hg", "ho", "dense_i", "dense_h")

OPERATORS = (
    Operator("epsilon 1e-2", _has("epsilon", of=NORMS), _switch("epsilon", 1e-2)),
    Operator("scale of a norm left out", _has("scale", of=NORMS), _switch("scale", None)),
    Operator("bias of a norm left out", _has("bias", of=NORMS), _switch("bias", None)),
    Operator("scale of a norm without its 1", _has("scale", of=NORMS), _changed("scale", lambda v, _: v - 1)),
    Operator("statistics of the batch", _has("mean"), _switch("use_running_average", False)),
    Operator("another running variance", _has("var"), _changed("var", lambda v, _: v * 1.3)),
    Operator("kernel transposed", _is_square, _changed("kernel", lambda v, _: v.T)),
    Operator("one entry of a kernel", _has("kernel"), _changed("kernel", _one_entry)),
    Operator("window of a kernel reversed", WINDOW, _changed("kernel", lambda v, _: v[::-1, ::-1])),
    Operator("bias left out", _has("kernel", "bias", of=LINEAR + CONV), _switch("bias", None)),
    Operator("bias too many", lambda m: isinstance(m, LINEAR + CONV) and m.bias is None, _bias_added),
    Operator("padding by wrapping", WINDOW, _switch("padding", "CIRCULAR")),
    Operator("bfloat16", _has("kernel", of=LINEAR + CONV), _switch("dtype", jnp.bfloat16)),
    Operator("rows of a table moved", _has("embedding"), _changed("embedding", lambda v, _: np.roll(v, 1, 0))),
    Operator("kind of gelu", lambda m: getattr(m, "activation", "") == "gelu by tanh", _switch("activation", "gelu")),
    Operator("relu for another", lambda m: getattr(m, "activation", "relu") != "relu", _switch("activation", "relu")),
    Operator("silu for relu", lambda m: getattr(m, "activation", "") == "relu", _switch("activation", "silu")),
    Operator("residual left out", _has("residual"), _switch("residual", False)),
    Operator("norm after, not before", _has("before"), _switch("before", False)),
    Operator("no scale in attention", _has("power"), _switch("power", 0)),
    Operator("mask left out", _has("causal"), _switch("causal", None)),
    Operator("mask off by one", _has("causal"), _switch("causal", 1)),
    Operator("mask too early", _has("causal"), _switch("causal", -1)),
    Operator("other halves of rotary", _has("rotary"), _switch("rotary", "interleaved")),
    Operator("rotary left out", _has("rotary"), _switch("rotary", None)),
    Operator("sides exchanged", lambda m: getattr(m, "exchanged", None) is False, _switch("exchanged", True)),
    Operator("factor left out", _has("factor"), _switch("factor", 1.0)),
    Operator("positions left out", _has("has_positions"), _switch("has_positions", False)),
    Operator("positions off by one", _has("positions"), _changed("positions", lambda v, _: np.roll(v, 1, 0))),
    Operator("skip left out", _has("has_skip"), _switch("has_skip", False)),
    Operator("maximum for mean", lambda m: getattr(m, "pooled_by", "") == "mean", _switch("pooled_by", "max")),
    Operator("other activation in a cell", _has("activation_fn"), _switch("activation_fn", ACTIVATIONS["relu"])),
    Operator("other gates in a cell", _has("gate_fn"), _switch("gate_fn", plait.hard_sigmoid)),
    Operator("other direction", lambda m: isinstance(m, plait.RNN),
             lambda m, _: setattr(m, "reverse", not m.reverse)),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        architecture: where.
        operator: what.
        path: of the module.
    """

    architecture: str
    operator: Operator
    path: tuple

    def __str__(self):
        return f"{self.architecture}: {self.operator.name} in {format_path(self.path) or 'the model'}"

    def planted(self, model):
        """Plant it in a plait model, in place."""
        self.operator.plant(at(model, self.path), np.random.default_rng(len(str(self))))
        return model

    def faulty(self):
        return self.planted(made(plait, self.architecture))


@functools.cache
def faults_of(architecture):
    """Every operator at every place, in the order of the table. Where one applies, shapes and attributes say."""
    model = plait.eval_shape(lambda: architectures(plait)[architecture](plait.Rngs(0)))
    places = [(path, module) for path, module in plait.iter_modules(model) if not isinstance(module, plait.List)]
    return [
        Fault(architecture, operator, path)
        for operator in OPERATORS
        for path, module in places
        if operator.applies(module)
    ]
