"""pmap: every element on a device of its own. (rules X19, X2, X3)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, MissingDependencyError
from plait.transforms import batching
from tests.strategies import Node

DEVICES = 8


def stacked(seed=0):
    """Linear layers and a counter, one for each device, and on it: JAX traces anew when arrays move."""
    kernel, bias = jax.random.normal(jax.random.key(seed), (DEVICES, 3, 2)), jnp.zeros((DEVICES, 2))
    kernel, bias, count = jax.pmap(lambda *arrays: arrays)(kernel, bias, jnp.zeros(DEVICES))
    return Node(kernel=plait.Param(kernel), bias=plait.Param(bias), count=plait.BatchStat(count))


def step(model, x):
    model.count[...] += x.sum()
    return x @ model.kernel[...] + model.bias[...]


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(1, DEVICES), st.sampled_from([0, 1]), st.sampled_from([0, 1]))
def test_it_computes_what_a_loop_over_the_elements_computes(size, in_axis, out_axis):
    """X19: the numbers of plain Python, for any axes and any number of devices."""
    x = jax.random.normal(jax.random.key(1), (size, 3))
    model = Node(kernel=plait.Param(jax.random.normal(jax.random.key(2), (size, 3, 2))))
    f = plait.pmap(lambda model, x: x @ model.kernel[...], in_axes=(0, in_axis), out_axes=out_axis)
    expected = np.stack([np.asarray(x[i]) @ np.asarray(model.kernel[i]) for i in range(size)], out_axis)
    np.testing.assert_allclose(f(model, jnp.moveaxis(x, 0, in_axis)), expected, rtol=1e-5)


def test_a_second_call_is_not_traced_again_and_equal_models_share():
    """U34: JAX keeps what it compiled for a function's identity; the passage of equal structures is one function."""
    traces = []

    @plait.pmap
    def f(model, x):
        traces.append(1)
        return step(model, x)

    x = jnp.ones((DEVICES, 3))
    first, second = stacked(0), stacked(1)
    for model in (first, first, second):
        f(model, x)
    assert len(traces) == 1
    assert (first.count[0].item(), second.count[0].item()) == (6.0, 3.0)
    second.tag = "another structure"
    f(second, x)
    assert len(traces) == 2


def test_changes_of_structure_come_back():
    """U18: a new variable has the axis of its argument; the output may be the module itself."""

    def grow(model):
        model.extra = plait.Cache(model.count[...] + 1)
        del model.bias
        return model

    model = stacked()
    assert plait.pmap(grow)(model) is model
    assert (hasattr(model, "bias"), model.extra.shape) == (False, (DEVICES,))


def test_what_has_no_axis_is_shared_and_may_be_written_alike():
    """X19, X2: a variable under None is broadcast; a mean over the devices may be written to it."""

    def f(model, x):
        model.count[...] = jax.lax.pmean(x.mean(), "devices")
        return x @ model.kernel[...]

    model = Node(kernel=plait.Param(jnp.ones((3, 2))), count=plait.BatchStat(jnp.zeros(())))
    x = jnp.arange(DEVICES * 3.0).reshape(DEVICES, 3)
    axes = plait.StateAxes({plait.BatchStat: None, ...: None})
    out = plait.pmap(f, axis_name="devices", in_axes=(axes, 0))(model, x)
    np.testing.assert_allclose(out, x @ jnp.ones((3, 2)))
    assert (model.count.shape, model.count.item()) == ((), x.mean().item())


def test_axis_names_lose_and_get_the_mapped_axis():
    """V40: inside, names fit the rank; new variables get the name of the axis."""
    seen = []

    @plait.pmap(transform_metadata={plait.PARTITION_NAME: "replica"})
    def f(model):
        seen.append(model.w.out_sharding)
        return plait.Param(model.w[...], out_sharding=("in",))

    model = Node(w=plait.Param(jnp.ones((DEVICES, 3)), out_sharding=("replica", "in")))
    assert f(model).out_sharding == ("replica", "in") == model.w.out_sharding
    assert seen == [("in",)]


def test_static_arguments_are_part_of_the_key():
    traces = []

    @plait.pmap(in_axes=(0, None), static_broadcasted_argnums=1)
    def f(x, power):
        traces.append(power)
        return x**power

    x = jnp.arange(8.0)
    np.testing.assert_allclose(f(x, 2), x**2)
    np.testing.assert_allclose(f(x, 2), x**2)
    np.testing.assert_allclose(f(x, 3), x**3)
    assert traces == [2, 3]
    with pytest.raises(ArgumentError, match=r"at +argument \w+\n +found +a list"):
        f(x, [2])


def test_keywords_take_their_position():
    """X1."""
    np.testing.assert_allclose(plait.pmap(lambda x, y: x - y)(y=jnp.ones(8), x=jnp.zeros(8)), -np.ones(8))


def test_donated_buffers_go_and_the_variables_have_new_ones():
    """X19: a variable that is only read comes out again, or it would be left without a buffer."""
    f = plait.pmap(step, donate_argnums=0)
    model, x = stacked(), jnp.ones((DEVICES, 3))
    before = [variable.get_raw_value() for variable in (model.kernel, model.bias, model.count)]
    kernel = np.asarray(model.kernel)
    f(model, x)
    assert [array.is_deleted() for array in before] == [True, True, True]
    np.testing.assert_array_equal(model.kernel, kernel)
    assert (model.count[0].item(), x.is_deleted()) == (3.0, False)


def on_devices():
    return jax.pmap(lambda x: x)(jnp.ones(DEVICES))


def same_buffer(count):
    return (on_devices(),) * count


# Arguments, what is donated, and for each of them whether its buffer goes.
HELD = {
    "two buffers": (lambda: (on_devices(), on_devices()), (0, 1), [True, True]),
    "one of two": (lambda: (on_devices(), on_devices()), 1, [False, True]),
    "one buffer twice": (lambda: same_buffer(2), (0, 1), [False, False]),
    "one buffer, of which one argument is given": (lambda: same_buffer(2), (1,), [False, False]),
    "twice in one argument": (lambda: (same_buffer(2), on_devices()), (0, 1), [False, False, True]),
    "in a variable and as it is": (
        lambda: (lambda x: (Node(w=plait.Param(x)), x))(on_devices()),
        (0, 1),
        [False, False],
    ),
    "in two variables of two arguments": (
        lambda: tuple(Node(w=plait.Param(x)) for x in same_buffer(2)),
        (0, 1),
        [False, False],
    ),
    "in a variable that is given and one that is kept": (
        lambda: tuple(Node(w=plait.Param(x)) for x in same_buffer(2)),
        (0,),
        [False, False],
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_a_buffer_goes_only_when_it_is_given_and_held_once(case):
    """X19: whether it stands in a variable or is an argument of its own."""
    make, donated, goes = HELD[case]
    args = make()
    arrays = lambda args: jax.tree.leaves(plait.to_pure_dict(plait.state(args)))
    buffers = arrays(args)
    outputs = plait.pmap(lambda *args: [2 * x for x in arrays(args)], donate_argnums=donated)(*args)
    np.testing.assert_array_equal(outputs, 2 * np.ones((len(goes), DEVICES)))
    assert [buffer.is_deleted() for buffer in buffers] == goes


def test_a_jax_without_pmap_is_named(monkeypatch):
    monkeypatch.setattr(batching, "jax_pmap", None)
    with pytest.raises(MissingDependencyError, match=r"plait\.shard_map"):
        plait.pmap(lambda x: x)


@pytest.mark.slow
@pytest.mark.oracle
def test_a_stacked_module_ends_as_in_flax():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        model = lib.pmap(lambda key: lib.Linear(3, 2, rngs=lib.Rngs(key)))(jax.random.split(jax.random.key(0), 8))

        def f(model, x):
            model.bias[...] += x.sum()
            return model(x)

        out = lib.pmap(f)(model, jnp.arange(24.0).reshape(8, 3))
        return out, model.kernel[...], model.bias[...]

    for ours, theirs in zip(run(plait), run(nnx), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_values_only_with_a_prefix_of_the_module_s_own_structure():
    """X2, U32: without structural updates a tree of axes takes the place of the mapping, and nothing compiles twice."""
    traces = []
    model = Node(kernel=plait.Param(jax.pmap(lambda x: x)(jnp.ones((DEVICES, 2)))), n=plait.BatchStat(jnp.float32(3)))
    axes = plait.prefix(model, {plait.Param: 0, ...: None})

    @plait.pmap(in_axes=(axes,), graph_updates=False)
    def f(model):
        traces.append(1)
        model.kernel[...] *= model.n[...]
        model.lost = 1

    f(model), f(model)
    assert (len(traces), model.kernel[0].tolist(), hasattr(model, "lost")) == (1, [9.0, 9.0], False)


def test_programs_of_old_structures_are_forgotten(monkeypatch):
    monkeypatch.setattr(batching, "_KEPT", 2)
    mapped, calls = batching.jax_pmap, []
    monkeypatch.setattr(batching, "jax_pmap", lambda *args, **kwargs: calls.append(1) or mapped(*args, **kwargs))
    f = plait.pmap(lambda model, x: x * model.number)
    for number, made in ((1, 1), (2, 2), (1, 2), (3, 3), (2, 3), (1, 4)):
        assert f(plait.Dict(number=number), jnp.ones((1, 2))).sum() == 2 * number
        assert len(calls) == made
