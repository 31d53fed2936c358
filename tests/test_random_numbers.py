"""The shared programs that draw random numbers: the same numbers as JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import random_numbers
from tests.sampling import slow_but

DRAWS = {
    "truncated normal": lambda key, shape, dtype: jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype),
    "normal": jax.random.normal,
    "uniform": lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -0.5, 0.5),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("shape", "dtype"), [((), jnp.float32), ((7, 11), jnp.float32), ((65,), jnp.bfloat16), ((0, 4), jnp.float32)]
)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("key", slow_but([jax.random.key], [jax.random.key, jax.random.PRNGKey]))
def test_they_draw_jax_s_numbers(draw, shape, dtype, key, monkeypatch):
    shared = DRAWS[draw](key(3), shape, dtype)
    random_numbers.users_programs(monkeypatch)
    np.testing.assert_array_equal(np.asarray(shared), np.asarray(DRAWS[draw](key(3), shape, dtype)))
    assert (shared.shape, shared.dtype, shared.weak_type, shared.committed) == (shape, dtype, False, False)


def test_many_shapes_are_drawn_by_one_program(monkeypatch):
    shapes = []
    draw = random_numbers.sharing(lambda key, shape, dtype: shapes.append(shape) or jnp.zeros(shape, dtype))
    for n in (3, 5, 64, 65, 20_000):
        assert draw(jax.random.key(0), (n,), jnp.float32).shape == (n,)
    assert shapes == [(64,), (64,), (64,), (1024,), (20_000,)]


def test_what_is_traced_or_on_a_mesh_is_drawn_as_jax_draws_it():
    shapes = []
    draw = random_numbers.sharing(lambda key, shape, dtype: shapes.append(shape) or jnp.zeros(shape, dtype))
    jax.jit(lambda key: draw(key, (3,), jnp.float32))(jax.random.key(0))
    draw(jax.device_put(jax.random.key(0), jax.devices()[1]), (3,), jnp.float32)
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        draw(jax.random.key(0), (3,), jnp.float32)
    assert shapes == [(3,)] * 3
