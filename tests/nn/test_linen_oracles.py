"""Layers beside those of flax.linen: the same arrays in, the same numbers out, in float32 and bfloat16. (ask 20)

Tolerance: that of ``twins.py``; the parameters of Linen's layer are copied into ours by name.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.nn.twins import HALF_TOLERANCE, TOLERANCE, compare, some_input, users_promotion
from tests.sampling import slow_but

nn = pytest.importorskip("flax.linen")
pytestmark = pytest.mark.oracle

# name: (Linen's layer of a dtype, ours, shape of the input, arguments of the call)
PAIRS = {
    "Dense": (lambda d: nn.Dense(4, dtype=d), lambda d, r: plait.Linear(3, 4, dtype=d, rngs=r), (2, 3)),
    "DenseGeneral": (
        lambda d: nn.DenseGeneral((4, 2), axis=(-2, -1), dtype=d),
        lambda d, r: plait.LinearGeneral((2, 3), (4, 2), axis=(-2, -1), dtype=d, rngs=r),
        (5, 2, 3),
    ),
    "Einsum": (
        lambda d: nn.Einsum((3, 4), "...a,ab->...b", dtype=d),
        lambda d, r: plait.Einsum("...a,ab->...b", (3, 4), (4,), dtype=d, rngs=r),
        (2, 3),
    ),
    "Conv": (
        lambda d: nn.Conv(4, (3, 2), strides=(2, 1), feature_group_count=2, dtype=d),
        lambda d, r: plait.Conv(2, 4, (3, 2), strides=(2, 1), feature_group_count=2, dtype=d, rngs=r),
        (2, 5, 5, 2),
    ),
    "CausalConv": (
        lambda d: nn.Conv(3, (3,), padding="CAUSAL", dtype=d),
        lambda d, r: plait.Conv(2, 3, (3,), padding="CAUSAL", dtype=d, rngs=r),
        (2, 5, 2),
    ),
    "CircularConv": (
        lambda d: nn.Conv(3, (3,), padding="CIRCULAR", kernel_dilation=2, dtype=d),
        lambda d, r: plait.Conv(2, 3, (3,), padding="CIRCULAR", kernel_dilation=2, dtype=d, rngs=r),
        (2, 7, 2),
    ),
    "ConvTranspose": (
        lambda d: nn.ConvTranspose(3, (3,), strides=(2,), padding="CIRCULAR", dtype=d),
        lambda d, r: plait.ConvTranspose(2, 3, (3,), strides=(2,), padding="CIRCULAR", dtype=d, rngs=r),
        (2, 5, 2),
    ),
    "Embed": (lambda d: nn.Embed(7, 4, dtype=d), lambda d, r: plait.Embed(7, 4, dtype=d, rngs=r), None),
    "BatchNorm": (
        lambda d: nn.BatchNorm(use_running_average=False, dtype=d),
        lambda d, r: plait.BatchNorm(3, dtype=d, rngs=r),
        (8, 3),
    ),
    "LayerNorm": (lambda d: nn.LayerNorm(dtype=d), lambda d, r: plait.LayerNorm(3, dtype=d, rngs=r), (4, 3)),
    "RMSNorm": (lambda d: nn.RMSNorm(dtype=d), lambda d, r: plait.RMSNorm(3, dtype=d, rngs=r), (4, 3)),
    "GroupNorm": (lambda d: nn.GroupNorm(2, dtype=d), lambda d, r: plait.GroupNorm(4, 2, dtype=d, rngs=r), (2, 5, 4)),
    "InstanceNorm": (
        lambda d: nn.InstanceNorm(dtype=d),
        lambda d, r: plait.InstanceNorm(4, dtype=d, rngs=r),
        (2, 5, 4),
    ),
    "Attention": (
        lambda d: nn.MultiHeadDotProductAttention(2, dtype=d),
        lambda d, r: plait.MultiHeadAttention(2, 4, dtype=d, decode=False, rngs=r),
        (2, 5, 4),
    ),
    "NormalisedAttention": (
        lambda d: nn.MultiHeadDotProductAttention(2, normalize_qk=True, use_bias=False, dtype=d),
        lambda d, r: plait.MultiHeadAttention(
            2, 4, normalize_qk=True, use_bias=False, dtype=d, decode=False, rngs=r
        ),
        (2, 5, 4),
    ),
    "PReLU": (
        lambda d: nn.PReLU(param_dtype=d or jnp.float32),
        lambda d, r: plait.PReLU(param_dtype=d or jnp.float32),
        (4, 3),
    ),
    "SimpleCell": (
        lambda d: nn.RNN(nn.SimpleCell(4, dtype=d)),
        lambda d, r: plait.RNN(plait.SimpleCell(3, 4, dtype=d, rngs=r)),
        (2, 5, 3),
    ),
    "LSTMCell": (
        lambda d: nn.RNN(nn.LSTMCell(4, dtype=d)),
        lambda d, r: plait.RNN(plait.LSTMCell(3, 4, dtype=d, rngs=r)),
        (2, 5, 3),
    ),
}  # fmt: skip
RENAMED = {"LayerNorm_0": "", "cell.i": "cell.dense_i", "cell.h": "cell.dense_h", "cell.if": "cell.if_"}
ONLY_FLOAT32 = {"SimpleCell", "LSTMCell"}  # Linen's carry starts in float32, and its loop does not take another dtype


def leaves(tree):
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(str(key.key) for key in path): leaf for path, leaf in flat}


def random_like(leaf):
    values = np.random.default_rng(1).normal(0.5, 0.5, leaf.shape)
    return jnp.asarray(values, np.float32).astype(leaf.dtype)


def pairs_of(name, dtype):
    """Both layers with the same random arrays, and an input."""
    theirs, ours, shape = PAIRS[name]
    theirs, ours = theirs(dtype), ours(dtype, plait.Rngs(0))
    x = jnp.arange(6).reshape(2, 3) if shape is None else some_input(*shape)
    variables = theirs.init(jax.random.key(0), x)
    variables = {**variables, "params": jax.tree.map(random_like, variables["params"])}
    state = plait.state(ours)
    flat = {".".join(map(str, path)): leaf for path, leaf in plait.to_flat_state(state)}
    for tree in variables.values():
        for path, leaf in leaves(tree).items():
            for old, new in RENAMED.items():
                path = path.replace(f"{old}.", f"{new}." if new else "")
            assert flat[path].shape == leaf.shape, path
            flat[path].value = leaf
    plait.update(ours, state)
    return theirs, variables, ours, x


CASES = [(name, None) for name in PAIRS] + [(name, jnp.bfloat16) for name in PAIRS if name not in ONLY_FLOAT32]
COSTLY = ("SimpleCell", "LSTMCell", "NormalisedAttention", "GroupNorm", "InstanceNorm", "ConvTranspose")
is_quick = lambda case: case[0] not in COSTLY and (case[1] is None or case[0] in ("Dense", "BatchNorm"))


@pytest.mark.parametrize(("name", "dtype"), slow_but(is_quick, CASES), ids=str)
def test_a_layer_is_linen_s(name, dtype):
    with users_promotion():
        theirs, variables, ours, x = pairs_of(name, dtype)
        expected, updated = theirs.apply(variables, x, mutable=["batch_stats"])
    y = ours(x)
    assert y.dtype == expected.dtype
    tolerance = TOLERANCE if dtype is None else HALF_TOLERANCE
    compare(y, expected, tolerance, name)
    stats = plait.to_pure_dict(plait.state(ours, plait.BatchStat))
    for path, leaf in leaves(updated.get("batch_stats", {})).items():
        assert leaf.dtype == stats[path].dtype
        compare(stats[path], leaf, tolerance, path)  # Flax NNX, and so plait, takes them of the input in the dtype


@pytest.mark.parametrize("mask", slow_but([True], [False, True]))
def test_masked_attention_is_linen_s(mask):
    with users_promotion():
        theirs, variables, ours, x = pairs_of("Attention", None)
        given = nn.combine_masks(nn.make_causal_mask(x[..., 0]), nn.make_attention_mask(x[..., 0] > 0, x[..., 0] < 2))
        expected = theirs.apply(variables, x, mask=given if mask else None)
    mine = plait.combine_masks(
        plait.make_causal_mask(x[..., 0]), plait.make_attention_mask(x[..., 0] > 0, x[..., 0] < 2)
    )
    np.testing.assert_array_equal(mine, given)
    compare(ours(x, mask=mine if mask else None), expected, TOLERANCE, "masked")


@pytest.mark.slow
def test_decoding_is_linen_s_step_by_step():
    """The same cache, and the same output for each position."""
    with users_promotion():
        linen = nn.MultiHeadDotProductAttention(2, decode=True)
        x = some_input(2, 4, 4)
        variables = linen.init(jax.random.key(0), x)
    ours = plait.MultiHeadAttention(2, 4, decode=True, rngs=plait.Rngs(0))
    state = plait.state(ours, plait.Param)
    for path, leaf in plait.to_flat_state(state):
        leaf.value = leaves(variables["params"])[".".join(path)]
    plait.update(ours, state)
    ours.init_cache(x.shape)
    cache = variables["cache"]
    for i in range(4):
        step = x[:, i : i + 1]
        with users_promotion():
            expected, changed = linen.apply({"params": variables["params"], "cache": cache}, step, mutable=["cache"])
        cache = changed["cache"]
        compare(ours(step), expected, TOLERANCE, f"step {i}")
        for name in ("cached_key", "cached_value", "cache_index"):
            compare(getattr(ours, name)[...], cache[name], TOLERANCE, name)
