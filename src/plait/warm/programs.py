"""Compiled functions whose programs outlive the process: ``jit(f, cache=folder)``.

The key of a program consists of the function, the structure of the arguments, shape, dtype and sharding of each array,
the options of ``jit``, versions, devices and settings (``environment.py``). One key may have several programs,
each with the globals that its trace read, which are compared one by one (``reads.py``). If the globals of a
program have not changed, its executable is loaded, together with the outcome of the call (``forms.py``), without
tracing or compiling. Otherwise the function is traced with a recording, compiled, and stored.

The fast path is the same as without a folder: JAX's own dispatch, which calls this code only for arguments that differ
from those of all earlier calls. (rules W1 to W9)

``Stored.missed`` adds entries to the cache in memory; they are removed by ``clear_cache()`` or when the jitted function
dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._compat import (
    ArrayImpl,
    KeyArray,
    aval_of,
    binary_of,
    compiled_by_xla,
    described_executable,
    deserialized,
    dispatcher,
    executable_of,
    read_binary,
    run_executable,
    top_level_trace,
    trace_state,
    traced_afresh,
    treedef_from,
    why_not_serializable,
)
from ..core import seams
from ..errors import ProgramCacheError, ProgramCacheWarning
from ..ground.notices import warn
from ..ground.words import first_few
from ..transforms.call.call import Call
from ..transforms.call.outcome import Outcome
from ..transforms.jit.compiled import Compiled, OutputsWithOutcome
from .ahead import Ahead
from .codes import content_of, digest
from .descriptions import NUMBERS, Describer, Unrecordable
from .environment import environment
from .folder import DEFAULT_LIMIT, REFUSED, Folder
from .forms import Forms, NoForm
from .logbook import Logbook
from .lowering import is_lowered_by_others
from .misses import MALFORMED, changed, why_missed
from .packages import package_token
from .reads import Recording
from .sources import sources_of, sources_token
from .stablehlo import compiled_export, exported

_ARRAYS = frozenset({ArrayImpl, KeyArray, np.ndarray, bool, int, float, complex, jax.ShapeDtypeStruct})


class Programs:
    """Where one jitted function stores its programs.

    Attributes:
        folder: the folder.
        log: the report of this process, if the folder is that of ``plait.cache``. Then the report says what could not
            be stored, instead of a warning, and later processes do not try again.
        ahead: what is read ahead, if anything is.
        counts: how many programs were loaded, stored, and not stored.
        reasons: the reasons that were reported for programs not stored.
        is_fallback_said: whether the warning that executables cannot be stored here was given.
    """

    def __init__(
        self, path: str | os.PathLike[str], limit: int | None, log: Logbook | None = None, ahead: Ahead | None = None
    ) -> None:
        self.folder = Folder(path, DEFAULT_LIMIT if limit is None else limit)
        self.log, self.ahead = log, ahead
        self.counts = {"loaded": 0, "stored": 0, "not stored": 0}
        self.reasons: list[str] = []
        self.is_fallback_said = False

    def __reduce__(self) -> Any:
        return Programs, (str(self.folder.path), self.folder.limit)

    def say_fallback(self, error: Exception) -> None:
        """Warn, once, that processes must compile the programs that they load.

        Warns:
            ProgramCacheWarning: states the reason, and how to avoid it.
        """
        if self.is_fallback_said:
            return
        self.is_fallback_said = True
        if self.log is not None:
            self.log.add("stored as StableHLO", why=[str(error).partition("\n")[0]])
        else:
            warn(
                ProgramCacheWarning,
                "executables of this device cannot be stored, so programs are stored as StableHLO",
                at=str(self.folder.path),
                found=str(error).partition("\n")[0],
                expected="a device whose executables JAX can serialize",
                do="use JAX's compilation cache: set JAX_COMPILATION_CACHE_DIR. Later processes do not trace; they "
                "compile, or load from that cache",
            )

    def compiled(self, *given: Any) -> Stored:
        """The compiled function for one structure of the arguments; the arguments are those of ``Compiled``."""
        return Stored(self, *given)

    def refuse(self, f: Any, reasons: Sequence[str]) -> None:
        """Warn, once, why a program cannot be stored.

        Warns:
            ProgramCacheWarning: names what cannot be recorded.
        """
        self.counts["not stored"] += 1
        if self.log is not None:
            self.log.add("not stored", function=_name_of(f), why=[*dict.fromkeys(reasons)])
            return
        new = [reason for reason in dict.fromkeys(reasons) if reason not in self.reasons]
        if new:
            self.reasons += new
            warn(
                ProgramCacheWarning,
                f"the program of {getattr(f, '__name__', f)!r} cannot be stored, so each process compiles it again",
                at=str(self.folder.path),
                found=first_few(new, 4),
                expected="functions and values that another process can compare with its own",
                do="pass what changes as an argument; numbers, strings, arrays, functions and plain objects are fine",
            )


def _name_of(f: Any) -> str:
    return f"{getattr(f, '__module__', '')}:{getattr(f, '__qualname__', f)}"


class Program(NamedTuple):
    """A program that this process has loaded or compiled."""

    executable: Any
    out_tree: Any


class Found(NamedTuple):
    """A program found in the folder: the file, its header and the program."""

    file: Path
    header: dict[str, Any]
    binary: bytes


class Request:
    """A request for the program of a call: its arguments, and their description.

    Attributes:
        leaves, tree: the arguments, flat.
        memory_key: identifies the call in this process.
        key: identifies the program in the folder; ``None`` if a part of it could not be described.
        reason: the part that could not be described.
        parts: what the key consists of.
        numbers: the variables of closures that hold a number, with the number.
        changed: what differs from the programs stored under the key.
        file: its name, once it is stored.
    """

    def __init__(self, stored: Stored, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.stored, self.args, self.kwargs = stored, args, kwargs
        self.leaves, self.tree = jax.tree_util.tree_flatten((tuple(args), kwargs))
        self.describer = Describer()
        self.recording = Recording(self.describer)
        self.key: str | None = None
        self.reason = ""
        self.parts: dict[str, str] = {}
        self.numbers: tuple[tuple[Any, Any], ...] = ()
        self.changed: list[str] = []
        self.file = ""
        self.inputs = [_signature(leaf, self.describer) for leaf in self.leaves]
        try:
            self.parts = {
                **environment(stored.options.get("backend"), self.describer),
                "arguments": digest("arguments", self.inputs),
                "tree": self.describer.treedef(self.tree, "the arguments"),
                **stored.description(self.describer),
            }
            self.numbers = tuple(self.describer.numbers)
            first = {id(cell): at for at, (cell, _) in [*enumerate(self.numbers)][::-1]}
            self.parts["numbers"] = repr([first[id(cell)] for cell, _ in self.numbers])  # stored by position
            text = digest("program", (f"{name}={value}" for name, value in sorted(self.parts.items())))
            self.key = text.partition(":")[2]
        except Unrecordable as error:
            self.reason = str(error)
        except Exception as error:  # a user's class may raise anything when it is inspected
            self.reason = f"an argument or the function, whose description raised {type(error).__name__}: {error}"
        self.memory_key = (self.key or self.reason, *self.inputs, self.tree)

    @functools.cached_property
    def found(self) -> Found | None:
        """The stored program, if nothing that it depends on has changed."""
        donated = self.stored.donated
        for file, header, binary in self.stored.programs.folder.read(self.key) if self.key is not None else ():
            if donated in (None, header.get("donated")):
                change = changed(header)
                if change is None:
                    return Found(file, header, binary)
                self.changed.append(change)
        return None

    @functools.cached_property
    def refusals(self) -> list[str]:
        """Why the program cannot be stored, as far as it is known before a trace; only for the folder of all."""
        if self.stored.programs.log is None:
            return []
        if self.key is None:
            return [self.reason]
        for _, header, _ in self.stored.programs.folder.read(self.key, REFUSED):
            if changed(header) is None:
                return header["reasons"]
        return []

    def replaced(self) -> list[tuple[int, Any]]:
        """What the trace put in place of a number in a closure, as Optax's schedules do, by position."""
        now = [content_of(cell) for cell, _ in self.numbers]
        return [(at, number) for at, number in enumerate(now) if number is not self.numbers[at][1]]

    def is_for(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether it is a request for a call with the very same arguments."""
        leaves, tree = jax.tree_util.tree_flatten((tuple(args), kwargs))
        return tree == self.tree and [*map(id, leaves)] == [*map(id, self.leaves)]


def _signature(leaf: Any, describer: Describer) -> str:
    """Shape, dtype, weak type and sharding of an argument."""
    aval = aval_of(leaf)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or not getattr(leaf, "committed", True):
        where = "anywhere"
    else:
        where = describer.sharding(sharding, "an argument")
        if isinstance(leaf, ArrayImpl) and not leaf.is_deleted():
            where += str(leaf.format.layout)
    return f"{aval.str_short(short_dtypes=False)}{' weak' if aval.weak_type else ''} {where}"


class Stored(Compiled):
    """A compiled function whose programs are stored.

    Attributes:
        programs: where.
        known: the programs that this process has loaded or compiled.
    """

    __slots__ = ("_pending", "known", "programs")

    def __init__(self, programs: Programs, *given: Any) -> None:
        self.programs = programs
        self.known: dict[Any, Program] = {}
        self._pending: Request | None = None  # for a call that follows, made to find out what it donates
        super().__init__(*given)

        def whole(*args: Any, **kwargs: Any) -> Any:
            return self.traceable(*args, **kwargs)

        whole.__name__ = getattr(self.f, "__name__", type(self.f).__name__)
        self.jitted = dispatcher(whole, self.missed)  # JAX's dispatch, which calls ``missed``

    def find_donated(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """The positions of the values that are donated, from the folder, or from a trace."""
        positional, named = self.arguments(call.gathered, args, kwargs)
        if not self._is_usual(jax.tree_util.tree_leaves((positional, named))):
            return super().find_donated(call, args, kwargs)
        self._pending = request = Request(self, positional, named)
        if request.found is not None:
            return request.found.header["donated"]
        if request.refusals:
            return super().find_donated(call, args, kwargs)
        with request.recording, traced_afresh():
            return super().find_donated(call, args, kwargs)

    def clear(self) -> None:
        super().clear()
        self.jitted._clear_cache()
        self.known.clear()

    def description(self, describer: Describer) -> dict[str, str]:
        """The function, its options, and the structure of its arguments.

        Raises:
            Unrecordable: one of them cannot be compared with another process.
        """
        donation = self.donation and (self.donation.numbers, self.donation.names, self.donation.predicate)
        body, outs = self.body, self.body.outs
        shardings = None
        if self.shardings is not None:
            inputs = body.ports, body.value_ports, body.plain_ports, body.prefixes, self.shardings.given
            shardings = *inputs, outs.leaves, outs.treedef
        structure = [describer.treedef(self.body.structure.treedef, "the arguments")]
        labels = iter(self.body.structure.labels(self.f)[0])
        structure += [describer.graphdef(g, next(labels)) for g in self.body.structure.roots]
        name = f"the function {getattr(self.f, '__qualname__', self.f)!r}"
        return {
            "places": digest("places", map(jax.tree_util.keystr, self.body.structure.places())),
            "function": describer.token(self.f, name),
            "options": describer.token(self.options, "the options of jit"),
            "donation": describer.token(donation, "donate"),
            "shardings": describer.token(shardings, "in_shardings and out_shardings"),
            "layout": repr(self.layout),
            "updates": repr(body.structural),
            "structure": digest("structure", structure),
        }

    # A call -----------------------------------------------------------------------------------------------------------

    def missed(self, *args: Any, **kwargs: Any) -> Any:
        """A call that JAX's dispatch has no program for."""
        if not self._is_usual(jax.tree_util.tree_leaves((args, kwargs))):
            return self.traceable(*args, **kwargs), None, False
        request, program = self.program(args, kwargs)
        returned, fast = run_executable(program.executable, request.leaves, program.out_tree)
        return returned, fast, False

    def _is_usual(self, leaves: Sequence[Any]) -> bool:
        """Whether a call runs its program unmodified: not inside another trace, and without observers."""
        config: Any = jax.config
        return (
            all(type(leaf) in _ARRAYS or isinstance(leaf, np.generic) for leaf in leaves)
            and trace_state.value is top_level_trace
            and not seams.observers
            and not (config.jax_debug_nans or config.jax_debug_infs or config.jax_disable_jit)
        )

    def program(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Request, Program]:
        """The program for a call: known, loaded, or compiled and stored."""
        request, self._pending = self._pending, None
        if request is None or not request.is_for(args, kwargs):
            self.donation_trace = None  # what the program depends on was recorded by a different request
            request = Request(self, args, kwargs)
        program = self.known.get(request.memory_key)
        if program is None:
            program = (request.found and self.load(request.found, request)) or self.compile(request)
            self.known[request.memory_key] = program
        return request, program

    # Loading ----------------------------------------------------------------------------------------------------------

    def load(self, found: Found, request: Request) -> Program | None:
        """The program of a file; ``None`` if it does not match an earlier trace of this process."""
        header, start = found.header, time.perf_counter()
        backend = self.options.get("backend")
        forms = Forms([self.body.structure], backend)
        try:
            outcome = forms.read(header["outcome"])
            ports = forms.read(header["ports"])
            replaced: list[tuple[Any, Any]] = [(request.numbers[at][0], number) for at, number in header["numbers"]]
            executable = dataclasses.replace(forms.read(header["executable"]), binary=found.binary)
            if header["donated leaves"] is not None:
                loaded = compiled_export(executable, request.leaves, header["donated leaves"])
            else:
                ahead = self.programs.ahead
                binary = (ahead and ahead.taken(found.file.name, executable)) or read_binary(executable, backend)
                loaded = deserialized(executable, [aval_of(leaf) for leaf in request.leaves], backend, binary)
        except (NoForm, RuntimeError, *MALFORMED) as error:
            warn(
                ProgramCacheWarning,
                "a stored program could not be loaded, and is compiled again",
                at=str(found.file),
                found=f"{type(error).__name__}: {error}",
                expected="a program for these devices, whose names are imported here",
                do="remove the file if this happens again",
            )
            return None
        if os.environ.get("PLAIT_CHECK_CACHE", "0") not in ("", "0"):
            self.check(found, request)
        for cell, number in replaced:
            cell.cell_contents = number
        self.programs.folder.used(found.file)
        self.programs.counts["loaded"] += 1
        if self.programs.log is not None:
            seconds = round(time.perf_counter() - start, 3)
            name = found.file.name
            self.programs.log.add("loaded", function=header["function"], seconds=seconds, file=name)
        return Program(loaded, self._tree(outcome, ports))

    def _tree(self, outcome: Outcome, ports: Any) -> Any:
        """The structure of the program's output, as a trace in this process would set it."""
        arguments = {} if outcome.output is None else outcome.returned_arguments(self.body.structure)
        if not self.is_first(outcome, arguments):
            return treedef_from((OutputsWithOutcome, (outcome,)), [ports])
        values, output = ports.children()
        return treedef_from((list, None), [*values.children(), output]) if outcome.written else output

    def check(self, found: Found, request: Request) -> None:
        """Trace again, and compare (``PLAIT_CHECK_CACHE=1``).

        Raises:
            ProgramCacheError: the stored program is different.
        """
        with traced_afresh():
            lowered = self.traceable.trace(*request.args, **request.kwargs).lower()
        if _sum(lowered) != found.header["stablehlo"]:
            raise ProgramCacheError(
                f"the stored program of {found.header['function']!r} differs from the traced one",
                at=str(found.file),
                found="a different StableHLO program",
                expected="the same program; plait recorded too little of what the program depends on",
                do="remove the file, and report this with the function; until then, omit cache=",
            )

    # Compiling --------------------------------------------------------------------------------------------------------

    def compile(self, request: Request) -> Program:
        """Trace with a recording, compile, and store."""
        start = time.perf_counter()
        if request.refusals:
            reasons, stage = request.refusals, self.traceable.trace(*request.args, **request.kwargs).lower().compile()
        else:
            reasons, stage = self._compile_and_store(request)
        seconds = round(time.perf_counter() - start, 3)
        if reasons:
            self.programs.refuse(self.f, reasons)
        elif self.programs.log is not None:
            self.programs.log.add("stored", function=_name_of(self.f), seconds=seconds, file=request.file)
        return Program(executable_of(stage), stage.out_tree)

    def _compile_and_store(self, request: Request) -> tuple[list[str], Any]:
        """Why the program was not stored, and its compiled stage."""
        programs, name = self.programs, _name_of(self.f)
        if programs.log is not None:
            programs.log.add("missed", function=name, why=why_missed(programs.folder, name, request))
        with traced_afresh():
            with request.recording:
                traced = self.traceable.trace(*request.args, **request.kwargs)
            request.recording.lowers = True
            with request.recording if is_lowered_by_others() else contextlib.nullcontext():
                lowered = traced.lower()
        reasons = self._reasons(request)
        if reasons:
            self._keep_refusal(request, reasons)
            return reasons, lowered.compile()  # which JAX's own cache may know
        with ThreadPoolExecutor(1) as beside:  # XLA works without Python's lock
            recorded = functools.partial(_recorded, request, name)
            with contextlib.suppress(RuntimeError):  # no thread starts while Python ends
                recorded = beside.submit(recorded).result
            with compiled_by_xla():
                stage = lowered.compile()
        reason = why_not_serializable(stage)
        if reason is not None:
            self._keep_refusal(request, [reason])
            return [reason], stage
        try:
            self._store(request, recorded(), stage, lowered)
        except (NoForm, Unrecordable, RuntimeError, NotImplementedError, OSError) as error:
            if isinstance(error, ProgramCacheError):
                raise
            return [str(error)], stage
        return [], stage

    def _reasons(self, request: Request) -> list[str]:
        """Why a program cannot be stored, as its trace shows."""
        if request.key is None:
            return [request.reason]
        request.recording.finish()
        return request.recording.reasons + self._changes(request)

    def _changes(self, request: Request) -> list[str]:
        """Why a program cannot be stored, if what was described before the trace has changed."""
        try:
            described = self.description(Describer(request.numbers))
            changes = not described.items() <= request.parts.items()
            changes |= any(type(value) not in NUMBERS for _, value in request.replaced())
        except Unrecordable:
            changes = True
        return [f"{_name_of(self.f)} changed its defaults, its closure or a static value"] if changes else []

    def _keep_refusal(self, request: Request, reasons: list[str]) -> None:
        """Let later processes know that the program cannot be stored, so that they do not record its trace."""
        if self.programs.log is not None and request.key is not None:
            with contextlib.suppress(Unrecordable, OSError):
                header = {**_recorded(request, _name_of(self.f)), "reasons": reasons}
                self.programs.folder.write(header, b"", REFUSED)

    def _store(self, request: Request, recorded: dict[str, Any], stage: Any, lowered: Any) -> None:
        donated_leaves: list[int] | None = None
        try:
            binary = binary_of(stage)
        except (RuntimeError, NotImplementedError, ValueError) as error:  # the client cannot serialize programs
            binary, donated_leaves = exported(self.traceable, stage, request.leaves, request.tree)
            self.programs.say_fallback(error)
        out = stage.out_tree
        outcome, ports, _ = self.outcome_of(jax.tree_util.tree_unflatten(out, range(out.num_leaves)))
        forms = Forms([self.body.structure])
        header = {
            **recorded,
            "stablehlo": _sum(lowered),
            "donated": self.donated,
            "outcome": forms.write(outcome),
            "ports": forms.write(jax.tree_util.tree_structure(ports)),
            "executable": forms.write(described_executable(stage)),
            "donated leaves": donated_leaves,
            "numbers": request.replaced(),
        }
        request.file = self.programs.folder.write(header, binary).name
        self.programs.counts["stored"] += 1


def _recorded(request: Request, function: str) -> dict[str, Any]:
    """What a program depends on, for the header of its file.

    Raises:
        Unrecordable: a file of a package is newer than this process.
    """
    recording = request.recording
    files = sources_of({*recording.packages, *recording.describer.packages})
    recorded = {
        "reads": sorted([*read, token] for read, token in recording.reads.items()),
        "packages": {module: package_token(module) for module in sorted(recording.packages)},
        "settings": sorted([*names, token] for names, token in recording.settings.items()),
        "sources": [[top, names, sources_token(top, names)] for top, names in files.items()],
    }
    variant = hashlib.sha256(json.dumps(recorded).encode()).hexdigest()[:16]
    return {"key": request.key, "variant": variant, "function": function, "parts": request.parts, **recorded}


def _sum(lowered: Any) -> str:
    """The checksum of a StableHLO program."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
