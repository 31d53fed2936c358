"""Every path, every ``plait.name`` and every ``make`` target that a text of the repository mentions exists."""

import importlib
import importlib.util
import re

import plait
from tests.docs.examples import ROOT, SOURCE

TEXTS = sorted(
    file
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", ".github/**/*.*", "pyproject.toml")
    for file in ROOT.glob(pattern)
    if "reference" not in file.relative_to(ROOT).parts
) + [ROOT / "Makefile", ROOT / "tests" / "architecture" / "rooms.py"]
TEXTS += sorted((ROOT / "src").rglob("__init__.py"))

NAME = re.compile(r"(?<![\w./-])(?:plait|nnx)((?:\.[A-Za-z_]\w*)+)(?!=)")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
SUFFIXES = (".py", ".md", ".toml", ".yml", ".lock", ".cff")
TARGET = re.compile(r"make ([a-z][a-z-]*)")

# Texts that name what is not there, and say so: (text, name) → why.
SAID_TO_BE_MISSING = {
    ("docs/spec/layers_and_transforms.md", "grads"): "the classic form of Flax, in the column for it",
}
# Files that plait writes, and no part of the repository.
WRITTEN = {"load.py", "plait.json", "manifest.json"}


def exists(name):
    """Whether ``a.b.c`` below plait leads somewhere: attributes, or modules to import."""
    value = plait
    for place, part in enumerate(name):
        if hasattr(value, part):
            value = getattr(value, part)
            continue
        if name == ("as_flax",):  # importing it would make plait stand in for Flax in this process
            return importlib.util.find_spec("plait.as_flax") is not None
        try:
            value = importlib.import_module(".".join(("plait", *name[: place + 1])))
        except ImportError:
            return False
    return True


def names_in(text):
    """The names below plait, without placeholders such as ``plait.X`` and the names of files."""
    found = {name.strip(".") for name in NAME.findall(text)}
    return {tuple(name.split(".")) for name in found if len(name) > 1 and f"plait.{name}" not in WRITTEN}


def paths_in(file):
    """What is written as a path: links, and code with a slash or with the suffix of a file of the repository."""
    text = re.sub(r"^ *```.*?^ *```", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = set(LINK.findall(text))
    for code in CODE.findall(text):
        in_a_folder = "/" in code and code.split("/")[0] in FOLDERS
        if PATH.fullmatch(code) and (in_a_folder or code.endswith((*SUFFIXES, "/"))):
            found.add(code)
    return found


FOLDERS = {folder.name for folder in ROOT.iterdir() if folder.is_dir()}
PLACES = (ROOT, SOURCE, ROOT / "docs")


def is_there(path, file):
    if any(any(place.glob(path.rstrip("/"))) for place in (*PLACES, file.parent) if not path.startswith("..")):
        return True
    if (file.parent / path).resolve().exists():
        return True
    name = path.rstrip("/")  # a file or folder that a text names without the folders above it
    return "/" not in name and any(any(place.rglob(name)) for place in (SOURCE, ROOT / "tests", ROOT / "docs"))


def missing_from(file):
    """The names, paths and targets that a text mentions and that are not there."""
    text = file.read_text(encoding="utf-8").partition("\n## By name\n")[0]  # a table of names that are missing
    place = file.relative_to(ROOT).as_posix()
    names = {".".join(name) for name in names_in(text) if not exists(name)}
    yield from names - {name for page, name in SAID_TO_BE_MISSING if page == place}
    yield from (path for path in paths_in(file) - WRITTEN if not is_there(path, file))
    yield from {match[1] for match in map(TARGET.match, CODE.findall(text)) if match} - targets()


def test_what_texts_mention_exists():
    assert [(file.relative_to(ROOT).as_posix(), name) for file in TEXTS for name in sorted(missing_from(file))] == []


def targets():
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
