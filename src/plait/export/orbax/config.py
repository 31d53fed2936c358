"""Settings of the export: by call, by environment variable, or by a ``with`` statement.

There is one, ``obx_export_tf_preprocess_only``: export only the TensorFlow preprocessors, for servers that run the
model elsewhere. Its environment variable is its name in capitals.

    >>> with plait.export.config.obx_export_tf_preprocess_only(True):
    ...     plait.export.config.config.obx_export_tf_preprocess_only
    True
"""

from __future__ import annotations

import contextlib
import contextvars
import os

from ...errors import ArgumentError
from ...ground.context_values import held

_TRUE, _FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")
_NAME = "obx_export_tf_preprocess_only"


def bool_env(varname: str, default: bool) -> bool:
    """An environment variable as a bool.

    Raises:
        ArgumentError: its value means neither yes nor no.
    """
    value = os.environ.get(varname)
    if value is None or value.lower() in (*_TRUE, *_FALSE):
        return default if value is None else value.lower() in _TRUE
    raise ArgumentError(
        "an environment variable is neither yes nor no",
        found=f"{varname}={value!r}",
        expected=f"one of {', '.join((*_TRUE, *_FALSE))}",
        do=f"export {varname}=1",
    )


class Config:
    """The current settings: from the ``with`` statement, from ``update``, or from the environment.

    Example:
        >>> plait.export.config.config.read("obx_export_tf_preprocess_only")
        False
    """

    def __init__(self) -> None:
        self._values = {_NAME: bool_env(_NAME.upper(), False)}
        self._here: contextvars.ContextVar[bool | None] = contextvars.ContextVar(_NAME, default=None)

    @property
    def obx_export_tf_preprocess_only(self) -> bool:
        """Whether only the preprocessors are exported."""
        here = self._here.get()
        return self._values[_NAME] if here is None else here

    def read(self, name: str) -> bool:
        """The value that was set for the whole process.

        Raises:
            AttributeError: there is no such setting.
        """
        return self._values[self._checked(name)]

    def update(self, name: str, val: bool) -> None:
        """Set a value for the whole process.

        Raises:
            AttributeError: there is no such setting.
        """
        self._values[self._checked(name)] = bool(val)

    def _checked(self, name: str) -> str:
        if name not in self._values:
            raise AttributeError(f"there is no setting {name!r}; there is {', '.join(map(repr, self._values))}")
        return name


config = Config()


def obx_export_tf_preprocess_only(new_val: bool) -> contextlib.AbstractContextManager[None]:
    """Inside ``with``, in this thread, whether to export only the preprocessors."""
    return held(config._here, bool(new_val))
