"""One MLIR context for many lowerings.

JAX makes a context for each function that it lowers and loads all dialects into it, which is two thirds of what
lowering a small function costs. Nothing of a function stays in a context but what is equal in the next (types,
attributes, locations), so the tests, which lower thousands of small functions, take a context several times. Each
thread has its own, and a new one now and then, so that the constants of functions that are gone do not pile up.
"""

import threading

from jax._src.interpreters import mlir

TIMES = 64  # that a context is taken


def share_contexts() -> None:
    make = getattr(mlir, "make_ir_context", None)
    if make is None:  # another JAX; the tests take longer
        return
    own = threading.local()

    def make_or_take_again():
        if getattr(own, "left", 0) == 0:
            own.context, own.left = make(), TIMES
        own.left -= 1
        return own.context

    mlir.make_ir_context = make_or_take_again
