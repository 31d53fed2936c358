"""The images of the demo, and the order in which they are learned."""

import numpy as np
import pytest

from plait.demo.images import SIZE, Images, batches, load_images, shifted

COUNT = 10


@pytest.fixture
def images():
    """Images whose one bright pixel, in the middle, is as bright as their label."""
    pixels = np.zeros((COUNT, SIZE, SIZE, 1), np.float32)
    pixels[:, 4, 4, 0] = np.arange(COUNT)
    return Images(pixels, np.arange(COUNT, dtype=np.int32))


def test_the_split_is_fixed_disjoint_and_stratified():
    pytest.importorskip("sklearn")
    train, test = load_images()
    assert (len(train), len(test)) == (1437, 360)
    assert train.pixels.shape == (1437, 8, 8, 1)
    assert (train.pixels.dtype, train.labels.dtype) == (np.float32, np.int32)
    assert (train.pixels.min(), train.pixels.max()) == (0, 1)
    shares = [np.bincount(part.labels, minlength=10) / len(part) for part in (train, test)]
    np.testing.assert_allclose(*shares, atol=0.003)
    assert test.labels[:10].tolist() == load_images()[1].labels[:10].tolist()


def test_an_epoch_takes_each_image_at_most_once(images):
    labels = np.concatenate([batch.labels for batch in batches(images, 3, seed=0, epoch=1)])
    assert len(labels) == 9
    assert len(set(labels.tolist())) == 9


def test_images_and_labels_stay_together(images):
    for batch in batches(images, 4, seed=0, epoch=1):
        np.testing.assert_array_equal(batch.pixels.sum((1, 2, 3)), batch.labels.astype(np.float32))


def test_the_order_depends_on_seed_and_epoch_alone(images):
    def order(seed, epoch):
        return [batch.labels.tolist() for batch in batches(images, 5, seed=seed, epoch=epoch)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_images_move_by_at_most_one_pixel(images):
    moved = shifted(images.take(np.full(500, 3)), np.random.default_rng(0))
    places = {(int(row), int(column)) for _, row, column, _ in np.argwhere(moved.pixels)}
    assert places == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}
    assert moved.pixels.shape == (500, SIZE, SIZE, 1)
    assert moved.pixels.dtype == np.float32
