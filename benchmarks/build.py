"""Building: making a transformer's variables, concrete and abstract, beside plain JAX with the same initializers.

The plain program splits a key for each block and calls ``jax.nn.initializers`` and ``jnp.zeros``, as one would write it
by hand. Flax and Equinox build the same layers. The second table makes models of more and more modules, which should
take time in proportion.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import pickle
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .measure import QUICK, Effort, Loop, compare
from .table import Table

WIDTH, BLOCKS = 32, 24
SIZES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "out": (WIDTH, WIDTH),
         "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}  # fmt: skip
NORMS = ("norm1", "norm2")


def run(*, quick: bool = False, alone: bool = False) -> Iterator[Table]:
    """Ratios to plain JAX, and how times grow with the number of modules; `alone` leaves other libraries out."""
    blocks = 2 if quick else BLOCKS
    table = Table(
        f"building: {blocks} blocks, {blocks * 8} layers; host time over plain JAX with the same initializers",
        ["contender", "concrete", "quartiles", "abstract", "quartiles"],
    )
    makers = {name: make for name, make in CONTENDERS.items() if name == "jax" or importlib.util.find_spec(name)}
    if alone:
        makers = {name: makers[name] for name in ("jax", "plait")}
    effort = QUICK if quick else Effort(rounds=31, round_us=1.0, fewest_calls=1)
    concrete = compare({name: _loop(make(blocks)) for name, make in makers.items()}, effort)
    abstract = compare({name: _loop(_abstract(name, make(blocks))) for name, make in makers.items()}, effort)
    for name in makers:
        cells = [
            (timing.ratio, "{:.2f} {:.2f} {:.2f}".format(*timing.quartiles))
            for timing in (concrete[name], abstract[name])
        ]
        table.rows.append([name, *cells[0], *cells[1]])
    yield table
    yield _growth((100, 200) if quick else (1_250, 2_500, 5_000), [name for name in makers if name != "jax"])


def _loop(call: Callable[[], Any]) -> Loop:
    def loop(count: int) -> Any:
        for _ in range(count):
            made = call()
        return [leaf for leaf in jax.tree.leaves(made) if isinstance(leaf, jax.Array)]

    return loop


# Each takes a number of blocks, and returns a function that builds them. --------------------------------------


def plain(blocks: int) -> Callable[[], Any]:
    kernels = jax.nn.initializers.lecun_normal()

    def build() -> Any:
        made = []
        for key in jax.random.split(jax.random.key(0), blocks):
            block: dict[str, Any] = {}
            for part, (name, shape) in zip(jax.random.split(key, len(SIZES)), SIZES.items(), strict=True):
                block[name] = {"kernel": kernels(part, shape), "bias": jnp.zeros(shape[1])}
            for name in NORMS:
                block[name] = {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}
            made.append(block)
        return made

    return build


def _modules(library: str, blocks: int) -> Callable[[], Any]:
    nnx: Any = importlib.import_module("plait" if library == "plait" else "flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            for name, shape in SIZES.items():
                setattr(self, name, nnx.Linear(*shape, rngs=rngs))
            for name in NORMS:
                setattr(self, name, nnx.LayerNorm(WIDTH, rngs=rngs))

    class Model(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.blocks = nnx.List([Block(rngs) for _ in range(blocks)])

    return Model


def equinox(blocks: int) -> Callable[[], Any]:
    import equinox

    def build() -> Any:
        made = []
        for key in jax.random.split(jax.random.key(0), blocks):
            parts = zip(jax.random.split(key, len(SIZES)), SIZES.items(), strict=True)
            layers = {name: equinox.nn.Linear(*shape, key=part) for part, (name, shape) in parts}
            made.append(layers | {name: equinox.nn.LayerNorm(WIDTH) for name in NORMS})
        return made

    return build


CONTENDERS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "jax": plain,
    "plait": lambda blocks: _modules("plait", blocks),
    "flax": lambda blocks: _modules("flax", blocks),
    "equinox": equinox,
}


def _abstract(name: str, build: Callable[[], Any]) -> Callable[[], Any]:
    """The same without values, by the library's own ``eval_shape``."""
    if name == "equinox":
        import equinox

        return lambda: equinox.filter_eval_shape(build)
    if name in ("plait", "flax"):
        nnx: Any = importlib.import_module("plait" if name == "plait" else "flax.nnx")
        return lambda: nnx.eval_shape(lambda: build())
    return lambda: jax.eval_shape(lambda: build())


def _growth(sizes: tuple[int, ...], libraries: Collection[str]) -> Table:
    """Milliseconds to build, split, print and pickle models of more and more modules."""
    table = Table(
        "building and using models of many modules: milliseconds, and their growth from one size to the next",
        ["library", "modules", "build", "split", "repr", "deepcopy", "pickle"],
    )
    for library in libraries:
        before: list[float] = []
        for size in sizes:
            times = [min(_milliseconds(use) for _ in range(3)) for use in _uses(library, size)]
            growth = [f" ({now / then:.1f}x)" for now, then in zip(times, before, strict=False)] or [""] * len(times)
            table.rows.append([library, size, *(f"{now:.0f}{more}" for now, more in zip(times, growth, strict=True))])
            before = times
    table.remarks.append("Twice the modules should take twice the time: values near 2.0x.")
    return table


def _uses(library: str, size: int) -> list[Callable[[], Any]]:
    """Build a model of so many modules, split it, print it, copy it, and pickle its values."""
    build, split = _many_of_equinox(size) if library == "equinox" else _many(library, size)
    model = build()
    state = split(model)
    return [
        build,
        lambda: split(model),
        lambda: repr(model),
        lambda: copy.deepcopy(model),
        lambda: pickle.loads(pickle.dumps(state)),
    ]


def _many(library: str, size: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    nnx: Any = importlib.import_module("plait" if library == "plait" else "flax.nnx")

    class Leaf(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(ONE)

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.parts = nnx.List([Leaf() for _ in range(size - 2)])

    return Model, lambda model: nnx.split(model)[1]


def _many_of_equinox(size: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    import equinox

    class Leaf(equinox.Module):
        w: jax.Array

    class Model(equinox.Module):
        parts: list[Leaf]

    def split(model: Any) -> list[Any]:
        arrays, _ = equinox.partition(model, equinox.is_array)
        return jax.tree.leaves(arrays)  # classes of a function cannot be pickled

    return lambda: Model([Leaf(ONE) for _ in range(size - 2)]), split


def _milliseconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.thread_time_ns()
    kept = call()
    passed = (time.thread_time_ns() - start) / 1e6
    del kept
    return passed


ONE = jnp.ones(1)
