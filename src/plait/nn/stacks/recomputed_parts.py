"""Parts of a block that are recomputed in the backward pass, chosen by path. (rule ST6)

While the block runs, each chosen part has a subclass of its own class, whose call is recomputed. The objects are
private to a trace, so no other code sees the change.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...core.graph.walks import is_graph_leaf
from ...core.nodes.module import Module
from ...core.nodes.nodes import Static, iter_graph_nodes
from ...errors import ArgumentError
from ...transforms.remat import remat
from ...util.path_patterns import PathPattern
from ...util.paths import describe_path
from ...util.words import first_few

Policy = Callable[..., bool] | bool


@contextlib.contextmanager
def recomputed_parts(block: Any, parts: Mapping[str, Policy]) -> Iterator[None]:
    """Inside this context, calls of the parts that these patterns choose are recomputed.

    Args:
        parts: path pattern → what is kept, as for ``remat`` of a ``Stack``; the first matching pattern counts.

    Raises:
        ArgumentError: a pattern matches no module of the block.
    """
    patterns = {PathPattern(text): policy for text, policy in parts.items()}
    modules = [(path, node) for path, node in iter_graph_nodes(block) if isinstance(node, Module) and path]
    chosen: list[tuple[Any, type]] = []
    used = set()
    for path, module in modules:
        pattern = next((pattern for pattern in patterns if pattern(path, module)), None)
        if pattern is not None:
            used.add(pattern)
            if patterns[pattern] is not False:
                chosen.append((module, type(module)))
                policy = patterns[pattern]
                object.__setattr__(module, "__class__", _recomputed(type(module), None if policy is True else policy))
    try:
        for pattern in patterns:
            if pattern not in used:
                raise ArgumentError(
                    "remat= refers to a part that the blocks of the stack do not have",
                    at=f"remat={{{pattern!r}: ...}}",
                    found=f"modules at {first_few([describe_path(path) for path, _ in modules])}",
                    expected="a path pattern of one of them",
                    do="write the path as in Python, starting from the block: remat={'attention': True}",
                )
        yield
    finally:
        for module, cls in chosen:
            object.__setattr__(module, "__class__", cls)


@functools.lru_cache(maxsize=256)
def _recomputed(cls: type, policy: Any) -> type:
    """A subclass whose call is recomputed."""
    call: Any = cls.__call__  # type: ignore[operator]

    @functools.wraps(call)
    def recompute(self: Any, *args: Any, **kwargs: Any) -> Any:
        object.__setattr__(self, "__class__", cls)
        try:
            settings = {name: _as_setting(value) for name, value in kwargs.items()}
            return remat(call, policy=policy, prevent_cse=False)(self, *map(_as_setting, args), **settings)
        finally:
            object.__setattr__(self, "__class__", kind)

    kind = type(cls.__name__, (cls,), {"__call__": recompute, "__module__": cls.__module__})
    return kind


def _as_setting(argument: Any) -> Any:
    """A setting, such as ``is_causal=True``, stays what it is: code that branches on it cannot take a traced value."""
    is_setting = isinstance(argument, (bool, int, float, complex, str)) or (
        callable(argument) and not is_graph_leaf(argument)
    )
    return Static(argument) if is_setting else argument
