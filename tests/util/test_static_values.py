"""Static values: which of them are the same structure."""

import dataclasses
import enum
import functools
import pickle
import sys
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st

from plait.graph import HashableMapping
from plait.util.static_values import same_static, static_key

NAN = float("nan")
Point = namedtuple("Point", "x y")


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 3


class Owner:
    def method(self):
        return 1


def top_level(x):
    return x


def other_top_level(x):
    return x


def adder(amount, *, scale=1):
    def add(x, offset=0):
        return x * scale + amount + offset

    return add


def same(first, second):
    """Equal keys, and then equal hashes; the relation is symmetric and agrees with ``same_static``.

    Exact keys are equal only if these are, too, and a value's with itself.
    """
    a, b = static_key(first, exact=False), static_key(second, exact=False)
    equal, back = (same_static(*pair, exact=False) for pair in [(first, second), (second, first)])
    assert (a == b) == (b == a) == equal == back
    assert a != b or hash(a) == hash(b)
    exact = static_key(first) == static_key(second)
    assert exact == same_static(first, second) <= equal
    assert static_key(first) == static_key(first)
    return equal


def test_a_function_that_may_change_is_only_itself():
    """G14: what it closes over, its defaults and a partial's keywords; those of libraries, and without any, are not."""
    schedule = adder(1)
    for make in (
        lambda: adder(2),
        lambda: lambda x, y=1: x,
        lambda: functools.partial(top_level, y=1),
        lambda: functools.wraps(jax.nn.relu)(adder(2)),
        lambda: optax.adam(adder(2)),
    ):
        assert static_key(make()) != static_key(make())
    for make in (lambda: lambda x: x, lambda: functools.partial(top_level, 1), lambda: optax.adam(schedule)):
        assert static_key(make()) == static_key(make())


OWNER = Owner()
EQUAL = {
    "numbers": lambda: 3,
    "floats": lambda: 0.1 + 0.2,
    "nan": lambda: float("nan"),
    "complex nan": lambda: complex(0.0, float("nan")),
    "numpy nan": lambda: np.float32("nan"),
    "text": lambda: "".join(["a", "b"]),
    "none": lambda: None,
    "ellipsis": lambda: ...,
    "nested": lambda: (1, ("a", frozenset({2.0, NAN})), Point(1, 2.0)),
    "dtype": lambda: jnp.dtype("float32"),
    "type": lambda: jnp.float32,
    "enum": lambda: Level(1),
    "frozen dataclass": lambda: Config(4),
    "named tuple": lambda: Point(1, Config()),
    "closure": lambda: adder(2),
    "closure over an optimizer": lambda: adder(optax.sgd(0.1).update),
    "lambda": lambda: lambda x: x + 1,
    "default": lambda: lambda x, y=(1, 2), *, z=3.0: x,
    "partial": lambda: functools.partial(adder(1), 3, offset=4),
    "partial of a builtin": lambda: functools.partial(int, base=2),
    "bound method": lambda: OWNER.method,
    "adam": lambda: optax.adam(1e-3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 1.0, 10))),
    "masked": lambda: optax.masked(optax.sgd(0.1, momentum=0.9), lambda params: params),
    "partition spec": lambda: jax.sharding.PartitionSpec("a", None),
}  # fmt: skip


@pytest.mark.parametrize("make", EQUAL.values(), ids=EQUAL)
def test_values_made_alike_are_the_same(make):
    """G15, G16."""
    assert same(make(), make())


DIFFERENT = {
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "bool and float": (True, 1.0),
    "zero and minus zero": (0.0, -0.0),
    "complex zeros": (0j, complex(0.0, -0.0)),
    "numpy zeros": (np.float32(0.0), np.float32(-0.0)),
    "numpy widths": (np.float32(1.0), np.float64(1.0)),
    "numpy and python": (np.float64(1.0), 1.0),
    "text and bytes": ("a", b"a"),
    "inside a tuple": ((1, 2), (True, 2)),
    "inside a frozenset": (frozenset({1}), frozenset({1.0})),
    "tuple and named tuple": ((1, 2), Point(1, 2)),
    "enum and int": (Level.LOW, 1),
    "dataclasses": (Config(3), Config(4)),
    "closures over different values": (adder(1), adder(2)),
    "closures over 1 and True": (adder(1), adder(True)),
    "closures with different surroundings": (adder(1), adder(1, scale=2)),
    "defaults": (lambda x, y=1: x, lambda x, y=2: x),
    "code": (lambda x: x + 1, lambda x: x + 2),
    "functions of a module": (top_level, other_top_level),
    "partials": (functools.partial(top_level, 1), functools.partial(top_level, 2)),
    "partial keywords": (functools.partial(int, base=2), functools.partial(int, base=3)),
    "methods of two objects": (Owner().method, Owner().method),
    "adam": (optax.adam(1e-3), optax.adam(1e-2)),
    "sgd and adam": (optax.sgd(1e-3), optax.adam(1e-3)),
    "schedules": (optax.linear_schedule(0.0, 1.0, 10), optax.linear_schedule(0.0, 1.0, 20)),
    "arrays closed over": (adder(jnp.ones(2)), adder(jnp.ones(2))),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_values_that_differ_are_not_the_same(pair):
    """G15, G16."""
    assert not same(*pair)


def test_lambdas_made_in_a_loop():
    """G15: late binding makes them the same, an argument default different."""
    late = [lambda x: x + i for i in range(2)]  # noqa: B023
    early = [lambda x, i=i: x + i for i in range(2)]
    assert same(*late)
    assert not same(*early)


def test_a_closure_over_the_same_array_is_the_same():
    """G15: arrays count by identity there."""
    array = jnp.ones(2)
    assert same(adder(array), adder(array))


def recursive(amount):
    def countdown(n):
        return amount if n == 0 else countdown(n - 1)

    return countdown


def through(wrap):
    """A function that reaches itself through another object."""

    def run(n):
        return held and n

    held = wrap(run)
    return run


def even_and_odd(limit):
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != limit and even(n - 1)

    return even, odd


@pytest.mark.parametrize(
    "make",
    [
        lambda: recursive(1),
        lambda: through(lambda f: functools.partial(f, 1)),
        lambda: through(lambda f: (f, (f,))),
        lambda: through(lambda f: functools.wraps(f)(lambda *a: f(*a))),
        lambda: even_and_odd(3)[0],
        lambda: even_and_odd(3)[1],
    ],
    ids=["itself", "a partial", "a tuple", "a wrapper", "even", "odd"],
)
def test_a_function_that_reaches_itself_has_a_key(make):
    """G14: hashable, however it closes over itself."""
    assert same(make(), make())


def test_functions_that_reach_themselves_in_other_ways_differ():
    """G15."""
    assert not same(recursive(1), recursive(2))
    assert not same(*even_and_odd(3))
    assert not same(even_and_odd(3)[0], even_and_odd(4)[0])


def three(target):
    """first → second → third → the first, or the second."""

    def first():
        return second

    def second():
        return third

    def third():
        return back

    back = {"first": first, "second": second}[target]
    return first


def test_where_a_recursion_leads_matters():
    """G15."""
    assert same(three("first"), three("first"))
    assert not same(three("first"), three("second"))


def test_a_function_with_a_state_of_its_own_is_only_itself():
    """G16: with ``nonlocal`` two functions that look alike drift apart."""

    def counter():
        count = 0

        def step():
            nonlocal count
            count += 1
            return count

        return step

    one = counter()
    before = static_key(one)
    assert one() == 1
    assert static_key(one) == before
    assert not same(one, counter())


def test_a_schedule_that_rewrites_what_it_closes_over_stays_what_it_was():
    """G15: Optax's cosine schedule turns an integer that it closes over into a float when it is first called."""
    schedule = optax.cosine_decay_schedule(1.0, 10)
    before = static_key(optax.adam(schedule))
    schedule(0)
    assert static_key(optax.adam(schedule)) == before


def test_the_key_of_a_function_holds_no_copy_and_survives_a_deep_chain():
    """G14."""
    f = top_level
    for _ in range(50):
        f = functools.partial(f)
    assert same(f, f)
    assert sys.getrecursionlimit() >= 1000


def test_what_cannot_be_hashed_has_no_key_and_compares_by_itself():
    """G16: a result that is not a plain bool counts as unequal, unless the objects are one."""
    array = np.ones(2)
    for value in ([1], {"a": 1}, array, (1, [2])):
        with pytest.raises(TypeError, match="unhashable"):
            static_key(value)
    assert same_static([1], [1])
    assert not same_static([1], [2])
    assert not same_static([1], (1,))
    assert same_static(array, array)
    assert not same_static(array, np.ones(2))


class Odd:
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError


def test_an_equality_that_raises_counts_as_unequal():
    """G16."""
    odd = Odd()
    assert same_static(odd, odd)
    assert not same_static(odd, Odd())


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.complex_numbers()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=6
)


@pytest.mark.slow
@given(values)
def test_a_value_is_the_same_as_its_copy(value):
    """G14: reflexive for every value, nan included."""
    assert same(value, pickle.loads(pickle.dumps(value)))


@given(values, values)
def test_the_key_distinguishes_what_repr_distinguishes(first, second):
    """G15: 1, True and 1.0 print differently, as do 0.0 and -0.0."""
    if not isinstance(first, (frozenset, tuple)) and not isinstance(second, (frozenset, tuple)):
        assert same(first, second) == (repr(first) == repr(second))


# Mappings -------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=2), values, max_size=4))
def test_a_mapping_is_its_content_in_any_order(items):
    """G10."""
    mapping, turned = HashableMapping(items), HashableMapping(dict(reversed(items.items())))
    assert mapping == turned
    assert hash(mapping) == hash(turned)
    assert dict(mapping) == items
    assert HashableMapping(items.items()) == mapping


def test_a_mapping_compares_with_any_mapping():
    """G10."""
    mapping = HashableMapping({"a": 1, "b": (2.0, NAN)})
    assert mapping == HashableMapping({"b": (2.0, NAN), "a": 1})
    assert mapping != HashableMapping({"a": True, "b": (2.0, NAN)})
    assert mapping != HashableMapping({"a": 1})
    assert mapping != {"a": 1, "b": (2.0, NAN)}, "a dict has no hash"
    assert mapping != HashableMapping({"a": 1, "c": 2})
    assert mapping != 3
    assert (len(mapping), "a" in mapping, mapping["a"], list(mapping)) == (2, True, 1, ["a", "b"])


def test_a_mapping_cannot_be_changed_and_is_static_for_jax():
    """G10."""
    mapping = HashableMapping({"a": 1})
    with pytest.raises(TypeError, match="does not support item assignment"):
        mapping["a"] = 2
    assert jax.tree.leaves(mapping) == []
    assert repr(mapping) == "HashableMapping({'a': 1})"
