"""Eager calls: outside of traces, the arithmetic of a layer runs as one compiled program.

Eagerly, ``lax.dot_general`` costs several times what a jitted function costs, and a norm is a dozen operations. So the
arithmetic of a layer is a function of arrays with ``@compiled_if_eager``: it is compiled once for each of its static
settings, and inside a trace it is called as it is, so programs do not change. The results are equal to the last bit:
on the CPU operations are not fused, since fusing would combine products and sums without rounding between them, and
half precision is rounded after each operation.

JAX keeps the programs, as for every jitted function. Some libraries, such as qwix, replace the code of JAX's products
to quantize what a model computes. A program would not call theirs, so products then run as single operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax import lax

from .._compat import SINGLE_OPERATIONS, SINGLE_PRODUCTS, top_level_trace, trace_state

P = ParamSpec("P")
R = TypeVar("R")


def compiled_if_eager(*static: str, products: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function of arrays where it is called outside of all traces.

    Args:
        static: the names of the arguments that are settings; they are hashable, and passed by keyword.
        products: whether the function has matrix products or convolutions.
    """

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if trace_state.value is not top_level_trace or jax.debug_nans.value:  # it names single operations
                return f(*args, **kwargs)
            if products and _products() != _OWN:
                return f(*args, **kwargs)
            return _compiled(f, static, products)(*args, **kwargs)

        return call

    return decorate


def _products() -> tuple[Any, ...]:
    return lax.dot_general.__code__, lax.conv_general_dilated.__code__


_OWN = _products()


@functools.cache
def _compiled(f: Callable[..., R], static: tuple[str, ...], products: bool) -> Callable[..., R]:
    options = SINGLE_PRODUCTS if products else SINGLE_OPERATIONS
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(f, static_argnames=static, compiler_options=options if on_cpu else None)
