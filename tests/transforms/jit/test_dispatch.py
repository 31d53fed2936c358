"""The generated code of the fast path: which calls take it, that it agrees with the general path, what it holds."""

import collections
import functools
import gc
import subprocess
import sys
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, CapturedModelWarning
from plait.transforms.jit import dispatch, function as jit_module
from plait.transforms.jit.dispatch import write_all
from tests.sampling import slow_but
from tests.strategies import Leafy, Node

pytestmark = pytest.mark.unchecked  # the check is a line of the generated code


def model(value=1.0):
    return Node(w=plait.Param(jnp.full(2, value)), inner=Leafy(b=plait.BatchStat(jnp.float32(value))))


@pytest.fixture
def only_fast(monkeypatch):
    """A function after which no call may take the general path."""

    def forbid():
        def refuse(tree):
            raise AssertionError("the general path was taken")

        monkeypatch.setattr(jit_module, "gather", refuse)

    return forbid


# Entrances ------------------------------------------------------------------------------------------------------------


def plain(m, x, y=2.0, /, z=3.0, *, k=5.0, j):
    return m.w.value.sum() + 10 * x + 100 * y + 1_000 * z + 10_000 * k + 100_000 * j


def starred(m, *rest, **named):
    return plain(m, *rest, **named)


class Callable:
    def __call__(self, m, x, y=2.0, z=3.0, *, k=5.0, j):
        return plain(m, x, y, z, k=k, j=j)


@functools.wraps(plain)
def wraps_a_function_with_more_arguments(m, x, **named):
    return plain(m, x, 7.0, **named)


FUNCTIONS = [plain, starred, Callable(), functools.partial(plain, k=8.0), lambda m, x, *a, **k: plain(m, x, *a, **k)]
CALLS = {
    "required": lambda f, m: f(m, 1.0, j=2.0),
    "first default": lambda f, m: f(m, 1.0, 4.0, j=2.0),
    "all by position": lambda f, m: f(m, 1.0, 4.0, 5.0, j=2.0),
    "a gap": lambda f, m: f(m, 1.0, z=6.0, j=2.0),
    "both keywords": lambda f, m: f(m, 1.0, j=3.0, k=2.0),
    "arrays": lambda f, m: f(m, jnp.float32(1), np.float32(4), j=np.ones(2, np.float32), k=np.float32(3)),
}


@pytest.mark.parametrize("f", FUNCTIONS, ids=["plain", "starred", "object", "partial", "lambda"])
def test_every_way_to_pass_arguments_is_the_function_itself(f):
    """X10: by position, by name, with defaults left out; whatever was passed before."""
    m, jitted = model(), plait.jit(f)
    for _ in range(2):
        for name, call in CALLS.items():
            for _ in range(2):
                assert jnp.array_equal(call(jitted, m), call(f, m)), name


@pytest.mark.parametrize("f", FUNCTIONS, ids=["plain", "starred", "object", "partial", "lambda"])
@pytest.mark.parametrize("case", CALLS)
def test_every_way_to_pass_arguments_is_fast(f, case, only_fast):
    """X10, U33."""
    m, jitted = model(), plait.jit(f)
    expected = CALLS[case](f, m)
    CALLS[case](jitted, m)
    only_fast()
    assert jnp.array_equal(CALLS[case](jitted, m), expected)


@pytest.mark.parametrize("f", FUNCTIONS, ids=["plain", "starred", "object", "partial", "lambda"])
def test_ways_to_pass_arguments_are_fast_in_turns(f, only_fast):
    """X10, U33: the entrance knows several."""
    m, jitted = model(), plait.jit(f)
    expected = {name: call(f, m) for name, call in CALLS.items()}
    for call in CALLS.values():
        call(jitted, m)
    only_fast()
    code = jitted.__code__
    for _ in range(2):
        assert all(jnp.array_equal(call(jitted, m), expected[name]) for name, call in CALLS.items())
    assert jitted.__code__ is code


def test_models_at_different_places_are_fast_in_turns(only_fast):
    """U33: calls that differ only in which arguments are objects."""
    m, jitted = model(), plait.jit(lambda x, y: x.w.value * y if isinstance(x, Node) else y.w.value + x)
    jitted(m, 2.0), jitted(2.0, m)
    only_fast()
    for _ in range(2):
        assert (jitted(m, 2.0).tolist(), jitted(2.0, m).tolist()) == ([2, 2], [3, 3])


def test_only_so_many_ways_to_pass_arguments_are_known():
    """U33: the latest; each of the others takes the general path, with the same result."""
    m, jitted = model(), plait.jit(lambda m, *rest: m.w.value.sum() + sum(rest))
    for _ in range(2):
        for count in range(dispatch.MOST_LAYOUTS + 3):
            assert jitted(m, *(1.0 for _ in range(count))) == 2 + count
    assert len(jitted.jitted_fn.entrance.run_keys) == dispatch.MOST_LAYOUTS
    assert len([key for key in m._pytree__walks if isinstance(key, int)]) == dispatch.MOST_LAYOUTS


def test_a_wrapped_function_is_called_with_what_its_wrapper_takes():
    """X10: the signature of the wrapper counts, not the one it shows."""
    jitted, m = plait.jit(wraps_a_function_with_more_arguments), model()
    for _ in range(3):
        assert jitted(m, 1.0, j=2.0) == wraps_a_function_with_more_arguments(m, 1.0, j=2.0)


def test_wrong_arguments_are_refused_as_python_does():
    """X10."""
    jitted, m = plait.jit(lambda m, x: x), model()
    for _ in range(2):
        for args, named in (((m,), {}), ((m, 1, 2), {}), ((m,), {"y": 1})):
            with pytest.raises(TypeError, match="lambda"):
                jitted(*args, **named)
        jitted(m, 1)
    by_place = plait.jit(lambda m, x, /, y: x + y)
    assert by_place(m, 1, y=2) == by_place(m, 1, 2) == 3
    with pytest.raises(TypeError, match=r"positional-only.*'x'"):
        by_place(m, x=1, y=2)


def test_names_that_generated_code_uses_can_be_arguments():
    """X10: also names that are no identifiers."""

    def f(len, call, a0, returned, TAKE_GENERAL_PATH, out):
        return len.w.value.sum() + call + 10 * a0 + 100 * returned + 1_000 * TAKE_GENERAL_PATH + 10_000 * out

    def named(_plait_run, **rest):
        return _plait_run.w.value.sum() + sum(rest.values())

    m = model()
    jitted, other = plait.jit(f), plait.jit(named)
    for _ in range(3):
        assert jitted(m, 1, 2, 3, 4, out=5) == f(m, 1, 2, 3, 4, 5)
        assert other(m, **{"class": 1, "x y": 2, "_plait_out": 3}) == 8
        assert other(m, values=1, given=2) == 5
        assert other(m, values=1, plain=2, named=3, layout=4, x=5) == 17


def test_methods_are_fast(only_fast):
    """X10: the first argument is the module itself."""

    class Net(plait.Module):
        def __init__(self):
            self.w = plait.Param(jnp.ones(2))

        @plait.jit
        def step(self, x):
            self.w.value = self.w.value + x
            return self.w.value.sum()

    net = Net()
    net.step(1.0)
    only_fast()
    assert net.step(1.0) == 6.0


def test_a_warning_of_a_first_call_points_at_the_callers_line():
    """update_context.md section 7: generated code is no user's code."""
    held = model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plait.jit(lambda m: held.w.value + m.w.value)(model())
    assert [(w.category, w.filename) for w in caught] == [(CapturedModelWarning, __file__)]


# Plain arguments ------------------------------------------------------------------------------------------------------

Batch = collections.namedtuple("Batch", "image label")


def test_a_batch_in_a_container_is_fast(only_fast):
    """X10: JAX's own cache compares its structure; another structure is another trace."""
    f = plait.jit(lambda m, batch: m.w.value.sum() + sum(jax.tree.leaves(batch)))
    m = model()
    batches = [{"x": 1.0, "y": (2.0, None)}, Batch(1.0, 2.0), [1.0, 2.0], {"x": 1.0, "z": 2.0}, (), None]
    for batch in batches:
        f(m, batch)
    only_fast()
    assert [float(f(m, batch)) for batch in batches] == [5.0, 5.0, 5.0, 5.0, 2.0, 2.0]


def with_a_cycle():
    node = model(3.0)
    node.itself = node
    return node


class NoTree(plait.Module, pytree=False):
    def __init__(self):
        self.w = plait.Param(jnp.full(2, 3.0))


HIDDEN = {
    "module": lambda: model(3.0),
    "cycle": with_a_cycle,
    "no pytree": NoTree,
    "variable": lambda: plait.Param(6.0),
}


@pytest.mark.parametrize("case", HIDDEN)
@pytest.mark.parametrize("put", [lambda x: x, lambda x: {"a": [x]}], ids=["alone", "in a container"])
def test_an_object_among_plain_arguments_is_noticed(case, put):
    """X10, U22: it is passed as an object and can be written, though arrays were passed before and are after."""
    traces = []

    def f(m, x):
        traces.append(1)
        for leaf in jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, (plait.Pytree, plait.Variable))):
            if isinstance(leaf, plait.Pytree):
                leaf = leaf.w
            if isinstance(leaf, plait.Variable):
                leaf.value = leaf.value + 1
        return m.w.value.sum()

    jitted, m, hidden = plait.jit(f), model(), HIDDEN[case]()
    for _ in range(3):
        jitted(m, put(jnp.float32(1)))
    for turn in range(1, 4):
        jitted(m, put(hidden))
        found = hidden if case == "variable" else hidden.w
        assert found.value.sum() == 6.0 + turn * found.value.size
        assert jitted(m, put(jnp.float32(1))) == 2.0
    assert len(traces) <= 4


def test_an_error_of_the_function_is_not_taken_for_a_hidden_object():
    """U21: the function runs once, and the error is its own."""
    traces = []

    def f(m, x):
        traces.append(1)
        m.w.value = m.w.value + 1
        if x.ndim:
            raise TypeError("mine")

    jitted, m = plait.jit(f), model()
    jitted(m, jnp.float32(1))
    jitted(m, jnp.float32(1))
    with pytest.raises(TypeError, match="mine"):
        jitted(m, jnp.ones(1))
    assert len(traces) == 2
    assert m.w.value.tolist() == [3.0, 3.0]


# Objects --------------------------------------------------------------------------------------------------------------


def test_a_module_that_delegates_its_attributes_is_not_the_one_it_delegates_to():
    """U33: what plait keeps on an object is never found through a user's ``__getattr__``."""

    class Proxy(plait.Module):
        def __init__(self, inner):
            self.inner = inner
            self.scale = plait.Param(jnp.float32(10))

        def __getattr__(self, name):
            if name == "inner":
                raise AttributeError(name)
            return getattr(self.inner, name)

    f = plait.jit(lambda m: (m.scale.value if "scale" in vars(m) else 1.0) * m.w.value.sum())
    inner = model()
    assert [float(f(inner)), float(f(inner))] == [2.0, 2.0]
    proxy = Proxy(inner)
    assert [float(f(proxy)), float(f(proxy)), float(f(inner))] == [20.0, 20.0, 2.0]
    assert list(plait.state(proxy)) == ["inner", "scale"]


def test_partners_in_turn():
    """U33, U34: one model with several optimizers; each call uses the one it was given."""
    f = plait.jit(lambda a, b, x: (setattr(b.w, "value", b.w.value + x), a.w.value.sum() + b.w.value.sum())[1])
    first, partners = model(), [model(float(i)) for i in range(3)]
    for turn in range(1, 4):
        for i, partner in enumerate(partners):
            assert f(first, partner, 1.0) == 2 + 2 * (i + turn)
    del partners[1], partner
    assert f(first, first, 0.0) == 4.0
    assert f(first, partners[1], 1.0) == 2 + 2 * (2 + 4)


def test_a_replaced_part_is_let_go_by_the_next_call_of_any_function():
    """U34: also what another function kept for the graph as it was."""
    train, evaluate = plait.jit(lambda m: m.w.value.sum()), plait.jit(lambda m: m.w.value.sum() * 2)
    m = model()
    for _ in range(3):
        train(m), evaluate(m)
    gc.collect()
    gc.disable()
    try:
        alive = weakref.ref(m.inner)
        array = weakref.ref(m.inner.b.get_raw_value())
        m.inner = Leafy(c=plait.Param(1.0))
        evaluate(m)
        assert alive() is None
        assert array() is None
    finally:
        gc.enable()


def test_a_dropped_function_is_freed_at_once():
    """U34: a jitted function does not keep itself."""
    m = model()
    gc.collect()
    gc.disable()
    try:
        jitted = plait.jit(lambda m, x: m.w.value.sum() * x)
        for _ in range(3):
            jitted(m, 1.0)
        alive = weakref.ref(jitted)
        del jitted
        assert alive() is None
        (walk,) = m._pytree__walks.values()
        assert walk.runs == {}
    finally:
        gc.enable()


def test_clear_cache_forgets_runs():
    """X10."""
    traces = []
    jitted, m = plait.jit(lambda m: traces.append(1)), model()
    for _ in range(3):
        jitted(m)
    jitted.clear_cache()
    assert len(m._pytree__walks) == 1
    for _ in range(3):
        jitted(m)
    assert len(traces) == 2


@pytest.mark.parametrize(
    ("count", "writes"),
    slow_but(
        [(1, 1), (257, 1), (257, 300)],
        [(1, 1), (255, 1), (255, 300), (256, 1), (256, 300), (257, 1), (257, 300), (600, 1), (600, 300)],
    ),
)
def test_any_number_of_variables(count, writes, only_fast):
    """U12: reading and writing are written out for few, and loops for many, beside another object as well."""
    other = Node(w=plait.Param(jnp.float32(1)))
    m = Node(items=[plait.Variable(jnp.float32(i)) for i in range(count)])

    def f(m, other, x):
        for variable in m.items[:writes]:
            variable.value = variable.value + x * other.w.value
        return sum(variable.value for variable in m.items)

    jitted = plait.jit(f)
    jitted(m, other, 1.0)
    only_fast()
    for _ in range(2):
        total = jitted(m, other, 1.0)
    assert [float(v.value) for v in m.items] == [i + 3 * (i < writes) for i in range(count)]
    assert total == sum(i + 3 * (i < writes) for i in range(count))


def test_many_plain_lists_are_compared(only_fast):
    """U33."""
    m = Node(items=[Node(items=[Leafy(w=plait.Param(1.0))]) for _ in range(50)])
    f = plait.jit(lambda m: sum(leaf.w.value for each in m.items for leaf in each.items))
    f(m)
    m.items[37].items.append(Leafy(w=plait.Param(1.0)))
    assert [float(f(m)), float(f(m))] == [51.0, 51.0]
    only_fast()
    assert f(m) == 51.0


def test_an_element_that_cannot_be_compared_goes_the_general_way():
    """U33: whatever its ``__eq__`` raises."""

    class Odd:
        def __eq__(self, other):
            raise RuntimeError

        __hash__ = object.__hash__

    m = Node(items=[Leafy(w=plait.Param(1.0))])
    f = plait.jit(lambda m: len(m.items))
    f(m), f(m)
    m.items[0] = Odd()
    assert f(m) == 1


# Donation -------------------------------------------------------------------------------------------------------------


def give(m):
    m.w.value = m.w.value + 1


def give_both(m):
    m.w.value, m.b.value = m.w.value + 1, m.b.value + 2


def give_and_read(m):
    m.w.value = m.w.value + m.b.value


@pytest.mark.parametrize("f", [give, give_both, give_and_read])
@pytest.mark.parametrize("native", [True, False], ids=["refused by the runtime", "compared beforehand"])
def test_a_shared_buffer_is_refused_on_the_fast_way_and_nothing_is_lost(f, native, monkeypatch):
    """X10: also when the program does not use the other variable, whose buffer would be gone."""
    if native and not dispatch.refuses_shared_donation():
        pytest.skip("this runtime was not seen to refuse")
    monkeypatch.setattr(dispatch, "refuses_shared_donation", lambda: native)
    m, jitted = Node(w=plait.Param(jnp.ones(2)), b=plait.Param(jnp.ones(2))), plait.jit(f, donate=True)
    for _ in range(3):
        jitted(m)
    m.b.value = jnp.zeros(2)
    jitted(m)
    raw = m.w.get_raw_value()
    m.b.set_value(raw)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"\.b and \w+\.w"):
            jitted(m)
        assert not raw.is_deleted()
        assert m.w.get_raw_value() is m.b.get_raw_value() is raw
    m.b.set_value(jnp.copy(raw))
    jitted(m)
    assert raw.is_deleted()


def test_plain_arguments_by_name_are_donated():
    """X10: on both ways; a pytree is donated as a whole, and others are not."""
    jitted = plait.jit(lambda m, *, x, y: (m.w.value.sum(), jax.tree.map(lambda a: a + 1, (x, y))), donate_argnames="x")
    m = model()
    for _ in range(3):
        x, y = {"a": jnp.ones(2), "b": jnp.ones(3)}, jnp.ones(4)
        jitted(m, x=x, y=y)
        assert [x["a"].is_deleted(), x["b"].is_deleted(), y.is_deleted()] == [True, True, False]


# Interrupts and threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_an_interrupt_between_two_writes_leaves_no_half_done_update(count):
    """U21: wherever a run is interrupted, all variables are as before or all are as after."""
    m = Node(items=[plait.Variable(jnp.float32(0)) for _ in range(count)])

    def f(m, x):
        for variable in m.items:
            variable.value = variable.value + x

    jitted = plait.jit(f)
    jitted(m, 1.0), jitted(m, 1.0)
    reached, seen = 0, set()
    for stop in range(1, 400):
        lines = 0

        def trace(frame, event, argument, stop=stop):
            nonlocal lines, reached
            if frame.f_code.co_filename not in (dispatch._FILE, dispatch.__file__):
                return None
            lines += 1
            if lines == stop:
                raise KeyboardInterrupt
            return trace

        before = float(m.items[0].value)
        sys.settrace(trace)
        try:
            jitted(m, 1.0)
            reached = stop
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        values = {float(variable.value) for variable in m.items}
        assert values in ({before}, {before + 1})
        seen |= {value - before for value in values}
        if reached:
            break
    assert seen == {0.0, 1.0}
    assert stop > 5


def test_writing_goes_on_after_an_interrupt():
    """U21."""

    class Cell:
        raw = None

    class Interrupting:
        raw = property(lambda self: None)

        @raw.setter
        def raw(self, value):
            if not self.written:
                self.written = value
                raise KeyboardInterrupt

        written = 0

    cells = [Cell(), Interrupting(), Cell()]
    with pytest.raises(KeyboardInterrupt):
        write_all(cells, [1, 2, 3, "out"])
    assert (cells[0].raw, cells[1].written, cells[2].raw) == (1, 2, 3)


@pytest.mark.slow
def test_eight_threads_in_different_layouts():
    """U37: the entrance is replaced under running calls; each call is answered for its own arguments."""
    f = plait.jit(lambda a, b=0.0, *, c=0.0: sum(x.w.value.sum() * 10 if hasattr(x, "w") else x for x in (a, b, c)))
    errors, start = [], threading.Barrier(8)

    def work(number):
        m, n = model(), model(2.0)
        calls = [((m,), {}, 20), ((m, 1.0), {}, 21), ((m,), {"c": 2.0}, 22), ((1.0, m), {}, 21), ((m, n), {}, 60)]
        start.wait()
        try:
            for i in range(150):
                args, named, expected = calls[(i // 3 * number + i) % len(calls)]
                assert f(*args, **named) == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Modes ----------------------------------------------------------------------------------------------------------------


def test_a_mode_that_is_set_later_is_obeyed():
    """U32, G57: by calls that were fast before."""
    f, m = plait.jit(lambda m: setattr(m.w, "value", m.w.value + 1)), model()
    for _ in range(3):
        f(m)
    shared = Node(w=m.w, again=m.w)
    f(shared), f(shared)
    with plait.set_graph_mode(False), pytest.raises(plait.errors.GraphError):
        f(shared)
    grown = plait.jit(lambda m: setattr(m, "new", 1))
    with plait.set_graph_updates(False):
        f(shared), grown(shared)
    assert not hasattr(shared, "new")
    f(shared), grown(shared)
    assert (m.w.value.tolist(), shared.new) == ([8.0, 8.0], 1)


AT_EXIT = """
import jax.numpy as jnp, plait
step = plait.jit(lambda model, x: model(x))
model = plait.Linear(2, 2, rngs=plait.Rngs(0))
step(model, jnp.ones(2)), step(model, jnp.ones(2))
"""


@pytest.mark.slow
def test_nothing_is_written_when_the_process_ends():
    """U34: what dies then finds the globals of its module gone. A forked process would not take them away."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert "Exception ignored" not in done.stderr
