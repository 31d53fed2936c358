"""Maps of names: patterns match whole steps from the beginning, and wildcards are carried over."""

import pytest
from hypothesis import given, strategies as st

from plait.convert.name_map import NameMap
from plait.errors import ArgumentError, ArgumentTypeError

STEPS = st.text("ab_0", min_size=1, max_size=3)
NAMES = st.lists(STEPS, min_size=1, max_size=5).map(".".join)

CASES = {
    "a whole name": ({"a.b": "x"}, "a.b", "x"),
    "the beginning of a name": ({"a.b": "x.y"}, "a.b.weight", "x.y.weight"),
    "not half a step": ({"a.b": "x"}, "a.bc", "a.bc"),
    "not in the middle": ({"b": "x"}, "a.b", "a.b"),
    "a star for a step": ({"h.*.attn": "blocks.*.mix"}, "h.11.attn.w", "blocks.11.mix.w"),
    "a star inside a step": ({"*.layers_*": "*.layers.*"}, "params.layers_3.kernel", "params.layers.3.kernel"),
    "a star is not for a dot": ({"a.*.c": "x.*"}, "a.b.d.c", "a.b.d.c"),
    "two stars": ({"*.h.*": "*.blocks.*"}, "m.h.2.w", "m.blocks.2.w"),
    "any number of steps": ({"**.gamma": "**.weight"}, "a.b.c.gamma", "a.b.c.weight"),
    "no steps": ({"**.gamma": "**.weight"}, "gamma", "weight"),
    "a prefix taken off": ({"module": ""}, "module.a.b", "a.b"),
    "a prefix put on": ({"": "params"}, "a.b", "params.a.b"),
    "dropped": ({"opt": None}, "opt.mu.w", None),
    "the first rule wins": ({"a.b": "x", "a": "y"}, "a.b.c", "x.c"),
    "signs of regular expressions": ({"a+": "x"}, "aa", "aa"),
    "a function": (str.upper, "a.b", "A.B"),
    "nothing": (None, "a.b", "a.b"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_renames(case):
    names, old, new = CASES[case]
    assert NameMap(names)(old) == new


@pytest.mark.slow
@given(NAMES, st.data())
def test_a_prefix_changes_and_the_rest_stays(name, data):
    steps = name.split(".")
    count = data.draw(st.integers(1, len(steps)))
    head, rest = steps[:count], steps[count:]
    assert NameMap({".".join(head): "new"})(name) == ".".join(["new", *rest])
    wild = ".".join("*" for _ in head)
    assert NameMap({wild: f"new.{wild}"})(name) == f"new.{name}"


@given(NAMES)
def test_wildcards_that_stay_where_they_are_change_nothing(name):
    assert NameMap({"**": "**"})(name) == name
    assert NameMap({"*": "*"})(name) == name


def test_rules_that_were_never_used_are_known():
    names = NameMap({"a": "x", "b": "y"})
    names("a.c")
    assert names.unused == ["b"]


@pytest.mark.parametrize("rules", [{"a.*": "b"}, {"a": "b.*"}, {"*.**": "**.*"}])
def test_wildcards_must_be_the_same_on_both_sides(rules):
    with pytest.raises(ArgumentError, match="the same wildcards on both sides"):
        NameMap(rules)


@pytest.mark.parametrize("rules", [["a"], {"a": 3}, {3: "a"}])
def test_rules_are_strings(rules):
    with pytest.raises(ArgumentTypeError, match="names"):
        NameMap(rules)


def test_a_function_returns_names():
    with pytest.raises(ArgumentTypeError, match=r"at +a\.b\n +found +an? int"):
        NameMap(lambda name: len(name))("a.b")
    assert NameMap(lambda name: None)("a.b") is None
