"""Why a jitted function was traced again (ask 6)."""

import contextlib
import re
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait import Param
from plait.errors import ArgumentTypeError, RetraceError
from tests.environment import environment
from tests.forked import run_python


class Drop(plait.Module):
    def __init__(self):
        self.rate = 0.1


class Net(plait.Module):
    def __init__(self):
        self.layers = [Drop() for _ in range(4)]
        self.weight = Param(jnp.ones((2, 2)))


def make_step():
    @plait.jit(static_argnames="mode")
    def step(model, x, mode="a"):
        return x * model.weight.sum()

    return step


CASES = {
    "static value": (lambda m: setattr(m.layers[3], "rate", 0.2), (3,), {}, "model.layers[3].rate: 0.1 -> 0.2"),
    "shape of an argument": (lambda m: None, (5,), {}, "arg x: float32[3] -> float32[5]"),
    "new variable": (lambda m: setattr(m, "key", Param(1.0)), (3,), {}, "new variable model.key"),
    "shape of a variable": (
        lambda m: m.weight.set_value(jnp.ones((3, 3))), (3,), {}, "model.weight: float32[2,2] -> float32[3,3]",
    ),
    "weak type": (
        lambda m: m.weight.set_value(jnp.broadcast_to(jnp.asarray(1.0), (2, 2))), (3,), {},
        "model.weight: float32[2,2] -> float32[2,2] of weak type",
    ),
    "static argument": (lambda m: None, (3,), {"mode": "b"}, "arg mode: static 'a' -> static 'b'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_new_trace_is_explained_by_path(case):
    change, shape, extra, line = CASES[case]
    step, model, messages = make_step(), Net(), []
    step(model, jnp.ones(3), mode="a")
    change(model)
    with plait.explain_retraces(messages.append):
        step(model, jnp.ones(shape), **{"mode": "a", **extra})
    assert messages == [f"step: traced again\n  {line}"]


def test_the_nearest_earlier_trace_is_compared():
    step, model, messages = make_step(), Net(), []
    step(model, jnp.ones(3))
    model.layers[0].rate = 0.5
    step(model, jnp.ones(4))
    with plait.explain_retraces(messages.append):
        step(model, jnp.ones(5))
    assert messages == ["step: traced again\n  arg x: float32[4] -> float32[5]"]


def test_equal_structure_is_not_traced_again():
    """U34, ask 6: new models of equal structure, here with a fresh closure each, share one compiled function."""

    def make():
        net = Net()
        net.activation = lambda x: x + 1
        return net

    step, messages = make_step(), []
    step(make(), jnp.ones(3))
    with plait.explain_retraces(messages.append):
        for _ in range(10):
            step(make(), jnp.ones(3))
    assert messages == []


def test_max_traces_guards():
    step, model = make_step(), Net()
    with (
        pytest.raises(RetraceError, match=r"float32\[1\] -> float32\[2\]"),
        plait.explain_retraces(lambda message: None, max_traces=1),
    ):
        step(model, jnp.ones(1))
        step(model, jnp.ones(2))


def test_it_is_a_decorator_too():
    messages = []

    @plait.explain_retraces(messages.append)
    def main():
        make_step()(Net(), jnp.ones(3))

    main()
    assert messages == ["step: traced for the first time"]


def test_a_decorator_without_parentheses_is_told_when_it_is_called():
    """Its function would be the report, and never run."""

    @plait.explain_retraces
    def main(x):
        raise AssertionError("not reached")

    with pytest.raises(ArgumentTypeError, match=r"@plait\.explain_retraces\(\)"):
        main(3)
    with pytest.raises(ArgumentTypeError, match="report=print"):
        plait.explain_retraces(42)


@pytest.mark.slow
def test_the_environment_switches_it_on():
    code = "import plait, jax.numpy as jnp; plait.jit(lambda x: x)(jnp.ones(2))"
    done = run_python("-c", code, env=environment(PLAIT_EXPLAIN_RETRACES="1"), check=True)
    assert "traced for the first time" in done.stderr


def traced_again(change, *calls):
    """The message of the second trace."""
    f = plait.jit(lambda x: x * 2)
    messages = []
    with plait.explain_retraces(messages.append):
        f(calls[0])
        with change():
            f(calls[-1])
    assert len(messages) == 2
    return messages[1].splitlines()[1:]


def test_a_weak_type_is_named():
    found = traced_again(contextlib.nullcontext, jnp.float32(1), jnp.asarray(1.0))
    assert found == ["  arg x: float32[] -> float32[] of weak type"]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (1, 1.0, "arg x: int32[] of weak type -> float32[] of weak type"),
        (1.0, jnp.float32(1), "arg x: float32[] of weak type -> float32[]"),
        ([1.0], [jnp.float32(1)], "arg x[0]: float32[] of weak type -> float32[]"),
    ],
)
def test_a_number_of_python_has_a_weak_type(before, after, line):
    f, messages = plait.jit(lambda x: jax.tree.map(lambda leaf: leaf * 2, x)), []
    f(before)
    with plait.explain_retraces(messages.append):
        f(after)
    assert messages == [f"<lambda>: traced again\n  {line}"]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ([1.0], (1.0,), r"arg x: \[\*\] -> \(\*,\)"),
        ({"a": (1.0,)}, {"a": [1.0]}, r"arg x: \{'a': \(\*,\)\} -> \{'a': \[\*\]\}"),
    ],
)
def test_another_container_of_the_same_values_is_named(before, after, line):
    f, messages = plait.jit(lambda x: jax.tree.leaves(x)[0]), []
    f(before)
    with plait.explain_retraces(messages.append):
        f(after)
    assert re.fullmatch(rf"<lambda>: traced again\n  {line}", messages[0])


def test_a_function_whose_cache_was_cleared_knows_no_earlier_trace():
    step, messages = make_step(), []
    step(Net(), jnp.ones(3))
    step.clear_cache()
    with plait.explain_retraces(messages.append):
        step(Net(), jnp.ones(3))
        step(Net(), jnp.ones(4))
    assert messages == ["step: traced for the first time", "step: traced again\n  arg x: float32[3] -> float32[4]"]


SETTINGS = {
    "a setting of plait": (lambda: plait.logical_axis_rules([("a", None)]), r"logical axis rules: .* -> .*'a'"),
    "a setting": (lambda: jax.default_matmul_precision("float32"), "jax_default_matmul_precision: None -> 'float32'"),
    "another": (lambda: jax.numpy_dtype_promotion("standard"), "jax_numpy_dtype_promotion: 'strict' -> 'standard'"),
    "a mesh": (
        lambda: jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))),
        "the current mesh: None -> .*'x': 8",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_jax_is_named(name):
    change, line = SETTINGS[name]
    (found,) = traced_again(change, jnp.ones(3))
    assert re.search(line, found)


@pytest.mark.slow  # what this process has compiled for other tests goes too
def test_a_cleared_cache_is_told_from_a_setting():
    f, messages = plait.jit(lambda x: x * 2), []
    with plait.explain_retraces(messages.append):
        f(jnp.ones(3))
        jax.clear_caches()
        f(jnp.ones(3))
    assert re.search(r"nothing in the arguments or in the settings of JAX and plait.*jax\.clear_caches", messages[1])


def in_a_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_thread_hears_only_its_own_traces():
    """Like JAX's settings, a listener belongs to the thread that set it."""
    step = plait.jit(lambda x: x * 2)
    inner = []

    def other():
        with plait.explain_retraces(report=inner.append):
            step(jnp.ones(5))

    with plait.explain_retraces(report=lambda message: None, max_traces=1) as explanations:
        in_a_thread(lambda: step(jnp.ones(3)))
        assert explanations.messages == []
        step(jnp.ones(4))
        in_a_thread(other)
    assert [len(explanations.messages), len(inner)] == [1, 1]


@pytest.mark.slow
def test_the_setting_of_the_environment_holds_for_all_threads():
    code = (
        "import threading, jax.numpy as jnp, plait\n"
        "step = plait.jit(lambda x: x * 2)\n"
        "thread = threading.Thread(target=lambda: step(jnp.ones(3))); thread.start(); thread.join()"
    )
    done = run_python("-c", code, env=environment(PLAIT_EXPLAIN_RETRACES="1"), check=True)
    assert "traced for the first time" in done.stderr


def test_a_compilation_without_a_trace_is_told():
    """JAX compiles for the shardings of the arguments, and traces for their mesh."""
    step, model, messages = make_step(), Net(), []
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole, divided = (jax.device_put(jnp.ones(8), NamedSharding(mesh, spec)) for spec in (P(), P("data")))
    with plait.explain_retraces(messages.append):
        for x in (jnp.ones(8), jnp.ones(8), whole, whole, divided, divided):
            step(model, x)
    assert messages == [
        "step: traced for the first time",
        "step: traced again\n  arg x: float32[8] -> float32[8] on the mesh {'data': 8}",
        "step: compiled again without a new trace, for other shardings or devices of its arguments",
    ]
