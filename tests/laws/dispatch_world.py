"""What the dispatch machine does to a graph: the functions that it runs eagerly and jitted, and the edits between them.

Everything is deterministic and finds its targets by their place in the graph, so that the same step can be done to two
graphs that look the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plait
from plait.core.states.state import tracked
from tests.oracles import children, modules, variables, walk
from tests.strategies import KINDS, Box, Leafy, Node, Pair


class Oops(Exception):
    """Raised by the function that fails."""


def parts(args: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """The modules among some arguments, and the sum of the numbers."""
    roots, total = [], jnp.float32(0)
    for arg in jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, (plait.Pytree, plait.Variable))):
        if isinstance(arg, (plait.Pytree, plait.Variable)):
            roots.append(arg)
        else:
            total = total + jnp.asarray(arg, jnp.float32).sum()
    return roots, total


def numeric(*roots: Any) -> list[Any]:
    """The variables that hold numbers: all but random keys."""
    return [v for v in variables(*roots) if not jnp.issubdtype(v.value.dtype, jax.dtypes.prng_key)]


def total_of(roots: list[Any]) -> Any:
    total = jnp.float32(0)
    for place, variable in enumerate(numeric(*roots)):
        total = total + (place + 1) * variable.value.astype(jnp.float32).sum()
    return total


# None of them writes to an object that it then detaches: such writes are lost, where eager Python keeps them. (U20)
# Functions ------------------------------------------------------------------------------------------------------------


def read(*args):
    roots, x = parts(args)
    return total_of(roots) + x


def weigh(*args):
    """The place of an argument matters."""
    out = jnp.float32(0)
    for place, arg in enumerate(args):
        roots, x = parts((arg,))
        out = out + (10**place) * (total_of(roots) + x)
    return out, [None if arg is None else jnp.float32(place) for place, arg in enumerate(args)]


def add(*args):
    roots, x = parts(args)
    for variable in numeric(*roots):
        variable.value = variable.value + x.astype(variable.value.dtype)
    return total_of(roots)


def write_one(*args):
    """Which variable is written depends on the shapes of the plain arguments."""
    roots, x = parts(args)
    found = numeric(*roots)
    wide = any(jnp.ndim(arg) for arg in args if isinstance(arg, (jax.Array, np.ndarray)))
    if found:
        chosen = found[-1 if wide else 0]
        chosen.value = chosen.value + jnp.ones_like(chosen.value)
    return x


def cast(*args):
    roots, _ = parts(args)
    for variable in numeric(*roots)[:1]:
        variable.value = variable.value.astype(jnp.int32 if variable.value.dtype == jnp.float32 else jnp.float32)


def reshape(*args):
    roots, _ = parts(args)
    for variable in numeric(*roots)[-1:]:
        variable.value = variable.value.reshape(-1)[:1] if variable.value.size else variable.value


def swap(*args):
    roots, _ = parts(args)
    root = roots[0]
    held = vars(root)
    if "a" in held and "b" in held:
        root.a, root.b = root.b, root.a
    return total_of(roots)


def alias(*args):
    roots, _ = parts(args)
    objects = [value for _, value in walk(*roots) if isinstance(value, (plait.Pytree, plait.Variable))]
    roots[0].c = objects[-1]
    return jnp.int32(len(objects))


def forget(*args):
    roots, x = parts(args)
    for name in ("a", "b"):
        if name in vars(roots[-1]):
            delattr(roots[-1], name)
            break
    return x


def grow(*args):
    roots, x = parts(args)
    child = Leafy(weight=plait.Param(x + 1), parent=roots[0])
    roots[0].d = child
    return child


def sow(*args):
    roots, x = parts(args)
    held = vars(roots[0]).get("b")
    if isinstance(held, (list, plait.List)):
        if len(held) < 4:
            held.append(plait.Cache(x))
    else:
        roots[0].b = [plait.Cache(x)]


def reorder(*args):
    roots, _ = parts(args)
    for root in roots:
        for value in list(vars(root).values()):
            if isinstance(value, (list, plait.List)):
                value[:] = list(value)[::-1]


def edit_dicts(*args):
    roots, x = parts(args)
    for value in list(vars(roots[0]).values()):
        if isinstance(value, (dict, plait.Dict)):
            value["d" if "a" in value else "a"] = x
            if "b" in value:
                del value["b"]


def count(*args):
    roots, _ = parts(args)
    roots[0].steps = (getattr(roots[0], "steps", 0) + 1) % 3
    return jnp.int32(roots[0].steps)


def annotate(*args):
    roots, _ = parts(args)
    for variable in numeric(*roots)[:1]:
        variable.set_metadata(note=1 - variable.get_metadata("note", 0))


def unannotate(*args):
    roots, _ = parts(args)
    for variable in variables(*roots)[-1:]:
        if variable.has_metadata("note"):
            variable.del_metadata("note")


def renew(*args):
    """Replace variables by new ones around new values."""
    roots, _ = parts(args)
    for name, value in sorted(vars(roots[0]).items()):
        if isinstance(value, plait.Variable) and not isinstance(value, plait.RngState):
            setattr(roots[0], name, plait.BatchStat(value.value + jnp.ones_like(value.value)))


def touch_arrays(*args):
    roots, x = parts(args)
    roots[0].a = jnp.ones(2)  # first, so that what it takes the place of is not written
    for module in modules(*roots):
        for name, value in sorted(vars(module).items()):
            if isinstance(value, jax.Array):
                setattr(module, name, value + x.astype(value.dtype))


def give(*args):
    """Share an object across arguments."""
    roots, _ = parts(args)
    held = vars(roots[0]).get("a", roots[0])
    has_identity = isinstance(held, (plait.Pytree, plait.Variable))  # jit returns copies of other containers
    roots[-1].c = held if has_identity else roots[0]
    return roots[-1], [roots[0]]


def wrap(*args):
    roots, x = parts(args)
    return Node(a=roots[0], b=plait.Param(x), c=[roots[-1], x])


def view(*args):
    roots, _ = parts(args)
    return {"first": variables(*roots)[:1], "last": modules(*roots)[-1]}


def copy_of(*args):
    roots, _ = parts(args)
    return plait.merge(*plait.split(roots[0]))


def restore(*args):
    """Update from a state, all values doubled."""
    roots, _ = parts(args)
    state = plait.state(roots[0], KINDS)
    plait.update(roots[0], jax.tree.map(lambda leaf: leaf * jnp.asarray(2, leaf.dtype), state))


def harvest(*args):
    roots, _ = parts(args)
    try:
        return plait.pop(roots[0], plait.Cache).flat_state().leaves
    except plait.errors.GraphError:  # a list or tuple holds one
        return None


def draw(*args):
    roots, _ = parts(args)
    streams = [module for module in modules(*roots) if isinstance(module, plait.RngStream)]
    return [jax.random.randint(stream(), (2,), 0, 100) for stream in streams[:1]]


def fail(*args):
    roots, x = parts(args)
    for variable in numeric(*roots):
        variable.value = x
        variable.set_metadata(note="never")
    roots[0].a = Node()
    if "b" in vars(roots[-1]):
        del roots[-1].b
    raise Oops


_inner_add = plait.jit(add)
_inner_grow = plait.jit(grow)


def nested(*args):
    roots, x = parts(args)
    _inner_grow(roots[-1], x)
    return _inner_add(roots[0], x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        read, weigh, add, write_one, cast, reshape, swap, alias, forget, grow, sow, reorder, edit_dicts, count,
        annotate, unannotate, renew, touch_arrays, give, wrap, view, copy_of, restore, harvest, draw, fail, nested,
    )
}  # fmt: skip
JITTED = {name: plait.jit(f) for name, f in FUNCTIONS.items()}

# How a function is called: with which arguments, in which order.
CALLS: dict[str, Callable[[World, Any], tuple[Any, ...]]] = {
    "p": lambda w, x: (w.p,),
    "p x": lambda w, x: (w.p, x),
    "x p": lambda w, x: (x, w.p),
    "q x": lambda w, x: (w.q, x),
    "p q": lambda w, x: (w.p, w.q),
    "q p": lambda w, x: (w.q, w.p),
    "p q x": lambda w, x: (w.p, w.q, x),
    "p x x": lambda w, x: (w.p, x, x),
    "p p": lambda w, x: (w.p, w.p),
    "list": lambda w, x: ([w.p, w.q], x),
    "none": lambda w, x: (w.p, None, [x, x]),
}


class World:
    """Two roots, which may share objects."""

    def __init__(self, p: Any, q: Any) -> None:
        self.p = p
        self.q = q

    def objects(self, *more: Any) -> list[Any]:
        """All modules and variables in walk order."""
        return [v for _, v in walk(self.p, self.q, *more) if isinstance(v, (plait.Pytree, plait.Variable))]


def settle(*roots: Any) -> None:
    """Make numbers that are leaves (G61) arrays, as those that a jitted call returns are."""
    for path, leaf in plait.state(roots).flat_state():
        if isinstance(leaf, (bool, int, float)):
            target: Any = roots
            for key in path[:-1]:
                target = dict(children(target))[key]
            setattr(target, path[-1], jnp.asarray(leaf))


# Edits: what a user does between two calls ----------------------------------------------------------------------------


def build(world: World, recipe: tuple[str, Any]) -> Any:
    """A new value, or an object that the world has already."""
    kind, what = recipe
    if kind == "new variable":
        cls, value, metadata = what
        return cls(jnp.asarray(value), **metadata)
    if kind == "old variable":
        found = variables(world.p, world.q)
        return found[what % len(found)] if found else plait.Param(jnp.float32(7))
    if kind == "new module":
        return Leafy() if what % 2 else Node(a=plait.Param(jnp.float32(what)))
    if kind == "old module":
        found = modules(world.p, world.q)
        return found[what % len(found)]
    if kind == "stream":
        return plait.RngStream(what, tag="noise")
    if kind == "array":
        return jnp.asarray(what)
    if kind == "static":
        return what
    items = [build(world, item) for item in what]
    if kind in ("dict", "Dict", "State", "tracked"):
        named = dict(zip("abcd", items, strict=False))
        nested = {"a": named, **{key: named[key] for key in named if key != "a"}}
        makers = {
            "dict": dict,
            "Dict": plait.Dict,
            "State": plait.State,
            "tracked": lambda _: tracked(plait.State(nested)),
        }
        return makers[kind](named)
    if kind in ("Box", "Pair"):
        return {"Box": Box, "Pair": Pair}[kind](*(items + [None, None])[:2])
    return {"list": list, "tuple": tuple, "List": plait.List}[kind](items)


def owner(world: World, number: int) -> Any:
    found = [module for module in modules(world.p, world.q) if isinstance(module, Node)]
    return found[number % len(found)]


def containers(world: World, kinds: tuple[type, ...]) -> list[Any]:
    return [value for _, value in walk(world.p, world.q) if isinstance(value, kinds)]


def set_attribute(world: World, number: int, name: str, recipe: Any) -> None:
    setattr(owner(world, number), name, build(world, recipe))


def delete_attribute(world: World, number: int) -> None:
    target = owner(world, number)
    if vars(target):
        delattr(target, sorted(vars(target))[number % len(vars(target))])


def edit_list(world: World, number: int, action: str, recipe: Any) -> None:
    lists = containers(world, (list, plait.List))
    if not lists:
        return
    chosen = lists[number % len(lists)]
    if action == "append" and len(chosen) < 5:
        chosen.append(build(world, recipe))
    elif action == "insert" and len(chosen) < 5:
        chosen.insert(0, build(world, recipe))
    elif action == "pop" and len(chosen):
        chosen.pop()
    elif action == "delete" and len(chosen):
        del chosen[0]
    elif action == "set" and len(chosen):
        chosen[-1] = build(world, recipe)
    elif action == "reverse":
        chosen[:] = list(chosen)[::-1]
    elif action == "clear":
        del chosen[:]


def edit_dict(world: World, number: int, name: str, recipe: Any, delete: bool) -> None:
    dicts = containers(world, (dict, plait.Dict, plait.State))
    if dicts:
        chosen = dicts[number % len(dicts)]
        if delete:
            chosen.pop(name, None)
        else:
            chosen[name] = build(world, recipe)


def write_value(world: World, number: int, value: Any) -> None:
    found = variables(world.p, world.q)
    if found:
        found[number % len(found)].value = jnp.asarray(value)


def change_metadata(world: World, number: int, note: Any) -> None:
    found = variables(world.p, world.q)
    if found:
        variable = found[number % len(found)]
        if note is not None:
            variable.set_metadata(note=note)
        elif variable.has_metadata("note"):
            variable.del_metadata("note")


def replace_roots(world: World, how: str) -> None:
    if how == "merge":
        world.q = plait.merge(*plait.split(world.p))
    elif how == "clone":
        world.p = plait.clone(world.p)
    elif how == "share":
        world.q = plait.clone(world.p, variables=False)
    elif how == "swap":
        world.p, world.q = world.q, world.p
    elif how == "update" and plait.graphdef(world.p) == plait.graphdef(world.q):
        plait.update(world.p, plait.state(world.q, plait.Variable))
