"""Models with lists of blocks as models with stacks, and back. (rule ST10)"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from ..core.functional.merge import clone
from ..core.nodes.containers import List
from ..core.nodes.module import Module
from ..core.nodes.nodes import iter_graph_nodes
from ..core.variables.filters import to_predicate
from ..errors import ArgumentError, SharingError
from ..nn.stacks.stack import Stack, StackOptions
from ..typing import FilterLiteral
from ..util.path_patterns import PathPattern
from ..util.paths import Path, describe_path, has_layers
from ..util.words import first_few
from .views import recursive_map

B = TypeVar("B")
N = TypeVar("N")


def has_stacks(model: Any) -> bool:
    """Whether there is a ``Stack`` in a model."""
    return any(isinstance(node, Stack) for _, node in iter_graph_nodes(model))


@overload
def as_list(model: Stack[B], /) -> List[B]: ...
@overload
def as_list(model: N, /) -> N: ...
def as_list(model: Any, /) -> Any:
    """A copy of a model with a ``List`` of blocks in place of each ``Stack``; the values are the same, bit for bit.

    Example:
        >>> make = lambda rngs: plait.Linear(2, 2, rngs=rngs)
        >>> model = plait.Dict(blocks=plait.Stack(make, 3, rngs=plait.Rngs(0)))
        >>> plait.as_list(model)["blocks"][1].kernel.shape
        (2, 2)
    """
    listed = clone(model, graph=True)
    while has_stacks(listed):
        listed = recursive_map(_outermost_listed, listed, graph=True)
    return listed


def _outermost_listed(path: Path, node: Any) -> Any:
    """A stack as a list. One inside a stack waits: its arrays begin with the axis of the outer layers."""
    return node.to_list() if isinstance(node, Stack) and not has_layers(path) else node


@overload
def as_stack(
    model: List[B] | list[B] | tuple[B, ...], /, only: FilterLiteral = None, **options: Unpack[StackOptions]
) -> Stack[B]: ...
@overload
def as_stack(model: N, /, only: FilterLiteral = None, **options: Unpack[StackOptions]) -> N: ...
def as_stack(model: Any, /, only: FilterLiteral = None, **options: Any) -> Any:
    """A copy of a model with a ``Stack`` in place of its lists of equal blocks; the values are the same.

    The code of the model must call the stack where it iterated over the list: ``x = self.blocks(x)``. A loop still
    works, and is traced block by block as before.

    Args:
        only: which lists: a path pattern such as ``"encoder.blocks"``, or a filter; ``None`` means all lists of two
            blocks or more that fit.
        **options: of ``Stack``: ``period``, ``axis``, ``remat``, ``unroll``.

    Raises:
        ArgumentError: nothing fits; or blocks of a list that ``only`` chooses differ. Names the paths.
        SharingError: blocks of a list that ``only`` chooses share a variable.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> model = plait.Dict(blocks=plait.List([plait.Linear(2, 2, rngs=rngs) for _ in range(3)]))
        >>> plait.as_stack(model, "blocks", remat=True)["blocks"].depth
        3
    """
    chosen = PathPattern(only) if isinstance(only, str) else to_predicate(... if only is None else only)
    found: list[Path] = []
    lists: list[Path] = []

    def convert(path: Path, node: Any) -> Any:
        if not isinstance(node, (List, list, tuple)) or not _holds_blocks(node):
            return node
        lists.append(path)
        if not chosen(path, node):
            return node
        try:
            stack = Stack(list(node), **options)
        except (ArgumentError, SharingError):
            if only is None:
                return node
            raise
        found.append(path)
        return stack

    converted = recursive_map(convert, clone(model, graph=True), graph=True)
    if not found:
        raise ArgumentError(
            "as_stack found no list of equal blocks",
            at=None if only is None else f"only={only!r:.60}",
            found=f"lists of modules at {first_few([describe_path(path) for path in lists])}" if lists else "no list",
            expected="a list of two blocks or more of equal structure",
            do="as_stack(model, 'path.of.the.list') says what keeps its blocks from being stacked",
        )
    return converted


def _holds_blocks(node: Any) -> bool:
    return len(node) > 1 and all(isinstance(item, Module) for item in node)
