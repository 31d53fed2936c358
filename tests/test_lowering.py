"""Lowering in a context that was taken before gives what lowering in a new one gives."""

import threading

import jax
import jax.numpy as jnp
import pytest

from tests.lowering import TIMES, share_contexts

mlir = pytest.importorskip("jax._src.interpreters.mlir")


def program(scale):
    return jax.jit(lambda x: jnp.tanh(x * scale).sum()).lower(jnp.ones((2, 3))).as_text()


@pytest.fixture
def make(monkeypatch):
    """JAX's own function where the tests run as users do; here it is replaced anew, and left as it was."""
    made = []

    def counted():
        made.append(object())
        return made[-1]

    monkeypatch.setattr(mlir, "make_ir_context", counted)
    share_contexts()
    made.clear()
    return made


def test_programs_are_those_of_new_contexts(monkeypatch):
    found = [program(float(scale)) for scale in range(3)]
    monkeypatch.setattr(mlir, "make_ir_context", getattr(mlir.make_ir_context, "__wrapped__", mlir.make_ir_context))
    assert found == [program(float(scale)) for scale in range(3)]
    assert len(set(found)) == 3


def test_a_context_is_taken_a_number_of_times(make):
    taken = [mlir.make_ir_context() for _ in range(TIMES + 1)]
    assert len(make) == 2
    assert taken[0] is taken[TIMES - 1] is not taken[TIMES]


def test_each_thread_has_its_own(make):
    found = [mlir.make_ir_context()]
    thread = threading.Thread(target=lambda: found.append(mlir.make_ir_context()))
    thread.start()
    thread.join()
    assert found[0] is not found[1]


def test_within_a_context_there_is_another():
    """A module made in the context of one that is being made would become a part of it."""
    make = getattr(mlir.make_ir_context, "__wrapped__", mlir.make_ir_context)
    first, second, third = make(), make(), make()  # which JAX renews after some programs, maybe in between
    if first is second or second is third:
        pytest.skip("since JAX 0.12, JAX itself has one context for each thread")
    outer = mlir.make_ir_context()
    with outer:
        assert mlir.make_ir_context() is not outer
