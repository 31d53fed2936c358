"""scikit-learn's handwritten digits: 1,797 real images of 8 × 8 pixels, with a fixed split."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ..ground.dependencies import require

CLASSES = 10
SIZE = 8  # pixels along each side
TEST_SHARE = 0.2
SPLIT_SEED = 0  # independent of the seed of a run, so the split is always the same


@dataclasses.dataclass(frozen=True)
class Images:
    """Images ``(count, 8, 8, 1)`` from 0 to 1, float32, and their digits ``(count,)``, int32."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Images:
        """These images, in this order."""
        return Images(self.pixels[indices], self.labels[indices])

    def on_device(self) -> tuple[jax.Array, jax.Array]:
        """Pixels and labels as JAX arrays."""
        return jnp.asarray(self.pixels), jnp.asarray(self.labels)


def load_images() -> tuple[Images, Images]:
    """1,437 images for training and 360 for testing, stratified by digit.

    Raises:
        MissingDependencyError: scikit-learn, which brings the images, is not installed.
    """
    purpose = "to load the handwritten digits"
    datasets = require("sklearn.datasets", extra="demo", purpose=purpose)
    selection = require("sklearn.model_selection", extra="demo", purpose=purpose)
    digits = datasets.load_digits()
    everything = Images((digits.images / 16).astype(np.float32)[..., None], digits.target.astype(np.int32))
    train, test = selection.train_test_split(
        np.arange(len(everything)), test_size=TEST_SHARE, stratify=everything.labels, random_state=SPLIT_SEED
    )
    return everything.take(train), everything.take(test)


def batches(images: Images, batch_size: int, *, seed: int, epoch: int) -> list[Images]:
    """The batches of one epoch, with randomly shifted images.

    They depend only on ``seed`` and ``epoch``, so an interrupted run resumes with the same batches. Images that do not
    fill a batch are dropped, different ones in each epoch.
    """
    numbers = np.random.default_rng([seed, epoch])
    order = numbers.permutation(len(images))
    moved = shifted(images, numbers)
    whole = len(images) // batch_size * batch_size
    return [moved.take(order[start : start + batch_size]) for start in range(0, whole, batch_size)]


def shifted(images: Images, numbers: np.random.Generator) -> Images:
    """Shift each image by at most one pixel in each direction, most often by none; fill the edge with zeros."""
    padded = np.pad(images.pixels, ((0, 0), (1, 1), (1, 1), (0, 0)))
    corners = numbers.choice(3, size=(len(images), 2), p=[0.2, 0.6, 0.2])
    pixels = [
        image[row : row + SIZE, column : column + SIZE] for image, (row, column) in zip(padded, corners, strict=True)
    ]
    return Images(np.stack(pixels), images.labels)
