"""Memory: the peak of a training step that owns large arrays, beside plain JAX, each in a fresh process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from .table import Table

ARRAYS = 9
ADAM_ARRAYS = 25
STEPS = 5


def run(*, quick: bool = False) -> Iterator[Table]:
    """Three tables: megabytes above what the process held before the first step, or before a checkpoint was read."""
    megabytes = 1 if quick else 32
    table = Table(
        f"memory: peak of {STEPS} steps that rewrite {ARRAYS} arrays of {megabytes} MB each",
        ["contender", "peak MB", "relative to plain JAX", "live MB afterwards"],
    )
    for donate in (True,) if quick else (False, True):
        _fill(table, "halve", megabytes, donate, columns=["peak", "live"])
    yield table

    thousands = 40 if quick else 4_000
    table = Table(
        f"memory: {STEPS} donated Adam steps on {ADAM_ARRAYS * thousands / 1_000:g} million float32 parameters; "
        "peak of the process above what it held before it made them",
        ["contender", "peak MB", "relative to plain JAX", "compiled: temporary MB", "arguments MB", "aliased MB"],
    )
    _fill(table, "adam", thousands, True, columns=["peak", "temporary", "arguments", "aliased"])
    yield table

    layers = 4 if quick else 64
    table = Table(
        f"memory: {layers * 16} MB restored into a model without values; peak of the process above what it held before",
        ["sharding", "peak MB", "relative to the arrays"],
    )
    with tempfile.TemporaryDirectory() as folder:
        _measured("restore", "write", layers, False, folder)
        for name in ("none", "one device"):
            peak = _measured("restore", name, layers, False, folder)["peak"]
            table.rows.append([name, peak, peak / (layers * 16)])
    yield table


def _fill(table: Table, step: str, size: int, donate: bool, columns: list[str]) -> None:
    """A row for each contender: its peak, that relative to the first, and the other columns."""
    first = 0.0
    for name in ("jax", "plait"):
        found = _measured(step, name, size, donate)
        peak, *others = (found[column] for column in columns)
        first = first or peak
        title = f"{name}, {'donated' if donate else 'not donated'}"
        table.rows.append([title, peak, peak / first if first else "-", *others])


def _measured(step: str, name: str, size: int, donate: bool, *others: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", step, name, str(size), str(int(donate)), *others]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _resident() -> float:
    """The highest resident size of the process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def _halve(name: str, megabytes: int, donate: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    import plait

    shape = (megabytes * 2**18,)
    arrays = [jnp.ones(shape) for _ in range(ARRAYS)]
    options: dict[str, Any] = {"donate_argnums": 0} if donate else {}
    jax.block_until_ready(arrays)
    before = _resident()
    if name == "jax":
        plain_step = jax.jit(lambda values: [value * 0.5 for value in values], **options)
        for _ in range(STEPS):
            arrays = plain_step(arrays)
            jax.block_until_ready(arrays)
    else:
        model = plait.Dict({f"v{i}": plait.Param(array) for i, array in enumerate(arrays)})
        del arrays

        def halve(model: Any) -> None:
            for variable in model.values():
                variable.value = variable.value * 0.5

        step = plait.jit(halve, **options)
        for _ in range(STEPS):
            step(model)
            jax.block_until_ready([variable.value for variable in model.values()])
    return {"peak": _resident() - before, "live": sum(array.nbytes for array in jax.live_arrays()) / 2**20}


def _adam(name: str, thousands: int, donate: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import optax

    import plait

    tx = optax.adam(1e-3)
    options: dict[str, Any] = {"donate_argnums": (0, 1)} if donate else {}
    before = _resident()
    arrays = {f"v{i:02}": jnp.full((1_000, thousands), 1.0 + i) for i in range(ADAM_ARRAYS)}

    def loss(params: Any) -> Any:
        return sum(jnp.mean(params[name] ** 2) for name in arrays_names)

    arrays_names = list(arrays)
    call: Callable[[], Any]
    if name == "jax":
        state = tx.init(arrays)

        def plain_step(params: Any, state: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grads, state, params)
            return value, optax.apply_updates(params, updates), state

        compiled = jax.jit(plain_step, **options).lower(arrays, state).compile()
        held = [arrays, state]
        del arrays, state

        def call() -> Any:
            value, *held[:] = compiled(*held)
            return value, held
    else:
        model = plait.Dict({name: plait.Param(array) for name, array in arrays.items()})
        del arrays
        optimizer = plait.Optimizer(model, tx, wrt=plait.Param)

        def step(model: Any, optimizer: Any) -> Any:
            value, grads = plait.value_and_grad(lambda model: loss(model))(model)
            optimizer.update(model, grads)
            return value

        compiled = plait.jit(step, **options).lower(model, optimizer).compile()

        def call() -> Any:
            return compiled(model, optimizer), plait.state((model, optimizer))

    for _ in range(STEPS):
        jax.block_until_ready(call())
    analysis = compiled.memory_analysis()
    return {
        "peak": _resident() - before,
        "temporary": analysis.temp_size_in_bytes / 2**20,
        "arguments": analysis.argument_size_in_bytes / 2**20,
        "aliased": analysis.alias_size_in_bytes / 2**20,
    }


def _restore(name: str, layers: int, _: bool, folder: str) -> dict[str, float]:
    import jax

    import plait

    def model() -> Any:
        rngs = plait.Rngs(0)
        return plait.Sequential(*(plait.Linear(2048, 2048, use_bias=False, rngs=rngs) for _ in range(layers)))

    place = f"{folder}/checkpoint"
    if name == "write":
        plait.checkpoint.save(place, model())
        return {}
    abstract = plait.eval_shape(model)
    if name != "none":
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        placed = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), plait.state(abstract)
        )
        plait.update(abstract, placed)
    import orbax.checkpoint  # noqa: F401  # its own size is not measured

    before = _resident()
    plait.checkpoint.restore(place, abstract)
    jax.block_until_ready(jax.tree.leaves(plait.state(abstract)))
    return {"peak": _resident() - before}


if __name__ == "__main__":
    measure = {"halve": _halve, "adam": _adam, "restore": _restore}[sys.argv[1]]
    print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1", *sys.argv[5:])))
