"""The layers of ``tests/conformance/layers.py`` as expressions of plain JAX, as one would write them without a library.

Each takes the layer's arrays by path (``kernel``, ``cell.dense_i.bias``) and the input; what a layer writes comes out
beside its result.
"""

import jax
import jax.numpy as jnp
from jax import lax


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def linear_general(p, x):
    return lax.dot_general(x, p["kernel"], (((1, 2), (0, 1)), ((), ()))) + p["bias"]


def einsum(p, x):
    return jnp.einsum("...a,ab->...b", x, p["kernel"]) + p["bias"]


def conv(p, x):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=layout) + p["bias"]


def conv_transpose(p, x):
    return lax.conv_transpose(x, p["kernel"], (2,), "SAME") + p["bias"]


def embed(p, x):
    return jnp.take(p["embedding"], x, 0)


def normalised(x, mean, var, scale, bias, epsilon):
    return (x - mean) * (lax.rsqrt(var + epsilon) * scale) + bias


def mean_and_var(x, axes, *, keepdims=True):
    square = (x * x).mean(axes, keepdims=keepdims)
    mean = x.mean(axes, keepdims=keepdims)
    return mean, jnp.maximum(square - mean * mean, 0)


def batch_norm(p, x):
    mean, var = mean_and_var(x, 0)
    y = normalised(x, mean, var, p["scale"], p["bias"], 1e-5)
    now = (lax.stop_gradient(mean[0]), lax.stop_gradient(var[0]))
    return y, [0.99 * p[name] + 0.01 * new for name, new in zip(("mean", "var"), now, strict=True)]


def layer_norm(p, x):
    return normalised(x, *mean_and_var(x, -1), p["scale"], p["bias"], 1e-6)


def rms_norm(p, x):
    return x * (lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["scale"])


def group_norm(p, x):
    grouped = x.reshape(*x.shape[:-1], 2, 2)
    mean, var = (
        jnp.broadcast_to(stat, (x.shape[0], 1, 2, 2)).reshape(x.shape[0], 1, 4)
        for stat in mean_and_var(grouped, (1, 3))
    )
    return normalised(x, mean, var, p["scale"], p["bias"], 1e-6)


def instance_norm(p, x):
    return normalised(x, *mean_and_var(x, 1), p["scale"], p["bias"], 1e-6)


def attention(p, x):
    def project(name):
        y = lax.dot_general(x, p[f"{name}.kernel"], (((2,), (0,)), ((), ()))) + p[f"{name}.bias"]
        if name == "value":
            return y
        mean, var = mean_and_var(y, -1)
        return (y - mean) * (lax.rsqrt(var + 1e-6) * p[f"{name}_ln.scale"])

    y = jax.nn.dot_product_attention(project("query"), project("key"), project("value"))
    return lax.dot_general(y, p["out.kernel"], (((2, 3), (0, 1)), ((), ()))) + p["out.bias"]


def spectral_norm(p, x):
    def unit(row):
        return row * lax.rsqrt((row * row).sum(keepdims=True) + 1e-12)

    w, fixed = p["layer_instance.kernel"], lax.stop_gradient(p["layer_instance.kernel"])
    v = unit(p["batch_stats.('kernel', 'u')"] @ fixed.T)
    u = unit(v @ fixed)
    sigma = (v @ w @ u.T).reshape(())
    w = w / jnp.where(sigma == 0, 1, sigma)
    return x @ w + p["layer_instance.bias"], (w, u, lax.stop_gradient(sigma))


def weight_norm(p, x):
    w = p["layer_instance.kernel"]
    unit = w * lax.rsqrt((w * w).sum(0, keepdims=True) + 1e-12)
    return x @ (unit * p["scales.('kernel',)"]) + p["layer_instance.bias"], unit


def prelu(p, x):
    return jnp.where(x >= 0, x, p["negative_slope"] * x)


def lora(p, x):
    return x @ p["lora_a"] @ p["lora_b"]


def lora_linear(p, x):
    return linear(p, x) + x @ p["lora.lora_a"] @ p["lora.lora_b"]


def counted(p, *names):
    """What the streams of an RNN count, though no key is used."""
    return [p[f"{name}rngs.count"] + 1 for name in names]


def over_time(step, carry, x, **options):
    _, ys = lax.scan(step, carry, jnp.swapaxes(x, 0, 1), **options)
    return jnp.swapaxes(ys, 0, 1)


def simple_rnn(p, x):
    def step(h, x):
        h = jnp.tanh(x @ p["cell.dense_i.kernel"] + p["cell.dense_i.bias"] + h @ p["cell.dense_h.kernel"])
        return h, h

    return over_time(step, jnp.zeros((x.shape[0], 4)), x), counted(p, "")


def lstm(p, x):
    def step(carry, x):
        c, h = carry
        i, f, g, o = (
            x @ p[f"cell.{a}.kernel"] + (h @ p[f"cell.{b}.kernel"] + p[f"cell.{b}.bias"])
            for a, b in (("ii", "hi"), ("if_", "hf"), ("ig", "hg"), ("io", "ho"))
        )
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    zeros = jnp.zeros((x.shape[0], 4))
    return over_time(step, (zeros, zeros), x), counted(p, "")


def gru(p, x):
    def step(h, x):
        xr, xz, xn = jnp.split(x @ p["cell.dense_i.kernel"] + p["cell.dense_i.bias"], 3, -1)
        hr, hz, hn = jnp.split(h @ p["cell.dense_h.kernel"], 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        h = (1 - z) * jnp.tanh(xn + r * hn) + z * h
        return h, h

    return jnp.flip(over_time(step, jnp.zeros((x.shape[0], 4)), x, reverse=True), 1), counted(p, "")


def bidirectional(p, x):
    def run(name, x, *, reverse):
        def step(carry, x):
            c, h = carry
            at = f"{name}.cell.dense"
            gates = x @ p[f"{at}_i.kernel"] + (h @ p[f"{at}_h.kernel"] + p[f"{at}_h.bias"])
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        zeros = jnp.zeros((x.shape[0], 4))
        return over_time(step, (zeros, zeros), x, reverse=reverse)

    y = jnp.concatenate([run("forward_rnn", x, reverse=False), run("backward_rnn", x, reverse=True)], -1)
    return y, counted(p, "forward_rnn.", "backward_rnn.")


def dropout(p, x):
    key = jax.random.fold_in(p["rngs.key"], p["rngs.count"])
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(kept, x / 0.5, 0), p["rngs.count"] + 1


def sequential(p, x):
    y = jax.nn.gelu(x @ p["layers.0.kernel"] + p["layers.0.bias"])
    return batch_norm({name: p[f"layers.2.{name}"] for name in ("mean", "var", "scale", "bias")}, y)


def rope(p, x):
    first, second = jnp.split(x, 2, -1)
    cos, sin = p["cached_cos"][: x.shape[-2]], p["cached_sin"][: x.shape[-2]]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


PLAIN = {
    "Linear": linear,
    "LinearGeneral": linear_general,
    "Einsum": einsum,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Embed": embed,
    "BatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "RMSNorm": rms_norm,
    "GroupNorm": group_norm,
    "InstanceNorm": instance_norm,
    "MultiHeadAttention": attention,
    "WeightNorm": weight_norm,
    "SpectralNorm": spectral_norm,
    "PReLU": prelu,
    "RoPE": rope,
    "LoRA": lora,
    "LoRALinear": lora_linear,
    "SimpleCell": simple_rnn,
    "LSTMCell": lstm,
    "GRUCell": gru,
    "Bidirectional": bidirectional,
    "Dropout": dropout,
    "Sequential": sequential,
}
