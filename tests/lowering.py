"""One MLIR context for many lowerings.

JAX makes a new context for each function that it lowers and loads every dialect into it. For a small function that is
two thirds of the cost of lowering. A context keeps types, attributes and locations, which mean the same in every
module, so the tests, which lower thousands of small functions, use each context 64 times. Each thread has its own.
A context also keeps constants, so it is replaced now and then. A function that is lowered while another one is, has a
context of its own: in the same one its module would become a part of the other's.
"""

import functools
import threading

try:
    from jax._src.interpreters import mlir
except ImportError:  # not in this JAX; the tests then take longer
    mlir = None

TIMES = 64  # how often a context is used


def is_lowering() -> bool:
    """Whether this thread is within a context."""
    try:
        return mlir.ir.Context.current is not None
    except ValueError:  # there is none
        return False


def share_contexts() -> None:
    make = getattr(mlir, "make_ir_context", None)
    if mlir is None or make is None or make() is make():  # since JAX 0.12, JAX shares them itself
        return
    own = threading.local()

    @functools.wraps(make)
    def make_or_take_again():
        if is_lowering():
            return make()
        if getattr(own, "left", 0) == 0:
            own.context, own.left = make(), TIMES
        own.left -= 1
        return own.context

    mlir.make_ir_context = make_or_take_again
