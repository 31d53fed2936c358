"""One table of formats: a row and a file are all that a new format needs."""

import sys

import numpy as np
import pytest

import plait
from plait.errors import ArgumentError
from plait.export import describe_exports, prove, save
from plait.export.formats.table import FORMATS
from tests.export.formats import toy_format


@pytest.fixture
def toy(monkeypatch):
    """A format that is planted: its row in the table, and its file where those of formats lie."""
    monkeypatch.setitem(FORMATS, "toy", toy_format.ROW)
    monkeypatch.setitem(sys.modules, "plait.export.formats.toy", toy_format)
    return toy_format


@pytest.fixture
def model():
    return plait.Linear(4, 2, rngs=plait.Rngs(0))


@pytest.mark.slow
def test_a_new_row_is_written_described_and_proven(toy, model, tmp_path):
    """E32, E37."""
    written = save(model, tmp_path / "model", inputs=("batch", 4), formats=["toy", "stablehlo"])
    assert written == {"toy": tmp_path / "model" / "model.toy", "stablehlo": tmp_path / "model" / "stablehlo"}
    described = {each.kind: each for each in describe_exports(tmp_path / "model")}
    assert [(each.name, each.shape) for each in described["toy"].weights] == [("bias", (2,)), ("kernel", (4, 2))]
    assert [each.kind for each in describe_exports(written["toy"])] == ["toy"]
    reports, _ = prove(tmp_path / "model")
    assert {report.kind: report.passed for report in reports} == {"stablehlo": True, "toy": True}


def test_a_new_row_is_run_and_not_believed(toy, model, tmp_path):
    """E37: other numbers in its file are found out."""
    written = save(model, tmp_path / "model", inputs=("batch", 4), formats=["toy", "stablehlo"])
    with open(written["toy"], "wb") as file:
        np.savez(file, kernel=np.zeros((4, 2), np.float32), bias=np.zeros(2, np.float32))
    reports, _ = prove(tmp_path / "model")
    assert {report.kind: report.passed for report in reports} == {"stablehlo": True, "toy": False}


def test_a_name_that_no_row_has_is_refused(model, tmp_path):
    """E32."""
    with pytest.raises(ArgumentError, match=r"found +'toy'\n +expected +some of 'stablehlo', 'saved_model'"):
        save(model, tmp_path / "model", inputs=("batch", 4), formats="toy")


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_has_its_file(name):
    row = FORMATS[name]
    assert row.name == name == row.code.__name__.rpartition(".")[2]
    assert all(callable(getattr(row.code, function)) for function in ("write", "describe", "run"))
    assert {"plait", "flax"} <= {*row.blocked}
    assert {"jax", "jaxlib"} <= {*row.blocked} or name == "stablehlo"
