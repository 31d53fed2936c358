"""A small transformer that trains on any arrangement of devices: the shape of the mesh decides how it is sharded.

    python examples/transformer.py                                        # one device
    python examples/transformer.py --mesh data=2,fsdp=2,model=2           # eight devices of one process
    plait launch --processes 4 --devices 2 -- python examples/transformer.py --mesh fsdp=4,model=2

It needs Grain, which feeds it: ``pip install grain``, or ``pip install 'plait[all]'``.

The model only names the axes of its variables and activations. The recipe in ``plait.partitioning``
maps the names to mesh axes; without a mesh they mean nothing, and the same model runs on one device.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.partitioning import create_sharded, out_sharding, rules_for, with_sharding_constraint


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the model and of a batch."""

    vocab: int = 64
    embed: int = 32
    heads: int = 8
    mlp: int = 64
    blocks: int = 2
    length: int = 16
    batch: int = 16
    learning_rate: float = 1e-2


def named(*axes: str | None) -> dict[str, Any]:
    """Metadata that names the axes of a variable."""
    return {"out_sharding": axes}


class Block(plait.Module):
    """Attention and a hidden layer, each on a normalised input and added to it."""

    def __init__(self, config: Config, rngs: plait.Rngs):
        self.before_attention = plait.RMSNorm(config.embed, scale_metadata=named("norm"), rngs=rngs)
        self.attention = plait.MultiHeadAttention(
            config.heads,
            config.embed,
            use_bias=False,
            decode=False,
            kernel_metadata=named("embed", "heads", "head_dim"),
            out_kernel_metadata=named("heads", "head_dim", "embed"),
            rngs=rngs,
        )
        self.before_mlp = plait.RMSNorm(config.embed, scale_metadata=named("norm"), rngs=rngs)
        self.up = plait.Linear(
            config.embed, config.mlp, kernel_metadata=named("embed", "mlp"), bias_metadata=named("mlp"), rngs=rngs
        )
        self.down = plait.Linear(
            config.mlp, config.embed, use_bias=False, kernel_metadata=named("mlp", "embed"), rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        stream = ("batch", "length", "features")
        x += self.attention(
            self.before_attention(x),
            is_causal=True,
            qkv_sharding=out_sharding("batch", "length", "heads", "head_dim"),
            out_sharding=out_sharding(*stream),
        )
        hidden = plait.gelu(self.up(self.before_mlp(x), out_sharding=out_sharding("batch", "length", "mlp")))
        x += self.down(hidden, out_sharding=out_sharding(*stream))
        return with_sharding_constraint(x, stream)


class Transformer(plait.Module):
    """Predicts the next token of a sequence."""

    def __init__(self, config: Config, rngs: plait.Rngs):
        self.embed = plait.Embed(config.vocab, config.embed, embedding_metadata=named("vocab", "embed"), rngs=rngs)
        self.positions = plait.Param(
            0.02 * rngs.params.normal((config.length, config.embed)), out_sharding=("length", "embed")
        )
        self.blocks = [Block(config, rngs) for _ in range(config.blocks)]
        self.norm = plait.RMSNorm(config.embed, scale_metadata=named("norm"), rngs=rngs)
        self.head = plait.Linear(
            config.embed, config.vocab, use_bias=False, kernel_metadata=named("embed", "vocab"), rngs=rngs
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        stream = ("batch", "length", "features")
        positions = with_sharding_constraint(self.positions[...], ("length", "features"))
        x = self.embed(tokens, out_sharding=out_sharding(*stream)) + positions[None, : tokens.shape[1]]
        x = with_sharding_constraint(x, stream)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x), out_sharding=out_sharding("batch", "length", "vocab"))


def loss_of(model: Transformer, tokens: jax.Array) -> jax.Array:
    """The mean cross-entropy of the next token."""
    log_probabilities = jax.nn.log_softmax(model(tokens[:, :-1]))
    wanted = jax.nn.one_hot(tokens[:, 1:], log_probabilities.shape[-1])
    wanted = with_sharding_constraint(wanted, ("batch", "length", "vocab"))
    return -(wanted * log_probabilities).sum(-1).mean()


@plait.jit(donate_argnums=(0, 1))
def step(model: Transformer, optimizer: plait.Optimizer, tokens: jax.Array) -> jax.Array:
    """One training step; returns the loss before it."""
    loss, grads = plait.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


def make(config: Config) -> dict[str, Any]:
    """Model and optimizer, each shard created on its own device."""

    def create() -> dict[str, Any]:
        model = Transformer(config, plait.Rngs(0))
        return {"model": model, "optimizer": plait.Optimizer(model, optax.adam(config.learning_rate), wrt=plait.Param)}

    return create_sharded(create)


class Sentences:
    """Learnable sequences: arithmetic progressions modulo the size of the vocabulary."""

    def __init__(self, config: Config, count: int = 4096):
        self.config, self.count = config, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> np.ndarray:
        start, stride = np.random.default_rng(int(index)).integers(1, 8, 2)
        return ((start + stride * np.arange(self.config.length + 1)) % self.config.vocab).astype(np.int32)


def batches(config: Config, start: int) -> Iterator[jax.Array]:
    """Batches from step ``start`` on; each process reads only the rows that its own devices need.

    The order depends only on the step, so a run resumes with the same batches on any number of processes.
    """
    data = grain.MapDataset.source(Sentences(config)).seed(0).shuffle().repeat()
    mesh = jax.sharding.get_mesh()
    shape = (config.batch, config.length + 1)
    entry = dict(rules_for())["batch"]
    for number in range(start, sys.maxsize):
        rows: dict[int, np.ndarray] = {}

        def read(index: tuple[slice, ...], first: int = number * config.batch, rows: dict[int, np.ndarray] = rows):
            wanted = range(*index[0].indices(config.batch))
            for row in wanted:
                if row not in rows:
                    rows[row] = data[first + row]
            return np.stack([rows[row] for row in wanted])[:, index[1]]

        if mesh.empty:
            yield jnp.asarray(read((slice(None), slice(None))))
        else:
            yield jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(entry)), read)


@contextlib.contextmanager
def on_mesh(sizes: dict[str, int], kind: AxisType = AxisType.Auto) -> Iterator[None]:
    """Set a mesh and the rules of the recipe; no sizes mean no mesh."""
    if not sizes:
        yield
        return
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    with jax.set_mesh(mesh), plait.logical_axis_rules(rules_for(mesh)):
        yield


def train(
    config: Config,
    steps: int,
    *,
    folder: Path | None = None,
    every: int = 10,
    report: Callable[[int, float], None] = lambda number, loss: None,
) -> list[float]:
    """Train, resuming from the newest checkpoint in ``folder`` if there is one; returns the losses."""
    run = make(config)
    newest = plait.checkpoint.latest(folder) if folder else None
    done = plait.checkpoint.restore(newest, run).step or 0 if newest else 0
    losses = []
    for number, tokens in zip(range(done, steps), batches(config, done), strict=False):
        losses.append(float(step(run["model"], run["optimizer"], tokens)))
        report(number, losses[-1])
        if folder and (number + 1) % every == 0:
            plait.checkpoint.save(folder / f"step-{number + 1}", run, step=number + 1)
    return losses


def positive(text: str) -> int:
    """A positive integer, for argparse, which reports the error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def mesh_sizes(text: str) -> dict[str, int]:
    """The sizes of the mesh axes in ``data=2,model=4``."""
    sizes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if name not in ("data", "fsdp", "model") or name in sizes:
            raise argparse.ArgumentTypeError(f"{part!r} must name data, fsdp or model, and each only once")
        sizes[name] = positive(size)
    return sizes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mesh", type=mesh_sizes, default={}, help="sizes of the mesh axes data, fsdp and model: data=2,model=4"
    )
    parser.add_argument("--explicit", action="store_true", help="make the axes of the mesh explicit")
    parser.add_argument("--steps", type=positive, default=50)
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="save there, and resume from the newest")
    parser.add_argument("--every", type=positive, default=10, help="steps between checkpoints")
    options = parser.parse_args(arguments)
    processes = plait.partitioning.connect_processes()
    sizes = options.mesh
    if not sizes and processes > 1:
        sizes = {"data": jax.device_count()}
    if math.prod(sizes.values()) > jax.device_count():
        parser.error(f"--mesh needs {math.prod(sizes.values())} devices, and there are {jax.device_count()}")

    def report(number: int, loss: float) -> None:
        if jax.process_index() == 0:
            print(json.dumps({"step": number, "loss": loss}), flush=True)

    kind = AxisType.Explicit if options.explicit else AxisType.Auto
    with on_mesh(sizes, kind):
        train(Config(), options.steps, folder=options.checkpoints, every=options.every, report=report)


if __name__ == "__main__":
    main()
