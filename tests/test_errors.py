"""Errors: four parts in order, the builtin a user would catch, and the tree at the top of the file."""

import copy
import inspect
import pickle
import re

import pytest

from plait import errors
from plait.errors import PlaitError

ALL = {
    name: error
    for name, error in vars(errors).items()
    if inspect.isclass(error) and issubclass(error, PlaitError) and error is not PlaitError
}


def test_a_message_has_its_parts_in_order():
    error = errors.GraphError("it went wrong", do="this", found="that", at="a.b", expected="other")
    assert str(error) == "it went wrong\n  at        a.b\n  found     that\n  expected  other\n  do        this"
    assert str(errors.GraphError("it went wrong")) == "it went wrong"


@pytest.mark.parametrize("error", ALL.values(), ids=ALL)
def test_an_error_is_of_plait_and_a_builtin_and_survives_pickle(error):
    """S4: all derive from PlaitError; the message of a KeyError is not quoted."""
    made = error("it went wrong", at="a.b", do="this")
    builtin = [base for base in error.__mro__ if base.__module__ == "builtins"]
    assert set(builtin) - {Exception, BaseException, object}
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(again) is error
        assert str(again) == str(made) == "it went wrong\n  at        a.b\n  do        this"
    with pytest.raises(error, match=r"at +a\.b"):
        raise made


@pytest.mark.parametrize("error", ALL.values(), ids=ALL)
def test_the_tree_at_the_top_says_what_the_classes_are(error):
    line = re.search(rf"^ *[│ ]*[├└]── {error.__name__}\b(.*)$", errors.__doc__, re.MULTILINE)
    assert line, f"{error.__name__} is not in the tree of errors.py"
    named = re.findall(r"\w+", (re.search(r"\(([^)]*)\)", line[1]) or [None, ""])[1])
    assert set(named) <= {base.__name__ for base in error.__mro__}
    assert inspect.getdoc(error) != inspect.getdoc(PlaitError)


def test_the_names_that_other_code_catches():
    """S4."""
    for name in ("TraceContextError", "PartitioningUnspecifiedError", "ScopeParamShapeError", "AxisNameMismatchError"):
        assert issubclass(getattr(errors, name), PlaitError)
