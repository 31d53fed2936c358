"""Try plait without editing a program: makes ``flax.nnx`` and its modules refer to plait in this process.

    python -m plait.as_flax train.py --steps 10
    python -m plait.as_flax --report -m pytest tests

or, as the first import of a program, ``import plait.as_flax``. This also affects libraries that import Flax's modules
themselves. The rest of Flax, including Linen, is unchanged. With ``--report`` the process prints at its end which names
plait replaced, and which of the used names it lacks. docs/migrating.md lists the limits.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from ..core.states import live
from ..errors import AlreadyImportedError, MissingDependencyError
from .compat.flax_paths import FlaxFinder, FlaxModule
from .compat.flax_settings import share_settings
from .compat.private_names import add_private_names

USAGE = "usage: python -m plait.as_flax [--report] PROGRAM [ARGUMENTS ...]  or  [--report] -m MODULE [ARGUMENTS ...]"


def install() -> None:
    """Make ``flax.nnx`` refer to plait from now on; a second call does nothing.

    Raises:
        AlreadyImportedError: ``flax.nnx`` has already been imported.
        MissingDependencyError: Flax is not installed.
    """
    if any(isinstance(finder, FlaxFinder) for finder in sys.meta_path):
        return
    _check_not_imported()
    if find_spec("flax") is None:
        raise MissingDependencyError(
            "plait can replace flax.nnx only if Flax is installed",
            found="flax is not installed",
            expected="flax, which plait's extra 'linen' installs",
            do="pip install 'plait[linen]'",
        )
    sys.meta_path.insert(0, FlaxFinder())
    add_private_names()
    live.make_default()  # its states hold the model's own variables
    share_settings()


def _check_not_imported() -> None:
    for root in FlaxFinder.roots:
        if root in sys.modules:
            raise AlreadyImportedError(
                f"plait cannot replace {root} in this process",
                found=f"{root} was imported before plait.as_flax",
                expected="plait.as_flax first: objects of both libraries do not mix",
                do="write `import plait.as_flax` above all other imports, or run: python -m plait.as_flax program.py",
            )


def report() -> str:
    """The report so far: the Flax modules that plait replaced, their used names, and the names that plait lacks."""
    used = {module.__name__: sorted(module.__used__) for module in _stand_ins()}
    lacking = [f"{module.__name__}.{name}" for module in _stand_ins() for name in sorted(module.__lacking__)]
    lines = [f"plait replaced {len(used)} modules of Flax:"]
    lines += [f"  {name}: {', '.join(names) or 'imported only'}" for name, names in used.items()]
    lines += [f"It has no {name}" for name in lacking] or ["It has all the names that were used."]
    return "\n".join(lines)


def _stand_ins() -> Iterator[FlaxModule]:
    for name in sorted(sys.modules):
        if name.startswith(FlaxFinder.roots) and isinstance(module := sys.modules[name], FlaxModule):
            yield module


def main(arguments: Sequence[str]) -> int:
    """Run a program as ``python`` would, with plait instead of ``flax.nnx``.

    Args:
        arguments: ``--report``, then the program or ``-m`` and a module, then the program's own arguments.

    Returns:
        2 if there is no program to run, else 0; the program may exit with another status itself.
    """
    rest = list(arguments)
    if rest[:1] == ["--report"]:
        rest.pop(0)
        atexit.register(lambda: print(report(), file=sys.stderr))
    is_module = rest[:1] == ["-m"]
    rest = rest[is_module:]
    if not rest or rest[0] in ("-h", "--help") or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 0 if rest[:1] in (["-h"], ["--help"]) else 2
    sys.argv = rest
    if is_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(rest[0]):
        print(f"plait.as_flax: there is no program at {rest[0]}", file=sys.stderr)
        return 2
    sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
    runpy.run_path(rest[0], run_name="__main__")
    return 0


install()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
