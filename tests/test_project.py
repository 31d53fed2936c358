"""What the project shows on GitHub and in its package: citation, links, files; and its locks."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging import requirements

import plait

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
URL = "https://github.com/plait-jax/plait"
SETS = {"oldest": "", "newest": "-newest"}  # of versions → the end of the names of its locks
STAMPS = {"dev": "requirements/dev", "demo": "requirements/demo"}  # the stamp of the Makefile → how its locks begin
LOCKS = {f"{stamp}-{versions}": f"{name}{end}.lock" for stamp, name in STAMPS.items() for versions, end in SETS.items()}


def test_every_address_of_the_repository_is_the_same():
    assert PROJECT["project"]["urls"]["Repository"] == URL
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / ".github").rglob("*.*"), ROOT / "pyproject.toml"]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    found = {address for text in texts.values() for address in re.findall(r"https://github\.com/[\w-]+/[\w-]+", text)}
    assert found == {URL}
    for text in texts.values():
        for path in re.findall(rf"{URL}/blob/main/([\w./-]+)", text):
            assert (ROOT / path).is_file(), path


def test_the_site_has_an_address_that_the_package_names():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"site_url: {PROJECT['project']['urls']['Documentation']}\n" in site
    assert f"repo_url: {URL}\n" in site
    assert re.search(r"^edit_uri: edit/main/docs/$", site, re.MULTILINE)


def test_the_citation_is_of_this_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == PROJECT["project"]["license"]
    assert plait.__version__.startswith(citation["version"])


def test_the_readme_says_how_to_install():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "pip install plait" in readme
    extras = re.findall(r"`(?:pip install '\.\[)?(\w+)\]?'?`", readme.partition("Extras:")[2].partition("\n\n")[0])
    assert set(extras) >= {"linen"}
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])


def test_the_sdist_lists_files_that_exist():
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name).exists(), name


def entries(lock):
    """The packages of a lock: name → version and hashes."""
    text = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        entry = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)( ; [^\\]*?)?((?: +--hash=\S+)*)", line)
        assert entry, f"{lock}: {line}"
        assert entry[1] not in found, f"{lock}: {entry[1]} is there twice"
        found[entry[1]] = (entry[2], frozenset(entry[4].split()))
    return found


@pytest.mark.parametrize("lock", LOCKS.values())
def test_every_package_of_a_lock_has_a_hash(lock):
    for name, (_, hashes) in entries(lock).items():
        assert hashes, f"{lock}: {name} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), f"{lock}: {name}"


def needed(extras):
    """What pyproject.toml asks for: dependencies, and those of the extras and of the extras that they name."""
    asked = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        asked += PROJECT["project"]["optional-dependencies"][extra]
    found = [requirements.Requirement(each) for each in asked]
    others = {extra for each in found if each.name == "plait" for extra in each.extras}
    return [each for each in found if each.name != "plait"] + (needed(others) if others else [])


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_that_pyproject_asks_for(name):
    """The build backend too: plait is built without isolation."""
    named = re.search(r"^DEMO_EXTRAS := (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    packages = entries(LOCKS[name])
    build = [requirements.Requirement(each) for each in PROJECT["build-system"]["requires"]]
    for each in build + needed(named[1].split() if name.startswith("demo") else ["dev"]):
        version, _ = packages.get(each.name, (None, None))
        assert version is not None, f"{LOCKS[name]} lacks {each.name}: make lock"
        assert each.specifier.contains(version), f"{each}, but {version} in {LOCKS[name]}: make lock"


def test_everything_that_an_example_imports_comes_with_the_extra_of_all():
    names = {"scikit-learn": "sklearn", "tensorflow-cpu": "tensorflow"}
    there = {names.get(each.name, each.name) for each in needed(["all"])} | {"plait", *sys.stdlib_module_names}
    there |= {file.stem for file in (ROOT / "examples").glob("*.py")}
    for file in (ROOT / "examples").glob("*.py"):
        found = re.findall(r"^ *(?:import|from) (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert {*found} <= there, file.name


def test_plait_is_built_by_what_the_locks_have(tmp_path, monkeypatch):
    """For an editable installation hatchling asks for editables, and without ``dev-mode-dirs`` it needs that."""
    backend = pytest.importorskip(PROJECT["build-system"]["build-backend"])
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "editables", None)
    with zipfile.ZipFile(tmp_path / backend.build_editable(str(tmp_path))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".pth"))
        assert wheel.read(name).decode().split() == [str(ROOT / "src")]


@pytest.mark.parametrize("versions", SETS)
def test_the_lock_of_the_demo_is_a_part_of_the_other(versions):
    demo, dev = (entries(LOCKS[f"{stamp}-{versions}"]) for stamp in ("demo", "dev"))
    assert {name for name in demo if dev.get(name) != demo[name]} == set()
    assert len(demo) < len(dev)


@pytest.mark.parametrize("name", LOCKS)
def test_the_newest_set_is_newer(name):
    """JAX 0.11 and later need Python 3.12, so the oldest set, for 3.11, has JAX 0.10."""
    minor = int(entries(LOCKS[name])["jax"][0].split(".")[1])
    assert minor == 10 if name.endswith("-oldest") else minor >= 12


@pytest.mark.parametrize("each", sorted(needed(["dev"]), key=str), ids=lambda each: each.name)
def test_the_lowest_set_has_the_lower_bounds_of_pyproject(each):
    """The nox session ``lowest`` runs the tests with it, so each bound is a version with which plait works."""
    text = (ROOT / "requirements/lowest.lock").read_text(encoding="utf-8")
    locked = re.findall(rf"^{each.name}==([^ ;]+)", text, re.MULTILINE)
    (bound,) = (each.version for each in each.specifier if each.operator == ">=")
    assert any(f"{version}.0.0".startswith(f"{bound}.") for version in locked), f"state {locked} in pyproject.toml"


def python_of_version(folder, version):
    """A stand-in for Python of another version, as the Makefile asks for it."""
    path = folder / f"python{version}"
    code = f"import sys; sys.version_info = ({version.replace('.', ', ')}); exec(sys.argv.pop(1))"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" -c "{code}" "$2"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("uv", ["", "uv"])
@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize(("version", "end"), [("3.11", ""), ("3.12", "-newest"), ("3.13", "-newest")])
def test_make_installs_what_the_lock_has_a_hash_for(tmp_path, stamp, uv, version, end):
    """Each command that installs either checks hashes, and builds nothing, or installs plait alone."""
    venv, python = tmp_path / "venv", python_of_version(tmp_path, version)
    command = ["make", "--dry-run", f"VENV={venv}", f"PYTHON={python}", f"UV={uv}", f"{venv}/{stamp}.stamp"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment).stdout
    installs = re.findall(r"(uv pip|-m pip) install (.*?)(?= *\|\||\n)", told.replace("\\\n", ""))
    locked = f"--require-hashes --only-binary :all: --requirement {STAMPS[stamp]}{end}.lock"
    for tool in ("-m pip", *([f"{uv} pip"] if uv else [])):
        found = [arguments for each, arguments in installs if each == tool]
        assert len(found) == 2
        assert found[0].endswith(f" {locked}")
        assert found[1].endswith(" --no-deps --no-build-isolation --editable .")
    assert len(installs) == told.count(" install ")
