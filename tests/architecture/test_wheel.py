"""The wheel holds the library, its licence and its type marker, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"plait"}
    assert "plait/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    others = (path for path in (ROOT / "src").rglob("*") if path.suffix in (".html", ".css", ".js"))
    assert {name for name in names if name.endswith((".html", ".css", ".js"))} == {
        path.relative_to(ROOT / "src").as_posix() for path in others
    }
    assert "plait/explorer/assets/page.html" in names
