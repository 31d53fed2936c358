"""A few programs that draw random numbers, in place of one for each shape.

JAX compiles ``truncated_normal`` and its like anew for each shape, and the tests initialize layers of hundreds of
shapes: a tenth of their time. Each number depends on the key and its position alone, so the first ``n`` numbers of a
longer draw are those of a draw of ``n``. Outside of transforms, an array is cut from the next larger of a few lengths.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

try:
    from jax._src import core
    from jax._src.random import core as random
except ImportError:  # not in this JAX; the tests then take longer
    core = random = None

DRAWS = ("_truncated_normal", "_normal", "_uniform")
SHARED = "draws_with"  # the attribute that has the function itself
LENGTHS = (64, 1024, 16_384)


def share_programs() -> None:
    """Give the functions of ``jax.random`` the programs of this module."""
    for name in DRAWS:
        draw = getattr(random, name, None)
        if draw is not None and core is not None:
            setattr(random, name, sharing(draw))


def users_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rest of a test, the functions of ``jax.random`` as users have them."""
    for name in DRAWS:
        draw = getattr(random, name, None)
        if hasattr(draw, SHARED):
            monkeypatch.setattr(random, name, getattr(draw, SHARED))


def sharing(draw: Callable[..., Any]) -> Callable[..., Any]:
    """``draw(key, *limits, shape, dtype)`` by one program for many shapes, wherever the result is the same."""

    names = inspect.signature(draw)

    @functools.wraps(draw)
    def draw_and_cut(*args: Any, **kwargs: Any) -> Any:
        key, *limits, shape, dtype = names.bind(*args, **kwargs).args
        size = math.prod(shape) if is_plain(key, limits, shape) else None
        length = next((length for length in LENGTHS if size is not None and 0 < size <= length), None)
        if length is None:
            return draw(*args, **kwargs)
        numbers = draw(key, *limits, shape=(length,), dtype=dtype)
        return jax.numpy.asarray(np.asarray(numbers)[:size].reshape(shape))

    setattr(draw_and_cut, SHARED, draw)
    return draw_and_cut


def is_plain(key: Any, limits: list[Any], shape: Any) -> bool:
    """Whether a draw is of numbers that exist now, on the default device, with limits for all of them."""
    bits = getattr(key, "_base_array", key)
    return (
        core.trace_state_clean()
        and isinstance(bits, jax.Array)
        and not bits._committed
        and jax.config.jax_threefry_partitionable
        and jax.config.jax_default_device is None
        and jax.sharding.get_abstract_mesh().empty
        and isinstance(shape, tuple)
        and all(isinstance(each, int) for each in shape)
        and all(np.ndim(limit) == 0 for limit in limits)
    )
