"""The leaves of a graph by name, each with a description for the manifest.

A leaf's name is its path as errors print it: ``model.layers[3].kernel``. It distinguishes an index from a string key,
so paths can be restored exactly. A variable that holds a container has one leaf for each value inside.

A description is a small dict that is stored in the manifest:

    {"kind": "array", "dtype": "bfloat16", "shape": [3, 4]}    with "weak_type": true for weak types of JAX, and
                                                               "numpy": true for a dtype that only NumPy has
    {"kind": "key", "impl": "threefry2x32", "shape": []}       stored as its key data
    {"kind": "float", "value": "0.1"}                          Python numbers and strings are stored in the manifest

each with "sown": true in an ``Intermediate`` or ``Remainder``, which a model may have or lack. In a description of the
objects that are restored, "abstract": true says that there is a shape, but no values yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ..core.functional.split import state
from ..core.nodes.nodes import Kind, check_node, get_node_impl, jax_to_nnx_path, kind_of, visit
from ..core.states.state import State, to_flat_state
from ..core.states.state_functions import map_state
from ..core.variables.cells import is_gone, unusable
from ..core.variables.variable_kinds import Intermediate, Remainder
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError, CheckpointError
from ..partitioning.mesh import check_spec
from ..util.dtypes import is_number_dtype
from ..util.jax_versions import Tracer, is_mutable_array
from ..util.paths import Path, describe_path, format_path
from ..util.schemas import Either, check_schema, shape
from ..util.words import with_article

Description = Mapping[str, Any]

_PLAIN: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "complex": complex,
    "str": str,
}
_NUMBERS: dict[str, tuple[type, type]] = {
    "bool": (bool, np.bool_),
    "int": (int, np.integer),
    "float": (float, np.floating),
    "complex": (complex, np.complexfloating),
}
_NOT_NUMBERS = "OSUMm"  # NumPy's letters for objects, text and dates


def named_leaves(node: Any) -> tuple[dict[str, Any], dict[str, type], Callable[[Mapping[str, Any]], Any]]:
    """The values of a graph by name, the type of the variable of each, and a function from such values to a state.

    Raises:
        ArgumentTypeError: a container at the root holds a plain value, which a state omits.
    """
    if isinstance(node, State):
        root = node
    else:
        check_node(node, "a checkpoint")
        _check_all_saved(node, ())
        _check_restorable(node)
        root = state(node, graph=True)
    values: dict[str, Any] = {}
    kinds: dict[str, type] = {}

    def read(path: Path, leaf: Any) -> Any:
        subleaves, _ = jax.tree_util.tree_flatten_with_path(_value_of(leaf))
        named = {_name(path, subpath): value for subpath, value in subleaves}
        values.update(named)
        kinds.update(dict.fromkeys(named, type(leaf)))
        return leaf

    def write(new: Mapping[str, Any]) -> Callable[[Path, Any], Any]:
        def replaced(path: Path, leaf: Any) -> Any:
            value = jax.tree_util.tree_map_with_path(lambda subpath, _: new[_name(path, subpath)], _value_of(leaf))
            return leaf.copy(value) if isinstance(leaf, Variable) else value

        return replaced

    _map_leaves(read, root)
    return values, kinds, lambda new: _map_leaves(write(new), root)


def _check_restorable(node: Any) -> None:
    """Raise if a graph holds an array that cannot be written where it is.

    Raises:
        ArgumentTypeError: names its path and its container.
    """
    for place in visit(node):
        if place.kind is not Kind.ARRAY or place.owner is None:
            continue
        impl = get_node_impl(place.owner.value)
        if impl is not None and impl.set_key is None:
            kind = type(place.owner.value).__name__
            raise ArgumentTypeError(
                f"a checkpoint cannot be restored into {with_article(kind)}, which is immutable",
                at=describe_path(place.path),
                found=f"an array in {with_article(kind)}",
                expected="arrays in variables, modules, lists and dicts",
                do=f"put the whole {kind} into a variable: plait.Variable(value)",
            )


def optional(kinds: Mapping[str, type]) -> set[str]:
    """The names of what a model may have or lack: values that were sown, and remainders."""
    return {name for name, kind in kinds.items() if issubclass(kind, (Intermediate, Remainder))}


def stored_names(node: Any, own: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    """The stored name of each leaf of a graph, for those that are stored.

    Keys that are paths, ``scales[('layers', 0, 'kernel')]``, used to be strings: ``scales['layers[0].kernel']``, or
    with the last entry separate, ``batch_stats['layers[0].kernel'].u``.
    """
    names = {name: name for name in own if name in stored}
    if len(names) == len(own):
        return names
    root = node if isinstance(node, State) else state(node, graph=True)
    paths = [path for path, _ in to_flat_state(root)] if isinstance(root, State) else []
    for path in paths:
        for place, key in enumerate(path):
            if isinstance(key, tuple):
                for old in ((format_path(key),), (format_path(key[:-1]), *key[-1:])):
                    older = describe_path((*path[:place], *old, *path[place + 1 :]))
                    if describe_path(path) in own and older in stored:
                        names.setdefault(describe_path(path), older)
    return names


def _map_leaves(f: Callable[[Path, Any], Any], root: Any) -> Any:
    return map_state(f, root) if isinstance(root, State) else f((), root)


def _value_of(leaf: Any) -> Any:
    value = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
    return value[...] if is_mutable_array(value) else value


def _name(path: Path, subpath: tuple[Any, ...]) -> str:
    return describe_path((*path, *jax_to_nnx_path(subpath)))


def _check_all_saved(node: Any, path: Path) -> None:
    """Raise for plain values in the user's containers: a state omits them, so they would be lost."""
    if not isinstance(node, (dict, list, tuple, State)):
        return
    for key, value in node.items() if isinstance(node, (dict, State)) else enumerate(node):
        _check_all_saved(value, (*path, key))
        if kind_of(value) is Kind.STATIC:
            raise ArgumentTypeError(
                "a checkpoint stores variables and arrays, but this is a plain value",
                at=describe_path((*path, key)),
                found=f"{value!r:.80} of type {type(value).__name__}",
                expected="modules, variables, arrays, or containers of them",
                do="pass it to save as step=... or in metrics={...}, or wrap it: plait.Variable(value)",
            )


def describe(value: Any, name: str) -> Description:
    """Describe a value; a plain number includes its value.

    Raises:
        ArgumentTypeError: a checkpoint cannot store the value.
    """
    kind = type(value).__name__
    if isinstance(value, Tracer):
        raise _unstorable(name, value, "a value outside jit, grad and the like", "call it outside the transform")
    if kind in _PLAIN and type(value).__module__ == "builtins":
        return {"kind": kind, "value": str(value)}
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise _unstorable(name, value, "an array, a random key or a Python number", "make it a static attribute")
    if is_key(value):
        return {"kind": "key", "impl": _implementation(value), "shape": list(value.shape)}
    dtype = np.dtype(value.dtype)
    if dtype.kind in _NOT_NUMBERS or dtype.names:
        raise _unstorable(name, value, "numbers", "make it a static attribute")
    marks = {
        "weak_type": getattr(value, "weak_type", False),
        "numpy": jax.dtypes.canonicalize_dtype(dtype) != dtype,
        "abstract": isinstance(value, jax.ShapeDtypeStruct),
    }
    array = {"kind": "array", "dtype": dtype.name, "shape": list(value.shape)}
    return array | {name: True for name, holds in marks.items() if holds}


def _is_dtype(name: Any) -> bool:
    """The name of a dtype of numbers."""
    return isinstance(name, str) and _is_number_dtype(name)


_is_number_dtype = functools.lru_cache(maxsize=256)(is_number_dtype)


def _is_plain(leaf: Any) -> bool:
    """A Python number or string, as text."""
    try:
        check_schema(leaf, {"kind": str, "value": str, "sown?": bool})
        _PLAIN[leaf["kind"]](leaf["value"])
    except (ValueError, KeyError):
        return False
    return True


# The schema of a description in a manifest.
DESCRIPTION = Either(
    {"kind": "array", "dtype": _is_dtype, "shape": shape, "weak_type?": bool, "numpy?": bool, "sown?": bool},
    {"kind": "key", "impl": str, "shape": shape, "sown?": bool},
    _is_plain,
)


def show(description: Description) -> str:
    """A description in words: ``float32[3, 4]``, ``a key of threefry2x32``, ``a float``."""
    shape = description.get("shape")
    if description["kind"] == "array":
        return f"{description['dtype']}{shape}"
    if description["kind"] == "key":
        return f"a key of {description['impl']}" + (f", shape {shape}" if shape else "")
    return f"a Python {description['kind']}"


def is_same_kind(first: Description, second: Description, *, cast: bool) -> bool:
    """Whether a stored value of the first description can replace one of the second: same kind, dtype and shape.

    ``jit`` turns Python numbers into arrays, and NumPy's 64-bit arrays into 32-bit ones. So such a value can replace,
    and be replaced by, what ``eval_shape`` or a step turned it into.

    Args:
        cast: whether dtypes may differ if both are float or complex.
    """
    if second["kind"] in _NUMBERS and first["kind"] == "array":
        return not first["shape"] and jnp.issubdtype(first["dtype"], _NUMBERS[second["kind"]][1])
    if "abstract" in second:
        first = _as_jax_has_it(first)
    elif first.get("dtype") != second.get("dtype"):
        second = _as_jax_has_it(second)
    free = ["value", "weak_type", "numpy", "abstract", "sown"]
    if cast and all(leaf["kind"] == "array" for leaf in (first, second)):
        kinds = [np.inexact, jnp.complexfloating]
        first_is, second_is = ([jnp.issubdtype(leaf["dtype"], kind) for kind in kinds] for leaf in (first, second))
        free += ["dtype"] * (first_is == second_is and first_is[0])
    return {k: v for k, v in first.items() if k not in free} == {k: v for k, v in second.items() if k not in free}


def _as_jax_has_it(leaf: Description) -> Description:
    if leaf["kind"] in _NUMBERS:
        dtype = jax.dtypes.canonicalize_dtype(_NUMBERS[leaf["kind"]][0])
        return {"kind": "array", "dtype": dtype.name, "shape": []}
    return {**leaf, "dtype": jax.dtypes.canonicalize_dtype(leaf["dtype"]).name} if "numpy" in leaf else leaf


def like_stored(value: Any, stored: Description, *, cast: bool) -> Any:
    """The value that a read replaces, with the stored dtype, if it is a number or has another dtype.

    Args:
        cast: whether floats and complex numbers keep their dtype.
    """
    if stored["kind"] != "array":
        return value
    dtype = np.dtype(stored["dtype"])
    if hasattr(value, "dtype") and (value.dtype == dtype or (cast and jnp.issubdtype(dtype, np.inexact))):
        return value
    is_of_jax = jax.dtypes.canonicalize_dtype(dtype) == dtype
    return jax.ShapeDtypeStruct(np.shape(value), dtype) if is_of_jax else np.empty(np.shape(value), dtype)


def is_in_arrays(description: Description) -> bool:
    """Whether the value is stored as an array; plain numbers and empty arrays are stored only in the manifest."""
    return description["kind"] in ("array", "key") and 0 not in description["shape"]


def to_array(value: Any, name: str) -> Any:
    """The stored form of an array or key.

    Raises:
        ArgumentTypeError: it has a shape but no values.
        DonatedArrayError: its buffer was donated to an earlier call.
    """
    if is_gone(value):
        raise unusable(value, name)
    if isinstance(value, jax.ShapeDtypeStruct):
        raise _unstorable(name, value, "an array with values", "give the model values before saving it")
    value = jax.random.key_data(value) if is_key(value) else value
    return np.asarray(value) if isinstance(value, np.generic) or _is_of_one_process(value) else value


def on_devices(value: Any, name: str) -> Any:
    """A shape with the devices of the current mesh, if its own mesh is abstract, as in what ``eval_shape`` returns.

    Raises:
        ArgumentError: the current mesh is another one, or there is no mesh.
    """
    sharding = value.sharding if isinstance(value, jax.ShapeDtypeStruct) else None
    if not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, Mesh):
        return value
    mesh = jax.sharding.get_mesh()
    if mesh.abstract_mesh != sharding.mesh:
        raise ArgumentError(
            "a shape without values is laid out on a mesh that has no devices",
            at=name,
            found=f"{sharding.mesh}, and the current mesh {mesh.abstract_mesh if mesh.axis_names else 'is not set'}",
            expected="the mesh under which the objects were made",
            do="restore in its block too: with jax.set_mesh(mesh): ...",
        )
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, sharding.spec))


def zeros(value: Any, name: str) -> Any:
    """Zeros with the shape, dtype and sharding of an array or shape."""
    return jnp.zeros(value.shape, value.dtype, device=getattr(on_devices(value, name), "sharding", None))


def to_target(value: Any, name: str) -> Any:
    """The target of a read for an array or key: its shape, dtype and sharding.

    Raises:
        ArgumentError: a sharding does not divide its shape.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return np.empty(value.shape, value.dtype)
    if is_key(value):
        data = abstract_key_data(value)
        sharding = jax.random.key_data(value).sharding if isinstance(value, jax.Array) else None
    else:
        data, sharding = value, value.sharding
    if _is_of_one_process(value) or (sharding is None and jax.process_count() > 1):
        return np.empty(data.shape, data.dtype)
    if isinstance(sharding, NamedSharding):
        check_spec(sharding.spec, sharding.mesh, data.shape, f"{name} of the checkpoint")
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def _is_of_one_process(value: Any) -> bool:
    """Whether an array in a multi-process run is only on devices of this process."""
    return jax.process_count() > 1 and isinstance(value, jax.Array) and value.is_fully_addressable


def from_array(array: Any, description: Description, like: Any) -> Any:
    """A value from its description and stored form; a NumPy array if ``like`` is one."""
    kind = description["kind"]
    if kind in _PLAIN:
        return _PLAIN[kind](description["value"])
    if kind == "key":
        data = abstract_key_data(like)
        array = jnp.zeros(data.shape, data.dtype) if array is None else jnp.asarray(array)
        return jax.random.wrap_key_data(array, impl=description["impl"])
    if array is None:
        array = np.zeros(description["shape"], like.dtype)
    if isinstance(like, (np.ndarray, np.generic)):
        array = np.asarray(array)
        return array[()] if isinstance(like, np.generic) else array
    return _weakly_typed(array) if description.get("weak_type") else jnp.asarray(array)


def _weakly_typed(array: Any) -> jax.Array:
    """The array with JAX's weak type, which affects promotion: a stored ``jnp.array(0.1)`` must stay weak.

    Only Python numbers make weakly typed arrays, and updating one keeps it weak.
    """
    zero, array = jnp.asarray(np.zeros((), array.dtype).item()), jnp.asarray(array)
    if zero.dtype != array.dtype:
        return array
    return jax.device_put(jnp.broadcast_to(zero, array.shape), array.sharding).at[...].set(array)


def is_key(value: Any) -> bool:
    """Whether a value is a random key, or an array or shape of keys."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _implementation(key: Any) -> str:
    """The algorithm of a key, or of a key's ``ShapeDtypeStruct``, for which it takes a trace."""
    found: list[str] = []
    jax.eval_shape(lambda key: found.append(str(jax.random.key_impl(key))), key)
    return found[0]


def abstract_key_data(key: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a key's data."""
    return jax.eval_shape(jax.random.key_data, key)


def _unstorable(name: str, value: Any, expected: str, do: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        "a checkpoint cannot store this value",
        at=name,
        found=f"{value!r:.80} of type {type(value).__name__}",
        expected=expected,
        do=do,
    )


def check_same_leaves(
    stored: Mapping[str, Description], own: Mapping[str, Description], *, at: str, cast: bool = False
) -> None:
    """Raise if the leaves of a checkpoint are not exactly those of the model.

    Args:
        cast: whether float dtypes may differ.

    Raises:
        CheckpointError: a leaf is missing, unknown, or has a different dtype or shape; the message names each.
    """
    odd = [
        name
        for name in (*own, *(stored.keys() - own.keys()))
        if name not in own or name not in stored or not is_same_kind(stored[name], own[name], cast=cast)
    ]
    if not odd:
        return
    odd.sort()
    raise CheckpointError(
        f"the checkpoint does not fit: {len(odd)} of {len(stored.keys() | own.keys())} leaves differ",
        at=f"{_listed(odd, lambda name: name, ', ')} (in {at})",
        found=_listed(odd, lambda name: f"{name}: {show(stored[name]) if name in stored else 'not in the checkpoint'}"),
        expected=_listed(odd, lambda name: f"{name}: {show(own[name]) if name in own else 'not in the model'}"),
        do=_advice(stored, own, odd),
    )


def _advice(stored: Mapping[str, Description], own: Mapping[str, Description], odd: list[str]) -> str:
    both = [name for name in odd if name in stored and name in own]
    if not own.keys() - stored.keys():
        if not both:
            return "restore(path, node, partial=True) skips leaves that the objects lack"
        if all(is_same_kind(stored[name], own[name], cast=True) for name in both):
            return "restore(path, node, cast=True) accepts another float dtype" + (
                ", and partial=True skips leaves that the objects lack" if len(both) < len(odd) else ""
            )
    return "restore into objects with the same structure and sizes as the saved ones"


def _listed(names: list[str], text: Callable[[str], str], separator: str = "\n            ") -> str:
    more = [f"… and {len(names) - 8} more"] if len(names) > 8 else []
    return separator.join([*map(text, names[:8]), *more])
