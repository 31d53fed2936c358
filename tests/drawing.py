"""Random numbers of every shape from programs of two sizes.

The initial values of a layer are drawn by a program for each shape of a parameter, and random bits take XLA longer to
compile than anything else that a small layer does. With JAX's numbering of random bits a number depends on its place in
the flat array alone, so the tests, which make a few thousand small layers, draw an array of one of two sizes and take
its beginning: the same numbers, to the last bit. That holds for draws outside of transforms, and without a mesh or a
device that was asked for; all others are left as they are.
"""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np

try:
    from jax._src import core, mesh
    from jax._src.random import core as random
except ImportError:  # not in this JAX; the tests then take longer
    core = mesh = random = None

SIZES = (256, 4096)
DRAWS = ("_normal", "_truncated_normal", "_uniform")


def share_draws() -> None:
    for name in DRAWS:
        if hasattr(random, name):
            setattr(random, name, of_few_sizes(getattr(random, name)))


def of_few_sizes(draw):
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def beginning(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        key, shape, dtype, bounds = given.pop("key"), given.pop("shape"), given.pop("dtype"), given
        size = math.prod(shape)
        if not 0 < size <= SIZES[-1] or not is_plain(key, *bounds.values()):
            return draw(*args, **kwargs)
        longer = (next(each for each in SIZES if size <= each),)
        whole = draw(key=key, shape=longer, dtype=dtype, **bounds)
        return jnp.array(np.asarray(whole)[:size].reshape(shape))

    return beginning


def is_plain(key, *bounds) -> bool:
    """Whether nothing but the key and the bounds says what is drawn, and where it lies."""
    return (
        core.trace_state_clean()
        and jax.config.jax_threefry_partitionable
        and jax.random.key_impl(key) == "threefry2x32"
        and key.ndim == 0
        and not key.committed
        and all(np.ndim(bound) == 0 for bound in bounds)
        and jax.sharding.get_abstract_mesh().empty
        and mesh.thread_resources.env.physical_mesh.empty
    )
