"""What the errors of the formats say, in full: each value, and the advice. TensorFlow is not needed for any."""

import os

import pytest

from plait.errors import PlaitError
from plait.export.formats.manifest import refused_as_plait_does
from plait.export.formats.stablehlo_loader import ArtifactError
from plait.export.formats.whole_write import written_whole


def write_to(path, *, error=None):
    with written_whole(path, overwrite=False):
        raise error or AssertionError("the path was accepted")


def loading(text):
    with refused_as_plait_does("bundle"):
        raise ArtifactError(text)


CHANGED = {
    "found": "a folder that is incomplete, or was changed",
    "expected": "the files that plait wrote, unchanged",
    "do": "copy the folder again, or export again",
}
TAKEN = {
    "expected": "a path that does not exist, or an empty folder",
    "do": "choose another path, or pass overwrite=True to replace it",
}

ROWS = {  # a mistake: how it is made, the first line of its error, and the others
    "a file is there": (
        lambda: write_to("file.txt"),
        "the path of the export already exists",
        {"at": "file.txt", "found": "a file", **TAKEN},
    ),
    "a folder is there": (
        lambda: write_to("folder"),
        "the path of the export already exists",
        {"at": "folder", "found": "a folder", **TAKEN},
    ),
    "the disk is full": (
        lambda: write_to("m", error=RuntimeError("No space left on device" + "x" * 300)),
        "the export cannot be written to this disk",
        {
            "at": "m",
            "found": "No space left on device" + "x" * 277,
            "expected": "a disk, and a quota, with enough free space",
            "do": "free some space, or choose a path on another disk; what was there is unchanged",
        },
    ),
    "the loader names a file": (
        lambda: loading("a file is damaged\n  at        some file"),
        "a file is damaged",
        {"at": "some file", **CHANGED},
    ),
    "the loader names no file": (lambda: loading("no bundle"), "no bundle", {"at": "bundle", **CHANGED}),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_error_tells_where_what_and_what_to_do(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    function, message, parts = ROWS[name]
    at = parts["at"]
    if at in ("file.txt", "folder", "m"):
        at = os.path.join(os.getcwd(), at)
    with pytest.raises(PlaitError) as caught:
        function()
    assert (caught.value.message, caught.value.parts) == (message, {**parts, "at": at})
