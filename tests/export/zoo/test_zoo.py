"""What users export, in every format, each file run alone in a fresh process; broken files do not pass. (asks 11, 17)

Each model is written once for all formats. Each file then runs three sizes in one process that has nothing but what the
format needs, and its outputs are compared with those of the model itself, called eagerly.
"""

import importlib.util
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ExportError
from plait.export import prove, save
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


class TwoLayers(plait.Module):
    """Two layers, and weights that no other file of an export holds."""

    def __init__(self, seed):
        rngs = plait.Rngs(seed)
        self.hidden, self.head = plait.Linear(6, 8, rngs=rngs), plait.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(plait.tanh(self.hidden(x)))


X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, all_packages):
    """The same model with two sets of weights, in all formats."""
    folder = tmp_path_factory.mktemp("broken")
    return [save(TwoLayers(seed), folder / str(seed), inputs=("batch", 6), formats=FORMATS) for seed in (1, 2)]


def with_weights(place):
    """The files of an export that hold weights."""
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    names = ("model.onnx", "model.tflite", "weights.safetensors")
    return next(file for file in files if file.name in names or ".data-" in file.name)


def stored(content):
    """Where the kernel of the model lies in a file, and how: as it is, or transposed."""
    kernel = np.asarray(TwoLayers(1).head.kernel[...])
    for change in (lambda array: array, np.transpose):
        if (start := content.find(change(kernel).tobytes())) >= 0:
            return start, change
    raise AssertionError("the file does not hold the kernel")


def flipped(file, other):
    content = bytearray(file.read_bytes())
    start, change = stored(content)
    largest = int(np.abs(change(np.asarray(TwoLayers(1).head.kernel[...]))).argmax())
    content[start + 4 * largest + 3] ^= 0x80  # its sign
    file.write_bytes(content)


def cut(file, other):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def exchanged(file, other):
    content = bytearray(file.read_bytes())
    start, change = stored(content)
    wrong = change(np.asarray(TwoLayers(2).head.kernel[...])).tobytes()
    content[start : start + len(wrong)] = wrong
    file.write_bytes(content)


def of_another_model(file, other):
    for each in file.parent.iterdir() if ".data-" in file.name else [file]:
        shutil.copy(other.parent / each.name, each)


def verdict(place):
    """``passed``, ``failed`` or ``refused``."""
    expected = {"y": np.asarray(TwoLayers(1)(jnp.asarray(X)))}
    try:
        (report,), _ = prove(place, inputs={"x": X}, reference=lambda x: expected)
    except ExportError:
        return "refused"
    return "passed" if report.passed else "failed"


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("kind", FORMATS)
def test_a_broken_file_does_not_pass(kind, exported, tmp_path):
    """E36, E37: a flipped bit, half of a file, one weight or all of another model."""
    place, other = (written[kind] for written in exported)
    assert verdict(place) == "passed"
    for damage in (flipped, cut, exchanged, of_another_model):
        copy = tmp_path / damage.__name__ / place.name
        if place.is_dir():
            shutil.copytree(place, copy)
        else:
            copy.parent.mkdir()
            shutil.copy(place, copy)
        damage(with_weights(copy), with_weights(other))
        found = verdict(copy)
        sums = kind == "stablehlo" or (kind == "saved_model" and damage is not of_another_model)
        assert found == ("refused" if sums or damage is cut else "failed"), damage.__name__
