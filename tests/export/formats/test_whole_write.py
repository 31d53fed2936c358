"""Files and folders that appear whole or not at all."""

import pytest

from plait.errors import ExportError
from plait.export.formats.table import exports_at
from plait.export.formats.whole_write import ExportPathError, check_opens, written_whole
from tests.failing_renames import each_failing_rename, let_renames_fail


def write(path, text="new", *, overwrite=False):
    with written_whole(path, overwrite=overwrite) as draft:
        draft.mkdir()
        (draft / "file").write_text(text)


@each_failing_rename
def test_a_rename_that_fails_loses_nothing(tmp_path, monkeypatch, failures, error):
    """What was there is in its place, or, if it cannot be put back, is found by the next reader."""
    path = tmp_path / "model"
    write(path, "old")
    tried = let_renames_fail(monkeypatch, failures, error)
    with pytest.raises(type(error), match="no rename today"):
        write(path, overwrite=True)
    assert len(tried) > max(failures)
    if failures == (1, 2):
        assert not path.exists()
        assert exports_at(path) == []  # it is none, but a reader has looked for it
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (path / "file").read_text() == "old"


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    write(tmp_path / "model", "old")
    with pytest.raises(ExportPathError, match=r"at +.*model\n  found +a folder(\n.*)*overwrite=True"):
        write(tmp_path / "model")
    write(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, parent):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=rf"cannot be written into this folder\n  at +.*{parent}\n"):
        write(tmp_path / parent / "model")


def refuse(path, signature):
    raise RuntimeError("Could not find an implementation for Where(16)")


def lack(path, signature):
    raise ImportError


def test_a_file_that_its_runtime_does_not_open_is_not_kept(tmp_path):
    """E32: where the runtime is installed."""
    written = written_whole(tmp_path / "model.onnx", overwrite=False)
    with pytest.raises(ExportError, match=r"(?s)ONNX.*Where\(16\)"), written as draft:
        draft.write_text("graph")
        check_opens("ONNX", refuse, draft)
    assert list(tmp_path.iterdir()) == []
    check_opens("ONNX", lack, tmp_path / "model.onnx")
