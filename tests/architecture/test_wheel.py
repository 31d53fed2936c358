"""The wheel holds the library, its licence and its type marker, and nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

# Whether what the installed package needs is there, at versions that it allows.
NEEDED = """
from importlib.metadata import requires, version
from packaging.requirements import Requirement
for each in map(Requirement, requires("plait")):
    if each.marker is None or each.marker.evaluate({"extra": ""}):
        assert each.specifier.contains(version(each.name)), each
"""
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
    assert "plait/inspect/explore/assets/page.html" in names


@pytest.mark.slow
def test_the_wheel_installs_and_the_first_program_of_the_readme_runs(tmp_path):
    """pip, in an environment of its own that has the dependencies and no checkout; it asks no package index."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    run = lambda *arguments: subprocess.run(
        [str(python), *arguments], cwd=tmp_path, env=plain, check=False, capture_output=True, text=True
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PLAIT_CHECK_DISPATCH")}
    shared = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (packages / "dependencies.pth").write_text("\n".join(shared))  # paths alone: the checkout's own .pth is not read
    installed = run("-m", "pip", "install", "--no-index", "--force-reinstall", "--no-deps", str(wheel))
    assert installed.returncode == 0, installed.stderr
    checked = run("-c", NEEDED)
    assert checked.returncode == 0, checked.stderr
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL).groups()
    (tmp_path / "first.py").write_text(f"{program}\nassert plait.__file__.startswith({str(packages)!r})\n")
    ran = run("first.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == output
    assert run("-m", "plait.cli.main", "--version").stdout.startswith("plait ")
