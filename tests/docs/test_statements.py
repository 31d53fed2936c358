"""What the pages list is what there is: public names, commands, variables of the environment, stored formats."""

import ast
import collections
import inspect
import re
import tomllib
import types

import jax
import jax.extend
import pytest

import plait
from plait.cli.main import main
from tests.docs.examples import ROOT, blocks_of, run_block
from tests.docs.test_names_exist import names_in
from tests.docs.test_reference import module_of

DOCS = ROOT / "docs"
CONTRIBUTORS = {"design.md", "tour.md", "tiny.md", "releasing.md"}
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.glob("*.md")) if page.name not in CONTRIBUTORS)]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pages_name_the_python_and_jax_that_the_package_asks_for():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    python = project["requires-python"].removeprefix(">=")
    jax = next(each for each in project["dependencies"] if each.startswith("jax")).partition(">=")[2]
    words = " ".join(text_of("docs/install.md").split())
    assert f"Python {python} or newer" in words
    assert f"JAX {jax.removesuffix('.0')} or newer" in words


def test_a_checkpoint_of_each_stored_format_is_in_the_tests():
    from plait.checkpoint import layout

    for version in range(1, layout.VERSION + 1):
        assert (ROOT / "tests" / "data" / f"checkpoint-v{version}").is_dir()
        assert f'"checkpoint-v{version}"' in text_of("tests/checkpoint/test_orbax.py")


def taught(page):
    """The names below plait that the code of a page uses, as ``("training", "fit")``."""
    found = set()
    for block in blocks_of(page):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "plait":
                below = tuple((node.module or "").split(".")[1:])
                found |= {(*below, alias.name) for alias in node.names}
        found |= names_in(block.code)
    return found


def test_pages_teach_public_names_alone():
    """What is not in the reference may change in any release, so no page shows it."""
    pytest.importorskip("griffe")
    public, secret = module_of("make_reference").public_names(), set()
    for place, name in ((page.name, name) for page in PAGES for name in taught(page)):
        first = next((n for n in range(len(name), 0, -1) if ".".join(name[:n]) in public), 0)
        beyond = public.get(".".join(name[:first])) if first else plait
        if first < len(name) and (not first or inspect.ismodule(beyond)) and name != ("as_flax",):
            secret.add((place, ".".join(name)))
    assert secret == set()


def test_what_flax_takes_by_keyword_plait_takes():
    """All but what is of use to Flax's own functions alone."""
    assert refused(pytest.importorskip("flax.nnx")) == {"flatten": {"ref_outer_index"}}


def refused(nnx):
    """Public functions and layers → what Flax takes by keyword there, and plait by position alone."""
    found = {}
    for name in sorted(set(dir(nnx)) & set(dir(plait))):
        theirs, ours = getattr(nnx, name), getattr(plait, name)
        if inspect.isfunction(theirs) and callable(ours) and not takes_any(ours):
            found[name] = keywords(theirs) - keywords(ours)
        elif (
            inspect.isclass(theirs)
            and issubclass(theirs, nnx.Module)
            and "__call__" in vars(theirs)
            and not takes_any(ours.__call__)
        ):
            found[name] = keywords(theirs.__call__) - keywords(ours.__call__) - {"self"}
    return {name: arguments for name, arguments in found.items() if arguments}


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}


def takes_any(function):
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


def test_the_page_lists_the_commands_that_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out.partition("COMMAND\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `plait (\w+)", text_of("docs/command-line.md"), re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r"^    (\w+)", printed, re.MULTILINE))


def test_the_page_lists_the_environment_variables_that_plait_reads():
    read = set()
    for file in (ROOT / "src").rglob("*.py"):
        read |= set(re.findall(r"[\"'](PLAIT_[A-Z_]+)[\"']", file.read_text(encoding="utf-8")))
    assert set(re.findall(r"`(PLAIT_[A-Z_]+)`", text_of("docs/environment.md"))) == read


ADDED_UP = {"reduce_sum", "reduce_max", "exp", "rsqrt", "log", "div"}


@pytest.mark.slow
@pytest.mark.usefixtures("users_promotion")
def test_mixed_precision_keeps_in_float32_what_the_recipe_says():
    """Norms, softmax, head and loss; all other products are bfloat16, with the scores that softmax takes in float32."""
    page = types.ModuleType("mixed_precision")
    for block in blocks_of(DOCS / "mixed-precision.md"):
        run_block(block, page)
    graphdef, state = plait.split(page.model)
    losses = lambda state: page.loss_of(plait.merge(graphdef, state), page.tokens)
    found = dict(operations(jax.make_jaxpr(losses)(state).jaxpr))
    assert {dtype for name in ADDED_UP & set(found) for dtype in found[name]} == {"float32"}
    products = found["dot_general"]
    blocks = 2
    assert products.count("bfloat16") == blocks * len(("query", "key", "value", "weighted values", "out", "mlp"))
    assert products.count("float32") == blocks * len(("scores",)) + len(("head",))


def operations(jaxpr):
    """Operation → the dtypes of its results, in the programs inside too."""
    found = collections.defaultdict(list)
    for equation in jaxpr.eqns:
        found[equation.primitive.name].append(equation.outvars[0].aval.dtype.name)
        for inside in jax.extend.core.jaxprs_in_params(equation.params):
            for name, dtypes in operations(inside).items():
                found[name] += dtypes
    return found
