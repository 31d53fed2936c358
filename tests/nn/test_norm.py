import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, SingleValueWarning
from tests.nn.twins import (
    HALF_TOLERANCE,
    TOLERANCE,
    Encoder,
    assert_twins_agree,
    compare,
    flax_nnx,
    pure,
    some_input,
    twins,
    users_promotion,
)
from tests.sampling import slow_but

FAMILY = {
    "BatchNorm": (4,),
    "LayerNorm": (4,),
    "RMSNorm": (4,),
    "GroupNorm": (4, 2),
    "InstanceNorm": (4,),
}
every_norm = pytest.mark.parametrize("name", FAMILY)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(["BatchNorm", "LayerNorm"], FAMILY))
@settings(max_examples=3)
@given(use_scale=st.booleans(), use_bias=st.booleans(), fast=st.booleans(), masked=st.booleans())
def test_a_norm_is_flax_s(name, use_scale, use_bias, fast, masked):
    options = {"use_scale": use_scale, "use_fast_variance": fast, "epsilon": 1e-3}
    if name != "RMSNorm":
        options["use_bias"] = use_bias
    mask = {"mask": jnp.asarray(np.random.default_rng(1).random((3, 5, 4)) < 0.8)} if masked else {}
    assert_twins_agree(name, FAMILY[name], options, some_input(3, 5, 4), **mask)


@pytest.mark.oracle
@every_norm
@pytest.mark.parametrize(
    "dtypes", [("bfloat16", None, "float32"), pytest.param(("float32", "float16", "bfloat16"), marks=pytest.mark.slow)]
)
def test_a_norm_computes_in_flax_s_dtype(name, dtypes):
    x_dtype, dtype, param_dtype = dtypes
    options = {"dtype": dtype, "param_dtype": jnp.dtype(param_dtype)}
    assert_twins_agree(name, FAMILY[name], options, some_input(3, 5, 4, dtype=x_dtype), HALF_TOLERANCE)


OTHER_AXES = [
    ("BatchNorm", (3,), {"axis": 0}),
    ("BatchNorm", (5,), {"axis": -2, "use_running_average": True}),
    ("LayerNorm", (20,), {"reduction_axes": (1, 2), "feature_axes": (1, 2)}),
    ("LayerNorm", (5,), {"reduction_axes": -1, "feature_axes": 1}),
    ("RMSNorm", (4,), {"reduction_axes": (1, 2)}),
    ("GroupNorm", (4, None, 2), {"reduction_axes": (1, 2)}),
    ("InstanceNorm", (5,), {"feature_axes": 1}),
    ("InstanceNorm", (20,), {"feature_axes": (1, -1)}),
]


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize(("name", "args", "options"), slow_but(OTHER_AXES[::2], OTHER_AXES))
def test_a_norm_is_flax_s_over_other_axes(name, args, options):
    assert_twins_agree(name, args, options, some_input(3, 5, 4))


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("momentum", [0.99, 0.5])
def test_running_statistics_are_flax_s_after_several_steps(fast, momentum):
    ours, theirs = twins("BatchNorm", 4, momentum=momentum, use_fast_variance=fast)
    for seed in range(4):
        x = some_input(8, 4, seed=seed)
        ours(x)
        with users_promotion():
            theirs(x)
    x = some_input(3, 4, seed=9)
    mine, other = pure(plait.state(ours)), pure(flax_nnx().state(theirs), flax_nnx())
    for path in mine:
        compare(mine[path], other[path], TOLERANCE, path)
    with users_promotion():
        expected = theirs(x, use_running_average=True)
    compare(ours(x, use_running_average=True), expected, TOLERANCE, "output with running averages")


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")  # Flax's
@pytest.mark.parametrize("jitted", [False, True])
def test_statistics_of_float64_are_mixed_as_in_flax(jitted):
    """The old average is weighted in the float32 in which it is stored."""
    nnx = pytest.importorskip("flax.nnx")
    found = []
    with jax.enable_x64(True), users_promotion():
        x = jnp.linspace(0, 1, 12).reshape(3, 4)
        for library in (plait, nnx):
            norm = library.BatchNorm(4, use_running_average=False, rngs=library.Rngs(0))
            call = library.jit(lambda norm, x: norm(x)) if jitted else lambda norm, x: norm(x)
            for _ in range(3):
                call(norm, x)
            found.append((np.array(norm.mean[...]), np.array(norm.var[...])))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.slow
def test_group_norm_over_the_last_axis_alone_is_linen_s():
    """Flax NNX mixes up the groups here; Linen, PyTorch and the paper do not."""
    linen = pytest.importorskip("flax.linen")
    x = some_input(2, 5, 4)
    with users_promotion():
        expected, _ = linen.GroupNorm(2, reduction_axes=(-1,)).init_with_output(jax.random.key(0), x)
    compare(plait.GroupNorm(4, 2, reduction_axes=-1, rngs=plait.Rngs(0))(x), expected, TOLERANCE, "output")


@pytest.mark.parametrize("kind", [plait.LayerNorm, plait.RMSNorm])
@pytest.mark.parametrize("fast", [True, False])
def test_statistics_over_a_named_axis_are_those_of_the_whole(kind, fast):
    x = some_input(3, 8)
    parts = x.reshape(3, 2, 4)
    whole = kind(8, use_fast_variance=fast, rngs=plait.Rngs(0))
    part = kind(4, use_fast_variance=fast, axis_name="shard", rngs=plait.Rngs(0))
    y = jax.jit(jax.vmap(part, in_axes=1, out_axes=1, axis_name="shard"))(parts)
    np.testing.assert_allclose(y.reshape(3, 8), whole(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fast", slow_but([True], [True, False]))
def test_batch_norm_over_a_named_axis_has_the_statistics_of_the_whole_batch(fast):
    """L16: outputs, gradients and running statistics, under plait.vmap with the module shared."""
    x = some_input(4, 2, 3)
    whole = plait.BatchNorm(3, use_fast_variance=fast, momentum=0.5, rngs=plait.Rngs(0))
    part = plait.BatchNorm(3, use_fast_variance=fast, momentum=0.5, axis_name="device", rngs=plait.Rngs(0))
    run_parts = plait.vmap(lambda norm, x: norm(x), in_axes=(None, 0), axis_name="device")
    loss = lambda y: (y * jnp.cos(jnp.arange(24.0)).reshape(y.shape)).sum()
    mine = plait.jit(plait.grad(lambda norm, x: loss(run_parts(norm, x)), argnums=(0, 1)))(part, x)
    expected = plait.jit(plait.grad(lambda norm, x: loss(norm(x)), argnums=(0, 1)))(whole, x.reshape(8, 3))
    np.testing.assert_allclose(mine[1].reshape(8, 3), expected[1], rtol=1e-4, atol=1e-5)
    found = [{f"gradient of {path}": value for path, value in pure(grad[0]).items()} for grad in (mine, expected)]
    found = [values | pure(plait.state(norm)) for values, norm in zip(found, (part, whole), strict=True)]
    for path, value in found[1].items():
        np.testing.assert_allclose(found[0][path], value, rtol=1e-4, atol=1e-5, err_msg=path)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, jnp.float32) for kind in ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")),
        # The running averages of a BatchNorm are real.
        *((kind, jnp.complex64) for kind in ("LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")),
    ],
)
def test_devices_exchange_all_averages_at_once(kind, dtype):
    options = {"num_groups": 2} if kind == "GroupNorm" else {}
    norm = getattr(plait, kind)(4, axis_name="shard", **options, rngs=plait.Rngs(0))
    mesh = jax.make_mesh((2,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("shard")
    run = jax.shard_map(lambda x: plait.clone(norm)(x), mesh=mesh, in_specs=spec, out_specs=spec)
    lowered = jax.jit(run).lower(jax.ShapeDtypeStruct((4, 3, 4), dtype)).as_text()
    assert lowered.count("stablehlo.all_reduce") == 1


def test_groups_of_a_named_axis_are_averaged_apart():
    x = some_input(4, 3, 2)
    grouped = plait.LayerNorm(2, axis_name="shard", axis_index_groups=[[0, 1], [2, 3]], rngs=plait.Rngs(0))
    together = plait.LayerNorm(2, axis_name="shard", rngs=plait.Rngs(0))
    mesh = jax.make_mesh((4,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("shard")
    y = jax.jit(jax.shard_map(grouped, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(x)
    np.testing.assert_allclose(y[:2], jax.jit(jax.vmap(together, axis_name="shard"))(x[:2]), rtol=1e-5, atol=1e-5)


def test_the_mean_of_squares_is_computed_before_the_mean():
    """The order is 15 % of a transformer step on CPU."""
    norm = plait.LayerNorm(4, rngs=plait.Rngs(0))
    lines = str(jax.make_jaxpr(norm)(jnp.ones((2, 4)))).splitlines()
    first = {word: next(i for i, line in enumerate(lines) if word in line) for word in ("square", "reduce_sum")}
    assert first["square"] < first["reduce_sum"]


def test_a_large_mean_needs_the_slow_variance():
    x = some_input(4, 64) + 1e4
    slow = plait.LayerNorm(64, use_fast_variance=False, rngs=plait.Rngs(0))(x)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(slow, exact, atol=2e-3)


def test_the_gradient_does_not_flow_through_the_running_statistics():
    def loss(x):
        norm = plait.BatchNorm(2, rngs=plait.Rngs(0))
        norm(x)
        return norm.mean.value.sum() + norm.var.value.sum()

    np.testing.assert_array_equal(jax.grad(loss)(some_input(4, 2)), np.zeros((4, 2)))


@pytest.mark.oracle
@pytest.mark.parametrize("library", [flax_nnx, lambda: plait], ids=["flax", "plait"])
def test_nor_does_it_reach_the_statistics_before_the_call(library):
    """Rule L16."""
    nnx = library()

    def loss(norm, x):
        norm(x)
        return sum(map(jnp.sum, jax.tree.leaves(nnx.split(norm)[1])))

    norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.BatchStat))(norm, some_input(4, 2))
    np.testing.assert_array_equal(grads["mean"][...], np.zeros(2))


def test_bfloat16_inputs_leave_the_statistics_in_float32():
    norm = plait.BatchNorm(3, dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    assert norm(some_input(4, 3, dtype=jnp.bfloat16)).dtype == jnp.bfloat16
    assert (norm.mean.dtype, norm.var.dtype) == (jnp.float32, jnp.float32)


def test_the_call_wins_over_the_attribute():
    norm = plait.BatchNorm(2, use_running_average=True, rngs=plait.Rngs(0))
    norm(some_input(3, 2))
    assert norm.mean[...].tolist() == [0.0, 0.0]
    norm(some_input(3, 2), use_running_average=False)
    assert norm.mean[...].tolist() != [0.0, 0.0]


@pytest.mark.parametrize("shape", [(1, 2), (2,), (1, 1, 1, 2)])
def test_statistics_of_one_value_warn_and_give_the_bias(shape):
    """L16: bad input that Flax takes in silence; PyTorch refuses it."""
    norm = plait.BatchNorm(2, momentum=0.5, bias_init=plait.initializers.constant(3.0), rngs=plait.Rngs(0))
    expected = r"at +encoder\.layers\[3\] \(a BatchNorm\)\s+found .*\s+expected .*\s+do .*use_running_average=True"
    with pytest.warns(SingleValueWarning, match=expected):
        y = Encoder(norm)(some_input(*shape))
    np.testing.assert_array_equal(y, np.full(shape, 3.0))
    np.testing.assert_array_equal(norm.var, [0.5, 0.5])


@pytest.mark.parametrize("transform", [lambda f: f, plait.jit, plait.remat], ids=["eager", "jit", "remat"])
def test_the_warning_is_at_the_line_of_the_program(transform):
    norm = plait.BatchNorm(2, rngs=plait.Rngs(0))
    with pytest.warns(SingleValueWarning) as told:
        transform(lambda norm, x: norm(x))(norm, some_input(1, 2))
    assert {each.filename for each in told} == {__file__}


def test_one_value_is_enough_where_others_are_averaged_with_it():
    x = some_input(4, 1, 2)
    plait.BatchNorm(2, use_running_average=True, rngs=plait.Rngs(0))(x[0])
    norm = plait.BatchNorm(2, axis_name="device", rngs=plait.Rngs(0))
    y = plait.vmap(lambda norm, x: norm(x), in_axes=(None, 0), axis_name="device")(norm, x)
    np.testing.assert_allclose(y.mean(0)[0], [0, 0], atol=1e-5)


def test_an_unset_switch_names_the_path_and_three_ways_to_set_it():
    model = Encoder(plait.BatchNorm(2, use_running_average=None, rngs=plait.Rngs(0)))
    expected = r"use_running_average[\s\S]*encoder\.layers\[3\][\s\S]*BatchNorm\(\.\.\., .*layer\(x, .*plait\.view\("
    with pytest.raises(ArgumentError, match=expected):
        model(some_input(3, 2))


def test_set_view_changes_only_what_it_is_given():
    norm = plait.BatchNorm(2, use_running_average=None, rngs=plait.Rngs(0))
    norm.set_view()
    assert norm.use_running_average is None
    norm.set_view(use_running_average=True)
    assert norm.use_running_average is True


@pytest.mark.parametrize(
    ("args", "found"),
    [((6, 3, 2), "num_groups=3 and group_size=2"), ((6, None), "num_groups=None and group_size=None")],
)
def test_groups_are_given_in_exactly_one_way(args, found):
    with pytest.raises(ArgumentError, match=found):
        plait.GroupNorm(*args, rngs=plait.Rngs(0))


@pytest.mark.parametrize(("args", "found"), [((6, 4), "num_groups=4"), ((6, None, 4), "group_size=4")])
def test_groups_must_divide_the_features(args, found):
    with pytest.raises(ArgumentError, match=rf"num_features=6 and {found}[\s\S]*=3"):
        plait.GroupNorm(*args, rngs=plait.Rngs(0))


def test_group_statistics_need_the_axis_of_features():
    model = Encoder(plait.GroupNorm(4, 2, reduction_axes=(1,), rngs=plait.Rngs(0)))
    with pytest.raises(ArgumentError, match=r"encoder\.layers\[3\].*\s+found +reduction_axes=\(1,\)"):
        model(jnp.ones((2, 5, 4)))


@pytest.mark.parametrize("axes", [0, -3, (0, 1)])
def test_instances_cannot_be_features(axes):
    model = Encoder(plait.InstanceNorm(4, feature_axes=axes, rngs=plait.Rngs(0)))
    with pytest.raises(ArgumentError, match=r"encoder\.layers\[3\].*\s+found +feature_axes="):
        model(jnp.ones((4, 5, 4)))


MASKS = {
    "whole": lambda mask: mask,
    "of positions": lambda mask: mask[..., :1],
    "of features": lambda mask: mask[0, 0],
}


@pytest.mark.oracle
@every_norm
@pytest.mark.parametrize("shown", slow_but(list(MASKS)[:1], MASKS))
@pytest.mark.parametrize("jit", slow_but([True], [False, True]))
def test_a_masked_norm_is_flax_s_to_the_last_bit(name, shown, jit):
    """After a Linear, whose product XLA fuses with what follows."""
    x = some_input(3, 5, 4)
    mask = MASKS[shown](jnp.asarray(np.random.default_rng(1).random((3, 5, 4)) < 0.8).at[..., :2].set(True))
    outputs = []
    for nnx in (plait, flax_nnx()):
        layers = nnx.Linear(4, 4, rngs=nnx.Rngs(1)), getattr(nnx, name)(*FAMILY[name], rngs=nnx.Rngs(0))

        def run(layers, x):
            return layers[1](layers[0](x), mask=mask)

        with users_promotion():
            try:
                outputs.append((nnx.jit(run) if jit else run)(layers, x))
            except TypeError:  # Flax's GroupNorm takes no mask of positions
                assert (name, shown, nnx) == ("GroupNorm", "of positions", flax_nnx())
                wide = jnp.broadcast_to(mask, x.shape)
                outputs.append(layers[1](layers[0](x), mask=wide))
                np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)
                return
    np.testing.assert_array_equal(*outputs)


@pytest.mark.sampled
@pytest.mark.oracle
@every_norm
@pytest.mark.parametrize("dtype", [None, jnp.float16, jnp.float32])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("param_dtype", slow_but([jnp.bfloat16], [jnp.float32, jnp.bfloat16]))
def test_a_promotion_of_one_s_own_does_not_choose_the_dtype_of_the_result(name, dtype, x_dtype, param_dtype):
    options = {"dtype": dtype, "param_dtype": param_dtype, "promote_dtype": lambda arrays, **_: arrays}
    outputs = []
    for nnx in (plait, flax_nnx()):
        with users_promotion():
            norm = getattr(nnx, name)(*FAMILY[name], rngs=nnx.Rngs(0), **options)
            outputs.append(norm(some_input(3, 5, 4, dtype=x_dtype)))
    assert outputs[0].dtype == outputs[1].dtype
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("name", ["scale", "bias"])
@pytest.mark.parametrize("kind", [plait.BatchNorm, plait.LayerNorm, plait.InstanceNorm, plait.RMSNorm])
def test_a_parameter_that_was_removed_is_missed(kind, name):
    """``RMSNorm`` never has a bias."""
    norm = kind(4, rngs=plait.Rngs(0))
    if name == "bias" and kind is plait.RMSNorm:
        assert "bias" not in vars(norm)
        return
    plait.pop(norm, plait.PathContains(name))
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        norm(jnp.ones((2, 4)))


def test_l18_an_offset_is_added_to_the_scale():
    x = jax.random.normal(jax.random.key(0), (3, 4))
    plain, offset = plait.RMSNorm(4, rngs=plait.Rngs(0)), plait.RMSNorm(4, scale_offset=1.0, rngs=plait.Rngs(0))
    plain.scale[...] = jnp.array([1.5, 0.5, 1.0, 2.0])
    offset.scale[...] = plain.scale[...] - 1
    np.testing.assert_allclose(offset(x), plain(x), atol=1e-6)
