"""The cost of each instruction of an XLA program, by the module that it comes from.

XLA's cost analysis gives figures for a whole program. Those of one instruction are found by analysing a program with
only that instruction; equal instructions are analysed once. The cost of a loop, a branch, a call or a fusion is
distributed over the instructions in it, and the rest is its own, so the figures of all modules add up to XLA's.

Modules are found in the names of instructions (``observing/module_names.py``), which have the path of a module
relative to the one around it. An instruction without a name belongs to the module of its first user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

P = TypeVar("P")

Names = tuple[str, ...]
"""The keys of a path, as in names of instructions."""


class Figures(NamedTuple):
    """A cost, as XLA counts it.

    Attributes:
        flops: floating-point operations; for a loop, those of one iteration.
        transcendentals: exponentials, logarithms and the like.
        bytes: bytes read and written.
        written: bytes written.
        executed_flops: like ``flops``, but the body of a loop counts once per iteration, if their number is known.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0
    written: float = 0.0
    executed_flops: float = 0.0

    def plus(self, other: Figures, times: float = 1.0) -> Figures:
        """The sum, entry by entry."""
        a, b, c, d, e = self
        f, g, h, i, j = other
        return Figures(a + times * f, b + times * g, c + times * h, d + times * i, e + times * j)


Spread = dict[Names, Figures]
"""The cost of each module."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program in XLA's text form."""

    name: str
    shape: str
    opcode: str
    operands: str
    attributes: str
    op_name: str
    is_root: bool

    def text(self, operands: str) -> str:
        """The line, without its name and metadata."""
        return f"{self.shape} {self.opcode}({operands}){self.attributes}"

    def operand_names(self) -> list[str]:
        """The names of the instructions that it uses."""
        return _NAME.findall(self.operands)


_NAME = re.compile(r"%([\w.\-]+)")
_LINE = re.compile(r"\s+(ROOT )?%([\w.\-]+) = ")
_OPCODE = re.compile(r" ?([\w\-]+)\(")
_HEAD = re.compile(r"(ENTRY )?%([\w.\-]+)[ .].*\{\s*$")
_METADATA = re.compile(r", metadata=\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}")
_OP_NAME = re.compile(r"op_name=\"((?:[^\"\\;]|\\.)*)")
_LEFT_OUT = re.compile(
    r", (?:sharding|control-predecessors|frontend_attributes|origin|original_value|statistics)="
    r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
)
_TRIPS = re.compile(r"\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
_FREE = ("parameter", "constant")


class Program:
    """A parsed program in XLA's text form.

    Attributes:
        entry: the computation that runs.
        computations: all computations, by name.
        unread: what in the text is not as expected; a version of XLA may write it differently.
    """

    def __init__(self, text: str) -> None:
        self.entry = ""
        self.computations: dict[str, list[Instruction]] = {self.entry: []}
        self.unread: list[str] = []
        self._contents: dict[str, str] = {}
        current: list[Instruction] | None = None
        for line in text.splitlines():
            if current is None:
                head = _HEAD.match(line)
                if head is not None:
                    current = self.computations.setdefault(head[2], [])
                    self.entry = head[2] if head[1] else self.entry
            elif line.startswith("}"):
                current = None
            elif (found := _parsed(line)) is not None:
                current.append(found)
            elif line.strip():
                self.unread.append(line.strip())
        if not self.entry:
            self.unread.append("a program without an entry")
        if "op_name=" in text and not any(each.op_name for part in self.computations.values() for each in part):
            self.unread.append("names of operations")

    def called(self, instruction: Instruction) -> list[str]:
        """The computations that an instruction refers to."""
        if "%" not in instruction.attributes:
            return []
        return [name for name in _NAME.findall(instruction.attributes) if name in self.computations]

    def alone(self, instruction: Instruction, shapes: dict[str, str]) -> str:
        """A program with only this instruction, applied to parameters."""
        operands = [shapes[name] for name in instruction.operand_names()]
        lines = [f"%p{i} = {shape} parameter({i})" for i, shape in enumerate(operands)]
        given = ", ".join(f"%p{i}" for i in range(len(operands)))
        if not operands and instruction.operands:
            given = instruction.operands  # operands that are not instructions, such as the axis of an iota
        whole = [f"ENTRY %alone {{\n{chr(10).join(lines)}\nROOT %r = {instruction.text(given)}\n}}"]
        wanted, met = self.called(instruction), set[str]()
        while wanted:
            name = wanted.pop()
            if name not in met:
                met.add(name)
                whole.append(self._computation(name))
                wanted += [other for each in self.computations[name] for other in self.called(each)]
        return "HloModule alone\n\n" + "\n\n".join(reversed(whole)) + "\n"

    def content(self, name: str) -> str:
        """A text that is equal for equal computations; the name itself if the computation refers to others."""
        if name not in self._contents:
            instructions = self.computations.get(name, [])
            places = {each.name: str(place) for place, each in enumerate(instructions)}
            lines = [
                f"{each.is_root} {each.text(_NAME.sub(lambda found: places.get(found[1], found[0]), each.operands))}"
                for each in instructions
            ]
            is_simple = bool(lines) and not any(map(self.called, instructions))
            self._contents[name] = "\n".join(lines) if is_simple else name
        return self._contents[name]

    def _computation(self, name: str) -> str:
        lines = [
            f"{'ROOT ' if each.is_root else ''}%{each.name} = {each.text(each.operands)}"
            for each in self.computations[name]
        ]
        return f"%{name} {{\n{chr(10).join(lines)}\n}}"

    def trips(self, loop: Instruction, around: dict[str, Instruction]) -> int:
        """The number of iterations of a loop, if it counts to a constant; 1 if that is not known."""
        found = _TRIPS.search(loop.attributes)
        if found:
            return int(found[1])
        condition = re.search(r"condition=%([\w.\-]+)", loop.attributes)
        inside = {each.name: each for each in self.computations.get(condition[1] if condition else "", [])}
        root = next((each for each in inside.values() if each.is_root), None)
        start = around.get(loop.operand_names()[0]) if loop.operand_names() else None
        if root is None or root.opcode != "compare" or "direction=LT" not in root.attributes or start is None:
            return 1
        compared = [inside[name] for name in root.operand_names() if name in inside]
        counter, end = compared if len(compared) == 2 else (root, root)
        place = re.search(r"index=(\d+)", counter.attributes)
        if start.opcode != "tuple" or counter.opcode != "get-tuple-element" or place is None:
            return 1
        first = around.get(start.operand_names()[int(place[1])])
        numbers = [each.operands for each in (first, end) if each is not None and each.opcode == "constant"]
        return max(1, int(numbers[1]) - int(numbers[0])) if len(numbers) == 2 else 1


def _parsed(line: str) -> Instruction | None:
    start = _LINE.match(line)
    if start is None:
        return None
    metadata = _METADATA.search(line)
    op_name = _OP_NAME.search(metadata[1]) if metadata else None
    if metadata:
        line = line[: metadata.start()] + line[metadata.end() :]
    if "={" in line:
        line = _LEFT_OUT.sub("", line)
    begin = start.end()
    end = _closed(line, begin) if line.startswith("(", begin) else line.find(" ", begin)
    opcode = _OPCODE.match(line, end) if end > 0 else None
    if opcode is None:
        return None
    close = _closed(line, opcode.end() - 1)
    operands, attributes = line[opcode.end() : close - 1], line[close:]
    return Instruction(
        start[2], line[begin:end], opcode[1], operands, attributes, op_name[1] if op_name else "", bool(start[1])
    )


def _closed(line: str, start: int) -> int:
    """The position after the parenthesis that closes the one at ``start``."""
    first = line.find(")", start)
    if first >= 0 and line.find("(", start + 1, first) < 0:
        return first + 1
    depth = 0
    for found in re.finditer(r"[()]", line[start:]):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return start + found.end()
    return len(line)


class Arguments(NamedTuple):
    """A step of a name that says where the arguments of a function come from: ``{b=../a,a=?}``.

    Attributes:
        text: the step. After it comes the name of an argument, and a path in it.
    """

    text: str

    def paths(self) -> dict[str, Names | None]:
        """The path of each argument, from the position of the step; ``None`` if the program does not contain it."""
        pairs = (pair.partition("=") for pair in self.text[1:-1].split(","))
        return {name: None if path == "?" else tuple(filter(None, path.split("|"))) for name, _, path in pairs}

    @classmethod
    def of(cls, step: str) -> Arguments | None:
        return cls(step) if step.startswith("{") and step.endswith("}") and "=" in step else None


Position = tuple["str | Arguments", ...]
"""A path whose part after each ``Arguments`` is one of the function that got these arguments."""

Positions = dict[Position, Figures]
"""The cost at each position."""


class Modules:
    """The modules that names of instructions may refer to.

    Args:
        paths: the paths of the modules, as names; the root is the empty one.
    """

    def __init__(self, paths: Iterable[Names]) -> None:
        self.paths = {(), *paths}
        self._steps = {path[:end] for path in self.paths for end in range(len(path) + 1)}
        self._keys = {"..", *(key for path in self.paths for key in path)}
        self._known: dict[tuple[str, Position], Position] = {}
        self._resolved: dict[Position, tuple[Names, bool]] = {}

    def position(self, op_name: str, program: str, around: Position) -> Position:
        """The position that the name of an operation says.

        Args:
            op_name: the name of the operation in XLA.
            program: the prefix of names that begin at the root.
            around: the position of the instruction that calls the computation.
        """
        key = op_name, around
        if key not in self._known:
            self._known[key] = self._found(op_name, program, around)
        return self._known[key]

    def module_at(self, position: Position) -> Names:
        """The path of the innermost module at a position."""
        path = self._resolve(position)[0]
        while path not in self.paths:
            path = path[:-1]
        return path

    def note(self, op_name: str) -> None:
        """Learn the names of arguments that a name of an operation says."""
        for step in _steps_of(op_name) if "{" in op_name else ():
            if (arguments := Arguments.of(step)) is not None:
                self._keys.update((step, *arguments.paths()))

    def may_be_named(self, op_name: str, program: str) -> bool:
        """Whether a name may refer to a module, wherever its computation is called."""
        return op_name.startswith(program) or not self._keys.isdisjoint(_steps_of(op_name))

    def _found(self, op_name: str, program: str, around: Position) -> Position:
        here = around
        if op_name.startswith(program):
            op_name, here = op_name[len(program) :], ()
        for step in _steps_of(op_name):
            if step == "..":
                here = here if here and isinstance(here[-1], Arguments) else here[:-1]
            elif (arguments := Arguments.of(step)) is not None:
                here = (*here, arguments, "") if "" in arguments.paths() else (*here, arguments)
            elif self._is_step(here, step):
                here = (*here, step)
        return here

    def _is_step(self, here: Position, step: str) -> bool:
        if here and isinstance(here[-1], Arguments):
            return step in here[-1].paths()
        path, is_known = self._resolve((*here, step))
        return not is_known or path in self._steps

    def _resolve(self, position: Position) -> tuple[Names, bool]:
        """The path of a position; and whether it is known, or that of the caller of a function with other modules."""
        if position not in self._resolved:
            found = [(place, key) for place, key in enumerate(position) if isinstance(key, Arguments)]
            if found:
                place, arguments = found[-1]
                self._resolved[position] = self._argument(position[:place], arguments, _keys(position[place + 1 :]))
            else:
                self._resolved[position] = _keys(position), True
        return self._resolved[position]

    def _argument(self, here: Position, arguments: Arguments, inside: Names) -> tuple[Names, bool]:
        caller, is_known = self._resolve(here)
        if not inside:
            return caller, is_known
        path = arguments.paths().get(inside[0])
        if path is None:
            return caller, False
        for key in path:
            here = here[:-1] if key == ".." else (*here, key)
        start, is_known = self._resolve(here)
        return ((*start, *inside[1:]) if is_known else caller), is_known


def _keys(position: Position) -> Names:
    return tuple(key for key in position if not isinstance(key, Arguments))


# ``transpose(jvp(blocks/0))/jvp(blocks/0)/checkpoint/norm`` has the path of the block twice.
_AGAIN = re.compile(r"transpose\(jvp\(([^()]*)\)\)((?:/[^/()]+)*?)/jvp\(\1\)\2(?=/)")
_INNER = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORM = re.compile(r"\b\w+\(([^()]*)\)")


def _steps_of(op_name: str) -> list[str]:
    return _plain(op_name).split("/")[:-1] if "/" in op_name else []  # the last one is the operation


def _plain(op_name: str) -> str:
    """A name without the transforms in it: ``transpose(jvp(blocks/0))/norm/mul`` becomes ``blocks/0/norm/mul``."""
    op_name = _INNER.sub("", _AGAIN.sub(r"jvp(\1)\2", op_name))
    while (shorter := _TRANSFORM.sub(r"\1", op_name)) != op_name:
        op_name = shorter
    return op_name


class CostsByModule:
    """Distributes the cost of a program over the modules that it comes from.

    Args:
        program: the parsed program.
        modules: the modules that may be named in it.
        measure: returns XLA's figures for a program in text form.
    """

    def __init__(self, program: Program, modules: Modules, measure: Callable[[str], Figures]) -> None:
        self.program, self.modules, self.measure = program, modules, measure
        self._figures: dict[tuple[str, ...], Figures] = {}
        self._spreads: dict[tuple[str, Position], Positions] = {}
        self._nameless: dict[str, bool] = {}
        self._prefix = next(
            (f"{each.op_name.split('/')[0]}/" for each in self._entry() if each.op_name.startswith("jit(")), "/"
        )
        for computation in program.computations.values():
            for each in computation:
                modules.note(each.op_name)

    def _entry(self) -> list[Instruction]:
        return self.program.computations.get(self.program.entry, [])

    def spread(self) -> Spread:
        """The total cost of each module."""
        found: Spread = {}
        for position, figures in self._of_computation(self.program.entry, ()).items():
            _add(found, {self.modules.module_at(position): figures})
        return found

    def all_places(self) -> dict[str, Names]:
        """The module of each instruction, by its name; names are unique in a program."""
        found: dict[str, Names] = {}
        wanted: list[tuple[str, Position]] = [(self.program.entry, ())]
        met: set[str] = set()
        while wanted:
            name, around = wanted.pop()
            if name not in met:
                met.add(name)
                for each, place in self.places(name, around):
                    found[each.name] = self.modules.module_at(place)
                    wanted += [(other, place) for other in self.program.called(each)]
        return found

    def places(self, name: str, around: Position) -> Iterator[tuple[Instruction, Position]]:
        """The instructions of a computation with their positions, the last first."""
        hints: dict[str, Position] = {}
        for each in reversed(self.program.computations[name]):
            place = hints.get(each.name, around)
            if each.op_name:
                place = self.modules.position(each.op_name, self._prefix, around)
            for operand in each.operand_names():
                hints[operand] = place
            yield each, place

    def _of_computation(self, name: str, around: Position) -> Positions:
        if around and self._is_nameless(name):  # such as that of a random mask, which many modules call
            inside = self._of_computation(name, ())
            return {around: inside[()]} if inside else {}
        if (name, around) not in self._spreads:
            instructions = {each.name: each for each in self.program.computations[name]}
            shapes = {each.name: each.shape for each in instructions.values()}
            found: Positions = {}
            for each, place in self.places(name, around):
                if each.opcode not in _FREE:
                    _add(found, self._of_instruction(each, place, shapes, instructions))
            self._spreads[name, around] = found
        return self._spreads[name, around]

    def _is_nameless(self, name: str) -> bool:
        """Whether no instruction in a computation names a module, so that all belong to the one that calls it."""
        if name not in self._nameless:
            self._nameless[name] = not any(
                self.modules.may_be_named(each.op_name, self._prefix) for each in self.program.computations[name]
            ) and all(
                self._is_nameless(other)
                for each in self.program.computations[name]
                for other in self.program.called(each)
            )
        return self._nameless[name]

    def _of_instruction(
        self, each: Instruction, place: Position, shapes: dict[str, str], around: dict[str, Instruction]
    ) -> Positions:
        total = self._alone(each, shapes)
        if "%" not in each.attributes:  # it calls nothing
            return {place: total._replace(executed_flops=total.flops)}
        called = self.program.called(each) if each.opcode in ("call", "while", "conditional", "fusion") else []
        inner: list[Positions] = [self._of_computation(name, place) for name in called]
        if each.opcode == "conditional":  # XLA counts the most expensive branch
            inner = [max(inner, key=lambda spread: _total(spread).flops)]
        times = self.program.trips(each, around) if each.opcode == "while" else 1
        found: Positions = {}
        for spread in inner:
            for where, figures in spread.items():
                executed = figures.executed_flops * times
                if each.opcode == "fusion":  # nothing inside it is written to memory
                    figures = figures._replace(bytes=0.0, written=0.0)
                _add(found, {where: figures._replace(executed_flops=executed)})
        parts = _total(found)
        rest = total.plus(parts, -1.0)._replace(executed_flops=total.flops - parts.flops)
        return _add(found, {place: rest}) if any(rest) or not found else found

    def _alone(self, each: Instruction, shapes: dict[str, str]) -> Figures:
        if not shapes.keys() >= {*each.operand_names()}:  # an operand could not be read, so this is not analysed
            return Figures()
        operands = [shapes[name] for name in each.operand_names()]
        attributes = each.attributes
        if "%" in attributes:
            attributes = _NAME.sub(lambda found: self.program.content(found[1]), attributes)
        kind = (each.shape, each.opcode, attributes, *(operands or [each.operands]))
        if kind not in self._figures:
            self._figures[kind] = self.measure(self.program.alone(each, shapes))
        return self._figures[kind]


def _add(found: dict[P, Figures], more: Mapping[P, Figures]) -> dict[P, Figures]:
    for place, figures in more.items():
        found[place] = found.get(place, Figures()).plus(figures)
    return found


def _total(spread: Mapping[Any, Figures]) -> Figures:
    total = Figures()
    for figures in spread.values():
        total = total.plus(figures)
    return total
