"""``plait demo digits``: trains a convolutional network on handwritten digits, and exports it.

The first half of this file is what a user of plait would write: a network, a training step, an evaluation. The second
half runs them, with a checkpoint after each epoch, figures and exports.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..core.objects.module import Module
from ..core.objects.rngs import Rngs
from ..core.objects.variable_kinds import Param
from ..errors import ArgumentError, MissingDependencyError
from ..nn.activations import relu
from ..nn.conv import Conv
from ..nn.dropout import Dropout
from ..nn.linear import Linear
from ..nn.norm import BatchNorm
from ..nn.pooling import max_pool
from ..training.metrics import Accuracy, Average, MultiMetric
from ..training.optimizer import Optimizer
from ..training.progress import Progress, progress
from ..transforms.autodiff import value_and_grad
from ..transforms.jit.function import jit
from .exports import EXPORTS, FORMATS, Outcome, iter_exports, remove_exports
from .figures import CONFUSION, CURVES, save_confusion, save_curves
from .images import CLASSES, SIZE, Images, batches, load_images
from .runs import Run
from .table import print_table

LEARNING_RATE = 2e-3
DECAY = 0.85  # of the learning rate, per epoch


class DigitsNet(Module):
    """Two convolutions and two dense layers, for images of 8 × 8 pixels.

    Shapes:
        x: ``(batch, 8, 8, 1)``. Returns logits, ``(batch, 10)``.
    """

    def __init__(self, *, rngs: Rngs) -> None:
        self.conv1 = Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = BatchNorm(32, momentum=0.9, rngs=rngs)
        self.conv2 = Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = BatchNorm(64, momentum=0.9, rngs=rngs)
        self.hidden = Linear(64 * (SIZE // 2) ** 2, 128, rngs=rngs)
        self.dropout = Dropout(0.3, rngs=rngs)
        self.logits = Linear(128, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = relu(self.norm1(self.conv1(x)))
        x = relu(self.norm2(self.conv2(x)))
        x = max_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = relu(self.hidden(self.dropout(x)))
        return self.logits(self.dropout(x))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean loss of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jit
def train_step(model: DigitsNet, optimizer: Optimizer, metrics: MultiMetric, x: jax.Array, labels: jax.Array) -> None:
    """Train on one batch; all changes are in place."""

    def loss_of(model: DigitsNet) -> tuple[jax.Array, jax.Array]:
        logits = model(x)
        return cross_entropy(logits, labels), logits

    (loss, logits), gradients = value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, gradients)
    metrics.update(loss=loss, logits=logits, labels=labels)


@jit
def evaluate(model: DigitsNet, x: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss on a set of images, and the predicted digits."""
    logits = model(x)
    return cross_entropy(logits, labels), jnp.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of ``plait demo digits``."""

    output: Path = Path("runs/digits")
    epochs: int = 15
    batch_size: int = 32
    seed: int = 0
    resume: bool = False
    export: bool = True


def run(options: Options) -> int:
    """Train, evaluate, plot and export. Returns the exit status: 1 if an export's output differs from the model's.

    Raises:
        MissingDependencyError: scikit-learn, which brings the images, is not installed.
        ArgumentError: an option has an invalid value.
        CheckpointError: the run cannot resume from its checkpoints.
    """
    train, test = load_images()
    _check_batch_size(options, train)
    learner = Learner(options, steps_per_epoch=len(train) // options.batch_size)
    folder = Run(options.output, {"seed": options.seed, "batch_size": options.batch_size})
    done = _resume(folder, learner, options) if options.resume else 0
    folder.start(done, (CURVES, CONFUSION))
    _remove_results(options.output)

    try:
        seconds = _train(learner, folder, train, test, done, options)
    except KeyboardInterrupt:
        print(f"\nplait: interrupted; resume with: {_command(options)}", file=sys.stderr)
        return 130

    learner.model.eval()
    _, predictions = evaluate(learner.model, *test.on_device())
    right = int((np.asarray(predictions) == test.labels).sum())
    figures = _draw(folder, test.labels, np.asarray(predictions))
    exports = _export(learner, options.output / EXPORTS, test) if options.export else []
    print_table(
        "plait demo digits",
        [
            ("training", f"{options.epochs} epochs, {len(train):,} images, {seconds:.1f} s" + _since(done)),
            ("test accuracy", f"{right / len(test):.2%}: {right} of {len(test)} images"),
            ("figures", figures),
            *((each.title, _in_words(each)) for each in exports),
            *([] if options.export else [("exports", "skipped: --no-export")]),
            ("output", str(options.output)),
        ],
    )
    failed = [each for each in exports if each.status == "failed"]
    for each in failed:
        print(f"plait: the export {each.title} failed: {each.text}", file=sys.stderr)
    return 1 if failed else 0


class Learner:
    """All objects that training changes, made from the options alone."""

    def __init__(self, options: Options, *, steps_per_epoch: int) -> None:
        # The rate depends on the step and not on the number of epochs, so a finished run can be extended.
        rate = optax.exponential_decay(LEARNING_RATE, transition_steps=steps_per_epoch, decay_rate=DECAY)
        self.model = DigitsNet(rngs=Rngs(options.seed))
        self.optimizer = Optimizer(self.model, optax.adamw(rate), wrt=Param)
        self.metrics = MultiMetric(loss=Average("loss"), accuracy=Accuracy())
        self.steps_per_epoch = steps_per_epoch

    def objects(self) -> dict[str, Any]:
        """The contents of a checkpoint."""
        return {"model": self.model, "optimizer": self.optimizer, "metrics": self.metrics}


def _train(learner: Learner, folder: Run, train: Images, test: Images, done: int, options: Options) -> float:
    """Train the epochs after ``done``; return the time in seconds."""
    begin = time.perf_counter()
    steps = learner.steps_per_epoch
    with progress("training", options.epochs * steps, done=done * steps) as show:
        for epoch in range(done + 1, options.epochs + 1):
            row = {"epoch": epoch, "step": epoch * steps, **_train_epoch(learner, train, test, epoch, options, show)}
            folder.end_epoch(row, learner.objects())
            show.say(_line(row, options.epochs))
    return time.perf_counter() - begin


def _train_epoch(
    learner: Learner, train: Images, test: Images, epoch: int, options: Options, show: Progress
) -> dict[str, float]:
    begin = time.perf_counter()
    learner.model.train()
    learner.metrics.reset()
    for batch in batches(train, options.batch_size, seed=options.seed, epoch=epoch):
        train_step(learner.model, learner.optimizer, learner.metrics, *batch.on_device())
        show.advance()
    trained = learner.metrics.compute()
    learner.model.eval()
    loss, predictions = evaluate(learner.model, *test.on_device())
    learner.model.train()
    return {
        "train_loss": float(trained["loss"]),
        "train_accuracy": float(trained["accuracy"]),
        "test_loss": float(loss),
        "test_accuracy": float((np.asarray(predictions) == test.labels).mean()),
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _line(row: Mapping[str, Any], epochs: int) -> str:
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  train loss {row['train_loss']:.4f} {row['train_accuracy']:7.2%}"
        f"  test loss {row['test_loss']:.4f} {row['test_accuracy']:7.2%}"
        f"  {row['seconds']:.1f} s"
    )


def _check_batch_size(options: Options, train: Images) -> None:
    if options.batch_size > len(train):
        raise ArgumentError(
            "a batch cannot be larger than the training set",
            found=f"--batch-size {options.batch_size}",
            expected=f"at most {len(train)}",
            do="choose a smaller one, for example --batch-size 32",
        )


def _resume(folder: Run, learner: Learner, options: Options) -> int:
    """The number of completed epochs. Writes nothing."""
    done = folder.resume(learner.objects())
    if done > options.epochs:
        raise ArgumentError(
            "the run has already trained more epochs than requested",
            at=str(folder.checkpoints),
            found=f"{done} epochs done, --epochs {options.epochs}",
            expected=f"--epochs {done} or more",
            do="request more epochs, or omit --resume to start from the beginning",
        )
    for place in folder.passed_over:
        print(f"plait: warning: skipped a damaged checkpoint: {place}", file=sys.stderr)
    where = f"resuming after epoch {done}" if done else "no checkpoint to resume from: starting from the beginning"
    print(f"{where} ({folder.checkpoints})", flush=True)
    return done


def _remove_results(output: Path) -> None:
    """Remove an earlier run's files: if this run stopped early, they would look like its own."""
    for name in (CURVES, CONFUSION):
        (output / name).unlink(missing_ok=True)
    remove_exports(output / EXPORTS)


def _draw(folder: Run, labels: np.ndarray, predictions: np.ndarray) -> str:
    try:
        save_curves(folder.folder / CURVES, folder.rows)
        save_confusion(folder.folder / CONFUSION, labels, predictions, classes=CLASSES)
    except MissingDependencyError as error:
        outcome = Outcome("figures", "skipped", str(error.parts["do"]))
        print(f"figures: {_in_words(outcome)}", flush=True)
        return _in_words(outcome)
    return f"{CURVES}, {CONFUSION}"


def _export(learner: Learner, folder: Path, test: Images) -> list[Outcome]:
    outcomes = []
    with progress("exporting", len(FORMATS)) as show:
        for outcome in iter_exports(learner.model, folder, test.pixels):
            outcomes.append(outcome)
            show.advance()
            show.say(f"{outcome.title}: {_in_words(outcome)}")
    return outcomes


def _in_words(outcome: Outcome) -> str:
    if outcome.status == "skipped":
        return f"skipped; to enable it: {outcome.text}"
    return f"{outcome.status}: {outcome.text.splitlines()[0]}"


def _since(done: int) -> str:
    return f" for those after epoch {done}" if done else ""


def _command(options: Options) -> str:
    words = ["plait", "demo", "digits", "--resume", "--output", str(options.output)]
    words += ["--epochs", str(options.epochs), "--batch-size", str(options.batch_size), "--seed", str(options.seed)]
    return shlex.join(words if options.export else [*words, "--no-export"])
