"""A machine that edits graphs in every way a user can, calls jitted functions in between, and compares with eager ones.

Two worlds are kept: in one the functions run through ``plait.jit``, in the other as they are. After every step both
must look the same, and the objects that were there before must be the same in both. (rules U15 to U23, U33, U34)
"""

from __future__ import annotations

import copy
import os

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import plait
from plait.core.graph.walks import find_walk
from plait.transforms.jit.function import check_cells
from tests.laws.dispatch_world import (
    CALLS,
    FUNCTIONS,
    JITTED,
    World,
    change_metadata,
    delete_attribute,
    edit_dict,
    edit_list,
    replace_roots,
    set_attribute,
    settle,
    write_value,
)
from tests.oracles import describe
from tests.strategies import ARRAYS, KINDS, METADATA, NAMES, STATICS, graphs

RUNS = 5_000 if os.environ.get("HYPOTHESIS_PROFILE") in ("fuzz", "nightly") else 200
PLACES = st.integers(0, 7)
NUMBERS = st.sampled_from([1.0, jnp.float32(2), np.float32(3), jnp.ones(2)])
_LEAVES = st.one_of(
    st.tuples(st.just("new variable"), st.tuples(st.sampled_from(KINDS), ARRAYS, METADATA)),
    st.tuples(st.sampled_from(["old variable", "old module", "new module"]), PLACES),
    st.tuples(st.just("array"), ARRAYS),
    st.tuples(st.just("static"), STATICS),
    st.tuples(st.just("stream"), st.integers(0, 1)),
)
VALUES = st.one_of(
    _LEAVES,
    st.tuples(
        st.sampled_from(["list", "dict", "tuple", "List", "Dict", "Box", "Pair", "State", "tracked"]),
        st.lists(_LEAVES, max_size=3),
    ),
)
LARGEST = 20


class Dispatch(RuleBasedStateMachine):
    @initialize(p=graphs(), q=graphs(), joined=st.booleans())
    def begin(self, p, q, joined):
        if joined:
            q.b = p
        self.jitted = World(p, q)
        self.eager = World(*copy.deepcopy((p, q)))
        self.compare("the start")

    def edit(self, step, *args):
        if len(self.eager.objects()) < LARGEST or step is delete_attribute:
            for world in (self.jitted, self.eager):
                step(world, *args)
                settle(world.p, world.q)
        self.compare(step.__name__)

    def compare(self, what, *outputs):
        jitted, eager = outputs or ((), ())
        p, q = self.jitted.p, self.jitted.q
        assert describe(p, q, jitted) == describe(self.eager.p, self.eager.q, eager), what
        for roots in ((p,), (q,), (p, q), (q, p)):  # what was remembered at the step before is not stale
            walk = find_walk(roots)
            check_cells(walk.graphdefs, walk.cells, roots)

    @rule(number=PLACES, name=st.sampled_from(NAMES), value=VALUES)
    def set_attribute(self, number, name, value):
        self.edit(set_attribute, number, name, value)

    @rule(number=PLACES)
    def delete_attribute(self, number):
        self.edit(delete_attribute, number)

    @rule(
        number=PLACES,
        action=st.sampled_from(["append", "insert", "pop", "delete", "set", "reverse", "clear"]),
        value=_LEAVES,
    )
    def edit_list(self, number, action, value):
        self.edit(edit_list, number, action, value)

    @rule(number=PLACES, name=st.sampled_from(NAMES), value=_LEAVES, delete=st.booleans())
    def edit_dict(self, number, name, value, delete):
        self.edit(edit_dict, number, name, value, delete)

    @rule(number=PLACES, value=ARRAYS)
    def write_value(self, number, value):
        self.edit(write_value, number, value)

    @rule(number=PLACES, note=st.sampled_from([0, 1, None]))
    def change_metadata(self, number, note):
        self.edit(change_metadata, number, note)

    @rule(how=st.sampled_from(["merge", "clone", "share", "swap", "update"]))
    def replace_roots(self, how):
        self.edit(replace_roots, how)

    @rule(name=st.sampled_from(sorted(FUNCTIONS)), call=st.sampled_from(sorted(CALLS)), x=NUMBERS, adopt=st.booleans())
    def call(self, name, call, x, adopt):
        self.run(name, call, x, adopt)

    @rule(name=st.sampled_from(["add", "read", "write_one", "weigh"]), call=st.sampled_from(sorted(CALLS)), x=NUMBERS)
    def call_fast(self, name, call, x):
        self.run(name, call, x, adopt=False)

    @rule(name=st.sampled_from(sorted(FUNCTIONS)), call=st.sampled_from(sorted(CALLS)), x=NUMBERS)
    def call_twice(self, name, call, x):
        if len(self.eager.objects()) < LARGEST:
            self.run(name, call, x, adopt=False)
            self.run(name, call, x, adopt=False)

    @rule(
        call=st.sampled_from([call for call in sorted(CALLS) if "x" in call]),
        name=st.sampled_from(["write_one", "weigh"]),
    )
    def call_with_several_shapes(self, call, name):
        for x in (jnp.float32(1), jnp.ones(2), jnp.float32(1), jnp.ones(2)):
            self.run(name, call, x, adopt=False)

    def run(self, name, call, x, adopt):
        old = self.jitted.objects(), self.eager.objects()
        spare = copy.deepcopy((self.eager.p, self.eager.q))
        expected, error = attempt(FUNCTIONS[name], CALLS[call](self.eager, x))
        found, raised = attempt(JITTED[name], CALLS[call](self.jitted, x))
        assert type(raised) is type(error), (name, call, raised, error)
        if error is not None:  # U21: nothing changed outside
            self.eager = World(*spare)
            assert list(map(id, self.jitted.objects())) == list(map(id, old[0]))
            self.compare(f"{name}({call}) raised")
            return
        settle(self.eager.p, self.eager.q, expected)
        self.compare(f"{name}({call})", found, expected)
        places = [{id(item): place for place, item in enumerate(items)} for items in old]
        for item, twin in zip(self.jitted.objects(found), self.eager.objects(expected), strict=True):
            assert places[0].get(id(item)) == places[1].get(id(twin)), f"{name}({call}): {type(item).__name__}"
        if adopt and isinstance(found, plait.Module):
            self.jitted.q, self.eager.q = found, expected


def attempt(f, args):
    try:
        return f(*args), None
    except Exception as error:
        return None, error


Dispatch.TestCase.settings = hypothesis.settings(
    max_examples=RUNS,
    stateful_step_count=15,
    deadline=None,
    derandomize=RUNS == 200,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
# A program may put an array where a variable was, and is told so.
_ignored = pytest.mark.filterwarnings("ignore::plait.errors.ReplacedVariableWarning")
TestDispatch = _ignored(pytest.mark.slow(pytest.mark.long(Dispatch.TestCase)))
