"""Names of modules in compiled programs: ``jit(step)/blocks/0/attention/query/dot_general``.

While ``jit`` traces, the methods of the modules among its arguments, and of those that the function captures, run in
JAX's named scopes. The name of a scope is the path relative to the calling module: ``attention/query``, or ``../norm``
for a module that is not part of the caller. JAX joins the names of nested transforms, so a block that is traced once
and called in many places has a different name in each. The names are metadata of the compiled program: they cost
nothing per step and are not part of any cache key.

Each function that a transform traces has a frame: its private modules, with their paths in the function's arguments.
The transform itself runs, outside, in the scope of the module that was passed to it. If several were passed, paths
inside start with the names of the arguments, and the transform runs in a scope that says where each is:
``{b=../a,a=b}``, with ``|`` for ``/``, and ``?`` for a module that the caller's arguments do not contain.

The traceback that JAX stores for an operation has the names of the functions that ran, but no objects. So a labelled
call is made by a function whose name is the label. Only ``debug_nans`` uses labels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from traceback import walk_tb
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple, TypeVar, cast

import jax

from ...core import hooks
from ...core.module_calls.method_observers import MethodCall, observed_methods
from ...core.nodes.module import Module
from ...core.nodes.nodes import Kind, Place, children_if_any, kind_of, unwrapped, visit
from ...core.settings import Restoring
from ...core.traces.captured import named_captures
from ...transforms.call.arguments import Gathered
from ...transforms.call.body import Body
from ...transforms.call.enter_leave import TracedArguments
from ...util.paths import Path, format_path
from ...util.words import with_article

R = TypeVar("R")

_FILE = "<a labelled call of plait>"


def wants_labels() -> bool:
    """Whether JAX currently checks for NaN or infinities."""
    config: Any = jax.config
    return config.jax_debug_nans or config.jax_debug_infs


def labelled(label: str, call: Callable[[], R]) -> R:
    """Make the call, with the label in its tracebacks."""
    code: CodeType = _through.__code__.replace(co_name=label, co_qualname=label, co_filename=_FILE)
    return FunctionType(code, {})(call)


def _through(call: Callable[[], R]) -> R:
    return call()


def labels_of(traceback: TracebackType | None) -> list[str]:
    """The labels in a traceback, outermost first."""
    codes = (frame.f_code for frame, _ in walk_tb(traceback))
    return [code.co_name for code in codes if code.co_filename == _FILE]


R = TypeVar("R")


Given = Mapping[str | None, Path | None]
"""Where the arguments of a function come from, by name; the only one has no name."""


class _Frame:
    """The modules of one traced function.

    Attributes:
        base: the path of its root in the whole program.
        paths: the paths of its modules, by id; the modules live as long as the frame.
        current: the path of the module whose method is running.
        given: the paths of its arguments in the whole program.
    """

    __slots__ = ("base", "current", "given", "paths")

    def __init__(self, base: Path, paths: dict[int, Path], given: Given | None = None, current: Path = ()) -> None:
        self.base, self.paths, self.current = base, paths, current
        self.given: Given = {None: base} if given is None else given

    def in_program(self, path: Path) -> Path | None:
        """The path in the whole program; ``None`` for a module that the program's arguments do not contain."""
        if None in self.given:
            start, rest = self.given[None], path
        else:
            start, rest = (self.given.get(name_of_key(path[0])) if path else self.base), path[1:]
        return None if start is None else (*start, *rest)


class _Holder(NamedTuple):
    """An argument of a traced function that contains modules.

    Attributes:
        name: its name; ``None`` if no other argument contains modules.
        places: the paths of its modules.
    """

    name: str | None
    places: Sequence[Place]

    def path(self, place: Place) -> Path:
        """The path, starting with the name of the argument."""
        return place.path if self.name is None else (self.name, *place.path)


class _Naming(threading.local):
    frame: _Frame | None = None
    given: Given | None = None  # between the call of a transform and the function that it traces
    counts: dict[int, int] | None = None  # iteration counts of the running loop


_naming = _Naming()


def names_in_program() -> Restoring:
    """Inside the block a program is traced, and modules passed to transforms get names."""
    outer = _naming.frame  # a program inside another captures its modules
    frame = _Frame((), {}) if outer is None else _Frame(outer.base, outer.paths, outer.given, outer.current)
    return Restoring(_naming, frame=frame)


@contextlib.contextmanager
def modules_named(
    roots: Sequence[Any], labels: Callable[[], Sequence[str]], captured: Callable[[], Mapping[str, Any]] = dict
) -> Iterator[None]:
    """Methods of the modules in ``roots``, the arguments of a traced function, run in scopes with their paths.

    Args:
        roots: the arguments that are objects.
        labels: the argument names.
        captured: returns the objects that the function captures, by name. It is called only if no module is known yet,
            so not inside a program that already has their names.
    """
    before, given = _naming.frame, _naming.given
    holders = _holders(roots, labels, dict if before is None or before.paths else captured)
    if before is None or not holders or (before.paths and given is None):
        yield  # without the scope of a transform, a path inside would mean something else outside
        return
    base = before.in_program(before.current) or before.base
    paths = {id(place.value): holder.path(place) for holder in holders for place in holder.places}
    modules = [place.value for holder in holders for place in holder.places]
    frame = _Frame(base, paths, given)
    with Restoring(_naming, frame=frame, given=None), observed_methods(modules, _in_scope, records=False):
        yield


def module_places(
    roots: Sequence[Any], labels: Callable[[], Sequence[str]], captured: Callable[[], Mapping[str, Any]] = dict
) -> list[tuple[Path, Module]]:
    """The modules in some objects, once each, with the paths for their names.

    If only one object contains modules, paths start inside it; if several do, paths in the objects that a function
    captures, and in several arguments, start with the name of the object.

    Args:
        roots, labels, captured: as in ``modules_named``.
    """
    holders = _holders(roots, labels, captured)
    return [(holder.path(place), place.value) for holder in holders for place in holder.places]


def _holders(
    roots: Sequence[Any], labels: Callable[[], Sequence[str]], captured: Callable[[], Mapping[str, Any]]
) -> list[_Holder]:
    """The objects that contain modules, with the paths of these modules."""
    met: set[int] = set()
    given, others = _holding(roots, met), captured()
    found = _holding(others.values(), met)
    names: Sequence[str | None] = labels() if len(given) > 1 else [None] * len(roots)
    other_names = [*others] if given or len(found) > 1 else [None] * len(others)
    return [_Holder(names[i], places) for i, places in given] + [_Holder(other_names[i], places) for i, places in found]


def _holding(roots: Iterable[Any], met: set[int]) -> list[tuple[int, list[Place]]]:
    """The objects that contain modules: their numbers, and the places of modules that no object before contains."""
    found = [list(_modules_in(root, met)) for root in roots]
    return [(number, places) for number, places in enumerate(found) if places]


def _first_modules(roots: Sequence[Any]) -> list[tuple[int, Place]]:
    """The same objects, each with the first of these places."""
    if len(roots) == 1:  # its other modules need not be visited
        return [(0, place) for place in itertools.islice(_modules_in(roots[0], set()), 1)]
    return [(number, places[0]) for number, places in _holding(roots, set())]


def _modules_in(root: Any, met: set[int]) -> Iterator[Place]:
    for place in visit(root, children=_nodes_in):
        if place.kind is Kind.GRAPH:
            if id(place.value) in met:
                place.enter = False
            elif isinstance(place.value, Module):
                yield place
            met.add(id(place.value))


def _nodes_in(node: Any) -> list[tuple[Any, Any]]:
    return [(key, child) for key, child in children_if_any(node) if kind_of(unwrapped(child)) in _NODES]


_NODES = Kind.GRAPH, Kind.PYTREE


def around_body(body: Body, entered: TracedArguments, call: Callable[[], R]) -> R:
    """Call the function of a body with the names of its modules, if it is a program or part of one."""
    is_program = body.name == "jit"
    with names_in_program() if is_program else contextlib.nullcontext():
        if body.rules.loops and wants_labels():
            call = functools.partial(_iteration, body.name, body.f(), call)
        if _naming.frame is None:
            return call()
        captured = (lambda: named_captures(body.f())) if is_program else dict
        with modules_named(entered.roots, body.root_names, captured):
            return call()


def around_call(gathered: Gathered, labels: Sequence[Callable[[], Sequence[str]]]) -> AbstractContextManager[None]:
    """Run a call in the scope of its arguments, and count the iterations of its loop from 0.

    Args:
        labels: as in ``scope_of_arguments``.
    """
    if _naming.frame is None and not wants_labels():
        return contextlib.nullcontext()
    return _around_call(gathered, labels)


@contextlib.contextmanager
def _around_call(gathered: Gathered, labels: Sequence[Callable[[], Sequence[str]]]) -> Iterator[None]:
    with Restoring(_naming, counts={}), scope_of_arguments(gathered.roots, labels):
        yield


def _iteration(loop: str, f: Any, call: Callable[[], R]) -> R:
    """Run one iteration of a loop of ``f``; one that runs step by step has its number as a label."""
    counts, config = _naming.counts, cast("Any", jax.config)
    if counts is None or not config.jax_disable_jit:
        return call()
    number = counts[id(f)] = counts.get(id(f), -1) + 1  # the condition has a different count than the body
    return labelled(f"{ITERATION} {number} of {loop}", call)


ITERATION = "iteration"


@contextlib.contextmanager
def scope_of_arguments(roots: Sequence[Any], labels: Sequence[Callable[[], Sequence[str]]]) -> Iterator[None]:
    """If one module is passed to a transform, with other leaves, the transform runs in the scope of that module; if
    several are, in a scope that says where each comes from.

    Args:
        labels: the argument names of each function that the transform traces.
    """
    frame = _naming.frame
    if frame is None or not frame.paths:
        yield
        return
    holders = _first_modules(roots)
    paths = [_path_of_root(frame, place) for _, place in holders]
    if len(holders) == 1 and paths[0] is not None:
        known, moved = {None: paths[0]}, _moved(frame, paths[0])
    else:
        known = _by_name([number for number, _ in holders], paths, labels)
        scope = _scope_of(known, frame.current)
        moved = jax.named_scope(scope) if scope else contextlib.nullcontext()
    given = {name: None if path is None else frame.in_program(path) for name, path in known.items()}
    with Restoring(_naming, given=given), moved:
        yield


def _path_of_root(frame: _Frame, place: Place) -> Path | None:
    """The path of an argument in the frame, from the place of its first module; ``None`` for one from elsewhere."""
    path, inside = frame.paths.get(id(place.value)), place.path
    if path is None or path[len(path) - len(inside) :] != inside:
        return None
    return path[: len(path) - len(inside)]


def _by_name(
    numbers: Sequence[int], paths: Sequence[Path | None], labels: Sequence[Callable[[], Sequence[str]]]
) -> dict[str | None, Path | None]:
    """The path of each argument by its name; ``None`` if functions give one name to different arguments."""
    if len(numbers) < 2:
        return dict.fromkeys([None] * len(numbers))
    found: dict[str | None, Path | None] = {}
    for names in [label() for label in labels]:
        for number, path in zip(numbers, paths, strict=True):
            name = name_of_key(names[number])
            found[name] = path if found.get(name, path) == path else None
    return found


def _scope_of(known: Given, here: Path) -> str:
    """The scope that says where arguments come from; empty if they have the names of the caller's own attributes."""
    if all(path and path[:-1] == here and name_of_key(path[-1]) == name for name, path in known.items()):
        return ""
    places = {
        name or "": "?" if path is None else scope_between(here, path).replace("/", "|") for name, path in known.items()
    }
    return "{" + ",".join(f"{name}={place}" for name, place in places.items()) + "}"


@contextlib.contextmanager
def _moved(frame: _Frame, path: Path) -> Iterator[None]:
    here = frame.current
    scope = contextlib.nullcontext() if path == here else jax.named_scope(scope_between(here, path))
    with Restoring(frame, current=path), scope:
        yield


def _in_scope(module: Any, name: str, call: MethodCall) -> Any:
    frame = _naming.frame
    path = None if frame is None else frame.paths.get(id(module))
    if frame is None or path is None or (path == frame.current and path):
        return call()
    with _moved(frame, path):
        if wants_labels():
            place, kind = format_path(frame.in_program(path) or path), with_article(type(module).__name__)
            return labelled(f"{place} ({kind}), in {name}" if place else f"{kind}, in {name}", call)
        return call()


def path_in_program(module: Any) -> Path | None:
    """The path of a module in the program that is being traced; ``None`` if it is not part of the arguments."""
    frame = _naming.frame
    path = None if frame is None else frame.paths.get(id(module))
    return None if frame is None or path is None else frame.in_program(path)


def scope_between(here: Path, there: Path) -> str:
    """The relative path from one path to another: ``attention/query``, ``../norm``."""
    shared = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    return "/".join([*[".."] * (len(here) - shared), *map(name_of_key, there[shared:])])


def name_of_key(key: Any) -> str:
    """A key of a path as one part of a name."""
    return re.sub(r"[^\w.\-\[\]]", "_", str(key))


hooks.around_body["names"], hooks.around_call = around_body, around_call
