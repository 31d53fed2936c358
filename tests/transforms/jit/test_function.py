"""``jit``: the same as eager Python, traced once per structure, holding nothing alive. (U15 to U23, U33, U34, X10)"""

import copy
import functools
import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.core.graph.walks import find_walk
from plait.errors import ArgumentError
from plait.transforms.call import call as call_module
from plait.transforms.jit import function as function_module
from tests.environment import environment
from tests.forked import run_python
from tests.oracles import describe
from tests.sampling import slow_but
from tests.strategies import Leafy, Node


class Traced:
    """A function that counts how often it runs as Python."""

    def __init__(self, f):
        self.f, self.__name__, self.traces = f, getattr(f, "__name__", "f"), 0

    def __call__(self, *args, **kwargs):
        self.traces += 1
        return self.f(*args, **kwargs)


def model():
    graph = Node(
        w=plait.Param(jnp.ones(2)),
        count=plait.BatchStat(jnp.int32(0)),
        arr=jnp.ones(1),
        items=[],
        steps=0,
        noise=plait.RngStream(0, tag="noise"),
    )
    graph.inner = Leafy(w=plait.Param(jnp.float32(3)), up=graph)
    return graph


# Ask 2: whatever a function does to its arguments, jitted equals eager ------------------------------------------------


def add_shared_child(m):
    m.child = Leafy(w=m.w, up=m)


def draw(m):
    m.drawn = jax.random.uniform(m.noise(), (2,))
    return m.drawn


def delete_and_return(m):
    old = vars(m).get("inner")
    if old is not None:
        del m.inner
    return old


def swap_names(m):
    m.w, m.inner.w = m.inner.w, m.w


CHANGES = {
    "value": lambda m: setattr(m.w, "value", m.w.value * 2),
    "value in place": lambda m: m.w.__setitem__(0, m.w[1] + 1),
    "value of another shape": lambda m: setattr(m.w, "value", jnp.zeros((3, 1))),
    "value of another dtype": lambda m: setattr(m.w, "value", m.w.value.astype(jnp.int32)),
    "new attribute": lambda m: setattr(m, "z", plait.Param(m.w.value + 1)),
    "removed attribute": delete_and_return,
    "shared child": add_shared_child,
    "replaced variable": lambda m: setattr(m, "w", plait.Param(m.w.value + 1)),
    "aliased variable": lambda m: setattr(m, "z", m.w),
    "aliased module": lambda m: setattr(m, "z", m.inner),
    "swapped": swap_names,
    "cycle": lambda m: setattr(m.inner, "z", m),
    "append to a list": lambda m: m.items.append(plait.Cache(m.w.value)),
    "sow into a tuple": lambda m: setattr(m, "sown", (*getattr(m, "sown", ()), plait.Cache(m.count.value))),
    "key drawn": draw,
    "array replaced": lambda m: setattr(m, "arr", m.arr + 1),
    "metadata": lambda m: m.w.set_metadata(note=m.w.get_metadata("note", 0) + 1),
    "static value": lambda m: setattr(m, "steps", m.steps + 1),
    "static and value": lambda m: (setattr(m, "steps", m.steps + 1), setattr(m.w, "value", m.w.value + m.steps))[0],
    "nothing": lambda m: m.w.value.sum(),
    "returned module": lambda m: m.inner,
    "returned root": lambda m: [m, {"w": m.w}],
    "returned new module": lambda m: Node(of=m, w=plait.Param(m.w.value)),
    "pop": lambda m: plait.pop(m, plait.BatchStat),
    "update": lambda m: plait.update(m, jax.tree.map(lambda x: x + 1, plait.state(m, plait.Param))),
    "merge": lambda m: plait.merge(*plait.split(m)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_inside_is_a_change_outside_twice_in_a_row(case):
    """U15 to U19, U23: values, structure, metadata and identity are as if the function had run in plain Python."""
    f = CHANGES[case]
    jitted, eager = model(), model()
    before = jitted.w, jitted.inner, jitted.noise
    expected_before = eager.w, eager.inner, eager.noise
    compiled = plait.jit(lambda m: f(m))
    for _ in range(2):
        assert describe(jitted, compiled(jitted)) == describe(eager, f(eager))
        found = [id(value) for value in vars(jitted).values()]
        expected = [id(value) for value in vars(eager).values()]
        for item, twin in zip(before, expected_before, strict=True):
            assert (id(item) in found) == (id(twin) in expected)


EDITS = {
    "value": lambda m: setattr(m.w, "value", m.w.value * 2),
    "new attribute": lambda m: setattr(m, "z", plait.Param(jnp.ones(2))),
    "removed attribute": lambda m: delattr(m, "inner"),
    "replaced variable": lambda m: setattr(m, "w", plait.Param(jnp.full(2, 7.0))),
    "aliased": lambda m: setattr(m, "z", m.w),
    "list in place": lambda m: m.items.append(plait.Param(jnp.ones(1))),
    "array replaced": lambda m: setattr(m, "arr", jnp.full(1, 7.0)),
    "metadata": lambda m: m.w.set_metadata(note=1),
    "static value": lambda m: setattr(m, "steps", 5),
    "merged": lambda m: plait.update(m, jax.tree.map(lambda x: x * 0, plait.state(m, plait.Param))),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_between_calls_is_seen(edit):
    """U33: never stale, on the fast path too."""

    def total(m, x):
        for variable in plait.variables(m, plait.Param).flat_state().leaves:
            variable.value = variable.value + x
        return sum(leaf.value.sum() for leaf in plait.state(m, plait.Param).flat_state().leaves) + m.arr.sum() + m.steps

    jitted, eager, compiled = model(), model(), plait.jit(total)
    for _ in range(3):
        for _ in range(2):
            assert compiled(jitted, 1.0) == total(eager, 1.0)
            assert describe(jitted) == describe(eager)
        for graph in (jitted, eager):
            EDITS[edit](graph) if edit != "removed attribute" or hasattr(graph, "inner") else None


# Identity -------------------------------------------------------------------------------------------------------------


def test_two_names_for_one_object_are_one_object_inside():
    """U16: across arguments, keyword arguments and containers, and the other way round."""
    m = model()

    @plait.jit
    def f(a, b, c, *, d):
        assert a is b is c["x"][0] is d.up
        a.w.value = a.w.value + 1
        c["x"].append(1)
        return b.w

    containers = {"x": [m]}
    assert f(m, m, containers, d=m.inner) is m.w
    assert m.w.value.tolist() == [2.0, 2.0]
    assert containers == {"x": [m]}  # U22: not mutated


def test_sharing_made_across_arguments_exists_outside():
    """U16, U17: an object made inside appears once, however many paths lead to it."""
    a, b = model(), model()

    @plait.jit
    def f(a, b):
        a.child = b.child = made = Node(w=a.w)
        return made

    made = f(a, b)
    assert a.child is b.child is made
    assert made.w is a.w


def test_what_is_not_written_is_not_touched():
    """U19: the same array object, also when the structure changed, or when it was written with what it held."""
    m = model()
    raw = m.w.get_raw_value()
    plait.jit(lambda m: setattr(m.count, "value", m.count.value + 1))(m)
    assert m.w.get_raw_value() is raw
    plait.jit(lambda m: setattr(m, "z", 1))(m)
    assert m.w.get_raw_value() is raw
    plait.jit(lambda m: setattr(m.w, "value", m.w.value))(m)
    assert m.w.get_raw_value() is raw


def test_changes_of_what_is_dropped_inside_are_lost():
    """U20."""
    m = model()
    inner = m.inner

    @plait.jit
    def f(m):
        m.inner.w.value = jnp.float32(99)
        m.inner.z = 1
        del m.inner

    f(m)
    assert (inner.w.value, hasattr(inner, "z"), hasattr(m, "inner")) == (3.0, False, False)


# How a function is called ---------------------------------------------------------------------------------------------


def weigh(*args, c=None):
    """Tells the places of its arguments apart."""
    total = jnp.float32(0)
    for place, arg in enumerate((*args, c)):
        for leaf in jax.tree.leaves(arg, is_leaf=lambda x: isinstance(x, Node)):
            total = total + 10**place * (leaf.w.value.sum() if isinstance(leaf, Node) else leaf)
    return total + sum(1000 * (arg is None) for arg in args)


def test_the_way_a_function_was_called_before_does_not_matter():
    """X10: order, number and kind of arguments belong to each call, whatever was passed before."""
    m, n = model(), model()
    n.w.value = jnp.full(2, 5.0)
    x, y = jnp.float32(1), jnp.float32(7)
    calls = [
        (m, x), (x, n), (x, m), (n, x), (m, n), (n, m), (m, x, y), (n, x), (m, None, [x, y]), (m, x, y), (m, [x], y),
        (n, None, [x, y]), (n, y, x), (m, n, x), (m, x, n), (m, m), (m,), ([m], x), (m, x), ((), m), (m, ()), (m, x),
    ]  # fmt: skip
    jitted = plait.jit(weigh)
    for args in calls * 2:
        assert jitted(*args) == weigh(*args), [type(arg).__name__ for arg in args]
    assert jitted(m, c=x) == weigh(m, c=x)
    assert jitted(m, x) == weigh(m, x)


PLAIN = {
    "numpy": lambda: np.float32([1.0, 2.0]),
    "python": lambda: 3,
    "bool": lambda: True,
    "key": lambda: jax.random.key(0),
    "dict": lambda: {"a": 1.0, "b": (2.0, None)},
    "numpy scalar": lambda: np.float32(2),
    "variable": lambda: plait.Param(jnp.ones(2)),
}


@pytest.mark.parametrize("case", PLAIN)
def test_arguments_that_are_no_modules_pass_as_in_jax(case):
    """X10, U22."""
    value = PLAIN[case]()
    out = plait.jit(lambda m, x: x)(model(), value)
    assert jax.tree.structure(out) == jax.tree.structure(value)
    for _ in range(2):
        assert describe(plait.jit(lambda x: x)(value)) == describe(jax.jit(lambda x: x)(value))


def test_static_arguments_are_part_of_the_key():
    """X10: by position or name; an unhashable one is named."""
    f = Traced(lambda m, power, *, add=0: m.w.value.sum() ** power + add)
    jitted = plait.jit(f, static_argnums=1, static_argnames="add")
    m = model()
    assert [float(jitted(m, 2)), float(jitted(m, 3)), float(jitted(m, 2, add=1)), float(jitted(m, 2))] == [4, 8, 5, 4]
    assert f.traces == 3
    with pytest.raises(ArgumentError, match=r"at +argument args\[1\]"):
        jitted(m, [2])


def test_methods_can_be_decorated_and_bound_methods_are_refused():
    """X10, update_context.md section 7."""

    class Counter(plait.Module):
        def __init__(self):
            self.n = plait.Variable(jnp.int32(0))

        @plait.jit
        def step(self, k):
            self.n += k

        def plain(self):
            return self.n

    counter = Counter()
    counter.step(2)
    counter.step(3)
    assert counter.n.value == 5
    with pytest.raises(ValueError, match=r"(?s)bound method.*plait\.jit\(Counter\.plain\)"):
        plait.jit(counter.plain)


# Traces ---------------------------------------------------------------------------------------------------------------


def test_equal_structures_share_one_trace():
    """U34: whichever objects they come from; a structure seen before is not traced again."""
    f = Traced(lambda m: setattr(m.w, "value", m.w.value + 1))
    jitted = plait.jit(f)
    m, other = model(), model()
    for graph in (m, other, plait.clone(m), copy.deepcopy(m), plait.merge(*plait.split(m)), m):
        jitted(graph)
    assert f.traces == 1
    m.z = plait.Param(jnp.ones(1))
    jitted(m)
    del m.z
    jitted(m)
    assert f.traces == 2


def test_a_static_change_is_traced_once_per_value():
    """U23: and the recorded outcome is applied again on a hit."""

    def step(m):
        m.steps = (m.steps + 1) % 3
        m.w.value = m.w.value + m.steps

    f = Traced(step)
    jitted, m = plait.jit(f), model()
    seen = [(jitted(m), m.steps, float(m.w.value[0]))[1:] for _ in range(7)]
    assert seen == [(1, 2.0), (2, 4.0), (0, 4.0), (1, 5.0), (2, 7.0), (0, 7.0), (1, 8.0)]
    assert f.traces == 3


def test_each_trace_has_its_own_outcome():
    """U12, U23: other shapes may write other variables, or change structure, for one structure of the arguments."""

    def step(m, x):
        if x.ndim == 0:
            m.w.value = m.w.value + x
        elif x.ndim == 1:
            m.inner.w.value = m.inner.w.value + x.sum()
        else:
            m.z = plait.Param(x)
        return x.ndim

    f = Traced(step)
    jitted = plait.jit(f)
    shapes = [jnp.float32(1), jnp.ones(1), jnp.ones((1, 1)), jnp.float32(1), jnp.ones(1), jnp.ones((1, 1))]
    for _ in range(2):
        m, eager = model(), model()
        for x in shapes:
            jitted(m, x), step(eager, x)
            assert describe(m) == describe(eager)
    assert f.traces <= 6  # three shapes, with and without z


def test_values_and_restamped_walks_do_not_trace_again():
    """U33: other models that change cost a new stamp, no new trace."""
    f = Traced(lambda m, x: m.w.value * x)
    jitted, m, other = plait.jit(f), model(), model()
    for i in range(5):
        m.w.value = jnp.full(2, float(i))
        other.w.set_metadata(note=i)
        assert jitted(m, 2.0).tolist() == [2.0 * i] * 2
    assert f.traces == 1


def test_nested_and_composed_jit():
    """U38: inside jax.jit, another plait.jit, and under vmap of pure functions."""
    add = plait.jit(lambda m, x: setattr(m.w, "value", m.w.value + x))

    @plait.jit
    def twice(m, x):
        add(m, x)
        add(m, x)

    m = model()
    twice(m, 1.0)
    assert m.w.value.tolist() == [3.0, 3.0]
    graphdef, state = plait.split(m)

    @jax.jit
    def pure(state, x):
        inner = plait.merge(graphdef, state)
        add(inner, x)
        return plait.state(inner, plait.Param)["w"]

    assert pure(state, 1.0).value.tolist() == [4.0, 4.0]
    assert m.w.value.tolist() == [3.0, 3.0]


# Soundness: errors ----------------------------------------------------------------------------------------------------


def spoil(m):
    m.w.value = m.w.value * 0
    m.count.value = jnp.int32(9)
    m.w.set_metadata(note=1)
    m.items.append(plait.Param(1.0))
    m.z = m.inner
    del m.inner


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_while_tracing_changes_nothing(error):
    """U21: objects, caches and contexts are as before, and the next call works."""

    def step(m, x):
        spoil(m)
        if x.ndim:
            raise error("stop")

    jitted, m = plait.jit(step), model()
    before, objects = describe(m), list(map(id, vars(m).values()))
    walk = find_walk((m,))
    for _ in range(2):
        with pytest.raises(error, match="stop"):
            jitted(m, jnp.ones(2))
        assert describe(m) == before
        assert list(map(id, vars(m).values())) == objects
        assert find_walk((m,)) is walk
    m.w.value = m.w.value + 1  # still ours to write: no trace is left open
    with pytest.raises(ValueError, match=r"no active|No active|demo"):
        plait.current_update_context("demo")
    jitted(m, jnp.float32(1))
    assert m.count.value == 9


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_while_running_changes_nothing(error):
    """U21: raised by a callback of the compiled function, on the first call and on the fast path."""
    armed = []

    def check(x):
        if armed:
            raise error("stop")
        return x

    @plait.jit
    def step(m, x):
        m.w.value = m.w.value + jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), x)

    m = model()
    x = jnp.float32(1)
    for warm in (False, True):
        armed.append(1)
        before = describe(m)
        with pytest.raises(BaseException, match="stop"):
            step(m, x)
            jax.block_until_ready(m.w.get_raw_value())
        if not warm:
            assert describe(m) == before
        armed.clear()
        m.w.value = jnp.ones(2)
        step(m, x)
        assert m.w.value.tolist() == [2.0, 2.0]


# Soundness: memory ----------------------------------------------------------------------------------------------------


class Unwalked:
    """Collection switched off, so that only reference counts free things."""

    def __enter__(self):
        gc.collect()
        gc.disable()

    def __exit__(self, *_):
        gc.enable()


def pair():
    net = Node(w=plait.Param(jnp.ones(17)), layers=[Leafy(w=plait.Param(jnp.ones(17)))])
    state = Node(
        moments=[plait.Variable(jnp.zeros(17)) for _ in range(2)], table={"step": plait.Variable(jnp.int32(0))}
    )
    return net, state


def train(net, state, x):
    net.w.value = net.w.value + x
    net.layers[0].w.value = net.layers[0].w.value * x
    state.moments[0].value = state.moments[0].value + x
    state.table["step"].value = state.table["step"].value + 1


def count_arrays():
    return sum(array.shape == (17,) for array in jax.live_arrays())


def test_dropping_a_model_frees_its_arrays_at_once():
    """U34: without the garbage collector, after general and fast calls."""
    step = plait.jit(lambda net, x: setattr(net.w, "value", net.w.value + x))
    with Unwalked():
        before = count_arrays()
        net, _ = pair()
        for _ in range(3):
            step(net, 1.0)
        alive = weakref.ref(net)
        assert count_arrays() > before
        del net
        assert alive() is None
        del _
        assert count_arrays() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["model first", "optimizer first"])
@pytest.mark.parametrize("arguments", [(0, 1), (1, 0)], ids=["(model, optimizer)", "(optimizer, model)"])
def test_dropping_a_pair_frees_each_at_once(order, arguments):
    """U34: in both orders, whichever comes first in the call."""
    step = plait.jit(lambda a, b, x: train(*(a, b) if hasattr(a, "w") else (b, a), x))
    with Unwalked():
        before = count_arrays()
        both = list(pair())
        for _ in range(3):
            step(*(both[i] for i in arguments), 1.0)
        for index in order:
            alive = weakref.ref(both[index])
            both[index] = None
            assert alive() is None
        assert count_arrays() == before


def test_a_dropped_function_lets_go_of_what_it_compiled():
    """U34: a model that is used by many short-lived jitted functions does not collect their entries."""
    m = model()
    for i in range(5):
        plait.jit(lambda m, i=i: m.w.value + i)(m)
        plait.jit(lambda m, x, i=i: m.w.value + i)(m, 1.0)
    gc.collect()
    (walk,) = m._pytree__walks.values()
    assert walk.runs == {}


# Soundness: threads ---------------------------------------------------------------------------------------------------


def in_threads(*jobs):
    errors = []

    def run(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_threads_with_models_of_their_own_do_not_disturb_each_other():
    """U37: one jitted function, structural changes in between."""

    def step(m, x):
        m.w.value = m.w.value + x
        m.count.value = m.count.value + 1

    jitted = plait.jit(step)
    models = [model() for _ in range(4)]

    def job(m):
        for i in range(150):
            jitted(m, 1.0)
            if i % 10 == 0:
                m.items.append(i)

    in_threads(*(lambda m=m: job(m) for m in models))
    for m in models:
        assert (int(m.count.value), m.w.value.tolist(), len(m.items)) == (150, [151.0, 151.0], 15)


def test_threads_with_one_model_give_some_interleaving():
    """U37: concurrent calls on one model are not synchronised.

    Each call reads all values, computes, and writes all. Two at once may both read the same values, so that steps can
    be lost, but never torn: every value is one that some call wrote.
    """
    jitted = plait.jit(lambda m, x: (setattr(m.w, "value", m.w.value + x), m.w.value.sum())[1])
    m = model()

    def job():
        for _ in range(100):
            jitted(m, 1.0)

    in_threads(job, job)
    first, second = m.w.value.tolist()
    assert first == second
    assert 1.0 < first <= 201.0  # a slow call may write back what it read before all those of the other


# Soundness: the checking mode -----------------------------------------------------------------------------------------

CHECKED = """
import jax.numpy as jnp, plait
class Net(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.ones(2))
net = Net()
f = plait.jit(lambda net, x: net.w.value * x)
f(net, 1.0), f(net, 1.0)
net.__dict__["w"] = plait.Param(jnp.zeros(2))
try:
    print("answer", f(net, 1.0))
except plait.errors.DispatchError as error:
    print("caught", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "said"),
    slow_but([("1", "caught a cached walk differs")], [("1", "caught a cached walk differs"), ("0", "answer [1. 1.]")]),
)
def test_the_checking_mode_catches_a_write_round_the_hooks(flag, said):
    """U33: such writes are outside the promise; PLAIT_CHECK_DISPATCH=1 finds them."""
    result = run_python("-c", CHECKED, env=environment(PLAIT_CHECK_DISPATCH=flag))
    assert said in result.stdout, result.stderr


# Size -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_deep_graph_can_be_jitted():
    """U33: 5,000 modules deep, called again, with a change inside."""
    node = Node(w=plait.Param(jnp.float32(1)))
    bottom = node
    for _ in range(4_999):
        node = Node(inner=node)
    assert sys.getrecursionlimit() <= 1_000

    def step(m):
        while hasattr(m, "inner"):
            m = m.inner
        m.w.value = m.w.value + 1
        m.z = 1

    jitted = plait.jit(step)
    jitted(node)
    jitted(node)
    assert (bottom.w.value, bottom.z) == (3.0, 1)
    assert plait.graphdef(node) == plait.graphdef(plait.clone(node))


def adds_up(first, *others, last=0, **named):
    return first + sum(others) + last + sum(named.values())


# Options of jit, arguments and keywords of a call, and which of the values are static: those that make it trace anew.
STATIC = {
    "by number": ({"static_argnums": 0}, [1, 2], {}, [True, False]),
    "from the end": ({"static_argnums": -1}, [1, 2], {}, [True, False]),
    "the first of the rest": ({"static_argnums": 1}, [1, 2, 3], {}, [False, True, False]),
    "the second of the rest": ({"static_argnums": (2,)}, [1, 2, 3], {}, [False, False, True]),
    "more than there are": ({"static_argnums": (1, 7)}, [1, 2], {}, [False, True]),
    "by name, given by position": ({"static_argnames": "first"}, [1, 2], {}, [True, False]),
    "by number, given by name": ({"static_argnums": 0}, [], {"first": 1, "last": 2}, [True, False]),
    "a keyword": ({"static_argnames": ("last",)}, [1], {"last": 2, "other": 3}, [False, True, False]),
    "another keyword": ({"static_argnames": ("other",)}, [1], {"last": 2, "other": 3}, [False, False, True]),
}


@pytest.mark.parametrize("case", STATIC)
def test_which_arguments_are_static(case):
    """U35: by position and by name alike, as far as the signature tells; the others are traced."""
    options, args, kwargs, expected = STATIC[case]
    traces = []

    def f(*args, **kwargs):
        traces.append(1)
        return adds_up(*args, **kwargs)

    jitted = plait.jit(functools.wraps(adds_up)(f), **options)
    values = [*args, *kwargs.values()]
    assert jitted(*args, **kwargs) == sum(values)
    found = []
    for place in range(len(values)):
        changed = [value + 10 * (i == place) for i, value in enumerate(values)]
        before = len(traces)
        total = jitted(*changed[: len(args)], **dict(zip(kwargs, changed[len(args) :], strict=True)))
        assert total == sum(changed)
        found.append(len(traces) > before)
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"donate": True}, {"in_shardings": None, "out_shardings": None}])
def test_a_first_call_gathers_its_arguments_once(options, monkeypatch):
    """U33."""
    gathered, trees = call_module.gather, []
    for module in (call_module, function_module):
        monkeypatch.setattr(module, "gather", lambda tree, f=None: trees.append(tree) or gathered(tree, f))
    plait.jit(lambda model, x: model.w[...] * x, **options)(plait.Dict(w=plait.Param(jnp.float32(2))), jnp.float32(3))
    assert len(trees) == 1
