"""The models that every export format has to carry: what users of this field export, small in width, true in structure.

Each is made anew from a seed, in evaluation mode. Its inputs have a free batch size, and free lengths where those mean
something; three sizes of each are run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import plait
from plait.export import InputSpec
from plait.export.program.program import named_outputs
from tests.export.zoo import images, sequences, tables

FORMATS = ("stablehlo", "saved_model", "onnx", "litert")
BATCHES = ({"batch": 1}, {"batch": 3}, {"batch": 4})
LENGTHS = ({"batch": 1, "length": 5}, {"batch": 3, "length": 2}, {"batch": 2, "length": 9})
AREAS = tuple({"batch": b, "height": h, "width": w} for b, h, w in ((1, 8, 6), (3, 4, 12), (2, 10, 10)))


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        name: its name in reports.
        make: makes it, from random numbers; a module, or ``(params, function)``.
        inputs: shape and dtype of each argument.
        sizes: what the free sizes are in the three runs.
        below: whole numbers are drawn from 0 to this; sizes may be named.
        state: its variables that are inputs and outputs.
        frozen: its variables whose changes are dropped.
        training: whether it is exported in training mode.
        refused: formats that cannot hold it: the operation that the error names.
        packages: what else has to be installed.
    """

    name: str
    make: Callable[[plait.Rngs], Any]
    inputs: tuple[InputSpec, ...]
    sizes: tuple[Mapping[str, int], ...] = BATCHES
    below: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    state: Any = ()
    frozen: Any = ()
    training: bool = False
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    packages: tuple[str, ...] = ()

    @property
    def formats(self) -> list[str]:
        """The formats that can hold it."""
        return [name for name in FORMATS if name not in self.refused]

    def made(self) -> Any:
        """The model, always the same."""
        model = self.make(plait.Rngs(7))
        if isinstance(model, plait.Module) and not self.training:
            model.eval()
        return model

    def save(self, path: Any, formats: Any, **options: Any) -> dict[str, Any]:
        """Write it, as a user would."""
        return plait.export.save(
            self.made(),
            path,
            inputs=list(self.inputs),
            formats=formats,
            state=self.state,
            frozen=self.frozen,
            **options,
        )

    def examples(self) -> list[dict[str, np.ndarray]]:
        """Inputs by name, three times; a state goes on where the run before left it."""
        draw, found, model = np.random.default_rng(3), [], Eager(self)
        state = model.state()
        for sizes in self.sizes:
            arrays = {spec.name: self._drawn(spec, sizes, draw) for spec in self.inputs}
            found.append({**arrays, **state})
            outputs = model(**found[-1])
            state = {name: outputs[name] for name in state}
        return found

    def _drawn(self, spec: InputSpec, sizes: Mapping[str, int], draw: np.random.Generator) -> np.ndarray:
        shape = [size if isinstance(size, int) else sizes[size] for size in spec.shape]
        if spec.dtype == "bool":
            array = draw.random(shape) < 0.7
            array[..., 0] = True  # a row in which nothing is allowed has no answer
            return array
        if jnp.issubdtype(spec.dtype, jnp.integer):
            below = self.below.get(spec.name, sequences.WORDS)
            return draw.integers(spec.name == "lengths", sizes.get(below, below), shape).astype(spec.dtype)
        return draw.normal(size=shape).astype(jnp.dtype(spec.dtype))


class Eager:
    """The model itself, called without ``jit``: inputs by name in, outputs by name out, those of its state too."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.model = entry, entry.made()
        self.known: dict[Any, dict[str, np.ndarray]] = {}

    def state(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(variable[...]) for name, variable in self._variables()}

    def _variables(self) -> Iterator[tuple[str, Any]]:
        if self.entry.state:
            for path, variable in plait.to_flat_state(plait.variables(self.model, self.entry.state)):
                yield "_".join(map(str, path)), variable

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        key = tuple((name, array.shape, array.tobytes()) for name, array in inputs.items())
        if key not in self.known:  # who takes the time asks for the same again
            self.known[key] = self._called(inputs)
        return self.known[key]

    def _called(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arguments = [jnp.asarray(inputs[spec.name]) for spec in self.entry.inputs]
        if isinstance(self.model, tuple):
            params, function = self.model
            outputs = function(params, *arguments)
        else:
            for name, variable in self._variables():
                variable[...] = jnp.asarray(inputs[name])
            outputs = self.model(*arguments)
        found = {name: np.asarray(y) for name, y in named_outputs(outputs).items()}
        return {**found, **self.state()}


def x(*shape: int | str, dtype: Any = "float32", name: str = "x") -> InputSpec:
    return InputSpec(shape, dtype, name)


def words(*shape: int | str, name: str = "tokens") -> InputSpec:
    return InputSpec(shape, "int32", name)


NODES = tuple({"nodes": n, "edges": e} for n, e in ((1, 2), (5, 9), (7, 3)))
PAST = tuple({"batch": b, "past": p} for b, p in ((1, 1), (3, 4), (2, 9)))
TWO_LENGTHS = tuple({"batch": b, "source": s, "target": t} for b, s, t in ((1, 3, 5), (3, 6, 2), (2, 8, 9)))

ZOO = [
    Entry("mlp", images.MLP, (x("batch", 8),)),
    Entry("lenet", images.LeNet, (x("batch", 12, 12, 1),)),
    Entry("resnet", images.ResNet, (x("batch", "height", "width", 3),), AREAS),
    Entry("mobilenet", images.MobileNet, (x("batch", "height", "width", 3),), AREAS),
    Entry("convnext", images.ConvNeXt, (x("batch", 8, 8, 3),)),
    Entry("autoencoder", images.Autoencoder, (x("batch", 8, 8, 1),)),
    Entry("vae_decoder", images.Decoder, (x("batch", 4, name="code"),)),
    Entry("unet", images.UNet, (x("batch", 8, 8, 1),)),
    Entry("upscaler", images.Upscaler, (x("batch", "height", "width", 1),), AREAS),
    Entry("pyramid", images.Resizer, (x("batch", 8, 8, 1),)),
    Entry("uint8_image", images.Bytes, (x("batch", 8, 8, 3, dtype="uint8", name="image"),), below={"image": 256}),
    Entry("vit", images.ViT, (x("batch", 12, 12, 3),)),
    Entry("mlp_mixer", images.Mixer, (x("batch", 12, 12, 3),)),
    Entry(
        "denoiser",
        images.Denoiser,
        (x("batch", 6, 6, 1, name="image"), words("batch", name="time")),
        below={"time": 1000},
    ),
    Entry("wavenet", sequences.WaveNet, (x("batch", "length", 1),), LENGTHS),
    Entry("lstm_tagger", sequences.Tagger, (words("batch", "length"),), LENGTHS, frozen=plait.RngCount),
    Entry("gru_step", sequences.GRUStep, (words("batch", name="token"), x("batch", 8, name="hidden"))),
    Entry(
        "bidirectional",
        sequences.BothWays,
        (words("batch", "length"), words("batch", name="lengths")),
        LENGTHS,
        {"lengths": "length"},
        frozen=plait.RngCount,
        refused={"litert": "gather"},
    ),
    Entry("generator", sequences.Generator, (words("batch", name="token"),)),
    Entry(
        "bert", sequences.Encoder, (words("batch", "length"), x("batch", "length", dtype="bool", name="mask")), LENGTHS
    ),
    Entry("gpt", sequences.GPT, (words("batch", "length"),), LENGTHS),
    Entry("cache_step", sequences.CacheStep, (words(2, 1, name="token"),), ({}, {}, {}), state=plait.Cache),
    Entry(
        "growing_cache",
        sequences.GrowingCacheStep,
        (
            words("batch", 1, name="token"),
            x("batch", "past", 2, 4, name="past_key"),
            x("batch", "past", 2, 4, name="past_value"),
        ),
        PAST,
    ),
    Entry(
        "translator",
        sequences.Translator,
        (words("batch", "source", name="source"), words("batch", "target", name="target")),
        TWO_LENGTHS,
    ),
    Entry("llama", sequences.Llama, (words("batch", "length"),), LENGTHS),
    Entry(
        "llama_bfloat16",
        lambda rngs: sequences.Llama(rngs, jnp.bfloat16),
        (words("batch", "length"),),
        LENGTHS,
        refused={"onnx": "of bfloat16", "litert": "gather"},
    ),
    Entry("mixture_of_experts", sequences.Mixture, (x("batch", "length", 8),), LENGTHS),
    Entry("perceiver", sequences.Perceiver, (x("batch", "length", 3),), LENGTHS),
    Entry("scanned_stack", sequences.Stack, (words("batch", "length"),), LENGTHS),
    Entry("conformer", sequences.Speech, (x("batch", "length", 4, name="frames"),), LENGTHS),
    Entry(
        "recommender",
        tables.Recommender,
        (words("batch", name="person"), words("batch", "seen", name="seen"), x("batch", 3, name="numbers")),
        tuple({"batch": b, "seen": s} for b, s in ((1, 4), (3, 1), (4, 7))),
    ),
    Entry("flow", tables.Flow, (x("batch", 4),)),
    Entry("policy", tables.Policy, (x("batch", 6, name="observation"),)),
    Entry(
        "dueling_dqn", tables.Dueling, (x("batch", 6, name="observation"), x("batch", 5, dtype="bool", name="allowed"))
    ),
    Entry("lora", tables.Adapted, (x("batch", "length", 6),), LENGTHS),
    Entry("normed_weights", tables.Normed, (x("batch", 6),), frozen=plait.Param),
    Entry("nerf", tables.Field, (x("batch", 3, name="place"),)),
    Entry(
        "graph_network",
        tables.Graph,
        (x("nodes", 4, name="nodes"), words("edges", name="senders"), words("edges", name="receivers")),
        NODES,
        {"senders": "nodes", "receivers": "nodes"},
        refused={"litert": "scatter-add"},
    ),
    Entry(
        "running_statistics",
        tables.Running,
        (x("batch", 5),),
        ({"batch": 3}, {"batch": 7}, {"batch": 2}),
        state=plait.BatchStat,
        training=True,
    ),
    Entry(
        "float16",
        lambda rngs: tables.Small(rngs, jnp.float16),
        (x("batch", 6, dtype="float16"),),
        refused={"onnx": "dot_general of float16", "litert": "batch_matmul"},
    ),
    Entry(
        "bfloat16",
        lambda rngs: tables.Small(rngs, jnp.bfloat16),
        (x("batch", 6, dtype=jnp.bfloat16),),
        refused={"onnx": "dot_general of bfloat16", "litert": "batch_matmul"},
    ),
    Entry("stored_in_bfloat16", lambda rngs: tables.Small(rngs, jnp.bfloat16, jnp.float32), (x("batch", 6),)),
    Entry("plain_function", tables.plain_function, (x("batch", 6),)),
    Entry("linen", tables.linen, (x("batch", 6, 6, 1),), frozen=plait.RngCount, packages=("flax",)),
]
