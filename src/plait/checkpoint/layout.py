"""The layout of a checkpoint on disk, and the check that it is complete.

    epoch-0003/
        arrays/       the arrays as Orbax writes them: one flat tree, keyed by the names of the leaves
        positions/    positions of data iterators (``positions.py``)
        plait.json    the manifest, written last

The manifest has the format and its version, the time, the user's step, metrics and notes, a description of every leaf,
the size and XXH3 checksum of every other file, and its own SHA-256. A checkpoint is intact if all of that matches. Its
folder is written under a hidden name in the same parent, and renamed when complete. A crash therefore leaves a hidden
folder, which the next save to that name removes, and never a partial checkpoint under the final name. Any tool that
reads Orbax can read ``arrays/``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from ..errors import CheckpointError
from ..util import schemas
from ..util.files import check_files, given_path, read_file
from ..util.scratch import recover, recover_in
from ..util.whole_writes import written_whole
from ..util.words import first_few
from .leaf_descriptions import DESCRIPTION

FORMAT = "plait checkpoint"
VERSION = 2
_SHA_256 = 1  # the version whose files have SHA-256 instead of XXH3
MANIFEST = "plait.json"
ARRAYS = "arrays"
METADATA = "_METADATA"  # Orbax writes it into the folder of each tree
# The files of Orbax from which the arrays are found.
_INDEX = (METADATA, "manifest.ocdbt")
_CONTENT = {
    "step": schemas.Either(int, None),
    "metrics": {str: schemas.Either(bool, int, float, str, None)},
    "leaves": {str: DESCRIPTION},
    "extra?": {str: Any},
    "time?": schemas.finite,
    "files": {schemas.inner_path: (schemas.size, schemas.checksum)},
}
_THREADS = 4  # that read files for their checksums
# Square brackets stand for one of the letters inside, and two stars for any folders; TensorStore reads \ as /, and
# `gs:/` as the beginning of an address. Surrogates are the bytes of a name that is not UTF-8.
_ODD = re.compile(r"\[.*\]|\*\*|\\|^gs:$|[\ud800-\udfff]+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The metadata of a checkpoint.

    Args:
        step: the ``step`` passed to ``save``, or ``None``.
        metrics: the ``metrics`` passed to ``save``.
        leaves: a description of each leaf, by name: its kind, dtype and shape, or its value if it is a plain number.
        extra: the ``extra`` passed to ``save``.
        time: when it was saved, in seconds since 1970; 0 if it was not recorded.
    """

    step: int | None
    metrics: Mapping[str, Any]
    leaves: Mapping[str, Mapping[str, Any]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    time: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint with a step.

    Attributes:
        path: its folder.
        step, metrics, time: as in its ``Manifest``.
    """

    path: Path
    step: int
    metrics: Mapping[str, Any]
    time: float


def saved_in(folder: Path, where: Callable[[Path], bool] = lambda _: True) -> list[Saved]:
    """The checkpoints in a folder that have a step, the newest last. Their arrays are not checked.

    Args:
        where: which folders to read; all by default.
    """
    found = []
    for place in filter(where, _iter_folders(folder)):
        with contextlib.suppress(CheckpointError):
            manifest = manifest_at(place)
            if manifest.step is not None:
                found.append(Saved(place, manifest.step, manifest.metrics, manifest.time))
    return sorted(found, key=lambda each: (each.step, each.time))


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The newest intact checkpoint in a folder of checkpoints; ``None`` if there is none.

    The newest is the one with the highest step; without steps, the last by name (``epoch-10`` comes after
    ``epoch-9``). Incomplete and damaged checkpoints, and all other files and folders, are skipped.
    """
    ranked = []
    folder = given_path(folder)
    recover_in(folder)
    for place in _iter_folders(folder):
        with contextlib.suppress(CheckpointError):
            step = manifest_at(place).step
            ranked.append(((step is not None, step or 0, _natural(place.name)), place))
    for _, place in sorted(ranked, reverse=True):
        with contextlib.suppress(CheckpointError):
            check_whole(place)
            return place
    return None


def damaged_in(folder: Path) -> list[str]:
    """The names of folders that look like checkpoints, but whose manifest cannot be read."""
    found = []
    for place in _iter_folders(folder):
        try:
            manifest_at(place)
        except CheckpointError:
            if (place / ARRAYS).is_dir() or (place / MANIFEST).exists():
                found.append(place.name)
    return sorted(found)


def _iter_folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for place in folder.iterdir():
            if place.is_dir() and not place.name.startswith("."):
                yield place


def _natural(name: str) -> list[int | str]:
    """A sort key that compares numbers inside names as numbers: text and numbers alternate, and text comes first."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"([0-9]+)", name))]


def check_whole(path: Path, *, part: tuple[int, int] = (0, 1)) -> Manifest:
    """The manifest of a checkpoint, after checking every file against it.

    Args:
        part: ``(i, n)`` reads the ``i``-th of ``n`` parts of the files for their checksums.

    Raises:
        CheckpointError: the folder is not a checkpoint, is incomplete or damaged, or has an unknown format.
    """
    stored = _read(path)
    recorded = stored["files"]
    with staying(path):
        try:
            missing = sorted(name for name in recorded if not (path / name).is_file())
            if missing:
                raise _damaged(path, f"no {first_few(missing, 4)}")
            check_files(path / ARRAYS)  # also those that Orbax reads although the manifest does not list them
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _damaged(path, str(error)) from error
        for name, (size, _) in recorded.items():
            if (path / name).stat().st_size != size:
                raise _damaged(path, f"{name} of {(path / name).stat().st_size:,} bytes instead of {size:,}")
        names = sorted(recorded, key=lambda name: recorded[name][0])[part[0] :: part[1]]
        found = checksums([path / name for name in names], stored["version"])
        for checksum, name in zip(found, names, strict=True):
            if checksum != recorded[name][1]:
                raise _damaged(path, f"{name} with a different checksum than when it was written")
    return _manifest_of(stored)


@contextlib.contextmanager
def staying(path: Path) -> Iterator[None]:
    """Inside the block, a checkpoint is read, which a run may remove meanwhile.

    Raises:
        CheckpointError: it was removed, or a part of it, and something else failed for that.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and (path / MANIFEST).is_file():
            raise _damaged(path, f"no {error.filename}") from error
        if isinstance(error, CheckpointError) or (path / MANIFEST).is_file():
            raise
        raise CheckpointError(
            "the checkpoint was removed while it was read",
            at=str(path),
            found=f"no {MANIFEST} any more",
            expected="a checkpoint that stays: a run removes those that its Keep does not keep",
            do=f"read the newest one, plait.checkpoint.latest({str(path.parent)!r}), or have the run keep more",
        ) from error


def manifest_at(path: Path) -> Manifest:
    """The manifest of a checkpoint; the other files are not checked.

    Raises:
        CheckpointError: the manifest is missing or damaged, or its format is unknown.
    """
    return _manifest_of(_read(path))


def _manifest_of(stored: Mapping[str, Any]) -> Manifest:
    extra, time = stored.get("extra", {}), stored.get("time", 0.0)
    return Manifest(stored["step"], stored["metrics"], stored["leaves"], extra, time)


def _read(path: Path) -> dict[str, Any]:
    """The manifest in its stored form."""
    recover(path)
    try:
        stored = schemas.parse_json(read_file(path / MANIFEST, schemas.MOST_JSON), Any)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_checkpoint(path) from error
    except schemas.SchemaError as error:
        raise _damaged(path, f"a {MANIFEST} with {error}") from error
    except OSError as error:
        raise CheckpointError(
            "the checkpoint cannot be read",
            at=str(path / MANIFEST),
            found=error.strerror or str(error),
            expected="a readable file",
            do="check the file's permissions",
        ) from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise _no_checkpoint(path)
    if stored.get("version") not in (_SHA_256, VERSION):
        raise CheckpointError(
            "this version of plait does not support the checkpoint's format",
            at=str(path),
            found=f"format version {stored.get('version')!r}",
            expected=f"format version {VERSION}",
            do="use the version of plait that wrote it, or a newer one",
        )
    if stored.pop("sha256", None) != _digest_of_manifest(stored):
        raise _damaged(path, f"a {MANIFEST} that was changed after it was written")
    try:
        schemas.check_schema(stored, _CONTENT)
    except schemas.SchemaError as error:
        raise _damaged(path, f"a {MANIFEST} with {error}") from error
    return stored


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest to ``path``, which has all other files already."""
    found = sorted(file for file in path.rglob("*") if file.is_file())
    files = {
        file.relative_to(path).as_posix(): [file.stat().st_size, checksum]
        for file, checksum in zip(found, checksums(found), strict=True)
    }
    stored: dict[str, Any] = {"format": FORMAT, "version": VERSION, **vars(manifest), "files": files}
    stored["sha256"] = _digest_of_manifest(stored)
    (path / MANIFEST).write_text(json.dumps(stored, indent=1), encoding="utf-8")


def checksums(files: Iterable[Path], version: int = VERSION) -> list[str]:
    """The checksum of each file, in hexadecimal digits, as this version of the format has it."""
    make = hashlib.sha256 if version == _SHA_256 else xxhash.xxh3_128
    with ThreadPoolExecutor(_THREADS) as pool:  # reading and summing let other threads run
        return [*pool.map(functools.partial(_checksum, make=make), files)]


def _checksum(file: Path, make: Callable[[], Any]) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, make).hexdigest()


def _digest_of_manifest(stored: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder for the body to fill; when the body ends, rename it to ``target``.

    Raises:
        CheckpointError: ``target`` exists, is not an empty folder and may not be replaced, or its parent is not
            writable. Both are checked before the body runs.
    """
    check = functools.partial(_check_replaceable, target, overwrite=overwrite)
    with written_whole(target, "the checkpoint", CheckpointError, check, parents=True) as draft:
        draft.mkdir()
        yield draft


def check_path(path: Path) -> None:
    """Raise if Orbax cannot write under a path: it looks for its files by patterns, without escaping the path.

    It would report no error, but write no index of the arrays, so that they cannot be read; or fail at the first save.

    Raises:
        CheckpointError: names the characters that have a meaning in patterns or addresses, or are no text.
    """
    names = path.parts[1:] if path.anchor else path.parts
    odd = [match for name in names for match in _ODD.findall(name)]
    if odd:
        raise CheckpointError(
            "checkpoints cannot be written under this path",
            at=str(path),
            found=", ".join(dict.fromkeys(odd)) + ", which Orbax takes for a pattern or cannot read",
            expected="a path in UTF-8 without [...], **, backslashes, and a folder gs:",
            do="choose another name, for example with (...) or - instead",
        )


def check_arrays(draft: Path, target: Path) -> None:
    """Raise if Orbax has not written the files without which no array can be read.

    Args:
        target: the path of the checkpoint, for the error.

    Raises:
        CheckpointError: names the missing files.
    """
    missing = [f"{ARRAYS}/{name}" for name in _INDEX if not (draft / ARRAYS / name).is_file()]
    if missing:
        raise CheckpointError(
            "the checkpoint could not be written: its arrays are incomplete",
            at=str(target),
            found=f"Orbax wrote no {first_few(missing, 4)}, and reported no error",
            expected="the arrays and their index",
            do="look at the messages that Orbax logged, and save to another path; earlier checkpoints are intact",
        )


def is_taken(target: Path) -> bool:
    """Whether a path has anything but an empty folder."""
    return os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir()))


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not is_taken(target):
        return
    if not overwrite:
        raise CheckpointError(
            "the path of the checkpoint already exists",
            at=str(target),
            found="a folder" if target.is_dir() else "a file",
            expected="a path that does not exist",
            do="choose another path, or pass overwrite=True to replace a checkpoint",
        )
    if not (target / MANIFEST).is_file():
        raise CheckpointError(
            "overwrite=True replaces only a checkpoint",
            at=str(target),
            found=f"a file or folder without a {MANIFEST}",
            expected="a checkpoint, or a path that does not exist",
            do="choose another path, or delete the existing one yourself",
        )


_UNFINISHED = ".orbax-checkpoint-tmp"  # in the names of folders that Orbax has not finished


def is_orbax(path: Path) -> bool:
    """Whether a folder holds an Orbax pytree, or a step of a ``CheckpointManager``."""
    return (path / METADATA).is_file() or any(path.glob(f"*/{METADATA}"))


def written_by_orbax(path: Path, also: str = "") -> CheckpointError | None:
    """The error for a folder that another program wrote with Orbax; ``None`` if none did.

    Args:
        also: what else to do.
    """
    orbax = [place for place in (path, *steps_of_orbax(path)) if is_orbax(place)]
    if not orbax or (path / ARRAYS).exists():
        return None
    return CheckpointError(
        "another program wrote this checkpoint with Orbax",
        at=str(path),
        found="a tree of arrays" if orbax[0] == path else f"steps of a CheckpointManager: {_listed(orbax)}",
        expected=f"a folder that checkpoint.save wrote: {MANIFEST} and {ARRAYS}/",
        do=f"plait.convert.convert_checkpoint({str(orbax[-1])!r}, model, layout='nnx', update=True) reads what "
        f"Flax NNX wrote; layout='linen' what Linen wrote{also}",
    )


def _no_checkpoint(path: Path) -> CheckpointError:
    by_orbax = written_by_orbax(path)
    if by_orbax is not None:
        return by_orbax
    if not path.exists():
        found = "nothing"
    elif not path.is_dir():
        found = "a file"
    else:
        found = f"a folder without plait's {MANIFEST}"
    return CheckpointError(
        "this is not a plait checkpoint",
        at=str(path),
        found=found,
        expected=f"a folder that checkpoint.save wrote: {MANIFEST} and {ARRAYS}/",
        do="pass the folder of one checkpoint; checkpoint.latest(folder) finds the newest in a folder of them",
    )


def steps_of_orbax(path: Path) -> list[Path]:
    """The steps in a folder of a ``CheckpointManager``, the newest last.

    Steps that plait wrote, and those whose writing has not ended, are not among them.
    """
    items = [file.parent for file in path.glob(f"*/*/{METADATA}")]
    steps = {item.parent for item in items if item.name != ARRAYS and _UNFINISHED not in item.parent.name}
    return sorted(steps, key=lambda step: _natural(step.name))


def _listed(steps: list[Path]) -> str:
    return first_few([step.name for step in steps], 4)


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "the checkpoint is incomplete or damaged",
        at=str(path),
        found=found,
        expected=f"the files that its {MANIFEST} lists, unchanged",
        do="restore another one: checkpoint.latest(folder) skips damaged ones",
    )
