"""Scaling: what each layout moves between devices, on paper and compiled, and what plait costs with many devices.

The simulator takes the specs that the recipe of ``plait.partitioning`` gives to the transformer of the examples, on a
mesh that need not exist, and adds up what a training step moves in and out of one device with ring algorithms:

* a variable sharded over ``fsdp`` is gathered for the forward and the backward pass; its gradient is reduce-scattered;
* the gradient of every variable is all-reduced over the batch axes that do not shard it;
* activations are all-reduced over ``model`` twice per block and pass, and gathered where the vocabulary is sharded.

It is compared with the collectives in the programs that XLA makes for eight devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .table import Table

EXAMPLES = str(Path(__file__).parents[1] / "examples")
GIGA = 1e9
LAYOUTS = {
    "data": {"data": 8},
    "fsdp": {"fsdp": 8},
    "tensor": {"model": 8},
    "all three": {"data": 2, "fsdp": 2, "model": 2},
}
# 70 billion parameters; sequences of 8,192 tokens, 2,048 of them in a step: 16.8 million tokens.
LARGE = {"vocab": 128_256, "embed": 8_192, "heads": 64, "mlp": 35_840, "blocks": 80, "length": 8_192, "batch": 2_048}
LARGE_LAYOUTS = (
    {"data": 4_096},
    {"fsdp": 2_048},
    {"fsdp": 512, "model": 8},
    {"data": 4, "fsdp": 128, "model": 8},
    {"data": 16, "fsdp": 64, "model": 8},
)


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of an accelerator, round and from memory: replace them by those of your own.

    Attributes:
        flops: of bfloat16 products, per second.
        memory: in bytes.
        near: bytes a second into one chip over the links of its pod or machine, which carry the axis ``model``.
        far: bytes a second into one chip over what carries the other axes.
        machine: how many chips the near links join.
    """

    name: str
    flops: float
    memory: float
    near: float
    far: float
    machine: int

    def seconds_moving(self, parts: Mapping[str, float], sizes: Mapping[str, int]) -> float:
        """How long the bytes that ``moved`` counts take on a mesh, one after the other.

        Chips of one machine that gather the same array fetch it once between them, each a part of it, and pass the
        parts on over the near links; so the far links of all of them work for each.
        """
        together = max(1, self.machine // sizes.get("model", 1))
        far = min(self.near, self.far * together)
        return parts["model"] / self.near + (parts["gradients"] + parts["fsdp"]) / far


# TPU v5p: 459 TFLOP/s, 95 GB, 4,800 Gbit/s between chips (Google Cloud, "TPU v5p"), read as both directions together.
# H100 SXM: 989 TFLOP/s dense, 80 GB, NVLink 900 GB/s both directions together (NVIDIA data sheet), and one 400 Gbit/s
# network port for each GPU, as in DGX H100.
CHIPS = (
    Chip("TPU v5p", 459e12, 95e9, 300e9, 300e9, machine=8_960),
    Chip("H100", 989e12, 80e9, 450e9, 50e9, machine=8),
)


def run(*, quick: bool = False) -> Iterator[Table]:
    """Three tables: on paper, against compiled programs, and plait's own cost."""
    yield on_paper()
    yield against_programs(["data"] if quick else list(LAYOUTS))
    yield own_cost((1, 8) if quick else (1, 8, 64), quick)


def on_paper() -> Table:
    table = Table(
        "70 billion parameters, 16.8 million tokens per step: what a chip stores, communicates and computes",
        [
            "mesh",
            "GB stored per chip",
            "GB communicated: gradients",
            "fsdp",
            "model",
            *(f"{chip.name}: s compute, communication" for chip in CHIPS),
        ],
    )
    for sizes in LARGE_LAYOUTS:
        rows, config = specs_of(LARGE, sizes)
        parts = moved(rows, sizes, config, item=2)
        # A parameter and two averages of Adam in float32, and a gradient in bfloat16.
        held = sum(row.bytes_per_device for row in rows) * (12 + 2) / 4
        chips = math.prod(sizes.values())
        flops = 6 * sum(row.bytes // 4 for row in rows) * config.batch * config.length / chips
        times = [
            f"{flops / chip.flops:.1f}, {chip.seconds_moving(parts, sizes):.1f}"
            + ("" if held < chip.memory else " (does not fit)")
            for chip in CHIPS
        ]
        cells = [parts[name] / GIGA for name in ("gradients", "fsdp", "model")]
        table.rows.append([_named(sizes), held / GIGA, *cells, *times])
    table.remarks.append(
        "held: parameters, averages and gradients. Computing at the published peak; moving without any overlap."
    )
    return table


def specs_of(sizes_of_model: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """What the recipe says of each variable of the transformer on such a mesh; nothing is allocated."""
    from jax.sharding import AbstractMesh, AxisType

    import plait

    transformer = _example()
    config = transformer.Config(**sizes_of_model)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * len(sizes))
    model = plait.eval_shape(lambda: transformer.Transformer(config, plait.Rngs(0)))
    with plait.logical_axis_rules(plait.partitioning.rules_for(mesh)):
        return plait.inspect.sharding_report(plait.state(model, plait.Param), mesh).variables, config


def moved(rows: Any, sizes: Mapping[str, int], config: Any, *, item: int) -> dict[str, float]:
    """Bytes that a training step moves into one device, by cause.

    Args:
        rows: the variables of a sharding report.
        sizes: of the mesh.
        item: bytes of a number that is moved.
    """
    parts = {"gradients": 0.0, "fsdp": 0.0, "model": 0.0}
    for row in rows:
        cut = {name for entry in row.spec for name in ((entry,) if isinstance(entry, str) else entry or ())}
        numbers = row.bytes // 4 / math.prod(sizes[name] for name in cut if name == "model")
        if "fsdp" in cut:
            parts["fsdp"] += 3 * share(sizes["fsdp"]) * numbers * item  # two all-gathers, one reduce-scatter
            numbers /= sizes["fsdp"]
        summed = math.prod(sizes.get(name, 1) for name in ("data", "fsdp") if name not in cut)
        parts["gradients"] += 2 * share(summed) * numbers * item
    tokens = config.batch * config.length / sizes.get("data", 1) / sizes.get("fsdp", 1)
    sums = 4 * config.blocks + 2  # the embedding forward, the head backward
    parts["model"] = sums * 2 * share(sizes.get("model", 1)) * tokens * config.embed * item
    return parts


def share(devices: int) -> float:
    """The share of an array that a device has to get from the others to have it all."""
    return (devices - 1) / devices


def against_programs(layouts: list[str]) -> Table:
    """The simulator beside the compiled step of the example, for eight devices."""
    table = Table(
        "bytes moved into a device in a step of the example: computed, and in XLA's program for 8 CPU devices",
        ["layout", "computed kB", "compiled kB", "compiled / computed", "collectives"],
    )
    for name in layouts:
        found = in_fresh_process("benchmarks.scaling", "program", json.dumps(LAYOUTS[name]), devices=8)
        table.rows.append(
            [name, found["simulated"] / 1e3, found["compiled"] / 1e3, found["ratio"], found["collectives"]]
        )
    table.remarks.append("A loop's body counts once; the example has none.")
    return table


def _program(layout: str) -> dict[str, Any]:
    import jax

    transformer = _example()
    sizes = json.loads(layout)
    config = transformer.Config(embed=64, mlp=256, length=32)
    rows, _ = specs_of(dataclasses.asdict(config) | {"learning_rate": 1e-2}, sizes)
    with transformer.on_mesh(sizes):
        made = transformer.make(config)
        batch = next(transformer.batches(config, 0))
        text = transformer.step.lower(made["model"], made["optimizer"], batch).compile().as_text()
    simulated = sum(moved(rows, sizes, config, item=4).values())
    by_kind = collectives_in(text)
    compiled = sum(by_kind.values())
    kinds = ", ".join(f"{kind} {amount / 1e3:.0f}" for kind, amount in sorted(by_kind.items()))
    assert jax.device_count() == 8
    return {"simulated": simulated, "compiled": compiled, "ratio": compiled / simulated, "collectives": kinds}


_COLLECTIVE = re.compile(r" = (?P<shapes>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(")
_SHAPE = re.compile(r"[a-z]+\d+\[(?P<sizes>[\d,]*)\]")
# How a program writes the devices that take part: a list, a count of groups and their size, or axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\S+)? \{(?P<axes>[^}]*)\}")


def collectives_in(program: str) -> dict[str, float]:
    """Bytes that the collectives of a compiled program move into a device, by kind, with ring algorithms."""
    found: dict[str, float] = {}
    for line in program.splitlines():
        match = _COLLECTIVE.search(line)
        if match:
            shapes = [shape["sizes"] for shape in _SHAPE.finditer(match["shapes"])]
            result = 4 * sum(math.prod(map(int, sizes.split(","))) if sizes else 1 for sizes in shapes)
            size = _group_size(line)
            kind = match["kind"]
            factor = {"all-reduce": 2 * share(size), "reduce-scatter": size - 1.0}.get(kind, share(size))
            found[kind] = found.get(kind, 0.0) + factor * result
    return found


def _group_size(line: str) -> int:
    """How many devices take part in a collective."""
    if listed := _LISTED.search(line):
        return len(listed[1].split(","))
    if counted := _COUNTED.search(line):
        return int(counted[1])
    named = _NAMED.search(line)
    if named is None:
        raise ValueError(f"a collective whose devices are written in a way that is not known: {line[:500]}")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named["mesh"]))
    # A part of an axis is written with what stands before it and its size: 'axis_0':(2)4.
    return math.prod(int(part or sizes[name]) for name, part in re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named["axes"]))


def own_cost(devices: tuple[int, ...], quick: bool) -> Table:
    """What plait adds to the call of a jitted step, whose arrays lie on 1, 8 and 64 devices."""
    table = Table(
        "plait's own cost of a step, arrays sharded over host devices",
        ["devices", "jax.jit µs", "plait.jit µs", "plait's own µs", "relative", "Python functions entered"],
    )
    for count in devices:
        found = in_fresh_process("benchmarks.scaling", "cost", str(int(quick)), devices=count)
        own = found["plait"] - found["jax"]
        table.rows.append([count, found["jax"], found["plait"], own, found["plait"] / found["jax"], found["entered"]])
    table.remarks.append(
        "CPU time of the calling thread; 41 arrays, all of them rewritten, sharded over one axis of all devices."
    )
    return table


def _cost(quick: str) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import plait

    from .measure import QUICK, Effort, compare

    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
    cut = NamedSharding(mesh, PartitionSpec("fsdp"))
    arrays = [jax.device_put(jnp.ones(64), cut) for _ in range(41)]
    model = plait.Dict({f"v{i}": plait.Param(array) for i, array in enumerate(arrays)})
    names = sorted(model)

    @jax.jit
    def plain(values: list[Any]) -> list[Any]:
        return [value * 0.999 for value in values]

    @plait.jit
    def step(model: Any) -> None:
        for name in names:
            model[name].value = model[name].value * 0.999

    held = [arrays]

    def plain_loop(calls: int) -> Any:
        for _ in range(calls):
            held[0] = plain(held[0])
        return held[0]

    def object_loop(calls: int) -> Any:
        for _ in range(calls):
            step(model)
        return [model[name].value for name in names]

    # Few calls in a round: a queue for 64 devices on a few cores would be waited for inside the timed part.
    effort = QUICK if quick == "1" else Effort(rounds=151, round_us=1.0, fewest_calls=2)
    times = compare({"jax": plain_loop, "plait": object_loop}, effort)
    return {name: timing.us for name, timing in times.items()} | {"entered": _entered(step, model)}


def _entered(step: Any, model: Any) -> int:
    """How many Python functions one call enters."""
    count = 0

    def look(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    step(model)
    sys.setprofile(look)
    try:
        step(model)
    finally:
        sys.setprofile(None)
    return count


def in_fresh_process(module: str, *arguments: str, devices: int) -> dict[str, Any]:
    """What a module prints last, as JSON, in a process with this many emulated devices."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    flags += f" --xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def _example() -> Any:
    with contextlib.suppress(ValueError):
        sys.path.remove(EXAMPLES)
    sys.path.insert(0, EXAMPLES)
    import transformer

    return transformer


def _named(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{name} {size:,}" for name, size in sizes.items())


if __name__ == "__main__":
    print(json.dumps({"program": _program, "cost": _cost}[sys.argv[1]](sys.argv[2])))
