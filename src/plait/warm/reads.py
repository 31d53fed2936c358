"""The dependencies of a trace: the code that it entered, and the globals that this code reads.

While a function is traced, Python reports each function that is entered (``calls.py``). For user code, the global
names that its bytecode loads are looked up and described at once: ``RATE``, ``helpers.scale``, ``layers.Block``. For
code of an installed package, including plait, all code of its module is described, with the settings that it reads
(``packages.py``), and its files (``sources.py``).
Afterwards the record is checked: all entered code must be covered by a description, a closure with the values of its
variables, and no global may have changed.

A later process looks up the same names and compares them, without entering any code. (rules W3, W4)
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import operator
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ..core.objects.named import Sentinel
from .calls import Calls
from .codes import cells_of, code_token, content_of, inner_codes
from .descriptions import IMPURE, Describer, Unrecordable
from .names_in_code import globals_in, names_in
from .origins import Origin, origin_of
from .outside import (
    REACHING_NAMES,
    is_refused_code,
    only_listens,
    refusal_in_c,
    refusal_in_python,
    refusal_of_cached,
)
from .packages import Setting, setting_of

_ABSENT: Any = Sentinel(__name__, "_ABSENT", "<absent>")
_EXISTS = ""  # in place of a name: whether the module can be imported
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


Read = tuple[str, str]


class Recording:
    """The dependencies of a trace, other than its arguments.

    A context manager, which may be entered several times; ``finish`` ends it.

    Attributes:
        reads: module and name → the description of the value.
        packages: the modules of installed packages whose code was entered.
        settings: the values that this code reads, and a program may set → their descriptions.
        reasons: why the program cannot be stored.
        lowers: whether the trace is over, and its program is lowered: only the user's rules for that count.
    """

    def __init__(self, describer: Describer) -> None:
        self.describer = describer
        self.reads: dict[Read, str] = {}
        self.packages: set[str] = set()
        self.settings: dict[Setting, str] = {}
        self.reasons: list[str] = []
        self.lowers = False
        self._seen: dict[int, CodeType] = {}  # by identity, because comparing code is slower
        self._entered: list[tuple[CodeType, dict[str, Any]]] = []
        self._importing: list[tuple[CodeType, dict[str, Any]]] = []
        self._made: set[int] = set()  # the code of functions that entered code defines
        self._closures: set[int] = set()  # the code of functions that were defined before, with variables
        self._closed: dict[tuple[int, ...], tuple[CodeType, tuple[Any, ...]]] = {}
        self._calls = Calls(self)
        self._drawn: list[bytes] = []
        # Whether this thread is collecting garbage: what runs then is no part of the program. Functions in gc.callbacks
        # run around that; ``only_listens`` finds them.
        self._collects = False
        self._thread = threading.get_ident()

    def __enter__(self) -> Recording:
        self._drawn.append(_numpy_state())
        gc.callbacks.append(self._collection)
        if not self._calls.start():
            self._refuse("other tools use all numbers of sys.monitoring, so the calls of the trace cannot be recorded")
        return self

    def __exit__(self, *_: Any) -> None:
        is_other = self._calls.stop()
        gc.callbacks.remove(self._collection)
        if self._drawn.pop() != _numpy_state():
            self._refuse("the global state of numpy.random changed while the function was traced")
        if is_other:
            self._refuse("a profiler was started or stopped while the function was traced")

    def _collection(self, phase: str, _: Any) -> None:
        if threading.get_ident() == self._thread:
            self._collects = phase == "start"

    def called(self, frame: Any, function: Any) -> None:
        """A function written in C is called."""
        if not self._collects:
            self._refuse(refusal_in_c(frame, function))

    def entered(self, frame: Any) -> bool:
        """A function is entered. Returns whether no later call of its code matters."""
        if self._collects:
            return False
        code = id(frame.f_code)
        self._refuse(refusal_in_python(frame))
        if code not in self._seen:
            self._first(frame)
        if code in self._closures:
            self._close(frame)
            return False
        return code in self._seen and not is_refused_code(frame.f_code)

    def _first(self, frame: Any) -> None:
        """Code that is entered for the first time."""
        try:
            module = frame.f_globals.get("__name__")
            if origin_of(module) is not Origin.VERSION and (only_listens(frame) or (self.lowers and _patches(frame))):
                return
            self._seen[id(frame.f_code)] = frame.f_code
            self._enter(frame.f_code, frame.f_globals)
        except Exception as error:  # a user's class may raise anything when it is inspected
            self._refuse(str(error) if type(error) is Unrecordable else f"{_shown(frame.f_code)}: {error}")

    def _close(self, frame: Any) -> None:
        """A call of a closure: the values of its variables."""
        given = frame.f_locals
        values = tuple(given.get(name, _ABSENT) for name in frame.f_code.co_freevars)
        self._closed[id(frame.f_code), *map(id, values)] = frame.f_code, values

    def _refuse(self, reason: str | None) -> None:
        if reason is not None and reason not in self.reasons:
            self.reasons.append(reason)

    def _enter(self, code: CodeType, scope: dict[str, Any]) -> None:
        module = scope.get("__name__")
        if code.co_filename.startswith("<frozen") or (module is None and code.co_filename.startswith(_HERE)):
            return
        origin = origin_of(module)
        if origin is Origin.PACKAGE:
            self.packages.add(str(module))
            self._read_settings(str(module), code)
        elif origin is Origin.USER:
            self._entered.append((code, scope))
            if code.co_freevars and id(code) not in self._made:
                self._closures.add(id(code))
            self._made |= {id(each) for each in code.co_consts if isinstance(each, CodeType)}
            self.read(code, scope)

    def _read_settings(self, module: str, code: CodeType) -> None:
        """Record the settings that code of a package reads."""
        for chain in globals_in(code):
            setting, token = _setting((module, *chain), self.describer)
            if token is not None:
                self.settings.setdefault(setting, token)

    def read(self, code: CodeType, scope: dict[str, Any]) -> list[Read]:
        """Record the globals that user code reads. What it imports itself is looked up in the end."""
        names = names_in(code)
        self._importing.append((code, scope))
        for name in names.assigned:
            self._refuse(f"{_shown(code)} assigns the global {name!r}")
        for name in names.reaching:
            self._refuse(f"{_shown(code)} uses {name}, and what is read through it cannot be seen")
        module = str(scope.get("__name__"))
        if names.chains and getattr(sys.modules.get(module), "__dict__", None) is not scope:
            raise Unrecordable(f"{_shown(code)} does not belong to an imported module")
        return [read for chain in names.chains for read in self._record(module, chain)]

    def _record(self, module: str, chain: tuple[str, ...]) -> list[Read]:
        """Record an attribute access."""
        found: list[Read] = []
        try:
            for read in resolved(module, chain):
                found.append(read)
                if read not in self.reads:
                    self.reads[read] = token_of(read, self.describer)
                    self._follow_kept()
        except Unrecordable as error:
            self._refuse(str(error))
        return found

    def _follow_kept(self) -> None:
        """Record what functions with cached results read: neither they nor what they call need be entered."""
        while self.describer.kept:
            around = Describer()
            around.token(self.describer.kept.pop(), "a function with cached results")
            while around.functions:
                function = around.functions.pop()
                if origin_of(function.__globals__.get("__name__")) is not Origin.USER:
                    continue  # compared by its code and files
                for code in inner_codes(function.__code__):
                    for read in self.read(code, function.__globals__):
                        value = value_of(read)
                        if not isinstance(value, ModuleType):
                            self._refuse(refusal_of_cached(*read, value))
                            token_of(read, around)

    def finish(self) -> None:
        """Check what was recorded, once the trace is over."""
        try:
            self._follow_kept()
            while self._importing:
                self._read_imported(*self._importing.pop())
        except Exception as error:  # a module may raise anything when a name is looked up
            self._refuse(str(error) if type(error) is Unrecordable else f"{type(error).__name__}: {error}")
        fresh = Describer()
        for read, token in self.reads.items():
            try:
                now = token_of(read, fresh)
            except Unrecordable as error:
                now = str(error)
            if now != token:
                self._refuse(f"the global {read[1]!r} of {read[0]} changed while the function was traced")
        for setting, token in [*self.settings.items()]:
            if _setting(setting, fresh)[1] != token:  # the package itself changed it
                del self.settings[setting]
            elif token.startswith(_REFUSED):
                self._refuse(token.removeprefix(_REFUSED))
        covered = {code_token(code) for code in self.describer.codes}
        for code, _ in self._entered:
            if code_token(code) not in covered and code.co_name != "<module>":
                self._refuse(f"{_shown(code)} was called, but is not reachable from an argument or a global")
        for code, values in self._closed.values():
            if not self._is_described(code, values):
                self._refuse(
                    f"{_shown(code)} was called as a closure that is not reachable from an argument or a global"
                )

    def _is_described(self, code: CodeType, values: tuple[Any, ...]) -> bool:
        """Whether a description covers a closure: its code, with the same values of its variables."""
        described = [
            f for f in self.describer.functions if f.__code__ is code or code_token(f.__code__) == code_token(code)
        ]
        contents = [[content_of(cell) for _, cell in cells_of(f)] for f in described]
        if any(all(map(operator.is_, content, values)) for content in contents):
            return True
        try:
            token = self.describer.all("closure", values, _shown(code))
            return any(self.describer.all("closure", content, _shown(code)) == token for content in contents)
        except Exception:  # as above
            return False

    def _read_imported(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Record what code uses of the modules that it imports itself."""
        package = scope.get("__package__") or str(scope.get("__name__")).rpartition(".")[0]
        for level, name, chain in names_in(code).imports:
            module = importlib.util.resolve_name("." * level + name, package) if level else name
            if module in sys.modules:
                self._record(module, chain)
            else:  # the code may have noticed that it is missing
                self.reads[module, _EXISTS] = token_of((module, _EXISTS), self.describer)


_REFUSED = "refused:"


def _setting(names: Setting, describer: Describer) -> tuple[Setting, str | None]:
    """A setting, and its description, or why it has none."""
    try:
        return setting_of(names, describer)
    except Unrecordable as error:
        return names, f"{_REFUSED}{error}"


def _numpy_state() -> bytes:
    """NumPy's global random state. Its functions are not reported to a profiler."""
    return pickle.dumps(np.random.get_state(legacy=False))


def _patches(frame: Any) -> bool:
    """Whether code runs because a function of JAX was replaced, and not as a rule that was registered."""
    while frame.f_back is not None and origin_of(frame.f_back.f_globals.get("__name__")) is not Origin.VERSION:
        frame = frame.f_back
    caller = {} if frame.f_back is None else frame.f_back.f_globals
    return any(getattr(value, "__code__", None) is frame.f_code for value in [*caller.values()])


def resolved(module: str, chain: tuple[str, ...]) -> Iterator[Read]:
    """The names in an attribute access, each with its module: ``helpers.scale`` is ``helpers`` in this module and
    ``scale`` in that one.

    Raises:
        Unrecordable: it ends in a module of which any part may then be used, or leads to what varies.
    """
    for name in chain:
        if module in IMPURE or (module == "os" and name in ("environ", "getenv", "urandom", "environb")):
            raise Unrecordable(f"{module}.{name} gives a different result in each call")
        if (module, name) in REACHING_NAMES:
            raise Unrecordable(f"{module}.{name} is used, and what is read through it cannot be seen")
        if name == "__dict__" and origin_of(module) is Origin.USER:
            break
        yield module, name
        value = value_of((module, name))
        if not isinstance(value, ModuleType):
            return
        module = value.__name__
    if module in IMPURE or module == "sys" or origin_of(module) is Origin.USER:
        raise Unrecordable(f"the module {module!r} itself is used, so any part of it may be used")


def stands(read: Read, token: str, describer: Describer) -> bool:
    """Whether a name has the value that was recorded. A module that the trace used is imported."""
    kind, _, name = token.partition(":")
    if kind == "module" and name not in sys.modules and origin_of(name) is Origin.USER:
        importlib.import_module(name)
    return token_of(read, describer) == token


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
    if read[1] == _EXISTS:
        return "found" if _exists(read[0]) else "absent"
    value = value_of(read)
    if isinstance(value, ModuleType):
        return describer.module(value)
    try:
        return describer.token(value, f"the global {read[1]!r} of {read[0]}")
    except Unrecordable:
        if origin_of(read[0]) is Origin.VERSION and _is_its_own(value):
            return f"opaque:{read[0]}:{read[1]}"  # JAX's settings are compared one by one
        raise


def _exists(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _is_its_own(value: Any) -> bool:
    return origin_of(type(value).__module__) is Origin.VERSION and not isinstance(value, FunctionType)


def _shown(code: CodeType) -> str:
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
