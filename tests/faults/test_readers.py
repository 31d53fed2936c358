"""Whatever a file holds, and whatever is in its place, each reader gives an answer or an error of plait's own.

Within seconds, within the memory that is set here, and with nothing changed. ``make nox SESSION=faults`` damages what
each reads 2,000 times.
"""

import contextlib
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.errors import PlaitError
from tests.faults.readers import KINDS, READERS, copied, damage
from tests.sampling import slow_but

TIMES = 2_000 if "PLAIT_FAULTS" in os.environ else 25
SECONDS, BYTES = 20, 3 * 2**30
JSON = {"plait.json", "manifest.json", "model.safetensors.index.json", "adapter_config.json"}
QUICK = {"load_safetensors", "load_safetensors of shards", "convert_checkpoint of msgpack", "load_peft"}
QUICK |= {"convert_checkpoint of safetensors", "explore ONNX", "explore safetensors", "load_compiled", "JsonLines"}
QUICK |= {"describe ONNX", "describe StableHLO", "--inputs FILE.npz"}
each_reader = pytest.mark.parametrize("name", slow_but(QUICK, READERS))


class TooLong(BaseException):
    """A reader did not end."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Limits of time and of address space for what is read."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def answer(name: str, folder: Path) -> Any:
    """What a reader says, or ``None`` for an error of plait's; the error can be printed."""
    try:
        with limits():
            return READERS[name].read(folder)
    except PlaitError as error:
        str(error).encode()
        return None


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For each reader what it reads, and what it says of it."""
    known: dict[str, tuple[Path, Any]] = {}

    def of(name: str) -> tuple[Path, Any]:
        if name not in known:
            folder = tmp_path_factory.mktemp("intact") / "folder"
            folder.mkdir()
            READERS[name].write(folder)
            known[name] = folder, answer(name, copied(folder, folder.with_name("copy")))
        return known[name]

    return of


@each_reader
def test_damaged_files(name, intact, tmp_path):
    folder, expected = intact(name)
    assert expected is not None
    reader, read = READERS[name], 0
    for seed in range(TIMES):
        draw = random.Random(f"{name} {seed}")
        copy = copied(folder, tmp_path / "copy")
        what = damage(copy, draw)
        is_sealed = False
        if reader.seal is not None and what.startswith(("bytes", "values")) and draw.random() < 0.7:
            with contextlib.suppress(Exception):  # what is damaged may have no place for sums
                reader.seal(copy)
                is_sealed = True
        try:
            found = answer(name, copy)
        except BaseException as error:
            error.add_note(f"seed {seed}: {what}")
            raise
        read += found is not None
        if reader.is_summed and not is_sealed:
            assert found in (None, expected), f"seed {seed}: {what}"
    assert read < TIMES


@each_reader
@pytest.mark.parametrize("kind", KINDS)
def test_other_things_in_place_of_each_file(name, kind, intact, tmp_path):
    folder, _ = intact(name)
    for file in sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file()):
        copy = copied(folder, tmp_path / "copy")
        (copy / file).unlink()
        KINDS[kind](copy / file)
        answer(name, copy)


@each_reader
def test_a_name_that_is_twice_in_an_object(name, intact, tmp_path):
    """Which of the two counts is not for plait to guess: other readers take the first."""
    folder, _ = intact(name)
    for file in sorted(file.relative_to(folder) for file in folder.rglob("*")):
        if file.name in JSON or (file.suffix == ".safetensors" and "describe" not in name):
            copy = copied(folder, tmp_path / "copy")
            content = (copy / file).read_bytes()
            start = 0 if file.suffix == ".json" else 8
            first, rest = content[start:].split(b":", 1)
            changed = first + b": 0, " + first.strip(b"{ \n") + b":" + rest
            length = int.from_bytes(content[:start], "little") + len(changed) - len(content) + start
            (copy / file).write_bytes(length.to_bytes(8, "little")[:start] + changed)
            assert answer(name, copy) is None, file


@each_reader
def test_a_folder_whose_name_is_not_utf8(name, intact, tmp_path):
    folder, _ = intact(name)
    answer(name, copied(folder, Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))))
