"""A module as a pure function: what is a weight, what is state, and what is refused. (rule E33)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ExportError
from plait.export import InputSpec, program_of
from plait.export.program.lowering import export_program, traced_program
from plait.export.program.program import named_outputs
from tests.export.models import TOKEN, Decoder, Net, batch, decoded, expected_tokens, trained


@pytest.mark.slow
def test_a_module_is_its_method_as_a_pure_function():
    model = trained()
    program, outputs = traced_program(program_of(model, ("batch", 4)))
    assert outputs == ["hidden", "logits"]
    assert {name.partition(".")[0] for name in program.weights} == {"body", "norm", "head"}  # no stream of dropout
    x = batch(3)
    found = jax.jit(program.call)(program.weights, {"x": x})
    np.testing.assert_allclose(found["logits"], model(jnp.asarray(x))["logits"], rtol=1e-6)
    encode = program_of(model, ("batch", 4), method="encode")
    np.testing.assert_allclose(encode.call(encode.weights, {"x": x})["y"], model.encode(jnp.asarray(x)), rtol=1e-6)


def test_a_pair_of_parameters_and_function():
    program = program_of(({"w": jnp.ones(2)}, lambda p, a, b: a * p["w"] + b), {"a": ("n", 2), "b": ("n", 2)})
    assert [spec.name for spec in program.inputs] == ["a", "b"]
    assert program.call(program.weights, {"a": 2.0, "b": 1.0})["y"].tolist() == [3.0, 3.0]


@pytest.mark.slow
def test_changes_of_variables_need_a_decision():
    """Statistics and streams of a model in training: refused, or state, or frozen."""
    model = Net()
    before = plait.to_pure_dict(plait.state(model, plait.BatchStat))
    with pytest.raises(
        ExportError,
        match=r"(?s)norm\.mean, norm\.var.*BatchStat.*model\.eval\(\).*state=\(plait\.BatchStat, plait\.RngCount\)",
    ):
        export_program(program_of(model, ("batch", 4)))
    frozen = program_of(model, ("batch", 4), frozen=(plait.BatchStat, plait.RngState))
    assert [spec.name for spec in traced_program(frozen)[0].inputs] == ["x"]
    program = program_of(model, ("batch", 4), state=(plait.BatchStat, plait.RngState))
    names = ["norm_mean", "norm_var", "drop_rngs_count", "drop_rngs_key"]
    assert sorted(spec.name for spec in program.inputs[1:]) == sorted(names)
    state = dict(program.state)
    for seed in range(3):
        x = batch(5, seed)
        outputs = jax.jit(program.call)(program.weights, {"x": x, **state})
        state = {name: outputs[name] for name in state}
        np.testing.assert_allclose(outputs["logits"], model(jnp.asarray(x))["logits"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["norm_mean"], model.norm.mean[...], rtol=1e-5)
    assert int(state["drop_rngs_count"]) == 3
    assert not np.array_equal(before["norm"]["mean"], state["norm_mean"])


@pytest.mark.slow
def test_a_step_with_a_cache_is_a_pure_function():
    program = program_of(Decoder(), TOKEN, state=plait.Cache)
    step = jax.jit(lambda **inputs: program.call(program.weights, inputs))
    assert decoded(step, dict(program.state)) == expected_tokens()


def test_shared_variables_are_one_weight():
    model = plait.Sequential(plait.Linear(4, 4, rngs=plait.Rngs(0)))
    model.again = model.layers[0]
    assert len(program_of(model, ("batch", 4)).weights) == 2


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (1, ["y"]),
        ({"a": 1, "b": {"c": 2}}, ["a", "b_c"]),
        ((1, [2, 3]), ["y_0", "y_1_0", "y_1_1"]),
    ],
)
def test_outputs_have_names(tree, names):
    assert list(named_outputs(jax.tree.map(jnp.asarray, tree))) == names


class Choosing(plait.Module):
    def __init__(self):
        self.inner = plait.Sequential(plait.Linear(4, 4, rngs=plait.Rngs(0)), self.where)

    @staticmethod
    def where(x):
        return x[x > 0]

    def __call__(self, x):
        return self.inner(x)


def test_a_shape_that_depends_on_values_is_told_with_the_place():
    with pytest.raises(ExportError, match=r"(?s)at +inner \(a Sequential\).*NonConcreteBooleanIndexError.*jnp\.where"):
        export_program(program_of(Choosing(), ("batch", 4)))


def test_a_layer_that_does_not_fit_names_itself():
    with pytest.raises(plait.errors.ShapeError, match=r"body \(a Linear\)"):
        export_program(program_of(trained(), ("batch", 5)))


@pytest.mark.parametrize("call", [jax.debug.print, lambda text, x: jax.experimental.io_callback(print, None, x)])
def test_python_inside_a_model_is_refused(call):
    def noisy(params, x):
        call("{}", x)
        return x

    with pytest.raises(ExportError, match=r"has Python callbacks(.|\n)*jax\.debug\.print"):
        export_program(program_of(({}, noisy), ("batch", 4)))


def test_two_states_of_one_name_are_refused():
    """E33: the state is named by its path, joined by ``_``."""
    model = plait.Dict({"a_b": plait.Cache(jnp.ones(2)), "a": plait.Dict({"b": plait.Cache(jnp.zeros(2))})})
    with pytest.raises(ArgumentError, match=r"(?s)same name.*'a_b', of the state .* and of the state"):
        program_of(model, (2,), method="items", state=plait.Cache)


class Ordered(plait.Module):
    def __call__(self, tokens, scale, *, shift=0.0):
        return 100 * tokens + 10 * scale + shift


@pytest.mark.parametrize(
    "model", [Ordered(), ({}, lambda _, tokens, scale, *, shift=0.0: Ordered()(tokens, scale, shift=shift))]
)
def test_inputs_in_a_dictionary_go_to_the_arguments_of_their_names(model):
    """E32: in any order, keyword-only ones too; a name of the dictionary is the input's name."""
    program = program_of(model, {"shift": (), "scale": InputSpec((), "int32"), "tokens": InputSpec((), "int32")})
    assert [spec.name for spec in program.inputs] == ["shift", "scale", "tokens"]
    assert program.call({}, {"shift": 3, "scale": 2, "tokens": 1}) == {"y": 123}
    other = program_of(model, {"a": (), "b": ()})  # names of the file alone
    assert other.call({}, {"a": 1, "b": 2}) == {"y": 120}
    same = program_of(model, {"tokens": (), "b": ()})
    assert same.call({}, {"tokens": 1, "b": 2}) == {"y": 120}
    with pytest.raises(ArgumentError, match=r"(?s)at +scale.*inputs scale, b.*arguments tokens, scale"):
        program_of(model, {"scale": (), "b": ()})


class Unsigned:
    """``inspect.signature`` raises TypeError for it."""

    __signature__ = "text"

    def __call__(self, params, a, b):
        return a - 2 * b


def test_inputs_of_a_function_without_a_signature_go_by_order():
    program = program_of(({}, Unsigned()), {"b": (1,), "a": (1,)})
    assert program.call({}, {"b": np.float32([7]), "a": np.float32([2])})["y"] == 3


class Refs(plait.Module):
    def __init__(self):
        self.scale = plait.Param(jnp.full(3, 2.0), ref=True)
        self.count = plait.BatchStat(jnp.zeros(()), ref=True)

    def __call__(self, x):
        return x * self.scale[...]

    def counted(self, x):
        self.count[...] += 1.0
        return x * self.count[...]


def test_a_reference_is_a_variable_of_the_program():
    """E33: one that is only read does not change; one that is written is state, or refused."""
    x, model = jnp.ones(3), Refs()
    program = program_of(model, InputSpec(x.shape, name="x"))
    np.testing.assert_array_equal(program.call(program.weights, {"x": x})["y"], 2 * x)
    counted = program_of(model, InputSpec(x.shape, name="x"), method="counted", state=plait.BatchStat)
    found = counted.call(counted.weights, {"x": x, "count": jnp.float32(4)})
    assert float(found["count"]) == 5
    assert float(model.count[...]) == 0
    refused = program_of(model, InputSpec(x.shape, name="x"), method="counted")
    with pytest.raises(ExportError, match=r"(?s)at +count"):
        refused.call(refused.weights, {"x": x})
