"""Collection names and classes of variables."""

import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError
from plait.flax.bridge import variables as bv


def test_one_name_has_one_class_and_the_table_is_the_registry():
    """B4, V48."""
    assert bv.VariableTypeCache["params"] is plait.Param

    @plait.register_variable_name("kinds_one")
    class One(plait.Variable):
        pass

    assert bv.VariableTypeCache["kinds_one"] is One is bridge.variable_type("kinds_one")
    assert bridge.variable_type_name(One) == plait.variable_name_from_type(One) == "kinds_one"


def test_an_unknown_name_gets_a_class_once():
    """B5."""
    made = bridge.variable_type("kinds_made")
    assert made.__name__ == "kinds_made"
    assert made.__bases__ == (plait.Variable,)
    assert bridge.variable_type("kinds_made") is made


def test_the_name_of_a_class_is_found_by_exact_class():
    """B6: an unregistered subclass of Param gets a name of its own."""

    class KindsFrozen(plait.Param):
        pass

    assert bridge.variable_type_name(plait.Param) == "params"
    assert bridge.variable_type_name(KindsFrozen) == "KindsFrozen"
    assert bridge.variable_type("KindsFrozen") is KindsFrozen


def test_two_classes_of_one_name_are_an_error_that_names_both():
    """B6."""
    first = type("KindsTwice", (plait.Variable,), {})
    second = type("KindsTwice", (plait.Param,), {})
    assert bridge.variable_type_name(first) == "KindsTwice"
    with pytest.raises(
        ArgumentError, match=r"'KindsTwice' is already in use\n  found.*KindsTwice.*\n  expected.*KindsTwice"
    ):
        bridge.variable_type_name(second)
    assert bridge.variable_type("KindsTwice") is first


@pytest.mark.parametrize("register", [plait.register_variable_name, bridge.register_variable_name_type_pair])
def test_a_name_of_its_own_cures_it(register):
    """B6: as the error says; each of the two classes then has its name, and keeps it."""
    name = f"Kinds{register.__name__}"
    first, second, third = (type(name, (plait.Variable,), {}) for _ in range(3))
    assert bridge.variable_type_name(first) == name
    register(f"{name}_second", second)
    assert [bridge.variable_type_name(cls) for cls in (first, second)] == [name, f"{name}_second"]
    assert [bridge.variable_type(text) for text in (name, f"{name}_second")] == [first, second]
    with pytest.raises(ArgumentError, match=f"'{name}'.* is already in use"):
        bridge.variable_type_name(third)


def test_a_pair_is_registered_and_only_overwritten_on_demand():
    """B7."""

    class KindsNew(plait.Variable):
        pass

    bridge.register_variable_name_type_pair("kinds_pair", plait.OptState)
    with pytest.raises(ValueError, match=r"'kinds_pair'(.|\n)*OptState(.|\n)*overwrite=True"):
        bridge.register_variable_name_type_pair("kinds_pair", KindsNew)
    assert bridge.variable_type("kinds_pair") is plait.OptState
    bridge.register_variable_name_type_pair("kinds_pair", KindsNew, overwrite=True)
    assert bridge.variable_type("kinds_pair") is KindsNew


def test_flaxs_newer_names_do_the_same():
    """V48, section 10: one registry, both sets of names."""
    assert plait.variable_type_from_name("batch_stats") is bridge.variable_type("batch_stats")
    with pytest.raises(ArgumentError, match="kinds_unknown"):
        plait.variable_type_from_name("kinds_unknown")
    made = plait.variable_type_from_name("kinds_unknown", allow_register=True)
    assert bridge.variable_type("kinds_unknown") is made


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("params", plait.Param),
        ("batch_stats", plait.BatchStat),
        ("cache", plait.Cache),
        ("intermediates", plait.Intermediate),
        ("perturbations", plait.Perturbation),
    ],
)
def test_the_names_of_linen_are_there(name, kind):
    """B8."""
    assert bridge.variable_type(name) is kind
    assert bridge.variable_type_name(kind) == name


def test_the_most_derived_class_comes_first_and_ties_keep_their_order():
    """B9."""
    types = [plait.Variable, plait.BatchStat, plait.Param, plait.Perturbation, plait.LoRAParam]
    ordered = bridge.sort_variable_types(iter(types))
    assert ordered == [plait.Perturbation, plait.LoRAParam, plait.BatchStat, plait.Param, plait.Variable]
    model = plait.Dict(a=plait.Param(1), b=plait.LoRAParam(2), c=plait.BatchStat(3))
    found = dict(zip(ordered, plait.state(model, *ordered), strict=True))
    assert list(found[plait.LoRAParam]) == ["b"]
    assert list(found[plait.Param]) == ["a"]
