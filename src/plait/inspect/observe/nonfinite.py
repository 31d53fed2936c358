"""NaN and infinities: which variables have them, and which module produced them.

JAX can check the results of all operations (``jax.debug_nans``), and reports which operation returned a NaN. It does
not know about modules; here, the running module is found from the traceback.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import operator
import re
from collections.abc import Iterator, Sequence
from traceback import walk_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.functional.split import state
from ...core.module_calls.running_modules import causes, modules_of_error, objects_of_error, place_of
from ...core.nodes.nodes import iter_graph_nodes
from ...core.states.state import to_flat_state
from ...core.variables.variables import Variable
from ...errors import NonFiniteError
from ...typing import FilterLiteral
from ...util.jax_versions import Tracer, whole_tracebacks
from ...util.paths import Path, describe_path, format_path, layers_of
from ...util.words import first_few, with_article
from .module_names import ITERATION, labels_of, names_in_program


def find_nonfinite(node: Any, filter: FilterLiteral = ...) -> dict[str, int]:
    """The variables and arrays of a model that contain NaN or infinity.

    Args:
        node: a model, a variable, an array, a state, or a pytree of them; not inside a transform.
        filter: which variables to check.

    Returns:
        ``{path: count}``, with the number of non-finite entries; empty if there are none. The layers of a ``Stack``
        count apart. Of an array that spans several processes, each counts its own part.

    Example:
        >>> norm = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> _ = norm(jnp.array([[1.0, 2.0, jnp.nan], [3.0, 4.0, 5.0]]))
        >>> plait.find_nonfinite(norm)
        {'mean': 1, 'var': 1}
    """
    found = {}
    for (_, *path), leaf in to_flat_state(state([node], filter, graph=True)):  # in a list: it may be a leaf itself
        value = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
        found |= {describe_path(place): count for place, count in _counts(tuple(path), value)}
    return found


def _counts(path: Path, value: Any) -> Iterator[tuple[Path, int]]:
    """The number of non-finite entries, if there are any; of a stacked value, for each layer."""
    leaves = jax.tree.leaves(value)
    count = sum(map(_count, leaves))
    if not count:
        return
    at, layers = next(((at, layers) for at, key in enumerate(path) if (layers := layers_of(key))), (0, None))
    if layers is None or not all(_is_stacked(leaf, len(layers)) for leaf in leaves):
        yield path, count
        return
    for index, layer in enumerate(layers):
        yield from _counts((*path[:at], layer, *path[at + 1 :]), jax.tree.map(operator.itemgetter(index), value))


def _is_stacked(leaf: Any, layers: int) -> bool:
    """Whether a value has an entry for each layer, all of them in this process."""
    return np.shape(leaf)[:1] == (layers,) and getattr(leaf, "is_fully_addressable", True)


def has_nan(node: Any, filter: FilterLiteral = ..., *, on_host: bool = False) -> bool:
    """Whether an array of the variables is NaN in a part that this process has; asks each device once.

    Args:
        node: as for ``find_nonfinite``.
        filter: which variables to check.
        on_host: whether to look at copies in memory: the devices may wait for another process.
    """
    parts: collections.defaultdict[Any, list[jax.Array]] = collections.defaultdict(list)
    for leaf in jax.tree.leaves(state([node], filter, graph=True)):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            for shard in leaf.addressable_shards:
                parts[shard.device].append(shard.data)
    if on_host:
        return any(np.isnan(np.asarray(part)).any() for each in parts.values() for part in each)
    with jax.set_mesh(_NO_MESH):  # under a mesh, JAX refuses a call of one of its devices
        return any([*map(_any_nan, parts.values())])


_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())


@jax.jit
def _any_nan(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isnan(array).any() for array in arrays]).any()


_NUMBERS: tuple[type, ...] = (jax.Array, np.ndarray, np.generic, float, complex)


def _count(leaf: Any) -> int:
    """The number of non-finite entries. Values without numbers, such as text or a shape without values, count as
    finite."""
    is_number = isinstance(leaf, _NUMBERS)
    if not is_number or isinstance(leaf, Tracer) or not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
        return 0
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:  # the others may not come to count theirs
        parts = {str(shard.index): np.asarray(shard.data) for shard in leaf.addressable_shards}
        return sum(int((~np.isfinite(part)).sum()) for part in parts.values())
    return int((~jnp.isfinite(leaf)).sum())


@contextlib.contextmanager
def debug_nans(*, infs: bool = False) -> Iterator[None]:
    """Check every operation inside the block, and raise at the first that returns a NaN, with the path of its module.

    A context manager and decorator. It uses ``jax.debug_nans``, which runs a compiled function again, uncompiled, if it
    returns a NaN; plait adds the name of the module, and the names of variables that contained NaN before. The error is
    raised before anything is written back, so a NaN never gets into running statistics, caches or optimizer states. It
    slows a program down, because it waits for every result.

    Args:
        infs: whether to check for infinities too, as ``jax.debug_infs`` does.

    Raises:
        NonFiniteError: an operation returned a NaN.

    Example:
        >>> model = plait.Sequential(plait.Linear(3, 3, rngs=plait.Rngs(0)), jnp.log)
        >>> with plait.debug_nans():
        ...     y = plait.jit(lambda model, x: model(x))(model, -jnp.ones((2, 3)))
        Traceback (most recent call last):
        plait.errors.NonFiniteError: a NaN appeared ...
    """
    infinities = jax.debug_infs(True) if infs else contextlib.nullcontext()
    with jax.debug_nans(True), names_in_program(), infinities, whole_tracebacks():
        try:
            yield
        except NonFiniteError:  # of a block inside this one
            raise
        except FloatingPointError as error:
            raise _described(error) from error


def _described(error: FloatingPointError) -> NonFiniteError:
    running = modules_of_error(error)
    what = str(error).removesuffix(".")
    given = objects_of_error(error)
    models = [each.module for each in running[:1]] + [node for _, node in given]  # traced, and those of the caller
    with jax.debug_nans(False), jax.debug_infs(False):
        model, held = next(((model, held) for model in models if (held := find_nonfinite(model))), (None, {}))
    place = place_of(error) or "outside of all methods of modules"
    roots = [(running[-1].path or (), running[-1].module)] if running else given
    below = next(filter(None, (_below(roots, cause) for cause in causes(error))), None)
    labels = max((labels_of(each.__traceback__) for each in (error, *causes(error))), key=len)
    if below:
        nodes, method = below
        names = sorted({format_path(path) for path, _ in nodes} - {""})
        names = [name for name in names if any(label.startswith(f"{name} (") for label in labels)][-1:] or names
        kind = with_article(type(nodes[0][1]).__name__)
        place = (f"{' or '.join(names)} ({kind})" if names else kind) + f", in {method}"
        place += "" if running else ", or its derivative"
    place = _with_iterations(place, [label for label in labels if label.startswith(ITERATION)])
    if held:
        before = first_few(held, 4)
        kind = type(model).__name__
        do = f"initialize these again, or restore a checkpoint: {before} of {kind} had non-finite values before"
    else:
        do = "check the inputs there: a division by zero, a log or root of a negative number, or a NaN"
    word = "an infinity" if "inf" in what.replace("invalid", "") else "a NaN"
    return NonFiniteError(f"{word} appeared", at=place, found=what, expected="finite numbers", do=do)


def _with_iterations(place: str, labels: Sequence[str]) -> str:
    """The place with the iterations of loops; in a path those of a stack become its layers: ``blocks[3].linear``."""
    stacks = [int(label.split()[1]) for label in labels if label.endswith(" of Stack")]
    others = [label for label in labels if not label.endswith(" of Stack")]

    def layer(found: re.Match[str]) -> str:
        layers = layers_of(found[1])
        return found[0] if layers is None or not stacks else f"[{layers[stacks.pop(0)]}]"

    place = re.sub(r"\[(\d+:\d+(?::\d+)?)\]", layer, place)
    return ", ".join([place, *others, *(f"{ITERATION} {number} of Stack" for number in stacks)])


def _below(roots: list[tuple[Path, Any]], cause: BaseException) -> tuple[list[tuple[Path, Any]], str] | None:
    """The innermost modules whose methods were running when JAX traced the code that failed, such as a derivative.

    JAX records which code ran, but not on which objects. So modules of one class cannot be distinguished, unless the
    labels of a traceback show which of them ran (``module_names.py``).

    Args:
        roots: the objects to search, with their paths.

    Returns:
        The modules with their paths, all of one class, and the name of the method; ``None`` if there are none.
    """
    nodes, method = roots, None
    for frame, line in walk_tb(cause.__traceback__):
        inner = [
            ((*path, *further), node)
            for path, above in nodes
            for further, node in iter_graph_nodes(above)
            if _runs(node, frame.f_code, line)
        ]
        if inner:
            nodes, method = inner, frame.f_code.co_name
    return None if method is None else (nodes, method)


def _runs(node: Any, code: Any, line: int) -> bool:
    """Whether a line belongs to the method of that name; JAX records only the name and file of the code."""
    own = getattr(inspect.unwrap(getattr(type(node), code.co_name, _runs)), "__code__", None)
    if own is None or (own.co_name, own.co_filename) != (code.co_name, code.co_filename):
        return False
    return any(line == number for *_, number in own.co_lines())
