"""LiteRT files that cannot be written or read. What can, the zoo and ``test_saving.py`` check."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ExportError
from plait.export.formats import litert
from plait.export.formats.table import FORMATS
from plait.export.program.program import program_of


class Net(plait.Module):
    def __init__(self):
        self.sorted = Sorted()

    def __call__(self, x):
        return self.sorted(jnp.tanh(x)) + 1


class Sorted(plait.Module):
    def __call__(self, x):
        return jnp.sort(x, axis=-1)


def test_each_operation_is_converted_alone_to_find_the_rejected_ones(monkeypatch, tmp_path):
    """E44, with a converter that takes no time."""

    def converted(tf, programs):
        for program in programs.values():
            shapes = {spec.name: jax.ShapeDtypeStruct((2, 4), spec.dtype) for spec in program.inputs}
            if " sort[" in str(jax.make_jaxpr(program.call)(program.weights, shapes)):
                raise NotImplementedError("there is no sort")

    monkeypatch.setattr(litert, "require", lambda *_, **__: None)
    monkeypatch.setattr(litert, "_converted", converted)
    with pytest.raises(ExportError, match=r"at +sorted\n +found +sort in sorted: NotImplementedError: there is no"):
        litert.write({"serve": program_of(Net(), ("batch", 4))}, tmp_path / "net.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
@pytest.mark.parametrize("content", [b"", b"no flatbuffer"])
def test_a_damaged_file_is_named(tmp_path, content):
    pytest.importorskip("tensorflow")
    place = tmp_path / "net.tflite"
    place.write_bytes(content)
    with pytest.raises(ExportError, match=r"the export cannot be read\n +at +.*net\.tflite\n"):
        FORMATS["litert"].describe(place)


@pytest.mark.slow
@pytest.mark.oracle
def test_the_constants_of_a_file_have_one_name_each_and_their_values(tmp_path):
    """Some get one name from the converter; what is computed has no values to read."""
    pytest.importorskip("tensorflow")
    model = plait.Sequential(plait.Linear(3, 4, rngs=plait.Rngs(0)), plait.Linear(4, 4, rngs=plait.Rngs(1)))
    model(jnp.zeros((1, 3)))
    place = tmp_path / "net.tflite"
    litert.write({"serve": program_of(model, (2, 3))}, place)
    described = FORMATS["litert"].describe(place)
    assert described.size == place.stat().st_size
    found = described.stored()
    names = [each.tensor.name for each in found]
    assert len({*names}) == len(names) > 1
    assert all(isinstance(name, str) and name for name in names)
    kernels = [each.read() for each in found if each.read().size in (12, 16)]
    for layer in model.layers:
        kernel = layer.kernel[...]
        assert any(each.shape == kernel.T.shape and (each == kernel.T).all() for each in kernels)
