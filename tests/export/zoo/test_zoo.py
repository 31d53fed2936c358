"""What users export, in every format, each file run alone in a fresh process. (asks 11, 17)

Each model is written once for all formats. Each file then runs three sizes in one process that has nothing but what the
format needs, and its outputs are compared with those of the model itself, called eagerly.
"""

import importlib.util

import pytest

from plait.errors import ExportError
from plait.export import prove
from tests.export.zoo.models import FORMATS, ZOO, Eager

# Every second model is proved by `make slow`, the others by the nox session `long`.
every_model = pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=entry.name, marks=[pytest.mark.long] * (n % 2)) for n, entry in enumerate(ZOO)],
)
REFUSED = [(entry, kind) for entry in ZOO for kind in entry.refused]


@pytest.fixture(scope="module", autouse=True)
def all_packages():
    pytest.importorskip("tensorflow")
    pytest.importorskip("jax2onnx")


def need(entry):
    for package in entry.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.slow
@pytest.mark.oracle
@every_model
def test_each_file_runs_alone_with_the_numbers_of_the_model(entry, tmp_path):
    """E32, E33, E37: in every format that can hold the model, at three sizes.

    Integers are equal. Numbers of 32 bits are at most 256 roundings of the largest one apart (3e-5 of it), those of 16
    bits at most 8 (0.06 of it in bfloat16, 0.008 in float16).
    """
    need(entry)
    eager, examples = Eager(entry), entry.examples()
    assert len(examples) == 3
    written = entry.save(tmp_path / "model", entry.formats)
    assert list(written) == entry.formats
    reports, _ = prove(tmp_path / "model", inputs=examples, reference=eager)
    assert [report.kind for report in reports] == entry.formats
    for report in reports:
        assert report.passed, report


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        pytest.param(entry, kind, id=f"{entry.name}-{kind}", marks=[pytest.mark.long] * (kind == "litert"))
        for entry, kind in REFUSED
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name(entry, kind, tmp_path):
    """E32: the error names the operation, and nothing is written in any format."""
    need(entry)
    with pytest.raises(ExportError, match=entry.refused[kind]):
        entry.save(tmp_path / "model", ["stablehlo", kind])
    assert list(tmp_path.iterdir()) == []


def test_the_zoo_is_large_and_exceptions_are_few():
    assert len({entry.name for entry in ZOO}) == len(ZOO) >= 24
    assert len(REFUSED) <= len(ZOO) * len(FORMATS) / 20
    assert all(not any(kind in entry.refused for entry in ZOO) for kind in ("stablehlo", "saved_model"))
    free = [any(isinstance(size, str) for spec in entry.inputs for size in spec.shape) for entry in ZOO]
    assert free.count(False) == 1  # the cache of fixed size


# Broken files ----------------------------------------------------------------------------------------------------
