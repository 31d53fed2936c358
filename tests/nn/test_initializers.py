import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import plait
from plait.nn import activations, initializers
from tests.nn.twins import flax_nnx

ACTIVATIONS = [name for name in vars(activations) if not name.startswith("_") and name not in ("annotations", "nn")]
FAMILIES = [f"{family}_{kind}" for family in ("glorot", "he", "lecun") for kind in ("normal", "uniform")]
FACTORIES = [*FAMILIES, "normal", "uniform", "truncated_normal", "orthogonal", "ones_init", "zeros_init"]
ALIASES = {"kaiming_normal": "he_normal", "xavier_uniform": "glorot_uniform"}


@pytest.mark.oracle
@pytest.mark.parametrize("name", FACTORIES)
def test_an_initializer_draws_what_flax_s_draws(name):
    arguments = (jax.random.key(0), (4, 4), jnp.float32)
    expected = getattr(flax_nnx().initializers, name)()(*arguments)
    np.testing.assert_array_equal(getattr(initializers, name)()(*arguments), expected)


@pytest.mark.parametrize("name", ALIASES)
def test_an_initializer_has_two_names(name):
    assert getattr(initializers, name) is getattr(initializers, ALIASES[name])


@pytest.mark.oracle
def test_no_initializer_is_missing():
    public = {name for name in vars(flax_nnx().initializers) if not name.startswith("_")}
    assert public - set(vars(initializers)) <= {"DtypeLikeInexact", "tp"}


ONLY_JAX = {"mish", "sparse_plus", "sparse_sigmoid", "squareplus"}  # Flax does not pass these on


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted({*ACTIVATIONS} - ONLY_JAX))
def test_an_activation_is_flax_s(name):
    assert getattr(activations, name) is getattr(flax_nnx(), name)


@pytest.mark.parametrize("kind", [None, AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("init", [jax.nn.initializers.zeros, jax.nn.initializers.ones], ids=["zeros", "ones"])
def test_zeros_and_ones_are_placed_and_typed_as_jax_does(init, kind):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind)) if kind else None
    with jax.set_mesh(mesh) if mesh else jax.default_device(jax.devices()[1]):
        found = plait.LayerNorm(8, scale_init=init, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0)).scale.value
        expected = init(None, (8,), jnp.bfloat16)
    assert (found.sharding, found.committed, found.aval) == (expected.sharding, expected.committed, expected.aval)
    assert found.tolist() == expected.tolist()


def test_each_layer_has_zeros_of_its_own():
    """A step may donate the bias of one layer, and the other keeps its own."""
    rngs = plait.Rngs(0)
    one, other = plait.Linear(2, 3, rngs=rngs), plait.Linear(2, 3, rngs=rngs)
    one.bias.value.delete()
    assert other.bias.tolist() == [0, 0, 0]


def test_a_size_may_be_an_array():
    layer = plait.Linear(2, jnp.array(3), rngs=plait.Rngs(0))
    assert layer.bias.tolist() == [0, 0, 0]


KNOWN = [name for name in FACTORIES if name not in ("ones_init", "zeros_init")]


@pytest.mark.sampled
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_drawn_under_jit_is_what_the_initializer_draws(name):
    init = getattr(initializers, name)()

    @plait.jit
    def kernels(rngs):
        return [plait.Linear(4, 4, kernel_init=init, rngs=rngs).kernel.value for _ in range(2)]

    keys = plait.Rngs(0)
    expected = jax.jit(lambda a, b: [init(a, (4, 4), jnp.float32), init(b, (4, 4), jnp.float32)])
    for found, value in zip(kernels(plait.Rngs(0)), expected(keys(), (keys(), keys())[1]), strict=True):
        np.testing.assert_array_equal(found, value)


def test_an_initializer_of_the_user_is_called_for_each_variable():
    """It may read what changes; those of JAX are traced once for each shape."""
    scales = iter(range(10))

    def init(key, shape, dtype=jnp.float32):
        return jnp.full(shape, next(scales), dtype)

    @plait.jit
    def kernels(rngs):
        return [plait.Linear(2, 2, kernel_init=init, rngs=rngs).kernel.value[0, 0] for _ in range(2)]

    assert [*map(float, kernels(plait.Rngs(0)))] == [0.0, 1.0]
    assert [*map(float, kernels(plait.Rngs(0, other=0)))] == [2.0, 3.0]


def test_an_initializer_may_be_made_of_values_of_a_trace():
    @plait.jit
    def kernel(rngs, value):
        return plait.Linear(2, 2, kernel_init=initializers.constant(value), rngs=rngs).kernel.value[0, 0]

    with jax.checking_leaks():
        assert [float(kernel(plait.Rngs(0), jnp.asarray(x))) for x in (1.0, 2.0)] == [1.0, 2.0]
        assert float(kernel(plait.Rngs(0, other=0), jnp.asarray(3.0))) == 3.0


def test_of_equal_initializers_one_is_kept():
    """The program of one serves for all, so those of models that are gone do not pile up."""
    made = []
    for _ in range(5):
        init = initializers.truncated_normal(0.125)
        plait.eval_shape(lambda init=init: plait.Linear(7, 7, kernel_init=init, rngs=plait.Rngs(0)))
        made.append(weakref.ref(init))
        del init
    gc.collect()
    assert sum(init() is not None for init in made) <= 1


def test_constants_of_either_sign_are_told_apart():
    def kernel(value):
        return plait.Linear(1, 1, kernel_init=initializers.constant(value), rngs=plait.Rngs(0)).kernel.value[0, 0]

    assert [str(plait.jit(kernel, static_argnums=0)(value)) for value in (0.0, -0.0, 1, True)] == [
        "0.0", "-0.0", "1.0", "1.0",
    ]  # fmt: skip


def test_a_decorated_initializer_may_return_more_than_an_array():
    init = plait.with_partitioning(initializers.lecun_normal(), ("rows", None))
    layer = plait.eval_shape(lambda: plait.Linear(2, 2, kernel_init=init, rngs=plait.Rngs(0)))
    assert layer.kernel.out_sharding == ("rows", None)
