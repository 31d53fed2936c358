"""The exports of the demo: what becomes of each file."""

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.demo import exports
from plait.demo.digits import DigitsNet
from plait.demo.exports import FORMATS, iter_exports, remove_exports
from plait.errors import ExportError
from plait.export.formats.table import Format
from plait.export.validate import ExportReport

IMAGES = np.random.default_rng(0).uniform(size=(3, 8, 8, 1)).astype(np.float32)


@pytest.fixture
def model():
    model = DigitsNet(rngs=plait.Rngs(0))
    model.eval()
    return model


def outcomes(model, folder, **replacements):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in replacements.items():
            patch.setattr(exports, name, value)
        return list(iter_exports(model, folder, IMAGES))


class Row(Format):
    """A format whose file cannot do more than write a word, or fail."""

    @property
    def code(self):
        return self

    def write(self, programs, path, options):
        assert options.overwrite
        if self.title == "Broken":
            raise ExportError("no such operation", at="conv1", found="x", expected="y", do="z")
        path.write_text("saved")


def one_format(title="Some", packages=(), extra=None):
    return {title: Row(title.lower(), title, "a", (), packages, extra)}


def reported(difference):
    def validate(kind, path, x, expected, *, tolerance):
        return ExportReport(kind, str(path), difference, difference, difference <= tolerance, "1 example")

    return validate


@pytest.mark.slow
def test_the_expected_numbers_are_those_of_the_model(model, tmp_path):
    seen = {}

    def validate(kind, path, x, expected, *, tolerance):
        seen.update(x=x, expected=expected)
        return reported(0.0)(kind, path, x, expected, tolerance=tolerance)

    outcomes(model, tmp_path, FORMATS=one_format(), validate_export=validate)
    np.testing.assert_array_equal(seen["x"], IMAGES)
    np.testing.assert_allclose(seen["expected"], model(jnp.asarray(IMAGES)), atol=1e-6)


def test_an_export_that_agrees_is_ok(model, tmp_path):
    (outcome,) = outcomes(model, tmp_path / "new", FORMATS=one_format(), validate_export=reported(2e-6))
    assert (outcome.title, outcome.status) == ("Some", "ok")
    assert outcome.text == "max |difference| 2.0e-06 over 3 images"
    assert (tmp_path / "new" / "a").read_text() == "saved"


def test_an_export_that_differs_failed(model, tmp_path):
    (outcome,) = outcomes(model, tmp_path, FORMATS=one_format(), validate_export=reported(2e-4))
    assert outcome.status == "failed"
    assert "2.0e-04" in outcome.text
    assert "more than 0.0001" in outcome.text


def test_an_export_that_cannot_be_written_failed_and_the_others_go_on(model, tmp_path):
    formats = one_format("Broken") | one_format()
    first, second = outcomes(model, tmp_path, FORMATS=formats, validate_export=reported(0.0))
    assert (first.title, first.status, second.status) == ("Broken", "failed", "ok")
    assert "no such operation" in first.text


def test_a_missing_package_skips_its_export_and_names_the_extra(model, tmp_path):
    formats = one_format(packages=("json", "no_such_package"), extra="onnx")
    (outcome,) = outcomes(model, tmp_path, FORMATS=formats)
    assert (outcome.status, outcome.text) == ("skipped", "pip install 'plait[onnx]'")
    assert list(tmp_path.iterdir()) == []


def test_only_the_exports_are_removed(tmp_path):
    for row in FORMATS.values():
        (tmp_path / row.place).mkdir() if row.mark else (tmp_path / row.place).write_text("")
    (tmp_path / "mine").write_text("")
    remove_exports(tmp_path)
    remove_exports(tmp_path / "missing")
    assert [place.name for place in tmp_path.iterdir()] == ["mine"]
