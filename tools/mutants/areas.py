"""Which tests have to notice a fault in which folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Area:
    """A part of the source and the tests that answer for it.

    Args:
        source: a folder of Python files; its name within ``package`` is that of the folder of tests that mirrors it.
        tests: folders and files of tests. The mirror of the changed file runs first, then the rest in this order.
        package: what ``mirrors`` stands beside.
        mirrors: the folder of tests that has the layout of ``package``.
        pattern: which files of the folder.
        preload: modules that the process loads once, before it forks for each fault. Never one of the package.
    """

    source: str
    tests: tuple[str, ...]
    package: str = "src/plait"
    mirrors: str = "tests"
    pattern: str = "**/*.py"
    preload: tuple[str, ...] = ("tests.conftest", "jax.numpy", "optax")


_LAWS = ("tests/laws", "tests/conformance")
_RULES = ("tests/laws/test_axis_name_laws.py",)
# What uses a part of the core that serves little else: rendering, stacks, records of calls.
_USERS = (
    "tests/inspect/test_treescope.py",
    "tests/stacks/test_stack.py",
    "tests/stacks/test_sowing_views.py",
    "tests/stacks/test_stack_shardings.py",
    "tests/comparison/test_shared_modules.py",
)
_COMMANDS = (
    "tests/test_cli.py",
    "tests/test_cli_compare.py",
    "tests/test_cli_explore.py",
    "tests/test_cli_export.py",
)
_LAZY = "tests/architecture/test_lazy_packages.py"
_FROZEN = "tests/architecture/test_frozen.py"
_MISSING = "tests/ground/test_dependencies.py"

AREAS: dict[str, Area] = {
    "core": Area("src/plait/core", ("tests/core", *_LAWS, *_USERS)),
    "transforms": Area("src/plait/transforms", ("tests/transforms", "tests/stacks/test_stack.py", *_LAWS)),
    "stacks": Area("src/plait/stacks", ("tests/stacks", "tests/conformance")),
    "observing": Area("src/plait/observing", ("tests/observing",)),
    "surgery": Area("src/plait/surgery", ("tests/surgery",)),
    "partitioning": Area("src/plait/partitioning", ("tests/partitioning", *_RULES)),
    "nn": Area("src/plait/nn", ("tests/nn", "tests/conformance")),
    "training": Area("src/plait/training", ("tests/training", "tests/conformance/test_errors.py", _FROZEN)),
    "checkpoint": Area(
        "src/plait/checkpoint",
        ("tests/checkpoint", "tests/ground/test_scratch.py", "tests/faults/test_fuzzed_input.py", _LAZY),
    ),
    "bridge": Area("src/plait/bridge", ("tests/bridge", _LAZY)),
    "compat": Area("src/plait/compat", ("tests/compat",)),
    "inspect": Area("src/plait/inspect", ("tests/inspect", _LAZY)),
    "export": Area("src/plait/export", ("tests/export", "tests/test_cli_export.py", _MISSING, _LAZY, _FROZEN)),
    "convert": Area("src/plait/convert", ("tests/convert", "tests/faults/test_fuzzed_input.py", _FROZEN)),
    "comparison": Area("src/plait/comparison", ("tests/comparison", "tests/test_cli_compare.py", _FROZEN)),
    "explorer": Area("src/plait/explorer", ("tests/explorer", "tests/test_cli_explore.py", _FROZEN)),
    "command line": Area("src/plait", _COMMANDS, pattern="cli*.py"),
    "ground": Area("src/plait/ground", ("tests/ground", "tests/checkpoint/test_layout.py")),
}


def stages(area: Area, root: Path, file: Path) -> list[list[str]]:
    """The tests for a fault in ``file``, in the order in which they run: the nearest first, each once.

    The mirror of the file, the folder in which the mirror lies (or would lie), all others.
    """
    mirror = root / area.mirrors / file.relative_to(root / area.package)
    known = [path for test in area.tests for path in _test_files(root / test)]
    nearest = [path for path in known if path == mirror.with_name(f"test_{mirror.name}")]
    beside = [path for path in known if path.parent == mirror.parent and path not in nearest]
    others = [path for path in known if path not in nearest and path not in beside]
    return [[str(path) for path in stage] for stage in (nearest, beside, others) if stage]


def _test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))
