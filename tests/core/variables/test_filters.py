"""Filters: what each literal matches, and the laws of their logic."""

import dataclasses
import pickle

import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.core.variables.filters import resolve_filters
from plait.filterlib import Nothing, OfType, PathIn, to_predicate

PATHS = [(), ("a",), ("a", 0), ("a", 1, "kernel"), ("b", "bias"), (0, "kernel")]
VALUES = [nnx.Param(1.0), nnx.LoRAParam(2.0), nnx.BatchStat(3.0), nnx.RngKey(4, tag="dropout"), jnp.ones(2), 5, "text"]
LEAVES = [(path, value) for path in PATHS for value in VALUES]

literals = st.recursive(
    st.sampled_from(
        [..., True, False, None, nnx.Param, nnx.BatchStat, nnx.Variable, "dropout", "params", int]
        + [nnx.PathContains("kernel"), nnx.PathContains(0), nnx.PathContains("er", exact=False), PathIn(("a", 0))]
        + [nnx.Everything(), Nothing()]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda f: nnx.All(*f))
        | st.lists(inner, max_size=3).map(lambda f: nnx.Any(*f))
        | inner.map(nnx.Not)
    ),
    max_leaves=6,
)


def matched(literal):
    predicate = to_predicate(literal)
    return [bool(predicate(path, value)) for path, value in LEAVES]


@pytest.mark.parametrize(
    ("literal", "path", "value", "expected"),
    [
        (nnx.Param, (), nnx.Param(1), True),
        (nnx.Param, (), nnx.LoRAParam(1), True),
        (nnx.LoRAParam, (), nnx.Param(1), False),
        (nnx.VariableState, (), nnx.Param(1), True),
        (int, (), 3, True),
        ("dropout", (), nnx.RngKey(0, tag="dropout"), True),
        ("dropout", (), nnx.RngKey(0, tag="params"), False),
        ("dropout", (), nnx.Param(1), False),
        ("dropout", (), 3, False),
        (..., (), 3, True),
        (True, (), 3, True),
        (None, (), 3, False),
        (False, (), 3, False),
        ([nnx.BatchStat, "dropout"], (), nnx.BatchStat(1), True),
        ((), (), nnx.Param(1), False),
        (lambda path, value: path == ("a",), ("a",), 3, True),
        (nnx.PathContains("a"), ("b", "a"), 3, True),
        (nnx.PathContains("a"), ("ba",), 3, False),
        (nnx.PathContains("a", exact=False), ("b", "ba"), 3, True),
        (nnx.PathContains(1, exact=False), ("layer_12",), 3, True),
        (nnx.PathContains(1), ("layers", 1), 3, True),
        (PathIn(("a", 0), ["b"]), ("b",), 3, True),
        (PathIn(("a", 0), ("b",)), ("a",), 3, False),
    ],
)
def test_what_a_literal_matches(literal, path, value, expected):
    """G51."""
    assert to_predicate(literal)(path, value) is expected


@given(literals)
def test_a_double_negation_says_the_same(f):
    """G51."""
    assert matched(nnx.Not(nnx.Not(f))) == matched(f)


@given(literals, literals)
def test_negation_turns_any_into_all(f, g):
    """G51: the laws of De Morgan."""
    assert matched(nnx.Not(nnx.Any(f, g))) == matched(nnx.All(nnx.Not(f), nnx.Not(g)))
    assert matched(nnx.Not(nnx.All(f, g))) == matched(nnx.Any(nnx.Not(f), nnx.Not(g)))


@given(literals, literals)
def test_a_list_is_short_for_any(f, g):
    """G51."""
    assert matched([f, g]) == matched((f, g)) == matched(nnx.Any(f, g)) == matched([g, f])


@given(literals)
def test_everything_and_nothing_are_neutral(f):
    """G51."""
    assert matched(nnx.All(f, ...)) == matched(nnx.Any(f, None)) == matched(f)
    assert not any(matched(nnx.All(f, None)))
    assert all(matched(nnx.Any(f, ...)))


@given(literals, literals)
def test_equal_filters_hash_and_match_alike(f, g):
    """G51: value equality; they can be static values of a graph."""
    first, second = to_predicate(f), to_predicate(g)
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert hash(again) == hash(first)
    assert matched(again) == matched(first)
    if first == second:
        assert hash(first) == hash(second)
        assert matched(first) == matched(second)


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (nnx.Param, "OfType(Param)"),
        ("dropout", "WithTag('dropout')"),
        (..., "Everything()"),
        (None, "Nothing()"),
        (nnx.PathContains("a"), "PathContains('a')"),
        (nnx.PathContains("a", exact=False), "PathContains('a', exact=False)"),
        (PathIn(("b",), ("a", 0)), "PathIn(('a', 0), ('b',))"),
        ([nnx.Param, "x"], "Any(OfType(Param), WithTag('x'))"),
        (nnx.All(nnx.Not(nnx.Param)), "All(Not(OfType(Param)))"),
    ],
)
def test_a_filter_reads_like_its_call(literal, text):
    """G51: a readable repr."""
    assert repr(to_predicate(literal)) == text


KINDS = [..., None, nnx.Param, "dropout", nnx.PathContains("a"), PathIn(("a", 0)), [nnx.Param, "x"]]
KINDS += [nnx.Any("x"), nnx.All(nnx.Param, "x"), nnx.Not("x"), lambda path, value: True]


@pytest.mark.parametrize("literal", KINDS, ids=lambda literal: repr(to_predicate(literal))[:20])
def test_every_kind_of_filter_is_a_constant(literal):
    """G51: as a static value it is compared and hashed, so nobody may change it."""
    filter, again = to_predicate(literal), to_predicate(literal)
    assert filter == again
    assert hash(filter) == hash(again)
    assert len({filter, again, to_predicate("another")}) == 2
    for field in dataclasses.fields(filter):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(filter, field.name, None)


def test_filters_of_other_kinds_are_different():
    """G51."""
    assert nnx.All(nnx.Param) != nnx.Any(nnx.Param)
    assert nnx.Not(nnx.Param) != OfType(nnx.Param)
    assert PathIn(("a",)) != ("a",)


def test_several_catch_alls_may_stand_at_the_end():
    """G52."""
    assert len(resolve_filters((nnx.Param, ..., True))) == 3


@pytest.mark.oracle
@given(literals)
def test_flax_matches_the_same(f):
    """G51."""
    flax_filters = pytest.importorskip("flax.nnx").filterlib
    if not isinstance(f, (list, tuple, nnx.All, nnx.Any, nnx.Not, nnx.PathContains, PathIn, nnx.Everything, Nothing)):
        theirs = flax_filters.to_predicate(f)
        assert matched(f) == [bool(theirs(path, value)) for path, value in LEAVES]
