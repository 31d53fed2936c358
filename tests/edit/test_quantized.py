"""Quantized weights: a layer computes exactly what it computes with ``codes · scale``. (rules L38, L39)"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.edit.quantized import QuantizedWeight
from plait.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("users_promotion")


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def rngs():
    return plait.Rngs(0)


# Layer, name and rows of its weight (the axes that share a scale), and an input.
LAYERS = {
    "Linear": (lambda: plait.Linear(8, 6, rngs=rngs()), "kernel", (0,), normal(3, 8)),
    "Linear in bfloat16": (
        lambda: plait.Linear(8, 6, param_dtype=jnp.bfloat16, rngs=rngs()), "kernel", (0,), normal(3, 8)
    ),
    "LinearGeneral": (
        lambda: plait.LinearGeneral((2, 4), (3, 2), axis=(-2, -1), rngs=rngs()), "kernel", (0, 1), normal(3, 2, 4)
    ),
    "LinearGeneral, batched": (
        lambda: plait.LinearGeneral(8, 5, batch_axis={0: 3}, rngs=rngs()), "kernel", (1,), normal(3, 8)
    ),
    "Einsum": (lambda: plait.Einsum("bi,hif->bhf", (3, 8, 2), (3, 2), rngs=rngs()), "kernel", (1,), normal(2, 8)),
    "Conv": (lambda: plait.Conv(4, 3, (2, 2), rngs=rngs()), "kernel", (0, 1, 2), normal(1, 5, 5, 4)),
    "Embed": (lambda: plait.Embed(5, 8, rngs=rngs()), "embedding", (1,), jnp.arange(5)),
}  # fmt: skip


def oracle(weight, rows, bits, group_size):
    """Codes times scales in NumPy, one group at a time."""
    largest = {8: 127, 4: 7}[bits]
    matrix = np.moveaxis(np.asarray(weight, np.float32), rows, range(len(rows)))
    shape, n = matrix.shape, int(np.prod(matrix.shape[: len(rows)]))
    matrix = matrix.reshape(n, -1).copy()
    for column in matrix.T:
        for start in range(0, n, group_size or n):
            part = column[start : start + (group_size or n)]
            scale = np.float32(np.abs(part).max() / np.float32(largest)) if part.any() else np.float32(1 / largest)
            part[:] = np.round(part / scale) * scale
    return np.moveaxis(matrix.reshape(shape), range(len(rows)), rows)


@pytest.mark.sampled
@pytest.mark.parametrize(("bits", "group_size"), [(8, None), (8, 4), (4, None), (4, 2)])
@pytest.mark.parametrize("kind", LAYERS)
def test_l38_a_layer_computes_with_codes_times_scales(kind, bits, group_size):
    make, name, rows, x = LAYERS[kind]
    model = plait.Dict(layer=make())
    weight = getattr(model.layer, name)
    weight[...] = weight.value.at[(0,) * weight.ndim].set(0)
    expected = oracle(weight.value, rows, bits, group_size)
    exact = plait.clone(model.layer)
    (row,) = plait.quantize(plait.select(model, "layer"), bits=bits, group_size=group_size)
    made = getattr(model.layer, name)
    np.testing.assert_allclose(made.value, expected.astype(weight.dtype), rtol=1e-2 if made.dtype != "f4" else 1e-6)
    getattr(exact, name)[...] = made.value
    np.testing.assert_array_equal(model.layer(x), exact(x))
    assert (row.path, row.shape, row.size) == (f"layer.{name}", weight.shape, weight.value.nbytes)
    groups = weight.size // int(np.prod([weight.shape[axis] for axis in rows])) * made.scale.shape[0]
    assert row.quantized_size == weight.size * bits // 8 + 4 * groups
    was = np.asarray(weight.value, float)
    assert row.error == pytest.approx(np.linalg.norm(was - np.asarray(made.value, float)) / np.linalg.norm(was))
    plait.dequantize(model)
    np.testing.assert_array_equal(getattr(model.layer, name)[...], made.value)


def test_l38_zeros_stay_zeros():
    model = plait.Dict(layer=plait.Linear(4, 2, kernel_init=plait.initializers.zeros, rngs=rngs()))
    (row,) = plait.quantize(plait.select(model, "layer"))
    assert (row.error, model.layer(jnp.ones(4)).tolist()) == (0.0, [0.0, 0.0])


def blocks():
    made = rngs()
    return [plait.MultiHeadAttention(2, 8, decode=False, rngs=made) for _ in range(3)]


@pytest.mark.slow
def test_l38_each_layer_of_a_stack_is_quantized_for_itself():
    x, of_list, of_stack = normal(2, 4, 8), plait.Dict(blocks=blocks()), plait.Dict(blocks=plait.Stack(blocks()))
    kinds = [plait.LinearGeneral]
    for report in (plait.quantize(plait.select(model, kinds), bits=4) for model in (of_list, of_stack)):
        assert sorted(each.path for each in report)[0] == "blocks[0].key.kernel"
        assert len(report) == 12
    y = x
    for block in of_list.blocks:
        y = block(y)
    np.testing.assert_allclose(of_stack.blocks(x), y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_l39_adapters_on_top_are_all_that_is_trained(tmp_path):
    model = plait.Dict(layer=plait.Linear(8, 4, rngs=rngs()))
    plait.quantize(plait.select(model, "layer"), bits=4, group_size=4)
    codes, x = model.layer.kernel.codes[...], normal(3, 8)
    y = model.layer(x)
    plait.add_lora(plait.select(model, "layer"), 2, rngs=rngs())
    np.testing.assert_array_equal(model.layer(x), y)
    optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.LoRAParam)
    grads = plait.grad(lambda model: (model.layer(x) ** 2).sum(), argnums=plait.DiffState(0, plait.LoRAParam))(model)
    optimizer.update(model, grads)
    assert (model.layer.base_module.kernel.codes[...] == codes).all()
    assert not jnp.allclose(model.layer(x), y)
    with pytest.raises(ArgumentError, match=r"at +layer\n.*a QuantizedWeight"):
        plait.merge_lora(model)
    with pytest.raises(ArgumentError, match=r"at +.*layer\.base_module\.kernel"):
        model.layer.base_module.kernel.value = jnp.zeros((8, 4))
    plait.checkpoint.save(tmp_path / "model", model)
    z = model.layer(x)
    model.layer.lora_b[...] = jnp.zeros((2, 4))
    plait.checkpoint.restore(tmp_path / "model", model)
    np.testing.assert_array_equal(model.layer(x), z)
    plait.dequantize(model)
    plait.merge_lora(model)
    np.testing.assert_allclose(model.layer(x), z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_model_is_exported(tmp_path, bits):
    model = plait.Dict(layer=plait.Linear(8, 4, rngs=rngs()))
    plait.quantize(plait.select(model, "layer"), bits=bits)
    plait.export.save(model.layer, tmp_path / "model", inputs=("batch", 8))
    x = normal(3, 8)
    np.testing.assert_allclose(plait.export.load(tmp_path / "model")(x), model.layer(x), rtol=1e-6)
    stored = sum(file.stat().st_size for file in (tmp_path / "model" / "stablehlo").glob("*.safetensors"))
    assert stored < 700


class Decoder(plait.Module):
    def __init__(self, blocks):
        self.embed = plait.Embed(8, 4, rngs=rngs())
        self.blocks = plait.Stack(lambda rngs: Block(rngs=rngs), blocks, rngs=rngs())

    def __call__(self, tokens):
        return self.embed.attend(self.blocks(self.embed(tokens)))


class Block(plait.Module):
    def __init__(self, *, rngs):
        self.attention = plait.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.mlp = plait.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.mlp(x + self.attention(x, is_causal=True))


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("adapted", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(("bits", "group_size"), [pytest.param(8, None, marks=pytest.mark.long), (4, 2)])
def test_tensorflow_and_onnx_runtime_compute_with_the_codes(tmp_path, bits, group_size, adapted):
    """Without plait, in another process; the codes are in the files, and factors of LoRA on top are weights."""
    pytest.importorskip("tensorflow")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("jax2onnx")
    model = Decoder(2)
    for kind in (plait.Linear, plait.LinearGeneral, plait.Embed):
        grouped = group_size if kind is plait.Linear else None
        plait.quantize(plait.select(model, kind), bits=bits, group_size=grouped)
    if adapted:
        plait.add_lora(plait.select(model, ["**.query", "**.mlp"]), 2, rngs=rngs())
        for _, factor in plait.to_flat_state(plait.variables(model, plait.LoRAParam)):
            factor.value = factor.value + 0.25
    tokens = plait.export.InputSpec(("batch", 3), "int32", "tokens")
    places = plait.export.save(model, tmp_path / "model", inputs=tokens, formats=["stablehlo", "saved_model", "onnx"])
    reports, _ = plait.export.prove(
        tmp_path / "model", inputs={"tokens": np.array([[1, 2, 7], [0, 3, 5]], np.int32)}, reference=None
    )
    assert [report.passed for report in reports] == [True] * 3, reports
    example = jnp.array([[1, 2, 7], [0, 3, 5]])
    np.testing.assert_allclose(plait.export.load(tmp_path / "model")(example), model(example), rtol=1e-5, atol=1e-6)
    stored = {each.name: each for each in onnx.load(places["onnx"]).graph.initializer}
    codes = [each for name, each in stored.items() if name.endswith(".codes")]
    kinds = {onnx.TensorProto.DataType.Name(each.data_type) for each in codes}
    assert (len(codes), kinds) == (6, {"INT8" if bits == 8 else "UINT8"})


def test_what_is_printed_is_a_table():
    model = plait.Dict(layer=plait.Linear(8, 4, rngs=rngs()))
    lines = str(plait.quantize(plait.select(model, "layer"))).splitlines()
    assert [line.split()[0] for line in lines] == ["weight", "layer.kernel", "total"]


def spoilt(value):
    layer = plait.Linear(4, 2, rngs=rngs())
    layer.kernel[1, 0] = value
    return layer


REFUSED = {
    "other bits": (lambda: plait.Linear(4, 2, rngs=rngs()), {"bits": 2}, "bits=2"),
    "no such layer": (lambda: plait.LayerNorm(4, rngs=rngs()), {}, r"at +second\n +found +a LayerNorm"),
    "a group that does not fit": (lambda: plait.Linear(6, 2, rngs=rngs()), {"group_size": 4}, r"at +second\.kernel"),
    "an odd number": (lambda: plait.Linear(5, 2, rngs=rngs()), {"bits": 4}, "5 inputs"),
    "an infinite weight": (lambda: spoilt(jnp.inf), {}, r"at +second\.kernel\n +found +1 of 8"),
    "a weight that is NaN": (lambda: spoilt(jnp.nan), {}, r"at +second\.kernel\n +found +1 of 8"),
    "of vmap": (
        lambda: plait.vmap(lambda key: plait.Linear(4, 2, rngs=plait.Rngs(key)))(
            jax.random.split(jax.random.key(0), 3)
        ),
        {},
        "with leading axes",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantized_changes_nothing(case):
    make, options, match = REFUSED[case]
    model = plait.Dict(first=plait.Linear(8, 2, rngs=rngs()), second=make())
    before = plait.graphdef(model)
    with pytest.raises(ArgumentError, match=match):
        plait.quantize(plait.select(model, [("first",), ("second",)]), **options)
    assert plait.graphdef(model) == before


def test_twice_is_an_error():
    model = plait.Dict(layer=plait.Linear(4, 2, rngs=rngs()))
    plait.quantize(plait.select(model, "layer"))
    with pytest.raises(ArgumentError, match="quantized already"):
        plait.quantize(plait.select(model, "layer"))
    assert isinstance(model.layer.kernel, QuantizedWeight)
    plait.dequantize(model)
    with pytest.raises(ArgumentError, match="no quantized weight"):
        plait.dequantize(model)
