"""The programs of the ten complaints: for each, one for Flax NNX and plait, and one in plain JAX.

A program returns one value for each of its rows in ``field.py``: a count, what a call gave or raised, or a loop, which
is timed there. Where the two libraries need different code, the program asks for the library that it was given.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .measure import Loop

Nnx = types.ModuleType  # flax.nnx or plait


def outcome(call: Callable[..., Any], *args: Any, path: str) -> str:
    """What a call returned, or the error that it raised, and whether that names all parts of the path."""
    try:
        return str(call(*args))
    except Exception as error:
        named = all(part in str(error) for part in path.split("."))
        return f"{type(error).__name__}, names `{path}`" if named else type(error).__name__


def calls_of(f: Callable[..., Any], *args: Any) -> Loop:
    f(*args)  # traced here, in the mode of the program

    def loop(calls: int) -> Any:
        out = None
        for _ in range(calls):
            out = f(*args)
        return out

    return loop


def memory(compiled: Any) -> Any:
    return getattr(compiled, "compiled", compiled).memory_analysis()  # Flax wraps what JAX returns


# 1. Decoding with 1,000 variables ---------------------------------------------------------------------------


def decode_objects(nnx: Nnx, layers: int) -> list[Any]:
    class Layer(nnx.Module):
        def __init__(self) -> None:
            for i in range(7):
                setattr(self, f"kernel{i}", nnx.Param(jnp.ones(2)))
            self.cache = nnx.Cache(jnp.zeros(2))

        def __call__(self, x: Any) -> Any:
            self.cache[...] = self.cache[...] * 0.5 + x
            return sum((getattr(self, f"kernel{i}")[...] for i in range(7)), self.cache[...])

    def step(model: Any, x: Any) -> Any:
        for layer in model:
            x = layer(x)
        return x

    model, x = nnx.List([Layer() for _ in range(layers)]), jnp.ones(2)
    jitted = nnx.jit(step)
    try:
        bound = calls_of(nnx.cached_partial(nnx.jit(step), model), x)
    except ValueError as error:  # Flax's tree mode has none
        bound = type(error).__name__
    graphdef, caches, weights = nnx.split(model, nnx.Cache, ...)

    @jax.jit
    def pure(weights: Any, caches: Any, x: Any) -> Any:
        merged = nnx.merge(graphdef, weights, caches)
        return step(merged, x), nnx.state(merged, nnx.Cache)

    flat_weights, flat_caches = (nnx.as_pure(state.flat_state()) for state in (weights, caches))

    @jax.jit
    def pure_flat(weights: Any, caches: Any, x: Any) -> Any:
        merged = nnx.merge(graphdef, weights.to_nested_state(), caches.to_nested_state())
        return step(merged, x), nnx.as_pure(nnx.state(merged, nnx.Cache).flat_state())

    returned = memory(jitted.lower(model, x).compile()).output_size_in_bytes
    in_jax = calls_of(pure, weights, caches, x), calls_of(pure_flat, flat_weights, flat_caches, x)
    return [calls_of(jitted, model, x), bound, *in_jax, returned]


def decode_plain(layers: int) -> list[Any]:
    @jax.jit
    def step(weights: list[Any], caches: list[Any], x: Any) -> Any:
        new = []
        for i in range(layers):
            new.append(caches[i] * 0.5 + x)
            x = sum(weights[7 * i : 7 * i + 7], new[i])
        return x, new

    arguments = [jnp.ones(2) for _ in range(7 * layers)], [jnp.zeros(2) for _ in range(layers)], jnp.ones(2)
    returned = memory(step.lower(*arguments).compile()).output_size_in_bytes
    return [calls_of(step, *arguments), "", "", "", returned]


# 2. What a scan returns -------------------------------------------------------------------------------------

DEPTH, WIDTH = 6, 64


def stacked_bytes(jaxpr: Any) -> int:
    """Bytes of what the first scan of a program returns for each iteration."""
    (first, *_) = (equation for equation in all_equations(jaxpr) if equation.primitive.name == "scan")
    shapes = [out.aval for out in first.outvars if out.aval.shape[:1] == (DEPTH,)]
    return sum(aval.size * aval.dtype.itemsize for aval in shapes)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "jaxpr")):
            if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                yield from all_equations(getattr(inner, "jaxpr", inner))


def scan_objects(nnx: Nnx) -> list[Any]:
    @nnx.vmap
    def make(key: Any) -> Any:
        return nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=nnx.Rngs(key))

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(block: Any, x: Any) -> Any:
        return nnx.remat(lambda block, x: jnp.sin(block(x)))(block, x)

    blocks, x = make(jax.random.split(jax.random.key(0), DEPTH)), jnp.ones((8, WIDTH))
    graphdef, params = nnx.split(blocks)

    def gradients(params: Any, x: Any) -> Any:
        return nnx.grad(lambda blocks: forward(blocks, x).sum())(nnx.merge(graphdef, params))

    compiled = nnx.jit(lambda blocks, x: forward(blocks, x)).lower(blocks, x).compile()
    return [stacked_bytes(jax.make_jaxpr(gradients)(params, x).jaxpr), memory(compiled).output_size_in_bytes]


def scan_plain() -> list[Any]:
    def forward(kernels: Any, x: Any) -> Any:
        block = jax.checkpoint(lambda x, kernel: jnp.sin(x @ kernel))
        return jax.lax.scan(lambda x, kernel: (block(x, kernel), None), x, kernels)[0]

    kernels, x = jnp.ones((DEPTH, WIDTH, WIDTH)), jnp.ones((8, WIDTH))
    gradients = jax.make_jaxpr(jax.grad(lambda kernels, x: forward(kernels, x).sum()))(kernels, x)
    compiled = jax.jit(forward).lower(kernels, x).compile()
    return [stacked_bytes(gradients.jaxpr), memory(compiled).output_size_in_bytes]


# 3. A scan over a captured model ----------------------------------------------------------------------------


def captured_objects(nnx: Nnx) -> list[Any]:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.scale, self.calls = nnx.Param(jnp.ones(())), nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x: Any) -> Any:
            return self.scale[...] * x

    def reads(net: Any, x: Any) -> Any:
        return net(x)

    def reads_below(net: Any, x: Any) -> Any:
        return nnx.remat(Net.__call__)(net, x)

    def writes(net: Any, x: Any) -> Any:
        net.calls[...] += 1
        return net(x)

    def run(use: Callable[..., Any]) -> float:
        net = Net()

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def total(x: Any, t: Any) -> Any:
            return use(net, x) + t

        return float(total(jnp.zeros(()), jnp.ones(3)))

    return [outcome(run, use, path="net.calls") for use in (reads, reads_below, writes)]


def captured_plain() -> list[Any]:
    def reads(net: Any, x: Any) -> Any:
        return net["scale"] * x

    def writes(net: Any, x: Any) -> Any:
        net["calls"] += x  # a tracer stays in the dict
        return reads(net, x)

    def run(use: Callable[..., Any]) -> float:
        net = {"scale": jnp.ones(()), "calls": jnp.zeros(())}
        out, _ = jax.lax.scan(lambda x, t: (use(net, x) + t, None), jnp.zeros(()), jnp.ones(3))
        return float(out + 0 * net["calls"])

    return [outcome(run, use, path="net.calls") for use in (reads, jax.checkpoint(reads), writes)]


# 4. The memory of a training step ---------------------------------------------------------------------------

LAYERS = 4
DONATED = {"donate_argnums": (0, 1)}


def peak(compiled: Any) -> int:
    return memory(compiled).peak_memory_in_bytes


def memory_objects(nnx: Nnx) -> list[Any]:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([nnx.Linear(128, 128, use_bias=False, rngs=nnx.Rngs(i)) for i in range(LAYERS)])

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = jnp.tanh(layer(x))
            return x

    def compiled(wrt: Any, **donated: Any) -> Any:
        net = Net()
        optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=wrt)

        def step(net: Any, optimizer: Any, x: Any) -> Any:
            loss = lambda net: jnp.mean(net(x) ** 2)
            value, grads = nnx.value_and_grad(loss)(net)
            optimizer.update(net, grads)
            return value

        return nnx.jit(step, **donated).lower(net, optimizer, jnp.ones((8, 128))).compile()

    last = nnx.All(nnx.Param, nnx.PathContains(LAYERS - 1))
    return [peak(compiled(wrt, **donated)) for wrt in (nnx.Param, last) for donated in (DONATED, {})]


def memory_plain() -> list[Any]:
    tx = optax.adam(1e-3)

    def step(trained: list[Any], state: Any, frozen: list[Any], x: Any) -> Any:
        def loss(trained: list[Any]) -> Any:
            return jnp.mean(functools.reduce(lambda x, kernel: jnp.tanh(x @ kernel), frozen + trained, x) ** 2)

        value, grads = jax.value_and_grad(loss)(trained)
        updates, state = tx.update(grads, state, trained)
        return value, optax.apply_updates(trained, updates), state

    def compiled(frozen: int, **donated: Any) -> Any:
        kernels = [jnp.ones((128, 128)) for _ in range(LAYERS)]
        trained = kernels[frozen:]
        arguments = trained, tx.init(trained), kernels[:frozen], jnp.ones((8, 128))
        return jax.jit(step, **donated).lower(*arguments).compile()

    return [peak(compiled(frozen, **donated)) for frozen in (0, LAYERS - 1) for donated in (DONATED, {})]


# 5. Eager branches ------------------------------------------------------------------------------------------


def cond_objects(nnx: Nnx) -> list[Any]:
    layer = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    return branch_traces(lambda *args: nnx.cond(*args), layer, lambda layer, x: layer(x))


def cond_plain() -> list[Any]:
    return branch_traces(jax.lax.cond, {"scale": jnp.ones(4)}, lambda layer, x: x * layer["scale"][None])


def branch_traces(cond: Callable[..., Any], layer: Any, apply: Callable[..., Any]) -> list[Any]:
    """How often a branch is traced in five calls: with functions that stay, and with new ones in each call."""
    traces, x = [0, 0], jnp.ones((2, 4))

    def branch(layer: Any, x: Any) -> Any:
        traces[0] += 1
        return apply(layer, x)

    def otherwise(layer: Any, x: Any) -> Any:
        return x

    def made_anew() -> Callable[..., Any]:
        def branch(layer: Any, x: Any) -> Any:
            traces[1] += 1
            return apply(layer, x)

        return branch

    for _ in range(5):
        cond(True, branch, otherwise, layer, x)
    for _ in range(5):
        cond(True, made_anew(), otherwise, layer, x)
    return traces


# 6. A clone and donation ------------------------------------------------------------------------------------


def clone_objects(nnx: Nnx) -> list[Any]:
    @functools.partial(nnx.jit, donate_argnums=0)
    def decay(net: Any) -> None:
        net.kernel[...] *= 0.9

    @functools.partial(nnx.jit, donate_argnums=0)
    def average(net: Any, mean: Any) -> None:
        net.kernel[...] *= 0.9
        mean.kernel[...] = (mean.kernel[...] + net.kernel[...]) / 2

    def new() -> Any:
        return nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def deleted(**options: Any) -> str:
        net = new()
        copy = nnx.clone(net, **options)
        decay(net)
        values = [copy.kernel.get_value(), copy.bias.get_value()]
        return f"{sum(value.is_deleted() for value in values)} of {len(values)}"

    net = new()
    return [deleted(), deleted(arrays=True), outcome(average, net, nnx.clone(net), path="net.kernel")]


def clone_plain() -> list[Any]:
    @functools.partial(jax.jit, donate_argnums=0)
    def decay(net: Any) -> Any:
        return {**net, "kernel": net["kernel"] * 0.9}

    @functools.partial(jax.jit, donate_argnums=0)
    def average(net: Any, mean: Any) -> Any:
        net = {**net, "kernel": net["kernel"] * 0.9}
        return net, jax.tree.map(lambda a, b: (a + b) / 2, net, mean)

    def new() -> Any:
        return {"kernel": jnp.ones((4, 4)), "bias": jnp.zeros(4)}

    def deleted(copy_leaf: Callable[[Any], Any]) -> str:
        net = new()
        copy = jax.tree.map(copy_leaf, net)
        decay(net)
        return f"{sum(value.is_deleted() for value in copy.values())} of {len(copy)}"

    net = new()
    return [deleted(lambda leaf: leaf), deleted(jnp.copy), outcome(average, net, dict(net), path="net.kernel")]


# 7. Retraces of equal structure -----------------------------------------------------------------------------


def retrace_objects(nnx: Nnx) -> list[Any]:
    def linear() -> Any:
        return nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def optimizer() -> Any:
        return nnx.Optimizer(linear(), optax.adam(1e-3), wrt=nnx.Param)

    def activated() -> Any:
        return nnx.Sequential(linear(), functools.partial(jax.nn.gelu, approximate=True))

    def traces(make: Callable[[], Any]) -> int:
        count = []
        jitted = nnx.jit(lambda model: count.append(1))
        for _ in range(3):
            jitted(make())
        return len(count)

    return [traces(make) for make in (linear, optimizer, activated)]


def retrace_plain() -> list[Any]:
    def traces(make: Callable[[], Any]) -> int:
        """``make`` gives what is static, and the parameters."""
        count = []
        jitted = jax.jit(lambda static, params: count.append(1), static_argnums=0)
        for _ in range(3):
            jitted(make(), {"kernel": jnp.ones((4, 4))})
        return len(count)

    partial = lambda: functools.partial(jax.nn.gelu, approximate=True)
    return [traces(make) for make in (lambda: None, lambda: optax.adam(1e-3), partial)]


# 8. Intermediates in scans ----------------------------------------------------------------------------------


def kept(intermediates: Any) -> str:
    """How many of the values of three iterations of shape (2, 4) are there."""
    return f"{sum(leaf.size // 8 for leaf in jax.tree.leaves(intermediates))} of 3"


def intermediates_objects(nnx: Nnx) -> list[Any]:
    class Block(nnx.Module):
        def __init__(self, key: Any) -> None:
            self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(key))

        def __call__(self, x: Any) -> Any:
            self.sow(nnx.Intermediate, "hidden", x)
            return self.linear(x)

    def captured(block: Any, axes: Any) -> Any:
        scanned = nnx.scan(lambda x, block, t: block(x) + t, in_axes=(nnx.Carry, axes, 0), out_axes=nnx.Carry)
        run = nnx.capture(lambda block, x: scanned(x, block, jnp.ones((3, 2, 4))), nnx.Intermediate)
        return kept(nnx.to_pure_dict(run(block, jnp.ones((2, 4)))[1]))

    blocks = nnx.vmap(Block)(jax.random.split(jax.random.key(0), 3))
    shared, mixed = Block(jax.random.key(0)), nnx.StateAxes({nnx.Intermediate: 0, ...: None})
    cases = (blocks, 0), (shared, mixed), (shared, None)
    return [outcome(captured, *case, path="block.hidden") for case in cases]


def intermediates_plain() -> list[Any]:
    def run(kernels: Any, axis: int | None) -> Any:
        def body(x: Any, t: Any) -> Any:
            step, kernel = (t, kernels) if axis is None else t
            return x @ kernel + step, {"hidden": (x,)}

        steps = jnp.ones((3, 2, 4))
        xs = steps if axis is None else (steps, kernels)
        return kept(jax.lax.scan(body, jnp.ones((2, 4)), xs)[1])

    cases = (jnp.ones((3, 4, 4)), 0), (jnp.ones((4, 4)), None)
    stacked, shared = (outcome(run, *case, path="hidden") for case in cases)
    return [stacked, shared, shared]


# 9. Two names for one axis ----------------------------------------------------------------------------------


def one_device(kind: AxisType) -> Any:
    names = ("layers", "blocks", "mlp")
    return jax.make_mesh((1, 1, 1), names, axis_types=(kind,) * 3, devices=jax.devices()[:1])


def axes_objects(nnx: Nnx) -> list[Any]:
    def names_inside(options: dict[str, Any]) -> Any:
        @functools.partial(nnx.vmap, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def make(key: Any) -> Any:
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "mlp"))
            return nnx.Linear(4, 4, kernel_init=init, use_bias=False, rngs=nnx.Rngs(key))

        def body(x: Any, block: Any) -> Any:
            names.append(block.kernel.out_sharding)
            return block(x)

        names: list[Any] = []
        with jax.set_mesh(one_device(AxisType.Auto)):
            blocks = make(jax.random.split(jax.random.key(0), 3))
            nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **options)(jnp.ones((2, 4)), blocks)
        return names[0]

    def named(name: str) -> dict[str, Any]:
        return {"transform_metadata": {nnx.PARTITION_NAME: name}}

    cases: tuple[dict[str, Any], ...] = named("layers"), {}, named("blocks")
    return [outcome(names_inside, options, path="block.kernel") for options in cases]


def axes_plain() -> list[Any]:
    """JAX has names of axes in the types of arrays, on a mesh with explicit axes."""

    def names_inside(name: str | None) -> Any:
        def body(x: Any, kernel: Any) -> Any:
            names.append(tuple(jax.typeof(kernel).sharding.spec))
            return x, None

        names: list[Any] = []
        mesh = one_device(AxisType.Explicit)
        with jax.set_mesh(mesh):
            kernels = jax.device_put(jnp.ones((3, 4, 4)), NamedSharding(mesh, PartitionSpec(name, None, "mlp")))
            jax.lax.scan(body, jnp.ones((2, 4)), kernels)
        return names[0]

    return [*(outcome(names_inside, name, path="kernels") for name in ("layers", None)), ""]


# 10. Resuming with random state -----------------------------------------------------------------------------


def resume_objects(nnx: Nnx) -> list[Any]:
    @nnx.jit
    def step(linear: Any, drop: Any, optimizer: Any) -> Any:
        loss = lambda linear, drop: jnp.mean(drop(linear(jnp.ones((8, 4)))) ** 2)
        value, grads = nnx.value_and_grad(loss)(linear, drop)
        optimizer.update(linear, grads)
        return value

    def start(seed: int) -> Any:
        rngs = nnx.Rngs(seed)
        linear, drop = nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        return linear, drop, nnx.Optimizer(linear, optax.sgd(0.1), wrt=nnx.Param)

    def resumed(*filters: Any) -> str:
        run = start(0)
        losses = [float(step(*run)) for _ in range(3)]
        with checkpoint() as (save, restore):
            run = start(0)
            step(*run)
            save(nnx.state(run, *filters))
            run = start(1)
            nnx.update(run, restore(nnx.state(run, *filters)))
        return equal([float(step(*run)) for _ in range(2)], losses[1:])

    def restored_from_part() -> str:
        """The random state is missing in the file, and not in what is restored."""
        with checkpoint() as (save, restore):
            save(nnx.state(start(0), nnx.Not(nnx.RngState)))
            restore(nnx.state(start(1)))
        return "restored"

    def restored_by_plait() -> str:
        with tempfile.TemporaryDirectory() as folder:
            nnx.checkpoint.save(f"{folder}/saved", nnx.state(start(0), nnx.Not(nnx.RngState)))
            nnx.checkpoint.restore(f"{folder}/saved", start(1))
        return "restored"

    part = restored_by_plait if nnx.__name__ == "plait" else restored_from_part
    return [resumed(), resumed(nnx.Not(nnx.RngState)), outcome(part, path="rngs.key")]


def resume_plain() -> list[Any]:
    tx = optax.sgd(0.1)

    @jax.jit
    def step(run: Any) -> Any:
        key, drawn = jax.random.split(run["key"])
        kept = jax.random.bernoulli(drawn, 0.5, (8, 4))
        loss = lambda kernel: jnp.mean(jnp.where(kept, jnp.ones((8, 4)) @ kernel, 0) ** 2)
        value, grads = jax.value_and_grad(loss)(run["kernel"])
        updates, state = tx.update(grads, run["state"], run["kernel"])
        return value, {"kernel": optax.apply_updates(run["kernel"], updates), "state": state, "key": key}

    def start(seed: int) -> Any:
        kernel = jax.random.normal(jax.random.key(seed), (4, 4))
        return {"kernel": kernel, "state": tx.init(kernel), "key": jax.random.key(seed)}

    def part_of(run: Any, names: tuple[str, ...]) -> Any:
        return {name: run[name] for name in names}

    def losses(run: Any, steps: int) -> list[float]:
        values = []
        for _ in range(steps):
            value, run = step(run)
            values.append(float(value))
        return values

    def resumed(*names: str) -> str:
        with checkpoint() as (save, restore):
            save(part_of(step(start(0))[1], names))
            run = start(1)
            run |= restore(part_of(run, names))
        return equal(losses(run, 2), losses(start(0), 3)[1:])

    def restored_from_part() -> str:
        with checkpoint() as (save, restore):
            save(part_of(start(0), ("kernel", "state")))
            restore(start(1))
        return "restored"

    part = outcome(restored_from_part, path="key")
    return [resumed("kernel", "state", "key"), resumed("kernel", "state"), part]


@contextlib.contextmanager
def checkpoint() -> Iterator[tuple[Callable[[Any], None], Callable[[Any], Any]]]:
    """Functions that save and restore a tree, by Orbax."""
    import orbax.checkpoint

    with tempfile.TemporaryDirectory() as folder, orbax.checkpoint.StandardCheckpointer() as checkpointer:
        place = pathlib.Path(folder) / "saved"

        def save(tree: Any) -> None:
            checkpointer.save(place, tree)
            checkpointer.wait_until_finished()

        yield save, lambda like: checkpointer.restore(place, like)


def equal(found: list[float], expected: list[float]) -> str:
    return f"{sum(a == b for a, b in zip(found, expected, strict=True))} of {len(expected)}"
