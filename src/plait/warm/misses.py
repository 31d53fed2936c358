"""Why a stored program is not used: what it depends on that has changed. (rules W2, W3, W16)"""

from __future__ import annotations

from typing import Any, Protocol

from .descriptions import Describer, Unrecordable
from .folder import Folder
from .packages import package_token, setting_of
from .reads import stands
from .sources import sources_token

MALFORMED = (LookupError, TypeError, ValueError, AttributeError)  # raised when reading a file that plait did not write
_NAMES = {
    "arguments": "shape, dtype or sharding of an argument",
    "tree": "the structure of the arguments",
    "places": "the structure of the arguments",
    "structure": "the structure of the arguments",
    "layout": "the structure of the arguments",
    "function": "the code of the function, its defaults or closure",
    "numbers": "the code of the function, its defaults or closure",
    "options": "the options of jit",
    "donation": "the options of jit",
    "shardings": "the options of jit",
}
_MOST = 4  # parts that are named


class Asked(Protocol):
    """What a request knows when its program was not found."""

    parts: dict[str, str]
    changed: list[str]


def changed(header: dict[str, Any]) -> str | None:
    """The first thing that a stored program depends on, besides its key, and that has changed; ``None`` if none has."""
    describer = Describer()
    try:
        for module, name, token in header["reads"]:
            if not stands((module, name), token, describer):
                return f"the global {name!r} of {module}" if name else f"whether the module {module} exists"
        for module, token in header["packages"].items():
            if package_token(module) != token:
                return f"the code of {module} in this process"
        for *names, token in header["settings"]:
            if setting_of((*names,), describer)[1] != token:
                return f"the setting {'.'.join(names)}"
        for top, files, token in header["sources"]:
            if sources_token(top, files) != token:
                return f"the files of the package {top}"
    except (Unrecordable, ImportError, *MALFORMED) as error:
        return f"something that cannot be compared: {error}"
    return None


def why_missed(folder: Folder, function: str, asked: Asked) -> list[str]:
    """What differs from the stored program of this function that is most like the one asked for."""
    if asked.changed:
        return list(dict.fromkeys(asked.changed))
    nearest: list[str] | None = None
    for _, header in folder.headers():
        if header["function"] == function:
            names = {*header["parts"], *asked.parts}
            differing = sorted(name for name in names if header["parts"].get(name) != asked.parts.get(name))
            if nearest is None or len(differing) < len(nearest):
                nearest = differing
    if nearest is None:
        return ["no program of this function is stored"]
    found = list(dict.fromkeys(_NAMES.get(name, name) for name in nearest))
    return found[:_MOST] + ([f"and {len(found) - _MOST} more"] if len(found) > _MOST else [])
