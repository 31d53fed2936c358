"""What is in a folder of programs, and what processes did with it, as text: ``plait cache FOLDER``. (rule W16)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..ground.words import in_bytes
from .folder import REFUSED, SUFFIX, Folder
from .logbook import processes

_PROCESSES = 10  # the newest ones, which are listed
_MOST = 8  # events of one process that are listed


def contents(path: Path) -> Iterator[str]:
    """The lines of the report.

    Raises:
        ArgumentError: there is no such folder.
        ProgramCacheError: others can write to it.
    """
    folder = Folder(path)
    if not folder.path.is_dir():
        raise ArgumentError(
            "there is no folder of programs",
            at=str(path),
            found="no folder",
            expected="a folder that PLAIT_CACHE, plait.cache or plait.jit(cache=) names",
            do="run a program with PLAIT_CACHE set to it first",
        )
    folder.check()
    files = [*folder.files()]
    sizes = {file: size for file, _, size in files}
    own = [file for file in sizes if file.parent == folder.path]
    of_jax = [size for file, size in sizes.items() if file.parent != folder.path]
    total = in_bytes(sum(sizes[file] for file in own))
    yield f"{folder.path}: {_number(sum(file.suffix == SUFFIX for file in own), 'program')}, {total}"
    yield f"JAX's own cache: {_number(len(of_jax), 'file')}, {in_bytes(sum(of_jax))}"
    used = {file: time.strftime("%Y-%m-%d %H:%M", time.localtime(when)) for file, when, _ in files}
    yield from _listed("programs", [(f, h, used[f], sizes[f]) for f, h in folder.headers() if f in sizes])
    refused = [f"  {header['function']}: {'; '.join(header['reasons'])}" for _, header in folder.headers(REFUSED)]
    if refused:
        yield from ("", "cannot be stored", *dict.fromkeys(refused))
    for lines in [*processes(folder.path)][-_PROCESSES:]:
        yield from _process(lines)


def _listed(title: str, programs: list[tuple[Path, dict[str, Any], str, int]]) -> Iterator[str]:
    """A table of programs: the function, when it was used, its size."""
    if programs:
        yield ""
        yield title
        width = max(len(header["function"]) for _, header, _, _ in programs)
        for _, header, used, size in sorted(programs, key=lambda each: each[2], reverse=True):
            yield f"  {header['function']:{width}}  {in_bytes(size):>10}  used {used}"


def _process(lines: list[dict[str, Any]]) -> Iterator[str]:
    """What one process did."""
    about = next((line for line in lines if line["what"] == "process"), {})
    kinds = [line["what"] for line in lines]
    hits, misses = kinds.count("loaded"), kinds.count("missed")
    of_jax = [line.get("counts", {}) for line in lines if line["what"] == "jax"]
    found, compiled = (sum(counts.get(name, 0) for counts in of_jax) for name in ("hits", "misses"))
    yield ""
    yield f"process {about.get('pid', '?')}, {about.get('program') or 'python'}, {about.get('started', '')}"
    yield f"  {_number(hits, 'hit')}, {_number(misses, 'miss', 'misses')}, {kinds.count('not stored')} not stored" + (
        f"; JAX's own cache: {_number(found, 'hit')}, {_number(compiled, 'miss', 'misses')}" if of_jax else ""
    )
    told = [line for line in lines if line["what"] not in ("process", "jax", "loaded", "stored")]
    for line in told[:_MOST]:
        what = {"missed": "miss"}.get(line["what"], line["what"])
        yield f"  {what}: {line.get('function', 'all programs')}: {'; '.join(line.get('why', []))}"
    if len(told) > _MOST:
        yield f"  and {len(told) - _MOST} more"


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"
