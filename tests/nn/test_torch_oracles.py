"""Layers beside PyTorch's, over random shapes and options: output, gradients of parameters and input, statistics.

Tolerance: 2e-5 in float32, relative and absolute; sums are taken in another order there.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from tests.lazily import Lazily
from tests.nn.twins import TOLERANCE, run

torch = Lazily("torch")
pytestmark = [pytest.mark.oracle, pytest.mark.slow]  # `make test` compares each of these layers with Flax

few = settings(max_examples=12)
sizes = st.integers(1, 4)
flags = st.booleans()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 2.0, shape).astype(np.float32)


def channels_first(x: Any) -> Any:
    """Ours has the features last, theirs right after the batch."""
    return np.ascontiguousarray(np.moveaxis(np.asarray(x), -1, 1))


def channels_last(x: Any) -> Any:
    return np.moveaxis(np.asarray(x), 1, -1)


def same(x: Any) -> Any:
    return np.asarray(x)


def kernel_out(kernel: Any, transposed: bool = False) -> Any:
    """``(*size, in, out)`` as ``(out, in, *size)``, or ``(in, out, *size)`` for a transposed convolution."""
    kernel = np.moveaxis(np.asarray(kernel), (-1, -2), (1, 0) if transposed else (0, 1))
    return np.ascontiguousarray(kernel)


def compare_with_torch(
    layer: Any, theirs: Any, x: np.ndarray, into: Any, back: Any, weights: dict[str, tuple[str, Any]], **call: Any
) -> None:
    """Copy our weights into theirs, run both, and compare everything; ``weights`` is {ours: (theirs, conversion)}."""
    with torch.no_grad():
        for ours, (name, convert) in weights.items():
            getattr(theirs, name).copy_(torch.tensor(convert(getattr(layer, ours)[...])))
    mine = run(plait, layer, jnp.asarray(x), **call)
    x_t = torch.tensor(into(x), requires_grad=np.issubdtype(x.dtype, np.floating))
    y_t = theirs(x_t)
    y = back(y_t.detach().numpy())
    np.testing.assert_allclose(mine.y, y, err_msg="output", **TOLERANCE)
    factors = np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape)
    (torch.tensor(into(factors)) * y_t.abs()).sum().backward()
    if x_t.requires_grad:
        # Through back, since x has the layout of the input.
        scale = max(1.0, float(np.abs(mine.x_grad).max()))
        np.testing.assert_allclose(mine.x_grad / scale, back(x_t.grad.numpy()) / scale, err_msg="input", **TOLERANCE)
    for ours, (name, convert) in weights.items():
        grad, expected = convert(mine.grads[ours]), getattr(theirs, name).grad.numpy()
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(grad / scale, expected / scale, err_msg=f"gradient of {ours}", **TOLERANCE)


@given(sizes, sizes, sizes, flags)
@few
def test_linear(batch, n_in, n_out, bias):
    layer = plait.Linear(n_in, n_out, use_bias=bias, bias_init=plait.initializers.normal(), rngs=plait.Rngs(0))
    weights = {"kernel": ("weight", lambda w: np.asarray(w).T)} | ({"bias": ("bias", same)} if bias else {})
    theirs = torch.nn.Linear(n_in, n_out, bias=bias)
    compare_with_torch(layer, theirs, numbers(batch, n_in), same, same, weights)


@given(st.integers(1, 3), st.data())
@few
def test_conv(n_axes, data):
    groups, stride, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    size = tuple(data.draw(st.lists(st.integers(1, 3), min_size=n_axes, max_size=n_axes)))
    padding = data.draw(st.sampled_from([0, 1, "VALID", "CIRCULAR"]))
    if padding == "CIRCULAR":
        stride, dilation, size = 1, 1, (3,) * n_axes
    layer = plait.Conv(
        2 * groups, 2 * groups, size, strides=stride, kernel_dilation=dilation, padding=padding,
        feature_group_count=groups, bias_init=plait.initializers.normal(), rngs=plait.Rngs(0),
    )  # fmt: skip
    theirs = getattr(torch.nn, f"Conv{n_axes}d")(
        2 * groups, 2 * groups, size, stride=stride, dilation=dilation, groups=groups,
        padding={"VALID": 0, "CIRCULAR": 1}.get(padding, padding),
        padding_mode="circular" if padding == "CIRCULAR" else "zeros",
    )  # fmt: skip
    x = numbers(2, *(7,) * n_axes, 2 * groups)
    weights = {"kernel": ("weight", kernel_out), "bias": ("bias", same)}
    compare_with_torch(layer, theirs, x, channels_first, channels_last, weights)


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3))
@few
def test_conv_transpose(n_axes, size, stride):
    """Ours does not flip the kernel; theirs, the gradient of a convolution, does."""
    layer = plait.ConvTranspose(
        2, 3, (size,) * n_axes, strides=stride, padding="VALID", bias_init=plait.initializers.normal(),
        rngs=plait.Rngs(0),
    )  # fmt: skip
    theirs = getattr(torch.nn, f"ConvTranspose{n_axes}d")(
        2, 3, size, stride=stride, output_padding=max(stride - size, 0)
    )
    axes = tuple(range(2, 2 + n_axes))
    weights = {
        "kernel": ("weight", lambda k: np.flip(kernel_out(k, transposed=True), axes).copy()),
        "bias": ("bias", same),
    }
    compare_with_torch(layer, theirs, numbers(2, *(4,) * n_axes, 2), channels_first, channels_last, weights)


@given(sizes, sizes, sizes)
@few
def test_embed(batch, rows, features):
    layer = plait.Embed(rows, features, rngs=plait.Rngs(0))
    ids = np.random.default_rng(0).integers(0, rows, (batch,))
    theirs = torch.nn.Embedding(rows, features)
    compare_with_torch(layer, theirs, ids, same, same, {"embedding": ("weight", same)})


def with_scale(kind: str, *args: Any, **kwargs: Any) -> Any:
    normal = plait.initializers.normal()
    given = {"scale_init": normal} | ({} if kind == "RMSNorm" else {"bias_init": normal})
    return getattr(plait, kind)(*args, **given, **kwargs, rngs=plait.Rngs(0))


SCALE_AND_BIAS = {"scale": ("weight", same), "bias": ("bias", same)}


@given(st.integers(2, 5), st.integers(2, 5), flags)
@few
def test_layer_norm_and_rms_norm(batch, features, fast):
    x = numbers(batch, features)
    layer = with_scale("LayerNorm", features, epsilon=1e-3, use_fast_variance=fast)
    compare_with_torch(layer, torch.nn.LayerNorm(features, eps=1e-3), x, same, same, SCALE_AND_BIAS)
    theirs = torch.nn.RMSNorm(features, eps=1e-3)
    compare_with_torch(
        with_scale("RMSNorm", features, epsilon=1e-3), theirs, x, same, same, {"scale": ("weight", same)}
    )


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
@few
def test_group_norm_and_instance_norm(groups, group_size, n_axes):
    features = groups * group_size
    x = numbers(2, *(4,) * n_axes, features)
    if n_axes or group_size > 1:
        layer = with_scale("GroupNorm", features, num_groups=groups, epsilon=1e-3)
        theirs = torch.nn.GroupNorm(groups, features, eps=1e-3)
        compare_with_torch(layer, theirs, x, channels_first, channels_last, SCALE_AND_BIAS)
    if n_axes:
        layer = with_scale("InstanceNorm", features, epsilon=1e-3)
        theirs = getattr(torch.nn, f"InstanceNorm{n_axes}d")(features, eps=1e-3, affine=True)
        compare_with_torch(layer, theirs, x, channels_first, channels_last, SCALE_AND_BIAS)


@pytest.mark.slow
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 2), st.sampled_from([0.5, 0.9]))
@few
def test_batch_norm_in_training_and_after(batch, features, n_axes, momentum):
    """Their momentum is the weight of the new value, and their running variance is the unbiased one."""
    layer = with_scale("BatchNorm", features, epsilon=1e-3, momentum=momentum)
    theirs = getattr(torch.nn, f"BatchNorm{max(n_axes, 1)}d")(features, eps=1e-3, momentum=1 - momentum)
    x = numbers(batch, *(3,) * n_axes, features)
    compare_with_torch(layer, theirs, x, channels_first, channels_last, SCALE_AND_BIAS)
    layer(x)
    count = x.size // features
    biased = momentum + (theirs.running_var.numpy() - momentum) * (count - 1) / count
    np.testing.assert_allclose(layer.mean[...], theirs.running_mean.numpy(), **TOLERANCE)
    np.testing.assert_allclose(layer.var[...], biased, **TOLERANCE)
    with torch.no_grad():
        theirs.running_var.copy_(torch.tensor(np.asarray(layer.var[...])))
    layer.eval()
    theirs.eval()
    theirs.zero_grad()
    compare_with_torch(layer, theirs, x, channels_first, channels_last, SCALE_AND_BIAS)


@given(sizes, st.floats(0.01, 0.9))
@few
def test_prelu(features, slope):
    layer, theirs = plait.PReLU(slope), torch.nn.PReLU()
    compare_with_torch(
        layer, theirs, numbers(3, features), same, same, {"negative_slope": ("weight", lambda s: np.reshape(s, (1,)))}
    )


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), flags)
@few
def test_pooling(n_axes, window, stride, padded):
    x = numbers(2, *(6,) * n_axes, 3)
    pad = window // 2 if padded else 0
    ours = {"window_shape": (window,) * n_axes, "strides": (stride,) * n_axes, "padding": [(pad, pad)] * n_axes}
    theirs = {"kernel_size": window, "stride": stride, "padding": pad}
    f = torch.nn.functional
    for name, layer, expected in (
        ("max", plait.max_pool, getattr(f, f"max_pool{n_axes}d")),
        ("avg", plait.avg_pool, getattr(f, f"avg_pool{n_axes}d")),
    ):
        y, pullback = jax.vjp(functools.partial(layer, **ours), jnp.asarray(x))
        x_t = torch.tensor(channels_first(x), requires_grad=True)
        y_t = expected(x_t, **theirs)
        np.testing.assert_allclose(y, channels_last(y_t.detach().numpy()), err_msg=name, **TOLERANCE)
        y_t.sum().backward()
        (grad,) = pullback(jnp.ones_like(y))
        np.testing.assert_allclose(grad, channels_last(x_t.grad.numpy()), err_msg=name, **TOLERANCE)


@pytest.mark.slow
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.integers(1, 2), st.data())
@few
def test_dot_product_attention(batch, t_q, t_k, kv_heads, per_group, data):
    """Masks, causal masks and grouped queries; heads stand before the positions there."""
    heads, depth = kv_heads * per_group, 3
    how = (
        data.draw(st.sampled_from(["none", "mask", "causal"]))
        if t_q == t_k
        else data.draw(st.sampled_from(["none", "mask"]))
    )
    q, k, v = (
        numbers(batch, t_q, heads, depth),
        numbers(batch, t_k, kv_heads, depth, seed=1),
        numbers(batch, t_k, kv_heads, depth, seed=2),
    )
    mask = None
    if how == "mask":
        mask = np.random.default_rng(3).integers(0, 2, (batch, 1, t_q, t_k)).astype(bool)
        mask[..., 0] = True  # at least one key for each query

    def ours(q, k, v):
        return plait.dot_product_attention(
            q, k, v, mask=None if mask is None else jnp.asarray(mask), is_causal=how == "causal"
        )

    y, pullback = jax.vjp(ours, *map(jnp.asarray, (q, k, v)))
    tensors = [torch.tensor(np.swapaxes(a, 1, 2).copy(), requires_grad=True) for a in (q, k, v)]
    y_t = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=None if mask is None else torch.tensor(mask), is_causal=how == "causal", enable_gqa=True
    )
    np.testing.assert_allclose(y, np.swapaxes(y_t.detach().numpy(), 1, 2), **TOLERANCE)
    weights = numbers(*y.shape, seed=4)
    (y_t * torch.tensor(np.swapaxes(weights, 1, 2).copy())).sum().backward()
    for grad, tensor in zip(pullback(jnp.asarray(weights)), tensors, strict=True):
        np.testing.assert_allclose(grad, np.swapaxes(tensor.grad.numpy(), 1, 2), rtol=1e-4, atol=1e-4)


def test_a_simple_cell_is_their_rnn():
    layer = plait.RNN(plait.SimpleCell(3, 4, bias_init=plait.initializers.normal(), rngs=plait.Rngs(0)))
    theirs = torch.nn.RNN(3, 4, batch_first=True)
    x = numbers(2, 5, 3)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.tensor(np.asarray(layer.cell.dense_i.kernel[...]).T))
        theirs.weight_hh_l0.copy_(torch.tensor(np.asarray(layer.cell.dense_h.kernel[...]).T))
        theirs.bias_ih_l0.copy_(torch.tensor(np.asarray(layer.cell.dense_i.bias[...])))
        theirs.bias_hh_l0.zero_()
    mine = run(plait, layer, jnp.asarray(x))
    x_t = torch.tensor(x, requires_grad=True)
    y_t, _ = theirs(x_t)
    np.testing.assert_allclose(mine.y, y_t.detach().numpy(), **TOLERANCE)
    (torch.cos(torch.arange(y_t.numel())).reshape(y_t.shape) * y_t.abs()).sum().backward()
    np.testing.assert_allclose(mine.x_grad, x_t.grad.numpy(), **TOLERANCE)
    for name, weight in (("dense_i.kernel", theirs.weight_ih_l0), ("dense_h.kernel", theirs.weight_hh_l0)):
        np.testing.assert_allclose(mine.grads[f"cell.{name}"], weight.grad.numpy().T, **TOLERANCE)


ACTIVATIONS = {
    "celu": "celu", "elu": "elu", "gelu": ("gelu", {"approximate": "tanh"}), "glu": "glu",
    "hard_sigmoid": "hardsigmoid", "hard_silu": "hardswish", "hard_tanh": "hardtanh", "leaky_relu": "leaky_relu",
    "log_sigmoid": "logsigmoid", "log_softmax": ("log_softmax", {"dim": -1}), "relu": "relu", "relu6": "relu6",
    "selu": "selu", "sigmoid": "sigmoid", "silu": "silu", "soft_sign": "softsign", "softmax": ("softmax", {"dim": -1}),
    "softplus": "softplus", "tanh": "tanh",
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    theirs, options = ACTIVATIONS[name] if isinstance(ACTIVATIONS[name], tuple) else (ACTIVATIONS[name], {})
    x = numbers(4, 6)
    y, pullback = jax.vjp(getattr(plait, name), jnp.asarray(x))
    x_t = torch.tensor(x, requires_grad=True)
    y_t = getattr(torch.nn.functional, theirs)(x_t, **options)
    np.testing.assert_allclose(y, y_t.detach().numpy(), **TOLERANCE)
    y_t.sum().backward()
    np.testing.assert_allclose(pullback(jnp.ones_like(y))[0], x_t.grad.numpy(), **TOLERANCE)
