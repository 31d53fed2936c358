"""One call for all formats, each run apart; and back in. (rules E32, E34, E37)"""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ExportError
from plait.export import InputSpec, describe_exports, load, prove, save, validate_export
from plait.export.formats.whole_write import ExportPathError
from plait.export.program.program import named_outputs
from tests.export.models import TOKEN, Decoder, Net, batch, decoded, expected_tokens, trained

ALL = ["stablehlo", "saved_model", "onnx", "litert"]


def expected(model, x):
    return {name: np.asarray(y) for name, y in named_outputs(model(jnp.asarray(x))).items()}


def test_a_bundle_comes_back_without_the_model_s_code(tmp_path):
    model = trained()
    written = save(model, tmp_path / "net", inputs=("batch", 4))
    assert written == {"stablehlo": tmp_path / "net" / "stablehlo"}
    code = (
        "import sys, numpy as np\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from load import load\n"
        "apply = load(sys.argv[1])\n"
        "np.savez(sys.argv[2], **apply(np.ones((5, 4), np.float32)))\n"
        "assert 'plait' not in sys.modules and 'safetensors' not in sys.modules\n"
    )
    out = tmp_path / "out.npz"
    subprocess.run([sys.executable, "-I", "-c", code, str(written["stablehlo"]), str(out)], check=True)
    with np.load(out) as found:
        for name, y in expected(model, np.ones((5, 4), np.float32)).items():
            np.testing.assert_allclose(found[name], y, rtol=1e-5, atol=1e-6)
    outputs = load(tmp_path / "net")(batch(2))
    np.testing.assert_allclose(outputs["logits"], expected(model, batch(2))["logits"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_several_methods_share_their_weights(tmp_path):
    model = trained()
    save(
        model, tmp_path / "net", methods={"encode": "encode", "classify": "__call__"},
        inputs={"encode": ("batch", 4), "classify": ("batch", 4)},
    )  # fmt: skip
    x = batch(3)
    np.testing.assert_allclose(load(tmp_path / "net")(x), model.encode(jnp.asarray(x)), rtol=1e-5, atol=1e-6)
    found = load(tmp_path / "net", "classify")(x)
    np.testing.assert_allclose(found["logits"], model(jnp.asarray(x))["logits"], rtol=1e-5, atol=1e-6)
    for signature in ("encode", "classify"):
        (report,), _ = prove(tmp_path / "net", signature=signature)
        assert report.passed, report
    manifest = json.loads((tmp_path / "net" / "stablehlo" / "manifest.json").read_text())
    assert [weight["name"] for weight in manifest["weights"]].count("body.kernel") == 1
    assert "head.kernel" not in manifest["signatures"]["encode"]["weights"]
    with pytest.raises(ExportError, match=r"(?s)'encode', 'classify'.*'clasify'"):
        load(tmp_path / "net", "clasify")


@pytest.mark.slow
def test_state_starts_as_it_was_saved(tmp_path):
    save(Decoder(), tmp_path / "step", inputs=TOKEN, state=plait.Cache)
    step = load(tmp_path / "step")
    assert decoded(step, dict(step.state)) == expected_tokens()


def test_nothing_is_written_if_one_format_fails(tmp_path):
    pytest.importorskip("jax2onnx")
    pair = {"x": jnp.ones(())}, lambda params, x: x * params["x"]
    with pytest.raises(ExportError, match=r"same name\n +at +x\n +found +'x', of a parameter and of an input"):
        save(pair, tmp_path / "model", inputs=("batch",), formats=["stablehlo", "onnx"])
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_asked(tmp_path):
    save(trained(), tmp_path / "net", inputs=("batch", 4))
    with pytest.raises(ExportPathError, match="overwrite=True"):
        save(trained(1), tmp_path / "net", inputs=("batch", 4))
    save(trained(1), tmp_path / "net", inputs=("batch", 4), overwrite=True)
    np.testing.assert_allclose(
        load(tmp_path / "net")(batch(1))["logits"], expected(trained(1), batch(1))["logits"], rtol=1e-5
    )


def test_the_address_of_a_bucket_is_an_error_of_exports():
    with pytest.raises(ExportPathError, match="an address is not a path"):
        save(trained(), "gs://bucket/net", inputs=("batch", 4))


def test_a_folder_that_is_no_export_is_never_replaced(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(ExportPathError, match=r"thesis\.tex"):
            save(trained(), tmp_path / "work", inputs=("batch", 4), overwrite=overwrite)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"


def test_load_says_what_is_at_a_path_without_a_bundle(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ExportError, match=r"(?s)no export at this path.*nowhere.*found +nothing"):
        load(tmp_path / "nowhere")
    with pytest.raises(ExportError, match=r"(?s)load runs StableHLO.*found +ONNX"):
        load(tmp_path)


def test_bad_requests_are_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"'onx'(.|\n)*'stablehlo', 'saved_model', 'onnx', 'litert'"):
        save(trained(), tmp_path / "net", inputs=("batch", 4), formats=["onx"])
    with pytest.raises(ArgumentError, match="each signature needs a method and its inputs"):
        save(trained(), tmp_path / "net", inputs=("batch", 4), methods={"a": "encode", "b": "__call__"})
    with pytest.raises(ExportError, match="changes variables"):
        save(Net(), tmp_path / "net", inputs=("batch", 4))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": []}, "needs a format"),
        ({"platforms": ("gpuu",)}, r"'gpuu'(.|\n)*'cpu', 'cuda', 'rocm', 'tpu'"),
        ({"platforms": ()}, "needs a platform"),
        ({"target": "tensorflow==2.16"}, r"target='tensorflow==2\.16', formats=\['stablehlo'\]"),
        ({"methods": ["encode"]}, r"methods=\['encode'\]"),
        ({"methods": {"../x": "encode"}}, r"'\.\./x' in methods"),
        ({"methods": {"": "encode"}}, "'' in methods"),
        ({"methods": {"a/b": "encode"}}, "'a/b' in methods"),
    ],
)
def test_options_that_would_do_nothing_or_harm_are_refused(tmp_path, options, message):
    """E32: before anything is written."""
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        save(trained(), tmp_path / "net", inputs=("batch", 4), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_format_named_twice_is_written_once_and_one_platform_is_a_word(tmp_path):
    save(trained(), tmp_path / "net", inputs=("batch", 4), formats=["stablehlo"] * 2, platforms="cpu")
    manifest = json.loads((tmp_path / "net" / "stablehlo" / "manifest.json").read_text())
    assert manifest["platforms"] == ["cpu"]


def test_a_loaded_function_takes_each_input_once(tmp_path):
    save(trained(), tmp_path / "net", inputs=("batch", 4))
    apply = load(tmp_path / "net")
    for args, named in [((batch(2),), {"x": batch(3)}), ((batch(2), batch(2)), {}), ((), {})]:
        with pytest.raises(TypeError, match=r"takes the inputs \['x'\], each once"):
            apply(*args, **named)


@pytest.mark.parametrize("inputs", [[], batch(2), [batch(2)], "data.npz"])
def test_proof_wants_arrays_by_name(tmp_path, inputs):
    """E43: a proof of nothing would pass."""
    save(trained(), tmp_path / "net", inputs=("batch", 4))
    message = r"no example to compare\n +found +inputs=\[\]\n|must be arrays by name\n +found +an? \w+\n"
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        prove(tmp_path / "net", inputs=inputs)


def test_a_bundle_for_other_machines_is_not_proved_here(tmp_path):
    save(trained(), tmp_path / "net", inputs=("batch", 4), platforms=("tpu",))
    with pytest.raises(ExportError, match=r"(?s)this machine.*written for tpu.*expected +cpu"):
        prove(tmp_path / "net")


def test_outputs_may_have_names_that_numpy_uses(tmp_path):
    """E37: whatever the outputs are called, they come back from the other process."""
    function = lambda params, x: {"file": x, "milliseconds": 2 * x, "a|b": 3 * x, "c_next": 4 * x}
    save(({}, function), tmp_path / "net", inputs={"file": ("batch", 4)})
    (report,), _ = prove(tmp_path / "net")
    assert report.passed, report


def test_the_report_of_a_bundle(tmp_path):
    save(trained(), tmp_path / "net", inputs=("batch", 4))
    (report,), times = prove(tmp_path / "net")
    assert report.passed, report
    assert len(times) == len(report.milliseconds) == 2
    assert min(times) > 0
    (description,) = describe_exports(tmp_path / "net")
    assert description.kind == "stablehlo"
    inputs, outputs = description.signatures["serving_default"]
    assert [(t.name, t.dtype, t.shape) for t in inputs] == [("x", "float32", ("batch", 4))]
    assert {t.name for t in outputs} == {"hidden", "logits"}
    assert description.size > sum(4 * np.prod(t.shape) for t in description.weights)


# All formats, with TensorFlow and ONNX ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_packages():
    pytest.importorskip("tensorflow")
    pytest.importorskip("jax2onnx")


@pytest.fixture(scope="module")
def written(tmp_path_factory, all_packages):
    path = tmp_path_factory.mktemp("all") / "net"
    return path, save(trained(), path, inputs=("batch", 4), formats=ALL)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.apart
def test_each_runs_apart_with_the_same_numbers(written):
    path, places = written
    assert list(places) == ALL
    reports, _ = prove(path)
    assert [report.kind for report in reports] == ALL
    for report in reports:
        assert report.passed, report


@pytest.mark.slow
@pytest.mark.oracle
def test_each_describes_itself(written):
    path, _ = written
    for description in describe_exports(path):
        ((inputs, outputs),) = description.signatures.values()
        assert [(t.name, t.dtype, t.shape[1:]) for t in inputs] == [("x", "float32", (4,))]
        assert {t.name for t in outputs} == {"hidden", "logits"}
        if description.kind != "litert":
            assert {"body.kernel", "norm.mean"} <= {t.name for t in description.weights}


@pytest.mark.slow
@pytest.mark.oracle
def test_a_step_with_a_cache_chooses_the_same_tokens(tmp_path, all_packages):
    places = save(Decoder(), tmp_path / "step", inputs=TOKEN, state=plait.Cache, formats=ALL)
    model, start = Decoder(), load(tmp_path / "step").state
    token, state, examples, outputs = jnp.zeros((1, 1), jnp.int32), start, [], []
    for _ in range(4):
        examples.append({"token": np.asarray(token), **{k: np.asarray(v) for k, v in state.items()}})
        y = model(token)
        state = {
            "attention_cached_key": model.attention.cached_key[...],
            "attention_cached_value": model.attention.cached_value[...],
            "attention_cache_index": model.attention.cache_index[...],
        }
        outputs.append({"y": np.asarray(y), **{k: np.asarray(v) for k, v in state.items()}})
        token = y.argmax(-1).astype(jnp.int32)
    for kind, place in places.items():
        report = validate_export(kind, place, examples, outputs)
        assert report.passed, report


class Stacked(plait.Module):
    """A decoder whose blocks are a stack."""

    def __init__(self):
        rngs = plait.Rngs(1)
        self.embed = plait.Embed(11, 8, rngs=rngs)
        self.blocks = plait.Stack(lambda rngs: plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs), 2, rngs=rngs)

    def __call__(self, token):
        return self.embed.attend(self.blocks(self.embed(token)))


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("per_sequence", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stack_decodes_in_other_formats_with_a_free_batch_and_its_cache_in_and_out(tmp_path, per_sequence):
    """``prove`` runs one and three sequences, step after step; its state is that of the model (rule E47)."""
    pytest.importorskip("tensorflow")
    step = plait.view(Stacked(), decode=True, batch_size=1, max_length=4, per_sequence=per_sequence)
    token = InputSpec(("batch", 1), "int32", "token")
    formats = ["stablehlo", "saved_model"]
    save(step, tmp_path / "step", inputs=token, state=plait.Cache, state_batch="batch", formats=formats)
    reports, times = prove(tmp_path / "step", steps=4)
    assert [report.passed for report in reports] == [True, True], reports
    assert len(times) == 2 * 4
    tokens, loaded = np.array([[3, 5, 2, 7], [1, 1, 9, 4]], np.int32), load(tmp_path / "step")
    first = {name: np.asarray(value) for name, value in loaded.state.items()}
    state = {name: np.repeat(x, 2, axis=1) if x.ndim > 1 else x for name, x in first.items()}
    found = []
    for place in range(4):
        outputs = loaded(tokens[:, place : place + 1], **state)
        state = {name: outputs[name] for name in state}
        found.append(outputs["y"])
    full = plait.view(Stacked(), decode=False)
    y = full.embed(jnp.asarray(tokens))
    for block in full.blocks:
        y = block(y, is_causal=True)
    np.testing.assert_allclose(np.concatenate(found, axis=1), full.embed.attend(y), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("model", [lambda: Decoder(), lambda: Stacked()], ids=["layer", "stack"])
def test_a_decoder_with_a_free_batch_in_onnx(tmp_path, all_packages, model, per_sequence):
    """JAX writes each sequence at its own position by a scatter, which ONNX's converter lacks."""
    step = plait.view(model(), decode=True, batch_size=1, max_length=4, per_sequence=per_sequence)
    token = InputSpec(("batch", 1), "int32", "token")
    formats = ["stablehlo", "onnx"]
    save(step, tmp_path / "step", inputs=token, state=plait.Cache, state_batch="batch", formats=formats)
    reports, _ = prove(tmp_path / "step", steps=3)
    assert [report.passed for report in reports] == [True, True], reports


@pytest.mark.slow
@pytest.mark.oracle
def test_an_older_reader_can_be_named(tmp_path, all_packages):
    places = save(trained(), tmp_path / "net", inputs=("batch", 4), formats=["saved_model"], target="1.9.0")
    assert validate_export("saved_model", places["saved_model"], batch(2), expected(trained(), batch(2))).passed
    for target in ("2.21", "99.0.0", "one"):
        with pytest.raises(ArgumentError, match=f"target='{target}'"):
            save(trained(), tmp_path / "m", inputs=("batch", 4), formats=["saved_model"], target=target)


@pytest.mark.slow
@pytest.mark.oracle
def test_bfloat16_goes_through(tmp_path, all_packages):
    layer = plait.Linear(4, 2, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    spec = InputSpec(("batch", 4), jnp.bfloat16)
    places = save(layer, tmp_path / "m", inputs=spec, formats=["stablehlo", "saved_model"])
    x = batch(3).astype(jnp.bfloat16)
    for kind, place in places.items():
        assert validate_export(kind, place, x, np.asarray(layer(jnp.asarray(x)))).passed


class Remainders(plait.Module):
    """Signed remainders of integers and floats: with the sign of the dividend, and of the divisor."""

    def __call__(self, x, y):
        return {"fmod": jnp.fmod(x, 3), "mod": x % 3, "floats": jnp.fmod(y, -2.5), "python": y % -2.5}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.apart
def test_remainders_have_their_sign_in_every_format(tmp_path, all_packages):
    """LiteRT's own has that of the divisor."""
    spec = [InputSpec((19,), "int32", name="x"), InputSpec((19,), "float32", name="y")]
    save(Remainders(), tmp_path / "m", inputs=spec, formats=ALL)
    numbers = np.arange(-9, 10)
    reports, _ = prove(tmp_path / "m", inputs=[{"x": numbers.astype("int32"), "y": numbers.astype("float32")}])
    assert [report.passed for report in reports] == [True] * 4, reports
