"""What a trace reads from outside the program, and who asks for it. (rule W4)"""

import functools
import logging
import os
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ProgramCacheWarning
from plait.warm.descriptions import Describer
from plait.warm.reads import Recording

# Each reads something that may differ in another process; what it is called in the reason.
ASKS = {
    "os.environ": lambda path: os.environ.get("HOME"),
    "os.getenv": lambda path: os.getenv("HOME"),
    "jax.numpy.load": lambda path: jnp.load(path),
    "io.open": lambda path: path.open("rb").close(),
    "posix.stat": lambda path: path.stat(),
    "time.time": lambda path: time.time(),
    "random.Random.random": lambda path: random.random(),
}


class Handler(logging.Handler):
    """A handler of log records that asks for something."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.called = ask, 0

    def emit(self, record):
        self.called += 1
        self.ask()


@pytest.fixture
def ask(request, tmp_path):
    np.save(tmp_path / "array.npy", np.ones(1, np.float32))
    return functools.partial(ASKS[request.param], tmp_path / "array.npy")


@pytest.mark.parametrize("ask", ASKS, indirect=True)
def test_what_a_handler_of_log_records_reads_does_not_count(ask, monkeypatch):
    """W4: no value of the program comes from it, in whichever language the function is written."""
    handler, logger = Handler(ask), logging.getLogger("tests.outside")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel("INFO")
    with Recording(Describer()) as recording:
        logger.info("traced")
    assert handler.called == 1
    assert recording.reasons == []


@pytest.mark.parametrize(("ask", "name"), [(name, name) for name in ASKS], indirect=["ask"])
def test_what_the_program_reads_counts(ask, name):
    """W4."""
    with Recording(Describer()) as recording:
        ask()
    assert f"{name} gives a different result in each call" in recording.reasons


class Tool:
    """A pytree whose static part has no description."""

    def __init__(self, x, lock):
        self.x, self.lock = x, lock


jax.tree_util.register_pytree_node(
    Tool, lambda tool: ((tool.x,), tool.lock), lambda lock, children: Tool(children[0], lock)
)
ARGUMENTS = {
    "alone": lambda tool: (tool,),
    "in a container": lambda tool: ({"a": [tool]},),
    "beside a model": lambda tool: (plait.Param(1.0), tool),
    "in a container beside a model": lambda tool: (plait.Param(1.0), {"a": [tool]}),
}


@pytest.mark.parametrize("where", ARGUMENTS)
def test_arguments_that_have_no_description_are_called_so(tmp_path, where):
    """W4: the reason says where the value stands."""
    stored = plait.jit(lambda *args: jnp.ones(2), cache=tmp_path)
    with pytest.warns(ProgramCacheWarning, match=r"found +the arguments: a lock"):
        stored(*ARGUMENTS[where](Tool(jnp.ones(2), threading.Lock())))
    assert stored.jitted_fn.programs.counts["not stored"] == 1
