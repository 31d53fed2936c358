"""One model and its steps, written for each contender: flat lists in ``jax.jit``, plait and Flax, Equinox.

The model has ``count`` tiny arrays: blocks in a plain list, each of two layers with a kernel and a bias, and one
statistic. A step's loop makes calls one after the other, each on what the one before left behind, and returns what is
to be waited for. plait and Flax run the same code, each under its own name ``nnx``.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp

from .measure import Loop

SHAPE = (2,)
DECAY = 0.999
STEPS = ("rewrite", "block", "forward", "state", "sgd", "adam", "donated")


def tiny() -> jax.Array:
    return jnp.ones(SHAPE)


def transformation(step: str) -> Any:
    """The Optax transformation of a training step."""
    import optax

    return optax.sgd(1e-4) if step == "sgd" else optax.adam(1e-4)


# Flat lists: the floor ------------------------------------------------------------------------------------


def floor_loop(step: str, count: int) -> Loop:
    """``jax.jit`` on a flat list of arrays that returns exactly the new values."""
    if step in ("sgd", "adam"):
        return _floor_training(step, count)
    state = [tiny() for _ in range(count)]
    x = jnp.ones(())

    def rewrite(values: list[Any], x: Any) -> Any:
        return x * 2, [value * DECAY for value in values]

    def block(values: list[Any], x: Any) -> Any:
        total = sum(values[4:], x)
        return total, [value * DECAY for value in values[:4]]

    def forward(values: list[Any], x: Any) -> Any:
        return sum(values, x)

    if step in ("forward", "state"):
        compiled = jax.jit(forward if step == "forward" else lambda values, x: [value * x for value in values])

        def loop(calls: int) -> Any:
            out = None
            for _ in range(calls):
                out = compiled(state, x)
            return out

    elif step == "block":
        compiled = jax.jit(block)

        def loop(calls: int) -> Any:
            values = state
            out = None
            for _ in range(calls):
                out, values[:4] = compiled(values, x)
            return out

    else:
        compiled = jax.jit(rewrite, donate_argnums=0 if step == "donated" else ())

        def loop(calls: int) -> Any:
            nonlocal state
            values = state
            out = None
            for _ in range(calls):
                out, values = compiled(values, x)
            state = values
            return out, values

    return loop


def _floor_training(step: str, count: int) -> Loop:
    import optax

    tx = transformation(step)
    params = [tiny() for _ in range(count - 1)]
    state, treedef = jax.tree.flatten((params, jnp.ones(SHAPE), jnp.zeros((), jnp.uint32), tx.init(params)))
    x = jnp.ones(())

    def train(state: list[Any], x: Any) -> Any:
        params, statistic, number, opt_state = jax.tree.unflatten(treedef, state)
        loss, grads = jax.value_and_grad(lambda params: jnp.mean(sum((p * p for p in params), x)))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return loss, jax.tree.leaves((params, statistic * DECAY, number + 1, opt_state))

    compiled = jax.jit(train)

    def loop(calls: int) -> Any:
        nonlocal state
        values = state
        loss = None
        for _ in range(calls):
            loss, values = compiled(values, x)
        state = values
        return loss, values

    return loop


# plait and Flax ------------------------------------------------------------------------------------


@functools.cache
def object_classes(nnx: types.ModuleType) -> tuple[type, type]:
    """The model of one library: (block, whole model)."""
    in_list = getattr(nnx, "List", list) if nnx.__name__.startswith("flax") else list

    class Layer(nnx.Module):
        def __init__(self) -> None:
            self.kernel = nnx.Param(tiny())
            self.bias = nnx.Param(tiny())

    class Block(nnx.Module):
        def __init__(self) -> None:
            self.first = Layer()
            self.second = Layer()

        def variables(self) -> list[Any]:
            return [self.first.kernel, self.first.bias, self.second.kernel, self.second.bias]

    class Model(nnx.Module):
        def __init__(self, count: int) -> None:
            self.blocks = in_list([Block() for _ in range((count - 1) // 4)])
            self.statistic = nnx.BatchStat(tiny())
            self.deterministic = False  # what train() and eval() change

        def variables(self) -> list[Any]:
            return [v for block in self.blocks for v in block.variables()] + [self.statistic]

    return Block, Model


def object_model(nnx: types.ModuleType, count: int) -> Any:
    return object_classes(nnx)[1](count)


def object_functions(nnx: types.ModuleType) -> dict[str, Any]:
    """The steps as functions of objects, not yet jitted."""

    def rewrite(model: Any, x: Any) -> Any:
        for variable in model.variables():
            variable.value = variable.value * DECAY
        return x * 2

    def block(model: Any, x: Any) -> Any:
        total = x
        for each in model.blocks[1:]:
            for variable in each.variables():
                total = total + variable.value
        for variable in model.blocks[0].variables():
            variable.value = variable.value * DECAY
        return total + model.statistic.value

    def forward(model: Any, x: Any) -> Any:
        return sum((variable.value for variable in model.variables()), x)

    def state(model: Any, x: Any) -> Any:
        return jax.tree.map(lambda value: value * x, nnx.state(model))

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return jnp.mean(sum((v.value * v.value for b in model.blocks for v in b.variables()), x))

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        model.statistic.value = model.statistic.value * DECAY
        return loss

    return {
        "rewrite": rewrite,
        "donated": rewrite,
        "block": block,
        "forward": forward,
        "state": state,
        "sgd": train,
        "adam": train,
    }


def object_loop(nnx: types.ModuleType, step: str, count: int, *, flat: bool = False, **options: Any) -> Loop:
    """Calls of the library's own ``jit``; ``flat`` as in ``functional_loop``, for a state that is returned."""
    model, x = object_model(nnx, count), jnp.ones(())
    options |= {"donate_argnums": 0} if step == "donated" else {}
    f = object_functions(nnx)[step]
    compiled = nnx.jit((lambda model, x: nnx.as_pure(f(model, x).flat_state())) if flat else f, **options)
    if step in ("sgd", "adam"):
        optimizer = nnx.Optimizer(model, transformation(step), wrt=nnx.Param)

        def loop(calls: int) -> Any:
            out = None
            for _ in range(calls):
                out = compiled(model, optimizer, x)
            return out, model.statistic.value

    else:

        def loop(calls: int) -> Any:
            out = None
            for _ in range(calls):
                out = compiled(model, x)
            return out, model.statistic.value

    return loop


def in_tree_mode(loop: Loop) -> Loop:
    """The loop with Flax's coming default set around it."""
    import plait

    return plait.set_graph_mode(False)(loop)


def bound_loop(nnx: types.ModuleType, step: str, count: int) -> Loop:
    """The form that Flax's performance guide recommends first: the arguments bound once by ``cached_partial``."""
    model, x = object_model(nnx, count), jnp.ones(())
    arguments = [model]
    if step in ("sgd", "adam"):
        arguments.append(nnx.Optimizer(model, transformation(step), wrt=nnx.Param))
    options = {"donate_argnums": 0} if step == "donated" else {}
    bound = nnx.cached_partial(nnx.jit(object_functions(nnx)[step], **options), *arguments)

    def loop(calls: int) -> Any:
        out = None
        for _ in range(calls):
            out = bound(x)
        return out, model.statistic.value

    return loop


def functional_loop(nnx: types.ModuleType, step: str, count: int, *, flat: bool = False) -> Loop:
    """Its other form: split once, and ``jax.jit`` of a function that merges and returns the state.

    Args:
        flat: whether the state is a flat one of values, one node for JAX.
    """
    model, x = object_model(nnx, count), jnp.ones(())
    arguments = [model]
    if step in ("sgd", "adam"):
        arguments.append(nnx.Optimizer(model, transformation(step), wrt=nnx.Param))
    graphdef, state = nnx.split(tuple(arguments))
    state = nnx.as_pure(state.flat_state()) if flat else state
    f = object_functions(nnx)[step]

    def pure(state: Any, x: Any) -> Any:
        merged = nnx.merge(graphdef, state)
        out = f(*merged, x)
        new = nnx.state(merged)
        return out, nnx.as_pure(new.flat_state()) if flat else new

    compiled = jax.jit(pure, donate_argnums=0 if step == "donated" else ())

    def loop(calls: int) -> Any:
        nonlocal state
        out = None
        for _ in range(calls):
            out, state = compiled(state, x)
        return out, jax.tree.leaves(state)[-1]

    return loop


# Equinox ------------------------------------------------------------------------------------


@functools.cache
def equinox_classes() -> tuple[type, type, type]:
    import equinox as eqx

    class Layer(eqx.Module):
        kernel: jax.Array
        bias: jax.Array

    class Block(eqx.Module):
        first: Layer
        second: Layer

    class Model(eqx.Module):
        blocks: list[Block]
        statistic: jax.Array

    return Layer, Block, Model


def equinox_loop(step: str, count: int) -> Loop:
    import equinox as eqx

    Layer, Block, Model = equinox_classes()
    model = Model([Block(Layer(tiny(), tiny()), Layer(tiny(), tiny())) for _ in range((count - 1) // 4)], tiny())
    x = jnp.ones(())

    def decayed(tree: Any) -> Any:
        return jax.tree.map(lambda value: value * DECAY, tree)

    if step in ("rewrite", "donated"):
        donate = "all-except-first" if step == "donated" else "none"

        @eqx.filter_jit(donate=donate)
        def rewrite(x: Any, model: Any) -> Any:
            return x * 2, decayed(model)

        def loop(calls: int) -> Any:
            nonlocal model
            current, out = model, None
            for _ in range(calls):
                out, current = rewrite(x, current)
            model = current
            return out, current.statistic

    elif step == "block":

        @eqx.filter_jit
        def block(model: Any, x: Any) -> Any:
            total = sum(jax.tree.leaves(model.blocks[1:]), x) + model.statistic
            return total, eqx.tree_at(lambda m: m.blocks[0], model, decayed(model.blocks[0]))

        def loop(calls: int) -> Any:
            nonlocal model
            current, out = model, None
            for _ in range(calls):
                out, current = block(current, x)
            model = current
            return out

    elif step in ("forward", "state"):
        forward = eqx.filter_jit(
            (lambda model, x: sum(jax.tree.leaves(model), x))
            if step == "forward"
            else lambda model, x: jax.tree.map(lambda value: value * x, model)
        )

        def loop(calls: int) -> Any:
            out = None
            for _ in range(calls):
                out = forward(model, x)
            return out

    else:
        tx = transformation(step)
        opt_state = (tx.init(model.blocks), jnp.zeros((), jnp.uint32))

        @eqx.filter_jit
        def train(model: Any, opt_state: Any, x: Any) -> Any:
            inner, number = opt_state
            loss, grads = jax.value_and_grad(lambda blocks: jnp.mean(sum((p * p for p in jax.tree.leaves(blocks)), x)))(
                model.blocks
            )
            updates, inner = tx.update(grads, inner, model.blocks)
            blocks = eqx.apply_updates(model.blocks, updates)
            model = eqx.tree_at(lambda m: (m.blocks, m.statistic), model, (blocks, model.statistic * DECAY))
            return loss, model, (inner, number + 1)

        def loop(calls: int) -> Any:
            nonlocal model, opt_state
            current, state, loss = model, opt_state, None
            for _ in range(calls):
                loss, current, state = train(current, state, x)
            model, opt_state = current, state
            return loss, current.statistic

    return loop
