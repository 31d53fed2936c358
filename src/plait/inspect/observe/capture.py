"""Capturing: running a model and returning the values that its modules sowed along with its result. (rule D3)

Before the call, each module gets an empty record (see ``sowing.py``). After the call, the records are collected into
states and removed, even if the call raises.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp

from ...core.graph.traversal import find_duplicates
from ...core.intermediates.sowing import RECORD, new_record, set_record, sows
from ...core.module_calls.method_observers import Observer, observed_methods
from ...core.nodes.module import Module
from ...core.nodes.nodes import iter_graph_nodes
from ...core.nodes.pytree import Pytree
from ...core.states.state import FlatState, State, group_leaves, to_flat_state
from ...core.variables.filters import FilterLiteral, to_predicate
from ...core.variables.variable_kinds import Perturbation
from ...core.variables.variables import Variable
from ...errors import ArgumentTypeError, GraphError
from ...nn.stacks.stack_records import preset, records_to_views, sown_values
from ...util.path_patterns import PathPattern
from ...util.paths import Path, describe_path, iter_layer_paths
from ...util.words import describe_type, first_few

Modules = list[tuple[Path, Module]]


def capture(
    fn: Any,
    *kinds: type[Variable[Any]],
    init: Any = None,
    method_outputs: type[Variable[Any]] | None = None,
    only: FilterLiteral = ...,
) -> Callable[..., Any]:
    """Wrap a model so that a call also returns the values that its modules sowed.

    Args:
        fn: a module, a bound method of one, or a function whose first argument is the module. Called with only kinds,
            ``capture`` is a decorator for such a function.
        *kinds: variable classes; one state is returned for each. Only values of exactly these kinds are recorded. A
            variable goes to the first kind that it is an instance of, so list subclasses first.
        init: a state of initial sown values, such as perturbations, in the form that a call returns. They are returned
            only if their kind is among ``kinds``.
        method_outputs: sow the output of every public method, and of ``__call__``, as this kind under its name. If it
            is ``plait.Perturbation`` or a subclass, the outputs are perturbed instead, see ``capture_gradients``.
        only: the modules whose method outputs to sow; a filter, or a path pattern such as ``"layers[*].attention"``.

    While it runs, the modules hold what was recorded, so one model is captured by one thread at a time, and calls by
    other threads are recorded, too.

    Returns:
        A function that returns ``(result, state_1, …, state_n)``, or only the result if no kinds are given. No sown
        values remain in the modules.

    Raises:
        ArgumentTypeError: ``fn`` has no module, or a kind is not a variable class.
        GraphError: ``init`` has a path that is not a module, or ``only`` matches no module.

    Example:
        >>> class Net(plait.Module):
        ...     def __init__(self, rngs):
        ...         self.hidden, self.out = plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 1, rngs=rngs)
        ...     def __call__(self, x):
        ...         h = self.hidden(x)
        ...         self.sow(plait.Intermediate, "h", h)
        ...         return self.out(h)
        >>> y, seen = plait.capture(Net(plait.Rngs(0)), plait.Intermediate)(jnp.ones((4, 2)))
        >>> y.shape, seen["h"][0].shape
        ((4, 1), (4, 3))

        The output of a module that sows nothing:

        >>> look = plait.capture(Net(plait.Rngs(0)), plait.Intermediate, method_outputs=plait.Intermediate, only="out")
        >>> y, seen = look(jnp.ones((4, 2)))
        >>> seen["out"]["__call__"][0].shape
        (4, 1)
    """
    options = {"init": init, "method_outputs": method_outputs, "only": only}
    if isinstance(fn, type) and issubclass(fn, Variable):
        return functools.partial(_capturing, kinds=(fn, *kinds), **options)
    return _capturing(fn, kinds=kinds, **options)


def _capturing(fn: Any, *, kinds: tuple[Any, ...], init: Any, method_outputs: Any, only: Any) -> Callable[..., Any]:
    for kind in (*kinds, *([] if method_outputs is None else [method_outputs])):
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            raise ArgumentTypeError(
                "capture takes variable classes",
                found=f"{kind!r:.80}",
                expected="subclasses of plait.Variable",
                do="write, for example, plait.capture(model, plait.Intermediate)",
            )

    chosen = PathPattern(only) if isinstance(only, str) else to_predicate(only)

    @functools.wraps(fn if not isinstance(fn, Module) else type(fn).__call__)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        root, call = _root_of(fn, args)
        modules = _modules_of(root, fn)
        observed = [] if method_outputs is None else _observed(root, modules, chosen)
        outputs = {id(module): method_outputs for module in observed}
        with _records(modules, kinds, init, outputs), observed_methods(observed, _record_output):
            result = call(*args, **kwargs)
            sown = _gathered(root, modules)
        if not kinds:
            return result
        # Only exactly these kinds: a value of ``init`` may have a subclass that was not requested.
        asked = [(path, variable) for path, variable in sown if type(variable) in kinds]
        groups = group_leaves(FlatState(asked, sort=True), kinds, exhaustive=False)
        return result, *(group.to_nested_state() for group in groups)

    return wrapper


@contextlib.contextmanager
def recording(
    root: Any, kind: type[Variable[Any]], observer: Observer
) -> Iterator[Callable[[], list[tuple[Path, Variable[Any]]]]]:
    """Inside the block, method calls go through ``observer``, and modules record the values that it sows as ``kind``.

    Args:
        root: where to look for modules.
        kind: the class of the recorded values.
        observer: called with each module, the name of its method, and the call. The module's record has its path.

    Yields:
        A function that returns the values recorded so far, with their paths. Functions that are already compiled are
        traced again, so that the observer sees their calls.
    """
    modules = _modules_of(root, root)
    observed = [module for _, module in modules]
    with _records(modules, (kind,), None, {}, next(_runs)), observed_methods(observed, observer):
        yield lambda: list(_gathered(root, modules))


_runs = itertools.count()


def _root_of(fn: Any, args: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """The object to search for modules, and the function to call."""
    if isinstance(fn, Module):
        call: Any = fn
        return fn, call
    if isinstance(fn, MethodType) and isinstance(fn.__self__, Pytree):
        # By name, so that a method whose outputs are recorded is found.
        name = fn.__name__
        known = getattr(type(fn.__self__), name, None)
        return fn.__self__, (lambda *a, **k: getattr(fn.__self__, name)(*a, **k)) if known is fn.__func__ else fn
    return (args[0] if args else None), fn


def _modules_of(root: Any, fn: Any) -> Modules:
    modules = [(path, node) for path, node in iter_graph_nodes(root) if isinstance(node, Module)]
    if not modules:
        raise ArgumentTypeError(
            "capture found no module",
            found=f"{describe_type(root)} as the first argument of {getattr(fn, '__name__', fn)!r:.60}",
            expected="a module, a bound method of one, or a function whose first argument is one",
            do="call plait.capture(model, plait.Intermediate)(x), or plait.capture(f, plait.Intermediate)(model, x)",
        )
    return modules


def _observed(root: Any, modules: Modules, chosen: Callable[[Path, Any], bool]) -> list[Module]:
    """The modules whose outputs are recorded. A shared module has several paths."""
    places = {path: paths for paths in find_duplicates(root) for path in paths}
    found = [module for path, module in modules if any(chosen(each, module) for each in places.get(path, [path]))]
    if not found:
        raise GraphError(
            "capture: only= matches no module",
            at=f"only={chosen!r:.80}",
            found=f"modules at {first_few([describe_path(path) for path, _ in modules])}",
            expected="at least one of them",
            do="write the path as in Python, with * for any key: 'layers[*].attention'",
        )
    return found


@contextlib.contextmanager
def _records(
    modules: Modules, kinds: tuple[Any, ...], init: Any, outputs: dict[int, Any], run: int | None = None
) -> Iterator[None]:
    """Inside the block every module has a record; afterwards its previous content is restored."""
    initial = _initial_values(init, modules)
    known = {type(variable): None for values in initial.values() for variable in values.values()}
    captured = (*kinds, *known)
    before = [(module, module.__dict__.get(RECORD)) for _, module in modules]
    try:
        for path, module in modules:
            record = new_record(captured, {}, outputs.get(id(module)))
            # A new static value makes the structure different.
            set_record(module, record if run is None else {**record, "run": run, "path": path})
        records = {path: module.__dict__[RECORD] for path, module in modules}
        for path in records:
            preset(records, path, initial)
        records_to_views(module for _, module in modules)
        yield
    finally:
        for module, record in before:
            if record is not None or RECORD in module.__dict__:
                set_record(module, record)
        records_to_views(module for module, _ in before)


def _initial_values(init: Any, modules: Modules) -> dict[Path, dict[str, Variable[Any]]]:
    """The initial values of each module; of a stacked one, of each layer, by its path in a list."""
    flat = init if isinstance(init, FlatState) else to_flat_state(State({}) if init is None else init)
    layers = {layer for path, _ in modules for layer, _ in iter_layer_paths(path)}
    initial: dict[Path, dict[str, Variable[Any]]] = {}
    for path, leaf in flat:
        variable = leaf if isinstance(leaf, Variable) else Perturbation(leaf)
        if path[:-1] not in layers:
            raise GraphError(
                "init has a value at a path that is not a module",
                at=describe_path(path),
                found=describe_type(leaf),
                expected="paths of modules, each with the name of a sown value",
                do="pass a state that capture returned for this model",
            )
        initial.setdefault(path[:-1], {})[path[-1]] = variable.copy()
    return initial


def _gathered(root: Any, modules: Modules) -> Iterable[tuple[Path, Variable[Any]]]:
    """The sown values with their paths, including those of modules that were removed from the graph during the call."""
    found: dict[int, tuple[Path, Any]] = {}
    for path, module in (*iter_graph_nodes(root), *modules):
        if sows(module):
            found.setdefault(id(module), (path, module.__dict__[RECORD]))
    return [entry for path, record in found.values() for entry in sown_values(path, record)]


# Recording the outputs of methods -------------------------------------------------------------------------------------


def _record_output(module: Any, name: str, call: Callable[[], Any]) -> Any:
    """The output of a method, sown or perturbed if the module's record requests it."""
    output = call()
    record = module.__dict__.get(RECORD)
    kind = None if record is None else record["method_outputs"]
    if kind is None:
        return output
    if issubclass(kind, Perturbation):
        return _perturbed(module, name, output, kind)
    module.sow(kind, name, output)
    return output


def _perturbed(module: Module, name: str, output: Any, kind: type[Variable[Any]]) -> Any:
    """The output with each of its real or complex arrays perturbed; all calls of one method share the zeros."""
    leaves, structure = jax.tree.flatten(output)
    places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.inexact)]
    for number, place in enumerate(places):
        leaves[place] = module.perturb(name if len(places) == 1 else f"{name}[{number}]", leaves[place], kind)
    return jax.tree.unflatten(structure, leaves)
