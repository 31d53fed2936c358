"""What a format cannot express is listed by layer before anything is written. (rule E44)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ExportError
from plait.export import JaxModule, save
from plait.export.program.program import program_of
from plait.export.program.unsupported import SHOWN, Operation, refusal, unsupported_operations


class Fourier(plait.Module):
    def __call__(self, x):
        return jnp.fft.ifft(jnp.fft.fft(x)).real


class Sorted(plait.Module):
    def __call__(self, x):
        return jnp.sort(x, axis=-1)


class Inverse(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.eye(4) * 2)

    def __call__(self, x):
        return x @ jnp.linalg.inv(self.w[...])


class Net(plait.Module):
    """Layers in a list, one of them inside another, one of a kind twice."""

    def __init__(self, *inner):
        self.first = plait.Linear(4, 4, rngs=plait.Rngs(0))
        self.layers = plait.List(inner)

    def __call__(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def refusing(*names):
    """A converter that has never heard of some operations, at any depth."""

    def convert(function, shapes):
        text = str(jax.make_jaxpr(function)(*shapes))
        for name in names:
            if f" {name}[" in text or f" {name} " in text:
                raise NotImplementedError(f"there is no {name}\nand more about it")

    return convert


def test_each_operation_is_named_with_all_its_layers():
    program = program_of(Net(Sorted(), Net(Sorted()), Fourier()), ("batch", 4))
    found = unsupported_operations(program, refusing("sort", "fft", "tan"))
    assert [(each.name, each.layers) for each in found] == [
        ("sort", ("layers[0]", "layers[1].layers[0]")),
        ("fft", ("layers[2]",)),
    ]
    assert str(found[1]) == "fft in layers[2]: NotImplementedError: there is no fft"


def test_all_is_well_with_a_program_that_can_be_converted():
    assert unsupported_operations(program_of(Net(Sorted()), ("batch", 4)), refusing("fft")) == []


def test_operations_inside_loops_branches_and_calls_are_found_and_the_loop_is_not_blamed():
    def function(params, x):
        def step(carry, row):
            return carry, jax.lax.cond(row.sum() > 0, jnp.sin, jax.jit(lambda row: jnp.sort(row)), row)

        return jax.lax.scan(step, 0.0, x)[1]

    program = program_of(({}, function), ("n", 4))
    assert {each.name for each in unsupported_operations(program, refusing("sort"))} >= {"sort"}
    assert next(iter(unsupported_operations(program, refusing("sin")))).name == "sin"
    assert [each.name for each in unsupported_operations(program, refusing("scan"))] == ["scan"]


def test_values_without_a_dtype_are_left_to_their_neighbours():
    """A token, which orders what a program does, is no input of a function."""

    def function(params, x):
        token = jax.lax.create_token(x) if hasattr(jax.lax, "create_token") else None
        return jnp.sort(x if token is None else jax.lax.optimization_barrier((x, token))[0])

    program = program_of(({}, function), ("n",))
    assert [each.name for each in unsupported_operations(program, refusing("sort"))] == ["sort"]


def test_random_keys_are_left_to_their_neighbours():
    def function(params, x):
        return jnp.sort(x + jax.random.uniform(jax.random.fold_in(jax.random.key(x.sum().astype(int)), 1), (4,)))

    def convert(function, shapes):
        made = [*shapes, *jax.tree.leaves(jax.eval_shape(function, *shapes))]
        assert not any(jnp.issubdtype(each.dtype, jax.dtypes.extended) for each in made)
        refusing("sort")(function, shapes)

    program = program_of(({}, function), (4,))
    assert [each.name for each in unsupported_operations(program, convert)] == ["sort"]


def test_sizes_that_a_model_cannot_take_are_passed_over():
    model = plait.Conv(1, 1, (5,), padding="VALID", rngs=plait.Rngs(0))
    program = program_of(({}, lambda params, x: jnp.sort(model(x), axis=1)), ("batch", "length", 1))
    assert [each.name for each in unsupported_operations(program, refusing("sort"))] == ["sort"]


def test_a_refusal_shows_the_operations_or_the_converter_s_own_words():
    operations = unsupported_operations(program_of(Net(Sorted()), ("batch", 4)), refusing("sort"))
    shown = str(refusal("no", None, operations * (SHOWN + 3), expected="less"))
    assert "layers[0]" in shown
    assert "and 3 more" in shown
    assert "more" not in str(refusal("no", None, operations * SHOWN, expected="all"))
    assert "as_list" not in shown
    assert "plait.as_list(model)" in str(refusal("no", None, [Operation("scan", ("blocks",), "no")], expected="less"))
    assert len(refusal("no", ValueError("x" * 400), [], expected="less").parts["found"].partition(";")[0]) == 300
    assert "fix the sizes" in str(refusal("no", ValueError("a size"), [], expected="less"))
    assert "fix the sizes" not in str(refusal("no", ValueError("a size"), [], expected="less", free=False))


# The converters themselves -------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("kind", "layer", "operation"),
    [
        ("onnx", Fourier, "convert_element_type"),
        pytest.param("litert", Fourier, "fft", marks=pytest.mark.slow),
        pytest.param("litert", Sorted, "sort", marks=pytest.mark.slow),
        pytest.param("saved_model", Inverse, "lu", marks=pytest.mark.slow),
    ],
)
def test_save_refuses_by_layer_and_writes_nothing(tmp_path, kind, layer, operation):
    pytest.importorskip("jax2onnx" if kind == "onnx" else "tensorflow")
    model = Net(plait.Linear(4, 4, rngs=plait.Rngs(0)), layer(), layer())
    with pytest.raises(ExportError, match=rf"(?s)at +layers\[1\].*{operation} in layers\[1\]"):
        save(model, tmp_path / "net", inputs=("batch", 4), formats=["stablehlo", kind])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
def test_a_jax_module_refuses_what_tensorflow_could_not_run():
    tf = pytest.importorskip("tensorflow")
    module = JaxModule({"w": jnp.eye(4)}, lambda params, x: x @ jnp.linalg.inv(params["w"]))
    with pytest.raises(ExportError, match="lapack_sgetrf_ffi"):
        module.methods[JaxModule.DEFAULT_METHOD_KEY](tf.ones((2, 4)))
