"""``plait migrate``: a dry run shows a diff and writes nothing; bad files are named and the others go on."""

import io
import os
import stat

import pytest

pytest.importorskip("libcst")

from plait import cli
from plait.migrate.files import migrate

OLD, NEW = b"from flax import nnx\nx = 1\n", b"import plait as nnx\nx = 1\n"


@pytest.fixture
def project(tmp_path):
    files = {
        "main.py": OLD,
        "sub/model.py": OLD.replace(b"\n", b"\r\n"),
        "sub/types.pyi": OLD,
        "plain.py": b"import jax\n",
        "readme.md": OLD,
        "notes.ipynb": b'{"cells": ["from flax import nnx"]}',
        ".hidden/x.py": OLD,
        "__pycache__/x.py": OLD,
        "env/pyvenv.cfg": b"",
        "env/lib/x.py": OLD,
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*paths, write=False):
    out = io.StringIO()
    return migrate(paths, write=write, out=out), out.getvalue()


def test_a_dry_run_shows_a_diff_and_writes_nothing(project):
    before = contents(project)
    status, text = run(project)
    assert (status, contents(project)) == (0, before)
    assert text.count("-from flax import nnx\n+import plait as nnx\n") == 3
    assert "3 of 5 files would change" in text


def test_writing_changes_the_programs_and_nothing_else(project):
    expected = contents(project)
    expected |= {"main.py": NEW, "sub/model.py": NEW.replace(b"\n", b"\r\n"), "sub/types.pyi": NEW}
    status, text = run(project, write=True)
    assert (status, contents(project)) == (0, expected)
    assert "3 of 5 files were changed." in text
    assert run(project)[1].endswith("0 of 5 files would change; add --write to change them\n")


def test_notebooks_are_listed(project):
    _, text = run(project)
    assert f"    {project / 'notes.ipynb'}\n" in text


def test_bad_files_are_named_and_the_others_go_on(project):
    (project / "broken.py").write_bytes(b"from flax import nnx\nx = (\n")
    (project / "binary.py").write_bytes(b"nnx\x00\xff\xfe")
    status, text = run(project, project / "absent.py", write=True)
    assert status == 2
    assert "broken.py:" in text
    assert "binary.py" in text
    assert "absent.py: there is nothing at this path" in text
    assert (project / "main.py").read_bytes() == NEW
    assert (project / "broken.py").read_bytes() == b"from flax import nnx\nx = (\n"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_that_may_not_be_read_is_named(project):
    (project / "main.py").chmod(0)
    status, text = run(project)
    assert status == 2
    assert "main.py: Permission denied" in text


def test_permissions_and_links_stay(project):
    (project / "main.py").chmod(0o755)
    (project / "link.py").symlink_to("main.py")
    run(project / "link.py", write=True)
    assert (project / "link.py").is_symlink()
    assert (project / "main.py").read_bytes() == NEW
    assert stat.S_IMODE((project / "main.py").stat().st_mode) == 0o755


def test_the_command_gives_the_status(project, capsys):
    assert cli.main(["migrate", str(project / "main.py")]) == 0
    assert "+import plait as nnx" in capsys.readouterr().out
    assert cli.main(["migrate", str(project / "absent")]) == 2


def test_a_check_lists_and_changes_nothing(project, capsys):
    (project / "main.py").write_bytes(b"from flax import nnx\nnnx.zork()\nx = nnx.nn.dtypes.promote_dtype\n")
    before = contents(project)
    assert cli.main(["migrate", "--check", str(project)]) == 0
    said = capsys.readouterr().out
    assert f"plait has no nnx.zork\n    {project / 'main.py'}:2\n" in said
    assert "dtypes" not in said
    assert "+import" not in said
    assert said.endswith("files import flax.nnx; 2 things to review.\n")
    assert contents(project) == before
    (project / "bad.py").write_text("from flax import nnx\n(")
    assert cli.main(["migrate", "--check", str(project / "bad.py")]) == 2


def test_without_libcst_the_extra_is_named(project, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "libcst", None)
    assert cli.main(["migrate", str(project)]) == 2
    assert "pip install 'plait[migrate]'" in capsys.readouterr().err
