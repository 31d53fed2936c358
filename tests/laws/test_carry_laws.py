"""What loops do with their carry, beside the same program run eagerly. (rules X20, X21, U28)"""

import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import ArgumentError

LENGTH = 3
SLOTS = 3

# What a body returns in a slot: the variable that came in by a slot, changed in place or not, or a new variable. The
# numbers choose which: equal numbers of "new" are one variable in two slots.
RETURNED = st.lists(
    st.tuples(st.sampled_from(["kept", "written", "other", "new"]), st.integers(0, SLOTS - 1)),
    min_size=SLOTS,
    max_size=SLOTS,
)
SHARED = st.lists(st.integers(0, SLOTS - 1), min_size=SLOTS, max_size=SLOTS)


def body_of(plan):
    def body(carry):
        new = [plait.Variable(carry[i][...] * 2 + i + 1) for i in range(SLOTS)]
        out = []
        for slot, (kind, number) in enumerate(plan):
            if kind == "written":
                carry[slot][...] += number + carry[0][...]
            out.append({"kept": carry[slot], "written": carry[slot], "other": carry[number], "new": new[number]}[kind])
        return out

    return body


def eagerly(body, carry):
    for _ in range(LENGTH):
        carry = body(carry)
    return carry


LOOPS = {
    "scan": lambda body, carry: plait.scan(lambda c, x: (body(c), None), length=LENGTH)(carry, jnp.arange(LENGTH))[0],
    "fori_loop": lambda body, carry: plait.fori_loop(0, LENGTH, lambda i, c: body(c), carry),
    "while_loop": lambda body, carry: plait.while_loop(
        lambda value: value[0] < LENGTH, lambda value: (value[0] + 1, body(value[1])), (jnp.int32(0), carry)
    )[1],
}


def values(variables):
    return [float(variable[...]) for variable in variables]


@pytest.mark.slow
@given(plan=RETURNED, shared=SHARED)
def test_a_loop_gives_what_the_same_program_gives_eagerly_or_says_that_it_cannot(plan, shared):
    """A slot of a carry keeps its variable or takes a value; all three loops by one rule."""

    def start():
        pool = [plait.Variable(jnp.float32(1 + i)) for i in range(SLOTS)]
        return [pool[i] for i in shared]

    body = body_of(plan)
    given = start()
    expected = eagerly(body, given)
    said = set()
    for loop in LOOPS.values():
        own = start()
        before = values(own)
        try:
            out = loop(body, own)
        except ArgumentError as error:
            said.add(error.message.partition(": ")[2])
            assert values(own) == before
        else:
            said.add("ran")
            assert values(out) == values(expected)
            assert values(own) == values(given)
    assert len(said) == 1  # all three run it, or none
