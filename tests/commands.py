"""The command ``plait`` run in this process: its exit status and what it printed, without the seconds of a start."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax

from plait.cli import main as cli


def plait_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``plait ARGUMENTS`` (in a folder), with JAX's own promotions, as a process of its own would."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), as_new(cwd):
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except Exception:
            traceback.print_exc()
            status = 1
    return subprocess.CompletedProcess([*arguments], status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def as_new(folder: Path | None) -> Iterator[None]:
    """A folder to work in; modules that the command loads from it are let go."""
    with (
        contextlib.chdir(folder or "."),
        mock.patch.dict(os.environ, COLUMNS="120"),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        importlib.invalidate_caches()
        before, path = set(sys.modules), list(sys.path)
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - before if folder else ():
                if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                    del sys.modules[name]
