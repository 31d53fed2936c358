"""The files of installed packages that take part in a program.

What a package computes depends on more than the code that was entered: on constants, defaults, tables, other modules.
All of it comes from its files. So for each package that takes part, the content of the files of its loaded modules is
compared; JAX, jaxlib and NumPy are identified by their versions.

The content is read when a program is stored, and describes what this process imported only if nobody has changed the
files since. So files that are newer than the process are not compared, and nothing that needs them is stored. (rules
W3, W4)
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType

from .codes import digest
from .descriptions import Unrecordable
from .origins import Origin, contents_of, imported, origin_of, places_of

_HEAD = 1 << 16  # of a compiled module, which contains the identity of its build
_digests: weakref.WeakKeyDictionary[ModuleType, str] = weakref.WeakKeyDictionary()


def sources_of(packages: Iterable[str]) -> dict[str, list[str]]:
    """The files of the loaded modules of installed packages and of those that they use, relative to the folder that
    contains the package.

    Args:
        packages: names of modules.
    """
    names = {*packages}
    tops = {name.partition(".")[0] for each in names for name in (each, *_used(sys.modules.get(each)))}
    return {top: sorted(_loaded(top)) for top in sorted(tops) if origin_of(top) is Origin.PACKAGE}


def _used(module: ModuleType | None) -> Iterable[str]:
    """The names of the modules whose functions, classes or other values a module uses."""
    for value in [] if module is None else [*contents_of(module).values()]:
        if isinstance(value, ModuleType):
            name = contents_of(value).get("__name__")
            if isinstance(name, str):
                yield name
        elif isinstance(value, (FunctionType, type)):
            yield str(value.__module__)


def sources_token(top: str, files: Iterable[str]) -> str:
    """The content of some files of a package; modules that are already loaded are read once per process."""
    try:
        folder = _folder(imported(top))
    except ImportError:
        return "absent"
    loaded = _loaded(top)
    return digest("sources", [part for name in files for part in (name, _content(folder, name, loaded.get(name)))])


def _loaded(top: str) -> dict[str, ModuleType]:
    """The loaded modules of a package, by their files."""
    folder = _folder(sys.modules.get(top))
    found: dict[str, ModuleType] = {}
    for name, module in [*sys.modules.items()]:
        file = contents_of(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name.partition(".")[0] == top:
            found[file.removeprefix(folder + os.sep)] = module
    return found


def _folder(module: ModuleType | None) -> str:
    """The folder that contains a top-level package or module."""
    return os.path.dirname(next(iter(places_of(module)), ""))


def _content(folder: str, name: str, module: ModuleType | None) -> str:
    known = None if module is None else _digests.get(module)
    if known is None:
        known = _content_of(Path(folder, name))
        if module is not None:
            _digests[module] = known
    return known


def _content_of(file: Path) -> str:
    """The content of a Python file, or of the archive that contains it; of a compiled module its size and beginning.

    Raises:
        Unrecordable: the file is newer than the process, which may have imported an older one.
    """
    found = next((each for each in (file, *file.parents) if each.is_file()), None)
    if found is None:
        return "absent"
    status = found.stat()
    if max(status.st_mtime, status.st_ctime) > STARTED:
        raise Unrecordable(f"{file.parent.name}/{file.name} was changed after this process started; start a new one")
    with open(found, "rb") as opened:
        if found.suffix in (".py", ".zip", ".egg"):
            return hashlib.sha256(opened.read()).hexdigest()
        return f"{status.st_size}:{hashlib.sha256(opened.read(_HEAD)).hexdigest()}"


def _started() -> float:
    """When this process started, as the time of a file, to a few hundredths of a second; later is wrong, earlier not.
    Where the system does not tell, now, when plait is imported."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()
    return time.time() - age


STARTED = _started()
