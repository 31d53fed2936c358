"""A public function that takes modes is what its definition says: "go to definition" shows all of it. (X1, U32, G57)"""

import ast
import functools
import inspect
import pickle
from pathlib import Path

import pytest

import plait
from plait._public import FOR_FLAX, PUBLIC
from tests.architecture.house import SOURCE
from tests.conformance.transforms import TRANSFORMS
from tests.core.graph.test_modes import FUNCTIONS

OF_STREAMS = {"split_rngs", "fork_rngs", "with_rngs", "transform_metadata"}
BOTH = sorted(({each.name for each in TRANSFORMS} - {"from_tree", "update_context"} | OF_STREAMS) & PUBLIC.keys())
GRAPH = sorted((FUNCTIONS.keys() - set(BOTH)) | {"abstract_with_sharding", "backup_keys", "prefix", "reseed"})
each_that_takes_modes = pytest.mark.parametrize("name", [*BOTH, *GRAPH])


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def definition(name: str, file: Path = SOURCE / "__init__.py") -> tuple[Path, ast.FunctionDef]:
    """Where type checkers find a name: the ``def`` at the end of its imports, the last of its overloads."""
    for node in reversed([*ast.walk(parsed(file))]):
        if isinstance(node, ast.FunctionDef) and node.name == name and node in parsed(file).body:
            return file, node
        if (
            isinstance(node, ast.ImportFrom)
            and node.level
            and name in [each.asname or each.name for each in node.names]
        ):
            folder = file.parents[node.level - 1]
            return definition(name, folder.joinpath(*(node.module or "").split(".")).with_suffix(".py"))
    raise AssertionError(f"{file} does not define {name}")


@each_that_takes_modes
def test_the_definition_has_the_whole_signature_and_the_docstring(name):
    public = getattr(plait, name)
    file, found = definition(name)
    assert inspect.getsourcefile(inspect.unwrap(public)) == str(file)
    assert inspect.getsourcelines(public)[1] == min(each.lineno for each in [found, *found.decorator_list])
    assert inspect.getdoc(public) == ast.get_docstring(found)
    arguments = found.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    assert [*inspect.signature(public).parameters] == [each.arg for each in named if each is not None]
    assert not hasattr(public, "__signature__")


@each_that_takes_modes
def test_modes_are_ordinary_parameters(name):
    parameters = inspect.signature(getattr(plait, name)).parameters
    modes = ["graph", "graph_updates"] if name in BOTH else ["graph"]
    assert [each for each in parameters if each.startswith("graph")] == modes
    assert {(parameters[mode].default, parameters[mode].annotation) for mode in modes} == {(None, "bool | None")}


@each_that_takes_modes
def test_it_is_found_by_its_name(name):
    assert pickle.loads(pickle.dumps(getattr(plait, name))) is getattr(plait, name)


def test_every_public_function_that_takes_modes_is_tested():
    functions = {name: getattr(plait, name) for name in PUBLIC}
    takes = {
        name for name, it in functions.items() if inspect.isfunction(it) and "graph" in inspect.signature(it).parameters
    }
    assert takes - {*BOTH, *GRAPH} - {"vars_as", "set_attributes"} == set()
    assert FOR_FLAX["vars_as"] == FOR_FLAX["with_vars"]
