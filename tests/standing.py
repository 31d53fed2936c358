"""Runners of exported files that stand by: one process for each runtime, in place of one for each file.

``plait.export.proof`` starts a fresh process for each file that it runs. Most of its seconds go to importing the
runtime. ``StandingProcesses.run`` takes the same command, and has it run by a process that it started the same way, by
the same ``isolated.py`` with the same packages blocked, and that has imported the runtime already.
"""

from __future__ import annotations

import dataclasses
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("standing_server.py")


@dataclasses.dataclass
class Standing:
    """One process, and the file that takes what its libraries print."""

    process: subprocess.Popen[str]
    printed: IO[bytes]

    @classmethod
    def start(cls, command: Sequence[str]) -> Standing:
        printed = tempfile.TemporaryFile()  # noqa: SIM115  (``end`` closes it)
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=printed, text=True), printed)

    def ask(self, arguments: Sequence[str], timeout: float | None) -> tuple[int, str] | None:
        """Exit status and output of a script; None if the process ended instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(list(arguments)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired(list(arguments), timeout or 0)
        answer = self.process.stdout.readline()
        return tuple(json.loads(answer)) if answer else None

    def end(self) -> tuple[int, str]:
        """Exit status and output of the process itself, which is ended if it is still there."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.kill()
        self.process.communicate()
        self.printed.seek(0)
        printed = self.printed.read().decode(errors="replace")
        self.printed.close()
        return self.process.returncode, printed


class StandingProcesses:
    """What stands for ``subprocess`` in ``plait.export.proof``: a process for each script that it runs."""

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self.standing: dict[tuple[str, ...], Standing] = {}
        self.started = 0

    def run(self, command: Sequence[str], *, timeout: float | None = None, **options: Any) -> Any:
        """``subprocess.run`` of ``[python, "-I", isolated.py, packages, script, argument, ...]``."""
        python, _, _, _, *arguments = command
        if python != sys.executable:  # an environment with another release of the runtime
            return subprocess.run(command, timeout=timeout, **options)
        key = tuple(command[:5])
        if key not in self.standing:
            self.standing[key] = Standing.start([*command[:4], str(SERVER)])
            self.started += 1
        try:
            answer = self.standing[key].ask(arguments, timeout)
        except subprocess.TimeoutExpired:
            self.standing.pop(key).end()
            raise
        status, printed = answer or self.standing.pop(key).end()
        return subprocess.CompletedProcess(command, status, printed, "")

    def end(self) -> None:
        """End all processes."""
        while self.standing:
            self.standing.popitem()[1].end()
