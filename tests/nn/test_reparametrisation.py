import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ShapeError, TraceContextError
from tests.compare import LOOSE, assert_same
from tests.nn.twins import TOLERANCE, Encoder, compare, flax_nnx, pure, run, some_input, users_promotion
from tests.sampling import slow_but


def block(lib, rngs):
    """Two layers of a library, so that there are weights at more than one path."""

    class Block(lib.Module):
        def __init__(self):
            self.first = lib.Conv(2, 3, (2, 2), rngs=rngs)
            self.last = lib.Linear(3, 4, rngs=rngs)

        def __call__(self, x):
            return self.last(lib.relu(self.first(x)))

    return Block()


MAKERS = {
    "linear": (lambda lib, rngs: lib.Linear(3, 4, rngs=rngs), (2, 3)),
    "block": (block, (2, 4, 4, 2)),
}
WEIGHT_NORMS = [
    ("linear", {}),
    ("linear", {"feature_axes": None, "epsilon": 0.5}),
    ("linear", {"feature_axes": 0, "scale_init": jax.nn.initializers.constant(2.0)}),
    ("block", {"feature_axes": (-1, -2), "use_scale": False}),
]
SPECTRAL_NORMS = [("linear", {}), ("linear", {"n_steps": 3, "epsilon": 0.1}), ("block", {}), ("linear", {"stay": True})]


def norms(kind, layer, options):
    """The same wrapper around the same layer in plait and in Flax, from the same seeds; and an input."""
    nnx, (make, shape) = flax_nnx(), MAKERS[layer]
    ours = getattr(plait, kind)(make(plait, plait.Rngs(0)), rngs=plait.Rngs(1), **options)
    with users_promotion():
        theirs = getattr(nnx, kind)(make(nnx, nnx.Rngs(0)), rngs=nnx.Rngs(1), **options)
    return ours, theirs, some_input(*shape)


@pytest.mark.oracle
@pytest.mark.parametrize(("layer", "options"), slow_but(WEIGHT_NORMS[:1], WEIGHT_NORMS))
def test_weight_norm_is_flax_s_forward_and_backward(layer, options):
    """L21: outputs, gradients, and the weights that three calls leave."""
    ours, theirs, x = norms("WeightNorm", layer, options)
    mine = run(plait, ours, x)
    with users_promotion():
        other = run(flax_nnx(), theirs, x)
        for _ in range(3):
            expected = theirs(x)
    compare(mine.y, other.y, TOLERANCE, "output")
    compare(mine.x_grad, other.x_grad, TOLERANCE, "gradient of the input")
    # Flax has no gradient for its scales: they are bare arrays.
    grads = {p: g for p, g in mine.grads.items() if not p.startswith("scales")}
    assert_same(grads, {path: other.grads[path] for path in grads}, LOOSE, what="gradient of ")
    for _ in range(3):
        y = ours(x)
    compare(y, expected, TOLERANCE, "third output")
    expected = pure(flax_nnx().state(theirs.layer_instance), flax_nnx())
    assert_same(pure(plait.state(ours.layer_instance)), expected, LOOSE)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(("layer", "options"), slow_but(SPECTRAL_NORMS[:1], SPECTRAL_NORMS))
def test_spectral_norm_is_flax_s_forward_and_backward(layer, options):
    """L22: the same ``u`` from the same seed, outputs, gradients, and what three calls leave."""
    options = dict(options)
    call = {"update_stats": False} if options.pop("stay", False) else {}
    ours, theirs, x = norms("SpectralNorm", layer, options)
    stats = lambda lib, norm: pure(lib.state(norm, lib.BatchStat), lib)
    assert_same(stats(plait, ours), stats(flax_nnx(), theirs), LOOSE, what="first ")
    mine = run(plait, ours, x, **call)
    with users_promotion():
        other = run(flax_nnx(), theirs, x, **call)
        for _ in range(3):
            expected = theirs(x, **call)
    compare(mine.y, other.y, TOLERANCE, "output")
    compare(mine.x_grad, other.x_grad, TOLERANCE, "gradient of the input")
    assert_same(mine.grads, other.grads, LOOSE, what="gradient of ")
    for _ in range(3):
        y = ours(x, **call)
    compare(y, expected, TOLERANCE, "third output")
    assert_same(stats(plait, ours), stats(flax_nnx(), theirs), LOOSE, what="last ")


def gradients(norm, x):
    graphdef, params, rest = plait.split(norm, plait.Param, ...)
    loss = lambda params: (plait.merge(graphdef, params, rest)(x) ** 2).sum()
    return pure(jax.grad(loss)(params))


@pytest.mark.slow
@pytest.mark.parametrize("layer", MAKERS)
def test_spectral_norm_finds_the_largest_singular_value(layer):
    """L22: with enough steps, the spectral norm of each weight is 1 afterwards, and sigma what it was before."""
    make, shape = MAKERS[layer]
    norm = plait.SpectralNorm(make(plait, plait.Rngs(0)), n_steps=100, rngs=plait.Rngs(1))
    matrices = lambda: {
        path: np.asarray(value).reshape(-1, value.shape[-1])
        for path, value in pure(plait.state(norm.layer_instance)).items()
        if path.endswith("kernel")
    }
    before = matrices()
    norm(some_input(*shape))
    for path, matrix in matrices().items():
        np.testing.assert_allclose(np.linalg.norm(matrix, 2), 1, rtol=1e-4)
        np.testing.assert_allclose(
            norm.batch_stats[(*path.split("."), "sigma")], np.linalg.norm(before[path], 2), rtol=1e-4
        )


def norms_of(kind, **options):
    # Many steps: finite differences see how u changes with the weight, and gradients by design do not.
    options = {"n_steps": 60, **options} if kind == "SpectralNorm" else options
    return getattr(plait, kind)(plait.Linear(3, 4, rngs=plait.Rngs(0)), rngs=plait.Rngs(1), **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["WeightNorm"], ["WeightNorm", "SpectralNorm"]))
def test_the_live_variable_is_written_in_every_transform(kind):
    """The layer's own kernel holds what was computed with, after an eager call, plait.jit and plait.grad."""
    x, kernels = some_input(2, 3), []
    calls = [
        lambda norm: norm(x),
        lambda norm: plait.jit(lambda norm: norm(x))(norm),
        lambda norm: plait.grad(lambda norm: norm(x).sum())(norm),
    ]
    for call in calls:
        norm = norms_of(kind)
        kernel = norm.layer_instance.kernel
        call(norm)
        assert norm.layer_instance.kernel is kernel
        kernels.append(np.asarray(kernel[...]))
    for kernel in kernels[1:]:
        np.testing.assert_allclose(kernel, kernels[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(kernels[0], norms_of(kind).layer_instance.kernel[...])


@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_a_weight_keeps_its_dtype(kind):
    inner = plait.Linear(3, 4, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    norm = getattr(plait, kind)(inner, rngs=plait.Rngs(1))
    norm(some_input(2, 3))
    assert inner.kernel.dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_a_weight_of_zeros_stays_zero(kind):
    norm = norms_of(kind)
    norm.layer_instance.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(norm(some_input(2, 3)), np.zeros((2, 4)))


def test_scales_are_parameters_by_the_path_of_their_weight():
    """The contract's side: Params, where Flax keeps bare arrays."""
    norm = plait.WeightNorm(block(plait, plait.Rngs(0)), feature_axes=None, rngs=plait.Rngs(1))
    assert {path: (type(scale), scale.shape) for path, scale in norm.scales.items()} == {
        ("first", "kernel"): (plait.Param, ()),
        ("last", "kernel"): (plait.Param, ()),
    }
    assert norms_of("WeightNorm", use_scale=False).scales is None


def test_a_filter_chooses_the_weights():
    """L21."""
    norm = norms_of("WeightNorm", variable_filter=plait.Param, feature_axes=None)
    norm.layer_instance.bias[...] = jnp.array([3.0, 0.0, 4.0, 0.0])
    norm(some_input(2, 3))
    np.testing.assert_allclose(norm.layer_instance.bias, [0.6, 0.0, 0.8, 0.0], rtol=1e-6)


def test_keys_are_drawn_where_there_is_something_to_draw():
    """L21, L22: the default scales draw none, as in Flax; other initializers one each, and one for each ``u``."""
    for count, make in [
        (0, lambda inner, rngs: plait.WeightNorm(inner, rngs=rngs)),
        (2, lambda inner, rngs: plait.WeightNorm(inner, scale_init=plait.initializers.normal(), rngs=rngs)),
        (2, lambda inner, rngs: plait.SpectralNorm(inner, rngs=rngs)),
    ]:
        rngs = plait.Rngs(0)
        make(block(plait, plait.Rngs(0)), rngs)
        assert int(rngs.default.count[...]) == count


def test_arguments_of_the_call_reach_the_layer():
    norm = plait.WeightNorm(plait.Dropout(0.5), rngs=plait.Rngs(0))
    x = some_input(4)
    assert norm(x, deterministic=True) is x


@pytest.mark.parametrize(
    "switch",
    [
        lambda norm, on: norm.train() if on else norm.eval(),
        lambda norm, on: norm.set_attributes(use_running_average=not on),
        lambda norm, on: norm.set_attributes(update_stats=on),
        lambda norm, on: plait.view(norm, use_running_average=not on),
        lambda norm, on: plait.view(norm, update_stats=on),
    ],
    ids=["train and eval", "set_attributes", "set_attributes by its own name", "view", "view by its own name"],
)
@pytest.mark.parametrize("on", [True, False])
def test_whatever_sets_modes_switches_the_statistics(switch, on):
    norm = norms_of("SpectralNorm", update_stats=not on)
    norm = switch(norm, on) or norm
    assert norm.update_stats is on
    assert not hasattr(norm, "use_running_average")


def test_a_missing_axis_names_the_weight():
    with pytest.raises(ShapeError, match=r"no axis 2[\s\S]*at +kernel[\s\S]*\(3, 4\)[\s\S]*feature_axes=2"):
        norms_of("WeightNorm", feature_axes=2)


def test_a_weight_that_is_no_matrix_is_named():
    with pytest.raises(ShapeError, match=r"at +first\.kernel[\s\S]*\(2, 2, 2, 3\), and error_on_non_matrix=True"):
        plait.SpectralNorm(block(plait, plait.Rngs(0)), error_on_non_matrix=True, rngs=plait.Rngs(1))


def test_no_step_is_refused():
    with pytest.raises(ArgumentError, match="n_steps=0"):
        norms_of("SpectralNorm", n_steps=0)


def nested(lib):
    class Nested(lib.Module):
        def __init__(self):
            self.layers = lib.List([lib.Linear(3, 3, rngs=lib.Rngs(0))])

        def __call__(self, x):
            return self.layers[0](x)

    return Nested()


@pytest.mark.oracle
def test_what_is_kept_is_found_as_in_flax():
    weights, spectral = [], []
    for lib in (plait, flax_nnx()):
        with users_promotion():
            weight = lib.WeightNorm(nested(lib), rngs=lib.Rngs(1))
            spectra = lib.SpectralNorm(nested(lib), rngs=lib.Rngs(1))
        weights.append(weight)
        spectral.append([set(spectra.batch_stats), list(pure(lib.state(spectra), lib))])
    path = ("layers", 0, "kernel")
    assert set(weights[0].scales) == set(weights[1].scales) == {path}
    np.testing.assert_array_equal(weights[0].scales[path], weights[1].scales[path])
    assert spectral[0] == spectral[1]
    assert spectral[0][0] == {(*path, "u"), (*path, "sigma")}


def frozen(kind):
    norm = norms_of(kind, **({"n_steps": 1} if kind == "SpectralNorm" else {}))
    norm(some_input(2, 3))
    norm.eval()
    return norm


EVALUATIONS = {
    "eager": lambda norm, x: norm(x),
    "jit of the input": lambda norm, x: jax.jit(norm)(x),
    "gradient of the input": lambda norm, x: jax.grad(lambda x: (norm(x) ** 2).sum())(x),
    "gradient penalty": lambda norm, x: jax.grad(lambda x: (jax.grad(lambda x: (norm(x) ** 2).sum())(x) ** 2).sum())(x),
    "vmap": lambda norm, x: jax.vmap(norm)(x),
    "plait.vmap": lambda norm, x: plait.vmap(norm)(x),
    "with the model": lambda norm, x: plait.vmap(lambda norm, x: norm(x), in_axes=(None, 0))(norm, x),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
@pytest.mark.parametrize("use", EVALUATIONS)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_in_evaluation_nothing_is_written(kind, use):
    norm, x = frozen(kind), some_input(5, 3)
    norm.layer_instance.kernel[...] *= 2
    before, kept = pure(plait.state(norm)), norm.layer_instance.kernel.get_raw_value()
    found = EVALUATIONS[use](norm, x)
    assert norm.layer_instance.kernel.get_raw_value() is kept
    for path, value in pure(plait.state(norm)).items():
        np.testing.assert_array_equal(value, before[path])
    if "grad" not in use:
        compare(found, EVALUATIONS["eager"](norm, x), TOLERANCE, use)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_evaluation_computes_with_the_normalised_weights_and_their_gradients(kind):
    norm, x = frozen(kind), some_input(5, 3)
    norm.layer_instance.kernel[...] *= 2
    kernel = jnp.asarray(norm.layer_instance.kernel[...])
    if kind == "WeightNorm":
        kernel = kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True)
    else:
        u = norm.batch_stats[("kernel", "u")][...]
        v = (u @ kernel.T) / jnp.linalg.norm(u @ kernel.T)
        u = (v @ kernel) / jnp.linalg.norm(v @ kernel)
        kernel = kernel / (v @ kernel @ u.T).item()
    compare(norm(x), x @ kernel, TOLERANCE, kind)
    grads = plait.grad(lambda norm, x: (norm(x) ** 2).sum())(norm, x)
    assert float(jnp.abs(grads["layer_instance"]["kernel"][...]).max()) > 0
    by_input = plait.grad(lambda norm, x: (norm(x) ** 2).sum(), argnums=1)(norm, x)
    compare(by_input, jax.grad(lambda x: ((x @ kernel) ** 2).sum())(x), TOLERANCE, kind)


def test_an_error_in_the_layer_leaves_the_weights_alone():
    norm = frozen("WeightNorm")
    kept = norm.layer_instance.kernel.get_raw_value()
    with pytest.raises(ShapeError, match="layer_instance"):
        Encoder(norm)(jnp.ones((2, 5)))
    assert norm.layer_instance.kernel.get_raw_value() is kept


@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_in_training_the_error_of_a_gradient_by_the_input_names_argnums(kind):
    norm, x = norms_of(kind), some_input(5, 3)
    with pytest.raises(TraceContextError, match=r"plait\.grad\(f\)\(model, x\), with argnums=1"):
        jax.grad(lambda x: norm(x).sum())(x)
    plait.grad(lambda norm, x: norm(x).sum(), argnums=1)(norm, x)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_weights_are_rounded_last_as_in_flax(kind, dtype, param_dtype):
    """To normalise rounded weights would double the error."""
    outputs = []
    for nnx in (plait, flax_nnx()):
        layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
        norm = getattr(nnx, kind)(layer, dtype=dtype, param_dtype=param_dtype, rngs=nnx.Rngs(0))
        with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings(action="ignore"):  # Flax needs both
            outputs.append(norm(jnp.ones((1, 8))).astype(jnp.float32))
    np.testing.assert_array_equal(*outputs)


def test_scales_have_the_dtype_of_their_initializer():
    norm = plait.WeightNorm(plait.Linear(2, 3, rngs=plait.Rngs(0)), param_dtype=jnp.float16, rngs=plait.Rngs(0))
    assert norm.scales[("kernel",)].dtype == jnp.float32
