"""Programs in processes of their own that need not import JAX again: each is forked from one that has.

``run_python`` is ``subprocess.run([sys.executable, ...])`` for a program that is to find no module of plait loaded, and
that does not ask how long it takes to start or how it is killed. Of the time that such a program takes, importing JAX
is the larger part.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SERVER = Path(__file__).with_name("forked_server.py")
LIMIT = 300  # seconds


@functools.cache
def _server(pid: int) -> subprocess.Popen[str]:
    """That of this process, which is not that of the process from which this one was forked."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(SERVER)], stdin=pipe, stdout=pipe, text=True, env=_at_start())
    atexit.register(lambda: pid == os.getpid() and process.communicate())  # its input ends, and so does it
    return process


@functools.cache
def _at_start() -> dict[str, str]:
    return dict(os.environ)


def run_python(
    *command: str, env: Mapping[str, str] | None = None, cwd: str | Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``python COMMAND``, where ``COMMAND`` is ``-c CODE``, ``-m MODULE`` or a file, and arguments.

    Args:
        command: what follows ``python``.
        env: the environment; JAX reads its own part of it when it is imported, so that part has to be the tests' own.
        cwd: the folder to run in.
        check: whether a status other than 0 is an error.
    """
    environment = dict(os.environ if env is None else env)
    assert _of_jax(environment) == _of_jax(_at_start()), "JAX has read another environment"
    sys.audit("os.fork")  # `make mutate` asks which tests start processes
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory(prefix="plait-forked-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"command": command, "env": environment, "cwd": str(cwd or Path.cwd()), "files": [str(out), str(err)]}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], LIMIT)[0]:
            server.kill()
            _server.cache_clear()
            raise subprocess.TimeoutExpired(command, LIMIT)
        done = subprocess.CompletedProcess(command, int(server.stdout.readline()), out.read_text(), err.read_text())
    if check:
        done.check_returncode()
    return done


def _of_jax(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("JAX_")}
