"""What type checkers know of transforms: their options, with those that ``plait.flax.compat`` adds, and what ``jit``
returns. Nothing here is imported when a program runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

from ..typing import FilterLiteral, Tree
from .jit.stages import Lowered, Traced
from .selections import DiffState

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)


class Jitted(Protocol[P, R]):
    """A jitted function: it is called, and bound as a method, as the function itself."""

    __name__: str
    __wrapped__: Callable[..., Tree]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, instance: None, owner: object = None, /) -> Jitted[P, R]: ...
    @overload
    def __get__(self: Jitted[Concatenate[Any, Q], R], instance: Any, owner: object = None, /) -> Jitted[Q, R]: ...
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced: ...
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered: ...
    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def clear_cache(self) -> None: ...


class Modes(TypedDict, total=False):
    """What every transform takes."""

    graph: bool | None
    graph_updates: bool | None


class JitOptions(Modes, total=False):
    """Options of ``jit``."""

    in_shardings: Tree
    out_shardings: Tree
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    donate: FilterLiteral
    keep_unused: bool
    device: Any
    backend: str | None
    inline: bool


class GradOptions(Modes, total=False):
    """Options of ``grad`` and ``value_and_grad``, but for ``has_aux``."""

    argnums: int | DiffState | Sequence[int | DiffState]
    holomorphic: bool
    allow_int: bool
    reduce_axes: Sequence[Hashable]


class VmapOptions(Modes, total=False):
    """Options of ``vmap``."""

    in_axes: Tree
    out_axes: Tree
    axis_name: Hashable | None
    axis_size: int | None
    spmd_axis_name: Hashable
    transform_metadata: Mapping[str, object]


class ScanOptions(Modes, total=False):
    """Options of ``scan``."""

    length: int | None
    reverse: bool
    unroll: int | bool
    _split_transpose: bool
    in_axes: Tree
    out_axes: Tree
    transform_metadata: Mapping[str, object]


class RematOptions(Modes, total=False):
    """Options of ``remat``."""

    prevent_cse: bool
    static_argnums: int | Sequence[int]
    policy: Callable[..., bool] | None
