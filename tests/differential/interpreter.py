"""Runs a program with Flax or with plait in the place of ``nnx``."""

from __future__ import annotations

import collections
import dataclasses
import functools
import warnings
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from tests.differential.observation import Failure, Seen, observe, observe_failure
from tests.differential.program import TOOLS, Program

TRACES = collections.Counter()  # of the program that runs


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a program did.

    Attributes:
        shown: for each step what it showed, by name. A program that failed has one entry less than steps.
        failure: what ended it, if anything did.
        traces: how often each function's body ran.
        warned: the names of the classes of its warnings.
        messages: their texts.
    """

    shown: tuple[dict[str, Seen], ...]
    failure: Failure | None
    traces: dict[str, int]
    warned: frozenset[str]
    messages: tuple[str, ...] = ()


def run(program: Program, library: ModuleType) -> Outcome:
    """Run a program to its end or to its first error, as a user's process would: with JAX's own promotion of dtypes."""
    TRACES.clear()
    shown: list[dict[str, Seen]] = []
    failure = None
    with (
        warnings.catch_warnings(record=True) as caught,
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        warnings.simplefilter("always")
        namespace = dict(_defined(program.definitions, library))
        for step in program.steps:
            try:
                exec(_compiled(step.text), namespace)
            except Exception as error:
                failure = observe_failure(error)
                break
            shown.append({name: observe(namespace[name], library) for name in step.shows})
    warned = frozenset(item.category.__name__ for item in caught)
    return Outcome(tuple(shown), failure, dict(TRACES), warned, tuple(str(item.message) for item in caught))


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    return compile(text, "<program>", "exec")


@functools.lru_cache(maxsize=1024)
def _defined(definitions: str, library: ModuleType) -> dict[str, Any]:
    """The names of a program before its first step. Equal definitions are run once, so that JAX compiles once."""
    namespace: dict[str, Any] = {
        "__name__": "program", "nnx": library, "jax": jax, "jnp": jnp, "np": np, "optax": optax, "P": P,
        "NamedSharding": NamedSharding, "AxisType": AxisType, "traces": TRACES,
    }  # fmt: skip
    exec(_compiled(TOOLS), namespace)
    exec(_compiled(definitions), namespace)
    return namespace
