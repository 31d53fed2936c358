"""Ask 5: programs in the spellings of Flax 0.10, 0.11 and 0.12 run after one changed import, with the same numbers.

Each program of ``corpus/`` is written three times, as it was written in the time of each of these versions, and prints
the same. What Flax 0.12 prints for its own spelling is what plait must print for all three.
"""

import contextlib
import functools
import io
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.errors import PlaitError
from tests.sampling import slow_but

CORPUS = Path(__file__).parent / "corpus"
NEWEST = "flax_0_12"
STYLES = ("flax_0_10", "flax_0_11", NEWEST)
PROGRAMS = sorted(file.stem for file in (CORPUS / NEWEST).glob("*.py"))
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")

# Programs in an older spelling that Flax 0.12 refuses, and what it says.
REFUSED_BY_FLAX = {
    ("flax_0_10", "mlp_training"): "Found data on value of type '<class 'list'>'",
    ("flax_0_10", "sharding"): "An auto mesh context or metadata is required",
}

IMPORT, NEW_IMPORT = "from flax import nnx\n", "import plait as nnx\n"

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("users_promotion")]


@pytest.fixture(autouse=True)
def settings_kept():
    from flax import nnx

    before = plait.using_eager_sharding(), nnx.using_eager_sharding()
    yield
    plait.use_eager_sharding(before[0])
    nnx.use_eager_sharding(before[1])


def output_of(source, name):
    """What a program prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@functools.cache
def output_of_flax(program):
    file = CORPUS / NEWEST / f"{program}.py"
    return output_of(file.read_text(), str(file))


def assert_same_output(found, expected):
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, expected)]
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)


def test_every_program_is_there_in_every_spelling():
    assert len(PROGRAMS) >= 8
    for style in STYLES:
        assert sorted(file.stem for file in (CORPUS / style).glob("*.py")) == PROGRAMS
    texts = {file.read_text() for file in CORPUS.glob("*/*.py")}
    assert len(texts) == len(STYLES) * len(PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("style", STYLES)
def test_a_program_runs_after_one_changed_import(style, program):
    file = CORPUS / style / f"{program}.py"
    source = file.read_text()
    assert source.count(IMPORT) == 1
    assert_same_output(output_of(source.replace(IMPORT, NEW_IMPORT), str(file)), output_of_flax(program))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("style", STYLES[:-1])
def test_flax_prints_the_same_where_it_still_takes_the_spelling(style, program):
    file = CORPUS / style / f"{program}.py"
    words = REFUSED_BY_FLAX.get((style, program))
    if words is None:
        assert_same_output(output_of(file.read_text(), str(file)), output_of_flax(program))
    else:
        with pytest.raises(ValueError, match=re.escape(words)):
            output_of(file.read_text(), str(file))


@pytest.mark.parametrize("program", slow_but(PROGRAMS[::3], PROGRAMS))
def test_plait_migrate_changes_that_import_and_nothing_else(program):
    pytest.importorskip("libcst")
    from plait.migrate.rewrite import rewrite

    for style in STYLES:
        source = (CORPUS / style / f"{program}.py").read_text()
        assert rewrite(source.encode()).source.decode() == source.replace(IMPORT, NEW_IMPORT)


OLD_CALLS = {
    "an optimizer without wrt": (
        "nnx.Optimizer(model, optax.sgd(0.1))",
        r"Optimizer\(model, .*wrt=",
    ),
    "an update with gradients alone": (
        "nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(nnx.state(model))",
        r"update\(model, grads\)",
    ),
    "the model of an optimizer": (
        "nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).model",
        r"ModelAndOptimizer|update\(model",
    ),
}


@pytest.mark.parametrize("case", OLD_CALLS)
def test_old_calls_of_the_optimizer_print_the_new_one(case):
    code, words = OLD_CALLS[case]
    before = "import optax\nimport plait as nnx\nmodel = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n"
    with pytest.raises((PlaitError, TypeError, AttributeError), match=words):
        output_of(before + code, case)


@pytest.mark.filterwarnings("ignore:the metadata entry 'sharding:DeprecationWarning")
def test_the_three_spellings_of_sharding_are_one_field():
    for given in ("sharding", "sharding_names", "out_sharding"):
        variable = plait.Param(np.zeros((2, 2)), **{given: ("a", None)})
        for read in ("sharding_names", "out_sharding"):
            assert getattr(variable, read) == ("a", None)
            assert variable.get_metadata("sharding") == variable.get_metadata(read) == ("a", None)
        for written in ("sharding", "sharding_names", "out_sharding"):
            variable.set_metadata(**{written: (written, None)})
            assert variable.out_sharding == variable.sharding_names == (written, None)
            assert variable.get_metadata(exclude_required=True) == {"out_sharding": (written, None)}
        assert variable.has_metadata("sharding")
        variable.del_metadata("sharding_names")
        assert not any(map(variable.has_metadata, ("sharding", "sharding_names", "out_sharding")))


def test_value_and_brackets_agree():
    variable = plait.Param(np.zeros(2))
    variable.value = np.ones(2)
    assert variable[...].tolist() == variable.value.tolist() == variable.get_value().tolist() == [1, 1]
    variable[...] = np.full(2, 3.0)
    assert variable.value.tolist() == [3, 3]
