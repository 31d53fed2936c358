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
    "tests/nn/stacks/test_stack.py",
    "tests/nn/stacks/test_sowing_views.py",
    "tests/nn/stacks/test_stack_shardings.py",
    "tests/inspect/compare/test_shared_modules.py",
)
_LAZY = "tests/architecture/test_lazy_packages.py"
_NAMES = "tests/inspect/observe/test_module_names.py"  # of what is in a program
_TRACES = "tests/inspect/test_retrace.py"  # what a trace had for its arguments
_OLD = "tests/training/test_remainders.py"  # checkpoints of earlier versions
_FROZEN = "tests/architecture/test_frozen.py"

AREAS: dict[str, Area] = {
    "util": Area("src/plait/util", ("tests/util", "tests/checkpoint/test_layout.py")),
    "core": Area("src/plait/core", ("tests/core", *_LAWS, *_USERS)),
    "transforms": Area(
        "src/plait/transforms", ("tests/transforms", "tests/nn/stacks/test_stack.py", *_LAWS, _NAMES, _TRACES)
    ),
    "partitioning": Area("src/plait/partitioning", ("tests/partitioning", *_RULES)),
    "nn": Area("src/plait/nn", ("tests/nn", "tests/conformance")),
    "edit": Area("src/plait/edit", ("tests/edit",)),
    "checkpoint": Area(
        "src/plait/checkpoint",
        ("tests/checkpoint", "tests/util/test_scratch.py", "tests/faults/test_readers.py", _LAZY, _OLD),
    ),
    "convert": Area("src/plait/convert", ("tests/convert", "tests/faults/test_readers.py", _FROZEN)),
    "export": Area(
        "src/plait/export",
        ("tests/export", "tests/util/test_dependencies.py", "tests/faults/test_readers.py", _LAZY, _FROZEN),
    ),
    "inspect": Area(
        "src/plait/inspect",
        ("tests/inspect", "tests/cli/test_explore.py", _LAZY, _FROZEN),
    ),
    "training": Area("src/plait/training", ("tests/training", "tests/conformance/test_errors.py", _FROZEN)),
    "generation": Area("src/plait/generation", ("tests/generation",)),
    "flax": Area("src/plait/flax", ("tests/flax", _LAZY)),
    "cli": Area("src/plait/cli", ("tests/cli",)),
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
