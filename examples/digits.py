"""Classify handwritten digits with a small convolutional network, and export it.

    python examples/digits.py --epochs 15

Started again, it goes on from the newest checkpoint in its folder. The data is in scikit-learn: 1,797 images of 8 × 8
pixels. It needs ``pip install 'plait[demo,tensorflow,onnx]'``; with ``--formats stablehlo``, ``plait[demo]`` is enough.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow, and the processes that run the exports, say less
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

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
        self.norm1 = plait.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.conv2 = plait.Conv(width, 2 * width, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = plait.BatchNorm(2 * width, momentum=0.9, rngs=rngs)
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


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Augmentation: each image is moved by up to one pixel in each direction."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    down, right = rng.integers(0, 3, (2, len(images), 1))
    pixels, image = np.arange(8), np.arange(len(images))[:, None, None]
    return padded[image, (down + pixels)[:, :, None], (right + pixels)[:, None, :]]


def batches(
    images: np.ndarray, labels: np.ndarray, size: int, seed: int, *, augment: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch in random order, of shifted images if asked; an incomplete last batch is dropped."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    for start in range(0, len(images) - size + 1, size):
        rows = order[start : start + size]
        yield shifted(images[rows], rng) if augment else images[rows], labels[rows]


def loss_of(model: ConvNet, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (logits.argmax(-1) == y).mean()


@plait.jit
def predict(model: ConvNet, x: jax.Array) -> jax.Array:
    return model(x).argmax(-1)


@plait.jit(donate=True)
def train_step(model: ConvNet, optimizer: plait.Optimizer, batch: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
    (loss, accuracy), grads = plait.value_and_grad(loss_of, has_aux=True)(model, *batch)
    optimizer.update(model, grads)
    return {"loss": loss, "accuracy, shifted and with dropout": accuracy}


def in_the_terminal(images: np.ndarray, captions: Sequence[str]) -> str:
    """Images side by side in grey blocks, each with a caption."""
    shades = np.array([2 * shade for shade in " ░▒▓█"])
    rows = shades[np.rint(4 * images[..., 0]).astype(int)].transpose(1, 0, 2)  # (row, image, column)
    lines = ["  ".join("".join(pixels) for pixels in row) for row in rows]
    return "\n".join([*lines, "  ".join(f"{caption:^16}" for caption in captions)])


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
    print(f"{len(images):,} handwritten digits of 8 × 8 pixels, from scikit-learn: no data is downloaded.")
    print(f"{options.epochs} epochs, then exports that are run and compared: a minute or two on two cores.\n")
    train, test = (images[:1440], labels[:1440]), (images[1440:], labels[1440:])
    data = Batches(lambda epoch: batches(*train, 48, seed=epoch))
    steps = 1440 // 48  # of an epoch
    model = ConvNet(options.width, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(optax.exponential_decay(3e-3, steps, 0.85)), wrt=plait.Param)

    def evaluate() -> dict[str, jax.Array]:
        model.eval()
        predicted = predict(model, jnp.asarray(test[0]))
        model.train()
        return {"accuracy": (predicted == test[1]).mean()}

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
    page = plait.explore(model, jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float32), to=options.folder / "model.html")
    predicted = np.asarray(predict(model, jnp.asarray(test[0])))
    found = {"accuracy": float((predicted == test[1]).mean()), "proven": {each.kind: each.passed for each in reports}}

    first = test[0][:5], [f"a {label}: {guess}" for label, guess in zip(test[1], predicted[:5], strict=False)]
    print("\nHeld-out digits, what they are, and what the network says:\n")
    print(in_the_terminal(*first))
    print(f"\nAccuracy on the {len(predicted)} held-out images: {found['accuracy']:.3f}")
    for each in reports:
        print(f"{each.path}: {'ok' if each.passed else 'WRONG'}, at most {each.max_abs_difference:.1e} from the model")
    print(f"\nNext: open {page} (the model) and {options.folder / 'curves.png'} (the training);")
    print("read docs/quickstart.md; or run another program of docs/examples.md, such as examples/gpt.py.")
    return found


if __name__ == "__main__":
    raise SystemExit(not all(main()["proven"].values()))
