"""The dependencies of a trace: the code that it entered, and the globals that this code reads.

While a function is traced, Python reports each function that is entered (``sys.setprofile``). For user code, the global
names that its bytecode loads are looked up and described at once: ``RATE``, ``helpers.scale``, ``layers.Block``. For
code of an installed package, including plait, all code of its module is described. Afterwards the record is checked:
all entered code must be covered by a description, and no global may have changed.

A later process looks up the same names and compares them, without entering any code. (rules W3, W4)
"""

from __future__ import annotations

import dis
import functools
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...core.objects.named import Sentinel
from .descriptions import IMPURE, Describer, Origin, Unrecordable, code_token, digest, inner_codes, origin_of
from .outside import ASKING, ASKING_CODE, asks_for_the_program, name_of_asking, only_listens

_ABSENT: Any = Sentinel(__name__, "_ABSENT", "<absent>")
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Names(NamedTuple):
    """The global names that code uses.

    Attributes:
        chains: a global followed by its accessed attributes: ``("np", "random", "rand")``.
        imports: the code's own imports: level and name.
        assigned: globals that it assigns.
    """

    chains: tuple[tuple[str, ...], ...]
    imports: tuple[tuple[int, str], ...]
    assigned: tuple[str, ...]


@functools.lru_cache(maxsize=8192)
def names_in(code: CodeType) -> Names:
    """The global names that a code object uses, without the functions that are defined in it."""
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[tuple[int, str], None] = {}
    assigned: dict[str, None] = {}
    chain: tuple[str, ...] = ()
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, step.argval)
            continue
        if chain:
            chains[chain] = None
            chain = ()
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            chain = (step.argval,)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            assigned[step.argval] = None
        elif step.opname == "IMPORT_NAME":
            levels = [value for value in before[-2:] if isinstance(value, int)]
            imports[levels[0] if levels else 0, step.argval] = None
        before.append(step.argval)
    return Names(tuple(chains), tuple(imports), tuple(assigned))


Read = tuple[str, str]


class Recording:
    """The dependencies of a trace, other than its arguments.

    A context manager, which may be entered several times; ``finish`` ends it.

    Attributes:
        reads: module and name → the description of the value.
        packages: the modules of installed packages whose code was entered.
        reasons: why the program cannot be stored.
    """

    def __init__(self, describer: Describer) -> None:
        self.describer = describer
        self.reads: dict[Read, str] = {}
        self.packages: set[str] = set()
        self.reasons: list[str] = []
        self._seen: dict[int, CodeType] = {}  # by identity, because comparing code is slower
        self._entered: list[tuple[CodeType, dict[str, Any]]] = []
        self._before: list[Any] = []
        # Whether this thread is collecting garbage: what runs then is no part of the program. Functions in gc.callbacks
        # run around that; ``only_listens`` finds them.
        self._collects = False
        self._thread = threading.get_ident()

    def __enter__(self) -> Recording:
        self._before.append(sys.getprofile())
        gc.callbacks.append(self._collection)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: Any) -> None:
        before = self._before.pop()
        gc.callbacks.remove(self._collection)
        sys.setprofile(None)
        if hasattr(before, "enable"):  # a profiler in C, which Python cannot set
            before.enable()
        else:
            sys.setprofile(before)

    def _collection(self, phase: str, _: Any) -> None:
        if threading.get_ident() == self._thread:
            self._collects = phase == "start"

    def _event(self, frame: Any, event: str, argument: Any) -> None:
        before = self._before[0] if self._before else None
        if callable(before):  # a profiler that was already active continues
            before(frame, event, argument)
        if self._collects:
            return
        if event == "c_call":
            if argument in ASKING and asks_for_the_program(frame):
                self._refuse_answer(name_of_asking(argument))
            return
        if event == "call" and id(frame.f_code) in ASKING_CODE and asks_for_the_program(frame.f_back):
            self._refuse_answer(ASKING_CODE[id(frame.f_code)])
        if event == "call" and id(frame.f_code) not in self._seen:
            try:
                module = frame.f_globals.get("__name__")
                if origin_of(module) is not Origin.VERSION and only_listens(frame):
                    return
                self._seen[id(frame.f_code)] = frame.f_code
                self._enter(frame.f_code, frame.f_globals)
            except Exception as error:  # a user's class may raise anything when it is inspected
                self.reasons.append(str(error) if type(error) is Unrecordable else f"{_shown(frame.f_code)}: {error}")

    def _refuse_answer(self, name: str) -> None:
        reason = f"{name} gives a different result in each call"
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _enter(self, code: CodeType, scope: dict[str, Any]) -> None:
        module = scope.get("__name__")
        if code.co_filename.startswith("<frozen") or (module is None and code.co_filename.startswith(_HERE)):
            return
        origin = origin_of(module)
        if origin is Origin.PACKAGE:
            self.packages.add(str(module))
        elif origin is Origin.USER:
            self._entered.append((code, scope))
            self.read(code, scope)

    def read(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Record the globals that user code reads."""
        names = names_in(code)
        for name in names.assigned:
            self.reasons.append(f"{_shown(code)} assigns the global {name!r}")
        module = scope.get("__name__")
        if names.chains and getattr(sys.modules.get(str(module)), "__dict__", None) is not scope:
            raise Unrecordable(f"{_shown(code)} does not belong to an imported module")
        for chain in names.chains:
            try:
                for read in resolved(str(module), chain):
                    if read not in self.reads:
                        self.reads[read] = self._token(read)
            except Unrecordable as error:
                self.reasons.append(str(error))

    def _token(self, read: Read) -> str:
        token = token_of(read, self.describer)
        while self.describer.kept:  # functions with cached results are not entered, but what they read counts
            function = self.describer.kept.pop()
            for code in inner_codes(function.__code__):
                self.read(code, function.__globals__)
        return token

    def finish(self) -> None:
        """Check what was recorded, once the trace is over."""
        for code, scope in self._entered:
            try:
                for read in self._imported(code, scope):
                    self.reads[read] = self._token(read)
            except Unrecordable as error:
                self.reasons.append(str(error))
        fresh = Describer()
        for read, token in self.reads.items():
            try:
                now = token_of(read, fresh)
            except Unrecordable as error:
                now = str(error)
            if now != token:
                self.reasons.append(f"the global {read[1]!r} of {read[0]} changed while the function was traced")
        covered = {code_token(code) for code in self.describer.codes}
        for code, _ in self._entered:
            if code_token(code) not in covered and code.co_name not in ("<module>",):
                self.reasons.append(f"{_shown(code)} was called, but is not reachable from an argument or a global")

    def _imported(self, code: CodeType, scope: dict[str, Any]) -> Iterator[Read]:
        """The names that code uses from user modules that it imports itself."""
        for level, name in names_in(code).imports:
            module = importlib.util.resolve_name("." * level + name, scope.get("__package__")) if level else name
            parts = module.split(".")
            for i in range(1, len(parts) + 1):
                found = sys.modules.get(".".join(parts[:i]))
                if found is not None and origin_of(found.__name__) is Origin.USER:
                    for attribute in {*code.co_names} & {*vars(found)}:
                        yield from resolved(found.__name__, (attribute,), whole=False)


def resolved(module: str, chain: tuple[str, ...], *, whole: bool = True) -> Iterator[Read]:
    """The names in an attribute access, each with its module: ``helpers.scale`` is ``helpers`` in this module and
    ``scale`` in that one.

    Args:
        whole: whether to raise if the access ends in a user module, because the code could then use any part of it.
    """
    for i, name in enumerate(chain):
        if module in IMPURE or (module == "os" and name in ("environ", "getenv", "urandom", "environb")):
            raise Unrecordable(f"{module}.{name} gives a different result in each call")
        yield module, name
        value = value_of((module, name))
        if not isinstance(value, ModuleType):
            return
        if whole and i + 1 == len(chain) and origin_of(value.__name__) is Origin.USER:
            raise Unrecordable(f"the module {value.__name__!r} itself is used, so any part of it may be used")
        module = value.__name__


def value_of(read: Read) -> Any:
    """The current value of a name in a module; builtins are found in each module."""
    module = sys.modules.get(read[0])
    if module is None and origin_of(read[0]) is Origin.USER:
        module = importlib.import_module(read[0])
    scope = vars(module) if module is not None else {}
    if read[1] in scope:
        return scope[read[1]]
    if origin_of(read[0]) is not Origin.USER:
        return getattr(module, read[1], _ABSENT)  # some modules define names lazily
    builtins: Any = scope.get("__builtins__", {})
    return (builtins if isinstance(builtins, dict) else vars(builtins)).get(read[1], _ABSENT)


def token_of(read: Read, describer: Describer) -> str:
    """The description of the current value of a name in a module."""
    value = value_of(read)
    if isinstance(value, ModuleType):
        return f"module:{value.__name__}"
    try:
        return describer.token(value, f"the global {read[1]!r} of {read[0]}")
    except Unrecordable:
        if origin_of(read[0]) is Origin.VERSION and _is_its_own(value):
            return f"opaque:{read[0]}:{read[1]}"  # JAX's settings are compared one by one
        raise


def _is_its_own(value: Any) -> bool:
    return origin_of(type(value).__module__) is Origin.VERSION and not isinstance(value, FunctionType)


def package_token(module: str) -> str:
    """The code of an installed module in memory."""
    try:
        found = importlib.import_module(module)  # a trace may have been the first to need it
    except ImportError:
        return "absent"
    tokens = [str(getattr(sys.modules.get(module.partition(".")[0]), "__version__", ""))]
    for name, value in [*vars(found).items()]:
        if isinstance(value, (FunctionType, type)) and value.__module__ != module:  # imported, or assigned elsewhere
            tokens.append(f"{name}={value.__module__}:{value.__qualname__}")
        else:
            tokens += [f"{name}={code_token(function.__code__)}" for function in _functions(value, module)]
    return digest("package", tokens)


def _functions(value: Any, module: str) -> Iterator[FunctionType]:
    """The functions reached from a value of a module: the value itself, the function that it wraps, or the methods of a
    class."""
    stack, seen = [value], set()
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            yield each
            stack.extend(cell for cell in map(_content, each.__closure__ or ()) if isinstance(cell, FunctionType))
        elif isinstance(each, type):
            if each.__module__ == module:
                stack.extend(vars(each).values())
        elif isinstance(each, property):
            stack += [each.fget, each.fset, each.fdel]
        elif isinstance(each, (staticmethod, classmethod)):
            stack.append(each.__func__)
        elif isinstance(each, functools.cached_property):
            stack.append(each.func)
        elif callable(each) and not isinstance(each, ModuleType):
            stack.append(getattr(each, "__wrapped__", None))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _shown(code: CodeType) -> str:
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
