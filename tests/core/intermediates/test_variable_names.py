"""The table between collection names and kinds of variables."""

import pytest

import plait as nnx
from plait.core.intermediates import variable_names


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    monkeypatch.setattr(variable_names, "_CLASSES", dict(variable_names._CLASSES))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("params", nnx.Param),
        ("batch_stats", nnx.BatchStat),
        ("cache", nnx.Cache),
        ("intermediates", nnx.Intermediate),
        ("perturbations", nnx.Perturbation),
    ],
)
def test_names_that_are_there(name, cls):
    """V48."""
    assert nnx.variable_type_from_name(name) is cls
    assert nnx.variable_name_from_type(cls) == name


def test_a_class_can_be_registered_as_a_call_or_a_decorator():
    """V48."""

    class First(nnx.Variable): ...

    assert nnx.register_variable_name("firsts", First) is First

    @nnx.register_variable_name("seconds")
    class Second(nnx.Variable): ...

    assert (nnx.variable_name_from_type(First), nnx.variable_type_from_name("seconds")) == ("firsts", Second)


def test_a_name_is_registered_once_unless_it_is_to_be_overwritten():
    """V48; error table: name registered twice."""

    class Mine(nnx.Variable): ...

    with pytest.raises(ValueError, match=r"(?s)'params'.*Param.*overwrite=True"):
        nnx.register_variable_name("params", Mine)
    assert nnx.variable_type_from_name("params") is nnx.Param
    nnx.register_variable_name("params", Mine, overwrite=True)
    assert nnx.variable_type_from_name("params") is Mine


def test_an_unknown_name_is_an_error_or_makes_a_class_that_is_remembered():
    """V48; error table: unknown name."""
    with pytest.raises(ValueError, match="'moments'"):
        nnx.variable_type_from_name("moments")
    made = nnx.variable_type_from_name("moments", base=nnx.BatchStat, allow_register=True)
    assert (made.__name__, made.__mro__[1]) == ("moments", nnx.BatchStat)
    assert nnx.variable_type_from_name("moments") is made


def test_only_the_exact_class_has_the_name():
    """V48; error table: unknown class."""

    class Frozen(nnx.Param): ...

    with pytest.raises(ValueError, match="Frozen"):
        nnx.variable_name_from_type(Frozen)
    assert nnx.variable_name_from_type(Frozen, allow_register=True) == "Frozen"
    assert nnx.variable_type_from_name("Frozen") is Frozen
