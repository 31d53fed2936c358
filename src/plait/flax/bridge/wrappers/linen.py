"""Imports Flax on first use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ....errors import MissingDependencyError


def need_linen(name: str) -> Any:
    """The module ``flax.linen``.

    Args:
        name: the public name in the bridge that needs it.

    Raises:
        MissingDependencyError: flax is not installed. (rule B2)
    """
    try:
        from flax import linen
    except ImportError as error:
        raise MissingDependencyError(
            f"plait.bridge.{name} needs the package flax",
            found=f"importing flax.linen failed: {error}",
            expected="flax, which the extra plait[linen] installs",
            do="pip install 'plait[linen]'",
        ) from error
    return linen


def is_missing_variable(error: Exception) -> bool:
    """Whether Linen's error says that a variable is missing."""
    from flax import errors

    missing = (errors.ScopeCollectionNotFound, errors.ScopeParamNotFoundError, errors.ScopeVariableNotFoundError)
    return isinstance(error, missing)


def current_linen_module() -> Any:
    """The Linen module whose method is running, or ``None``.

    Example:
        >>> plait.flax.bridge.wrappers.current_linen_module() is None
        True
    """
    stack = _module_stack()
    return stack[-1] if stack else None


@contextlib.contextmanager
def outside_linen() -> Iterator[None]:
    """Linen modules made inside the block get no parent, even while a method of another Linen module runs."""
    stack = _module_stack()
    if stack is None:
        yield
        return
    stack.append(None)
    try:
        yield
    finally:
        stack.pop()


def _module_stack() -> Any:
    # Flax has no public way to ask which module runs.
    module = sys.modules.get("flax.linen.module")
    return None if module is None else module._context.module_stack
