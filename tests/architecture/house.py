"""Which files src/plait has, and what each of them imports, read without importing anything."""

import ast
import dataclasses
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "plait"
BESIDE = ("errors", "typing", "_public")  # files at the top of plait that every room may import


@dataclasses.dataclass(frozen=True)
class Import:
    """One import statement's target, where ``module`` is dotted and has no leading dots."""

    line: int
    module: str
    names: tuple[str, ...]
    level: int


def source_files(source: Path = SOURCE) -> list[Path]:
    return sorted(source.rglob("*.py"))


def module_parts(file: Path, source: Path = SOURCE) -> tuple[str, ...]:
    """The dotted name below plait, in parts; ``core/__init__.py`` is ``("core",)``."""
    parts = file.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module: the folder at the top of plait, or "beside" for what lies between the rooms."""
    return "beside" if not parts or parts[0] in BESIDE else parts[0]


@functools.cache
def imports_of(file: Path) -> tuple[Import, ...]:
    """Every import statement of a file, those inside functions and under ``TYPE_CHECKING`` included."""
    return tuple(_imports_in(ast.parse(file.read_text(encoding="utf-8"), str(file))))


def _imports_in(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, (), 0)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import(node.lineno, node.module or "", names, node.level)


def resolve_relative(found: Import, file: Path, source: Path = SOURCE) -> list[tuple[str, ...]]:
    """The modules of plait that a relative import reads: ``from . import a, b`` may read two."""
    package = list(file.relative_to(source).parent.parts)
    base = package[: len(package) - (found.level - 1)] + [part for part in found.module.split(".") if part]
    targets = set()
    for name in found.names:
        inner = source.joinpath(*base, name)
        is_module = inner.with_suffix(".py").is_file() or (inner.is_dir() and any(inner.glob("*.py")))
        targets.add((*base, name) if is_module else tuple(base))
    return sorted(targets)


def is_standard_library(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
