"""Classify handwritten digits with a small convolutional network, and export it.

    python examples/digits.py --epochs 15

Started again, it goes on from the newest checkpoint in its folder. The data is scikit-learn's: 1,797 images of 8 × 8
pixels. It needs ``pip install 'plait[demo,tensorflow,onnx]'``; with ``--formats stablehlo``, ``plait[demo]`` is enough.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import plait
from plait.checkpoint import Checkpoints, Keep
from plait.training import Batches, JsonLines, fit


class ConvNet(plait.Module):
    """Two convolutions, each with batch normalization, and a linear layer. ``(batch, 8, 8, 1)`` → ``(batch, 10)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.conv1 = plait.Conv(1, width, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = plait.BatchNorm(width, rngs=rngs)
        self.conv2 = plait.Conv(width, 2 * width, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = plait.BatchNorm(2 * width, rngs=rngs)
        self.dropout = plait.Dropout(0.3, rngs=rngs)
        self.out = plait.Linear(4 * 2 * width, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = plait.relu(self.norm1(self.conv1(x)))
        x = plait.max_pool(x, (2, 2), strides=(2, 2))
        x = plait.relu(self.norm2(self.conv2(x)))
        x = plait.max_pool(x, (2, 2), strides=(2, 2))
        return self.out(self.dropout(x.reshape(x.shape[0], -1)))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images in [0, 1], ``(1797, 8, 8, 1)``, and their labels, in an order that mixes the writers."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[order].astype(np.int32)


def batches(images: np.ndarray, labels: np.ndarray, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch in random order; an incomplete last batch is dropped."""
    order = np.random.default_rng(seed).permutation(len(images))
    for start in range(0, len(images) - size + 1, size):
        rows = order[start : start + size]
        yield images[rows], labels[rows]


def loss_of(model: ConvNet, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@plait.jit
def accuracy(model: ConvNet, x: jax.Array, y: jax.Array) -> jax.Array:
    return (model(x).argmax(-1) == y).mean()


@plait.jit(donate=True)
def train_step(model: ConvNet, optimizer: plait.Optimizer, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    loss, grads = plait.value_and_grad(loss_of)(model, *batch)
    optimizer.update(model, grads)
    return loss


def draw(log: Path, file: Path) -> None:
    """The loss in training, and the accuracy on held-out images."""
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in log.read_text().splitlines()]
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "eval/accuracy"), strict=True):
        found = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*found, strict=True))
        axes.set(title=name, xlabel="step")
    figure.savefig(file)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, draw the curves and export; return the accuracy on the 357 held-out images, and what was proven."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--folder", type=Path, default=Path("runs/digits"))
    parser.add_argument("--formats", nargs="+", default=["stablehlo", "saved_model", "onnx", "litert"])
    options = parser.parse_args(argv)

    images, labels = digits()
    train, test = (images[:1440], labels[:1440]), (images[1440:], labels[1440:])
    data = Batches(lambda epoch: batches(*train, 48, seed=epoch))
    steps = 1440 // 48  # of an epoch
    model = ConvNet(options.width, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(optax.exponential_decay(3e-3, steps, 0.85)), wrt=plait.Param)

    def evaluate() -> dict[str, jax.Array]:
        model.eval()
        found = accuracy(model, *map(jnp.asarray, test))
        model.train()
        return {"accuracy": found}

    with Checkpoints(options.folder / "checkpoints", keep=Keep(last=2)) as checkpoints:
        fitted = fit(
            train_step,
            {"model": model, "optimizer": optimizer},
            data,
            steps=options.epochs * steps,
            checkpoints=checkpoints,
            save_every=steps,
            evaluate=evaluate,
            evaluate_every=steps,
            log_every=steps,
            loggers=[JsonLines(options.folder / "metrics.jsonl")],
        )
    if fitted.exit_status:  # Ctrl-C or SIGTERM
        raise SystemExit(fitted.exit_status)
    draw(options.folder / "metrics.jsonl", options.folder / "curves.png")

    model.eval()
    folder = options.folder / "exports"
    with jax.default_matmul_precision("highest"):  # accelerators multiply less precisely than the formats' runtimes
        plait.export.save(model, folder, inputs=("batch", 8, 8, 1), formats=options.formats, overwrite=True)
        reports, _ = plait.export.prove(folder, inputs={"x": test[0]}, reference=model)
    found = {"accuracy": float(evaluate()["accuracy"]), "proven": {each.kind: each.passed for each in reports}}
    for each in reports:
        print(f"{each.path}: {'ok' if each.passed else 'WRONG'}, at most {each.max_abs_difference:.1e} from the model")
    print(f"accuracy on held-out images: {found['accuracy']:.3f}")
    return found


if __name__ == "__main__":
    raise SystemExit(not all(main()["proven"].values()))
