"""Optional packages: import one, or name the extra that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import MissingDependencyError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module`` (dotted), or raise an error that names its package and the extra of plait that installs it.

    Args:
        module: what to import, for example ``"tensorflow"``.
        extra: the extra that installs it, as in ``pip install 'plait[extra]'``.
        purpose: why it is needed, in the user's words: ``"to write a SavedModel"``.

    Raises:
        MissingDependencyError: the package is not installed, or is broken; an ``ImportError``.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
        raise MissingDependencyError(
            f"{package} is needed {purpose}",
            found=f"{package} is not installed" if absent else f"importing {module} failed: {error}",
            expected=f"{package}, which plait's extra {extra!r} installs",
            do=f"pip install 'plait[{extra}]'",
        ) from error
