"""What is loaded on first use: packages give the names that they list, and what lacks can be installed."""

import ast
import importlib
import re
import tomllib
import types
from pathlib import Path

import pytest

import plait

SOURCE = Path(plait.__file__).parent
FILES = {
    ".".join(("plait", *file.parent.relative_to(SOURCE).parts)): file
    for file in sorted(SOURCE.rglob("__init__.py"))
    if "= lazy_names(" in file.read_text(encoding="utf-8")
}
HEAVY = {"plait.export"}  # it loads TensorFlow

each_package = pytest.mark.parametrize("name", FILES)
each_package_that_loads = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in FILES]
)


def typed(name):
    """What type checkers see: public name → the module that has it, relative to the package, if one is named."""
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in block.body:
        if isinstance(node, ast.AnnAssign):
            seen[ast.unparse(node.target)] = None
        else:
            seen |= {alias.asname: "." * node.level + (node.module or alias.name) for alias in node.names}
    return seen


@each_package
def test_it_shows_all_that_it_lists(name):
    package = importlib.import_module(name)
    listed = getattr(package, "__all__", dir(package))
    assert len(listed) == len(set(listed)) > 1
    assert set(listed) <= set(dir(package)) == set(typed(name))


@each_package_that_loads
def test_it_gives_all_that_it_shows(name):
    """Each from the module that type checkers are told, which is one of its own or one that it stands for."""
    package = importlib.import_module(name)
    for public, place in typed(name).items():
        value = getattr(package, public)
        module = importlib.import_module(place, name) if place else value
        assert value is module or value is getattr(module, public), public
        assert getattr(package, public) is value
        if isinstance(value, types.FunctionType | type):
            assert value.__module__.split(".")[0] in ("plait", "jax", "optax", "typing"), public


@each_package
def test_a_name_that_it_does_not_have_is_told(name):
    with pytest.raises(AttributeError, match=rf"'{name}'.*'no_such_name'"):
        importlib.import_module(name).no_such_name


PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required():
    """Each call that imports an optional package: where it is → its arguments, as they are written."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", [ast.unparse(each) for each in given]


@pytest.mark.parametrize(("place", "arguments"), list(required()))
def test_an_optional_package_is_imported_with_the_extra_that_installs_it(place, arguments):
    module, extra, purpose = arguments
    package = ast.literal_eval(module).partition(".")[0]
    installed = PROJECT["optional-dependencies"][ast.literal_eval(extra)]
    assert any(each.startswith(package.lower()) for each in installed)
    assert purpose == "purpose" or re.match(r"'to [a-z]+ ", purpose)
