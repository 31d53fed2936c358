"""plait in miniature: the whole idea, objects outside and pure functions inside, on a few screens of JAX.

A model is a graph of ordinary Python objects, and a JAX transform wants a pure function of arrays. The crossing between
the two is a pair: ``split`` takes a module apart into a ``State`` (a pytree of arrays) and a ``GraphDef`` (everything
static), and ``merge`` builds the module again around other arrays, such as tracers.

It is for reading, not a library to use. ``docs/tiny.md`` walks through it and says where plait itself differs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import textwrap

import jax
import jax.numpy as jnp


# 1. Data
class Variable:
    """A cell that holds a value. Its subclasses say what the value is for, and are JAX pytrees with one child."""

    def __init__(self, value, *, sharding=None):
        self.value, self.sharding = value, sharding

    def __init_subclass__(cls):
        new = lambda sharding, children: cls(*children, sharding=sharding)
        jax.tree_util.register_pytree_node(cls, lambda v: ((v.value,), v.sharding), new)

    def __repr__(self):
        value = textwrap.indent(f"value={self.value!r}", "  ")
        return f"{type(self).__name__}(\n{value},\n  sharding={self.sharding!r}\n)"


class Param(Variable):
    """A learned value."""


class BatchStat(Variable):
    """A running statistic."""


class State(dict):
    """The values of a module: path → Variable. Paths are written ``layers/bn/mean``."""

    def extract(self, cls):
        return State({path: variable for path, variable in self.items() if isinstance(variable, cls)})

    def __repr__(self):
        entries = "".join(textwrap.indent(f"{path!r}: {variable!r},\n", "  ") for path, variable in self.items())
        return f"State({{\n{entries}}})"


jax.tree_util.register_pytree_node(
    State,  # sorted by path: the order in which a state was put together makes no difference to JAX
    lambda state: ([state[path] for path in sorted(state)], tuple(sorted(state))),
    lambda paths, variables: State(zip(paths, variables, strict=True)),
)


@dataclasses.dataclass
class GraphDef:
    """What a module is besides its values: its class, its number, its submodules and its static fields."""

    type: type
    index: int
    submodules: dict[str, GraphDef | int]  # a number refers back to a module met before
    static_fields: dict[str, object]

    def merge(self, state):
        """A new module with this structure and these values: the inverse of ``split``."""
        module = _build(self, {})
        module.update(state)
        return module

    def apply(self, state):
        """The module as a function: ``graphdef.apply(state)(*args)`` returns ``(out, (state, graphdef))``.

        Pure under jit, vmap and scan, which pass in their own state. Called directly it changes the Variables of the
        state that was passed, because the merged module holds these very objects.
        """

        def fn(*args, **kwargs):
            module = self.merge(state)
            return module(*args, **kwargs), module.split()

        return fn


def _build(graphdef, modules):
    if isinstance(graphdef, int):
        return modules[graphdef]  # a KeyError names a number that no module has
    assert graphdef.index not in modules, f"two modules have the number {graphdef.index}"
    module = object.__new__(graphdef.type)
    modules[graphdef.index] = module  # before the children, which may refer back to it
    vars(module).update(graphdef.static_fields)
    submodules = graphdef.submodules.items()
    vars(module).update({name: _build(child, modules) for name, child in submodules})
    return module


# 2. Module
class Module:
    """Base of layers and models: attributes are Variables, other Modules, or static."""

    def split(self):
        """``(state, graphdef)``. The state holds the module's own Variables, not copies."""
        state, indexes = State(), {}

        def visit(module, prefix):
            graphdef = GraphDef(type(module), len(indexes), {}, {})
            indexes[id(module)] = graphdef.index
            for name, value in sorted(vars(module).items()):
                if isinstance(value, Variable):
                    state[prefix + name] = value
                elif not isinstance(value, Module):
                    graphdef.static_fields[name] = value
                elif id(value) in indexes:  # met before: shared, or a cycle
                    graphdef.submodules[name] = indexes[id(value)]
                else:
                    graphdef.submodules[name] = visit(value, f"{prefix}{name}/")
            return graphdef

        return state, visit(self, "")

    def update(self, state):
        """Set the Variable at the end of each path."""
        for path, variable in state.items():
            *parents, name = path.split("/")
            setattr(functools.reduce(getattr, parents, self), name, variable)


# 3. Randomness and layers
@functools.partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["count", "count_path"])
@dataclasses.dataclass
class Rngs:
    """An endless supply of random keys, each made from ``key`` and a number of its own."""

    key: jax.Array
    count: int = 0
    count_path: tuple[int, ...] = ()

    def make_rng(self):
        key = jax.random.fold_in(self.key, stable_number((*self.count_path, self.count)))
        self.count += 1
        return key

    def fork(self):
        """Another supply, whose keys differ from all keys of this one."""
        self.count += 1
        return Rngs(self.key, 0, (*self.count_path, self.count - 1))


def stable_number(path):
    """32 bits that depend on a tuple of integers only, and are the same in every process."""
    digest = hashlib.blake2s(" ".join(map(str, path)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


class Linear(Module):
    """``y = x @ w + b``."""

    def __init__(self, din, dout, *, rngs):
        self.din, self.dout = din, dout
        self.w = Param(jax.random.uniform(rngs.make_rng(), (din, dout)))
        self.b = Param(jnp.zeros((dout,)))

    def __call__(self, x):
        return x @ self.w.value + self.b.value


class BatchNorm(Module):
    """Normalise over all axes but the last, with the batch's statistics in training and running ones otherwise."""

    def __init__(self, din, mu=0.95):
        self.mu = mu
        self.scale, self.bias = Param(jnp.ones((din,))), Param(jnp.zeros((din,)))
        self.mean, self.var = BatchStat(jnp.zeros((din,))), BatchStat(jnp.ones((din,)))

    def __call__(self, x, *, train):
        mean, var = self.mean.value, self.var.value
        if train:
            axes = tuple(range(x.ndim - 1))
            mean, var = jnp.mean(x, axes), jnp.var(x, axes)
            self.mean.value = self.mu * self.mean.value + (1 - self.mu) * mean
            self.var.value = self.mu * self.var.value + (1 - self.mu) * var
        return (x - mean) / jnp.sqrt(var + 1e-5) * self.scale.value + self.bias.value


class Dropout(Module):
    """In training, set a share of the elements to zero and scale the others up."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x, *, train, rngs):
        if not train:
            return x
        keep = jax.random.bernoulli(rngs.make_rng(), 1 - self.rate, x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0.0)


# 4. A model whose blocks are stacked and run by scan
class Block(Module):
    def __init__(self, din, dout, *, rngs):
        self.linear, self.bn, self.dropout = Linear(din, dout, rngs=rngs), BatchNorm(dout), Dropout(0.1)

    def __call__(self, x, *, train, rngs):
        return self.dropout(jax.nn.gelu(self.bn(self.linear(x), train=train)), train=train, rngs=rngs)


class ScanMLP(Module):
    """``n_layers - 1`` blocks, held as one Block with a leading axis on every value, and a Linear."""

    def __init__(self, hidden_size, n_layers, *, rngs):
        self.n_layers = n_layers

        graphdef = None

        def init(key):
            nonlocal graphdef  # static, so it leaves the trace on the side
            state, graphdef = Block(hidden_size, hidden_size, rngs=Rngs(key)).split()
            return state

        stacked = jax.vmap(init)(jax.random.split(rngs.make_rng(), n_layers - 1))
        self.layers = graphdef.merge(stacked)
        self.linear = Linear(hidden_size, hidden_size, rngs=rngs)

    def __call__(self, x, *, train, rngs):
        keys = jax.random.split(rngs.make_rng(), self.n_layers - 1)
        stacked, graphdef = self.layers.split()

        def step(x, key_and_state):
            key, state = key_and_state
            out, (state, _) = graphdef.apply(state)(x, train=train, rngs=Rngs(key))
            return out, state

        x, stacked = jax.lax.scan(step, x, (keys, stacked))
        self.layers.update(stacked)
        return self.linear(x)


if __name__ == "__main__":
    model = ScanMLP(hidden_size=10, n_layers=5, rngs=Rngs(jax.random.key(0)))
    y = model(jnp.ones((2, 10)), train=True, rngs=Rngs(jax.random.key(1)))
    state, graphdef = model.split()
    print(f"output: {y.shape}", f"shapes: {jax.tree.map(jnp.shape, state)}", f"graphdef: {graphdef}", sep="\n\n")
