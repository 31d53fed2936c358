"""The arithmetic of a layer: compiled once outside of traces, and traced once inside.

Eagerly, ``lax.dot_general`` costs several times what a jitted function costs, and a norm is a dozen operations. So the
arithmetic of a layer is a function of arrays with ``@arithmetic``: it is compiled once for each of its settings.
The results are equal to the last bit: on the CPU operations are not fused, since fusing would combine products and sums
without rounding between them, and half precision is rounded after each operation.

In an eager ``grad`` or ``vmap`` the operations run one by one. The product is a jitted function there, as it is in
``jnp.matmul``: JAX keeps the derivative of a jitted function, and works out that of a primitive in each call.

While a program is recorded, the operations are traced once for each shape, and each further layer copies them into the
program: 24 blocks are traced in less time than the same code in plain functions. Programs do not change.

JAX keeps what was traced and compiled, as for every jitted function. Some libraries, such as qwix, replace the code of
JAX's products to quantize what a model computes. What was kept would not call theirs, so products then run as single
operations.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax import lax

from ..util.jax_versions import SINGLE_OPERATIONS, SINGLE_PRODUCTS, is_within_staged, top_level_trace, trace_state

# The value of ``inline=`` that copies the operations of a function into the recorded program. JAX 0.11 puts
# ``jit(affine)`` into their names nevertheless, between a module and its operation.
COPIED: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)
KEEPS_NAMES = COPIED is not True or jax.__version_info__ < (0, 11)

P = ParamSpec("P")
R = TypeVar("R")


def arithmetic(f: Callable[P, R]) -> Callable[P, R]:
    """Compile or trace a function of arrays once for all calls.

    Arrays are passed by position. What is passed by keyword is a setting, and hashable. A matrix product or convolution
    in it is the setting ``product``: one that a user gives may read what changes, so nothing is kept for it.
    """

    @functools.wraps(f)
    def call(*args: P.args, **settings: P.kwargs) -> R:
        product = settings.get("product")
        is_replaced = product is not None and (product not in _PRODUCTS or _codes() != _OWN)
        if is_replaced or jax.debug_nans.value:  # debug_nans names single operations
            return f(*args, **settings)
        if trace_state.value is top_level_trace:
            return _compiled(f, *settings)(*args, **settings)
        if is_within_staged():
            return (_traced_once(f, *settings) if KEEPS_NAMES else f)(*args, **settings)
        if product is not None:
            settings["product"] = _jitted(product)
        return f(*args, **settings)

    return call


_PRODUCTS = (lax.dot_general, lax.conv_general_dilated, lax.conv_transpose)


def _codes() -> tuple[Any, ...]:
    return lax.dot_general.__code__, lax.conv_general_dilated.__code__


_OWN = _codes()


@functools.cache
def _traced_once(f: Callable[..., R], *settings: str) -> Callable[..., R]:
    return jax.jit(f, static_argnames=settings, inline=COPIED)


@functools.cache
def _jitted(product: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(product, static_argnames=[*inspect.signature(product).parameters][2:], inline=True)


@functools.cache
def _compiled(f: Callable[..., R], *settings: str) -> Callable[..., R]:
    options = SINGLE_PRODUCTS if "product" in settings else SINGLE_OPERATIONS
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(f, static_argnames=settings, compiler_options=options if on_cpu else None)
