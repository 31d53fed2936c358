"""Capturing: run a model and get what its modules sowed beside its result. (rule D3)

Before the call each module gets an empty record (see ``sowing.py``); after it the records are gathered into states and
taken away again, also when the call raises.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any, Generic

from ..errors import ArgumentTypeError, GraphError
from ..paths import Path, describe_path
from ..words import describe_type
from .containers import Dict, List
from .module import Module
from .nodes import iter_graph_nodes
from .sowing import RECORD, new_record
from .state import FlatState, State, group_leaves, to_flat_state
from .variables import Perturbation, Variable


def capture(
    fn: Any, *kinds: type[Variable[Any]], init: Any = None, method_outputs: type[Variable[Any]] | None = None
) -> Callable[..., Any]:
    """Wrap a model so that a call returns what its modules sowed, beside the result.

    Args:
        fn: a module, a bound method of one, or a function whose first argument is the module. Given only kinds,
            ``capture`` is a decorator for such a function.
        *kinds: classes of variables; one state is returned for each. Only values of exactly these kinds are kept. A
            variable goes to the first that it is an instance of, so list subclasses first.
        init: a state of sown values to start from, such as perturbations, in the form that a call returns.
        method_outputs: sow the output of every public method, and of ``__call__``, as this kind under its name.

    Returns:
        A function that returns ``(result, state_1, …, state_n)``, or only the result if no kinds are given. Nothing
        sown stays in the modules.

    Raises:
        ArgumentTypeError: ``fn`` leads to no module, or a kind is no class of variables.
        GraphError: ``init`` has a path that leads to no module.

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
    """
    if isinstance(fn, type) and issubclass(fn, Variable):
        return functools.partial(_capturing, kinds=(fn, *kinds), init=init, method_outputs=method_outputs)
    return _capturing(fn, kinds=kinds, init=init, method_outputs=method_outputs)


def _capturing(fn: Any, *, kinds: tuple[Any, ...], init: Any, method_outputs: Any) -> Callable[..., Any]:
    for kind in (*kinds, *([] if method_outputs is None else [method_outputs])):
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            raise ArgumentTypeError(
                "capture takes classes of variables",
                found=f"{kind!r:.80}",
                expected="subclasses of plait.Variable",
                do="for example plait.capture(model, plait.Intermediate)",
            )

    @functools.wraps(fn if not isinstance(fn, Module) else type(fn).__call__)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        root, call = _root_of(fn, args)
        modules = _modules_of(root, fn)
        with _records(modules, kinds, init, method_outputs), _recorded_methods(modules, method_outputs):
            result = call(*args, **kwargs)
            sown = _gathered(root, modules)
        if not kinds:
            return result
        groups = group_leaves(FlatState(sown, sort=True), kinds, exhaustive=False)
        return result, *(group.to_nested_state() for group in groups)

    return wrapper


def _root_of(fn: Any, args: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """Where to look for modules, and what to call."""
    if isinstance(fn, Module):
        call: Any = fn
        return fn, call
    if isinstance(fn, MethodType):
        # By name, so that a method whose outputs are recorded is found.
        name = fn.__name__
        known = getattr(type(fn.__self__), name, None)
        return fn.__self__, (lambda *a, **k: getattr(fn.__self__, name)(*a, **k)) if known is fn.__func__ else fn
    return (args[0] if args else None), fn


def _modules_of(root: Any, fn: Any) -> list[tuple[Path, Module]]:
    modules = [(path, node) for path, node in iter_graph_nodes(root) if isinstance(node, Module)]
    if not modules:
        raise ArgumentTypeError(
            "capture found no module",
            found=f"{describe_type(root)} as the first argument of {getattr(fn, '__name__', fn)!r:.60}",
            expected="a module, a bound method of one, or a function whose first argument is one",
            do="plait.capture(model, plait.Intermediate)(x), or plait.capture(f, plait.Intermediate)(model, x)",
        )
    return modules


@contextlib.contextmanager
def _records(modules: list[tuple[Path, Module]], kinds: tuple[Any, ...], init: Any, outputs: Any) -> Iterator[None]:
    """Every module holds a record inside the block, and what it held before after it."""
    preset = _preset_values(init, modules)
    known = {type(variable): None for values in preset.values() for variable in values.values()}
    captured = (*kinds, *known)
    before = [(module, module.__dict__.get(RECORD)) for _, module in modules]
    try:
        for path, module in modules:
            setattr(module, RECORD, new_record(captured, preset.get(path, {}), outputs))
        yield
    finally:
        for module, record in before:
            if record is not None:
                setattr(module, RECORD, record)
            elif RECORD in module.__dict__:
                delattr(module, RECORD)


def _preset_values(init: Any, modules: list[tuple[Path, Module]]) -> dict[Path, dict[str, Variable[Any]]]:
    flat = init if isinstance(init, FlatState) else to_flat_state(State({}) if init is None else init)
    paths = {path for path, _ in modules}
    preset: dict[Path, dict[str, Variable[Any]]] = {}
    for path, leaf in flat:
        if path[:-1] not in paths:
            raise GraphError(
                "init has a value for a place that is no module",
                at=describe_path(path),
                found=describe_type(leaf),
                expected="paths of modules, each with the name of a sown value",
                do="pass a state that capture returned for this model",
            )
        variable = leaf.copy() if isinstance(leaf, Variable) else Perturbation(leaf)
        preset.setdefault(path[:-1], {})[path[-1]] = variable
    return preset


def _gathered(root: Any, modules: list[tuple[Path, Module]]) -> Iterable[tuple[Path, Variable[Any]]]:
    """What was sown, with its paths. Modules that left the graph during the call count too."""
    found: dict[int, tuple[Path, Any]] = {}
    for path, module in (*iter_graph_nodes(root), *modules):
        if isinstance(module, Module) and RECORD in module.__dict__:
            found.setdefault(id(module), (path, module.__dict__[RECORD]))
    return [((*path, name), each) for path, record in found.values() for name, each in record["values"].items()]


# Recording the outputs of methods -------------------------------------------------------------------------------------

_NOT_RECORDED = {*Module.__mro__, *List.__mro__, *Dict.__mro__, Generic}
_lock = threading.Lock()
# Class → (how many captures record it, what its own methods were). Empty when no capture runs.
_recorded: dict[type, tuple[int, dict[str, Any]]] = {}


@contextlib.contextmanager
def _recorded_methods(modules: list[tuple[Path, Module]], kind: Any) -> Iterator[None]:
    """Public methods of these classes sow their outputs, on objects with a record that asks for it."""
    classes = {type(module) for _, module in modules} if kind is not None else set()
    with _lock:
        for cls in classes:
            count, own = _recorded.get(cls) or (0, _replace_methods(cls))
            _recorded[cls] = (count + 1, own)
    try:
        yield
    finally:
        with _lock:
            for cls in classes:
                count, own = _recorded.pop(cls)
                if count > 1:
                    _recorded[cls] = (count - 1, own)
                else:
                    _restore_methods(cls, own)


_ABSENT: Any = object()


def _replace_methods(cls: type) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in _NOT_RECORDED:
            methods.update((n, f) for n, f in vars(base).items() if n == "__call__" or not n.startswith("_"))
    own = {}
    for name, method in methods.items():
        if callable(method) and hasattr(method, "__get__") and not isinstance(method, type):
            own[name] = vars(cls).get(name, _ABSENT)
            setattr(cls, name, _recording(cls, name, method))
    return own


def _recording(cls: type, name: str, method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = method.__get__(self, cls)(*args, **kwargs)
        record = self.__dict__.get(RECORD)
        # A class reached through super() is not the class of the object: its output is not the method's.
        if record is not None and type(self) is cls and record["method_outputs"] is not None:
            self.sow(record["method_outputs"], name, output)
        return output

    return wrapper


def _restore_methods(cls: type, own: dict[str, Any]) -> None:
    for name, method in own.items():
        if method is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, method)
