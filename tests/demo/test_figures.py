"""The figures are drawn, and show the numbers that they were given."""

import numpy as np
import pytest

from plait.demo.figures import save_confusion, save_curves
from tests.sampling import slow_but

PNG = b"\x89PNG\r\n\x1a\n"

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("epochs", slow_but([1], [0, 1, 3]))
def test_curves_are_a_picture_however_many_epochs_there_are(tmp_path, epochs):
    names = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
    save_curves(tmp_path / "a.png", [{"epoch": i, **dict.fromkeys(names, 0.5)} for i in range(epochs)])
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_confusions_are_a_picture(tmp_path):
    labels = np.array([0, 1, 2, 2])
    save_confusion(tmp_path / "a.png", labels, np.array([0, 1, 2, 1]), classes=3)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
