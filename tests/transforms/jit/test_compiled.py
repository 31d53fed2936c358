"""Donation: written variables give their buffers away, and only those."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import pytest

import plait
from plait import BatchStat, Param
from plait.transforms.jit.compiled import Compiled


class Net(plait.Module):
    def __init__(self):
        self.written = Param(jnp.ones(4))
        self.read = Param(jnp.ones(4))
        self.count = BatchStat(jnp.zeros(4))


def step(model, x):
    model.written[...] = model.written * 2
    model.count[...] = model.count + model.read
    return x + 1


CASES = {
    "donate=True": ({"donate": True}, {"written", "count"}),
    "donate by filter": ({"donate": Param}, {"written"}),
    "donate_argnums": ({"donate_argnums": 0}, {"written", "count"}),
    "donate_argnames": ({"donate_argnames": "model"}, {"written", "count"}),
    "another argument": ({"donate_argnums": 1}, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_only_written_variables_are_donated(case):
    options, donated = CASES[case]
    model, jitted = Net(), plait.jit(step, **options)
    for turn in range(3):  # the general path, then the fast path
        before = {name: getattr(model, name).get_raw_value() for name in ("written", "read", "count")}
        jitted(model, jnp.ones(2))
        assert {name for name, value in before.items() if value.is_deleted()} == donated
        assert model.written[0] == 2 ** (turn + 1)
        assert model.count[0] == turn + 1
        assert model.read[0] == 1


def test_plain_arguments_are_donated_too():
    x = jnp.ones(2)
    plait.jit(step, donate_argnums=1)(Net(), x)
    assert x.is_deleted()


class Everything(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.ones(2))
        self.count = plait.Variable(jnp.zeros((), jnp.int32))


def everything(model, x, scale):
    loss, grads = plait.value_and_grad(lambda model, x: (model.w * x.sum()).sum())(model, x)
    model.w[...] = model.w - scale * grads.w
    model.count[...] = 1
    return loss, 2.0, grads, model


@pytest.mark.parametrize("options", [{"donate": True}, {"donate_argnums": (0,)}, {"donate_argnames": "model"}], ids=str)
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: [model]], ids=["argument", "in a list"])
def test_a_donating_function_runs_once_for_each_trace(options, wrap):
    """Its results, dtypes and weak types are those without donation."""
    traces = []

    def step(model, x, scale):
        traces.append(1)
        return everything(model[0] if isinstance(model, list) else model, x, scale)[:3]

    donating, plain = plait.jit(step, **options), plait.jit(step)
    ours, theirs = Everything(), Everything()
    for shape in ((2,), (2,), (4,)):
        found, expected = (f(wrap(m), jnp.ones(shape), 0.5) for f, m in ((donating, ours), (plain, theirs)))
        for mine, other in zip(jax.tree.leaves((found, ours)), jax.tree.leaves((expected, theirs)), strict=True):
            assert jax.typeof(mine) == jax.typeof(other)
            assert jnp.array_equal(mine, other)
    assert len(traces) == 4  # two shapes, each with and without donation


def test_a_failed_call_leaves_no_trace_for_another_one():
    """The trace before the call was inside of another trace, or with other settings; the next one is traced again."""
    rate = [2.0]
    step = plait.jit(lambda model, x: model.w.set_value(model.w * rate[0] * x), donate=True)

    def call(x):
        step(Everything(), x)
        return x

    jax.jit(call)(jnp.ones(2))
    model = Everything()
    step(model, jnp.full(2, 3.0))
    assert model.w[0] == 6


@pytest.mark.parametrize("nothing", [{"donate_argnums": ()}, {"donate_argnames": []}, {"donate": False}], ids=str)
def test_to_donate_nothing_takes_no_second_trace(nothing):
    traces = []
    jitted = plait.jit(lambda model, x: traces.append(1), **nothing)
    jitted(Net(), jnp.ones(2))
    assert len(traces) == 1


def test_a_trace_that_writes_less_still_returns_what_was_donated():
    @plait.jit(donate=True)
    def sometimes(model, x):
        if x.ndim == 1:
            model.written[...] = model.written * 2
        return x

    model = Net()
    sometimes(model, jnp.ones(1))
    for _ in range(2):
        sometimes(model, jnp.ones((1, 1)))
    assert model.written[0] == 2


TRACES = {
    "grad": lambda f: plait.grad(f)(jnp.float32(1)),
    "vmap": lambda f: plait.vmap(f)(jnp.ones(2)),
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_keeps_its_buffers(trace):
    """G64: the write would be refused after the call, so the call does not run; also once it has its fast path."""
    model = Net()
    jitted = plait.jit(step, donate=True)
    for _ in range(3):
        with pytest.raises(plait.errors.TraceContextError, match=r"at +model\.\w+ \(a (?s:.)*expected +the top level"):
            TRACES[trace](lambda x: (jitted(model, jnp.ones(2)), x)[1])
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(plait.state(model)))
        jitted(model, jnp.ones(2))


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_an_attribute_of_a_captured_model_keeps_its_buffer():
    model = Net()
    model.seen = jnp.ones(2)

    def see(model):
        model.seen = model.seen + 1

    jitted = plait.jit(see, donate_argnums=0)
    with pytest.raises(plait.errors.TraceContextError, match="cannot set the attribute 'seen' of a Net"):
        plait.grad(lambda x: (jitted(model), x)[1])(jnp.float32(1))
    assert not model.seen.is_deleted()


def test_a_call_that_changes_structure_donates_nothing():
    @plait.jit(donate=True)
    def grow(model):
        model.extra = Param(model.written * 2)

    model = Net()
    before = model.written.get_raw_value()
    grow(model)
    assert not before.is_deleted()
    assert model.extra[0] == 2


class FirstSeenByBoth:
    """``Compiled.first_outcome``, for two threads of which each looks whether it is set before the other sets it."""

    def __init__(self):
        self.slot, self.both, self.looked = Compiled.__dict__["first_outcome"], threading.Barrier(2), threading.local()

    def __get__(self, compiled, owner):
        found = self.slot.__get__(compiled, owner)
        if not getattr(self.looked, "once", False):
            self.looked.once = True
            with contextlib.suppress(threading.BrokenBarrierError):
                self.both.wait(timeout=1)
        return found

    def __set__(self, compiled, value):
        self.slot.__set__(compiled, value)


@pytest.mark.slow
def test_the_outcomes_of_two_threads_that_trace_at_once_are_told_apart(monkeypatch):
    """U34: one wrote the first variable and the other the second; each is decoded as what it is."""

    def f(model, x):
        written = model.a if x.ndim == 0 else model.b
        written[...] += x.sum()

    jitted, models = plait.jit(f), [plait.Dict(a=Param(jnp.float32(0)), b=Param(jnp.float32(10))) for _ in range(2)]
    monkeypatch.setattr(Compiled, "first_outcome", FirstSeenByBoth())
    calls = zip(models, (jnp.float32(1), jnp.ones(1)), strict=True)
    threads = [threading.Thread(target=jitted, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(float(model.a[...]), float(model.b[...])) for model in models] == [(1, 10), (0, 11)]


@pytest.mark.parametrize("options", [{}, {"donate": True}], ids=str)
def test_ctrl_c_while_a_step_is_traced_leaves_the_model_usable(options):
    interrupts = [KeyboardInterrupt()]

    def interrupted(model, x):
        model.w[...] = model.w * x
        while interrupts:
            raise interrupts.pop()

    model, step = Everything(), plait.jit(interrupted, **options)
    with pytest.raises(KeyboardInterrupt):
        step(model, 3.0)
    assert model.w[0] == 1
    step(model, 3.0)
    assert model.w[0] == 3


@pytest.mark.parametrize("options", [{}, {"donate": True}], ids=str)
@pytest.mark.parametrize("phase", ["jaxpr_to_mlir_module_duration", "backend_compile_duration"])
def test_ctrl_c_while_a_step_is_compiled_leaves_the_model_usable(phase, options):
    """The events of JAX come when it has lowered, and when XLA has compiled, but nothing has run."""
    model, interrupts = Everything(), []

    def double(model, x):
        model.w[...] = model.w * x

    def interrupt(event, *_, fun_name="", **__):
        if event.endswith(phase) and "double" in fun_name:
            interrupts.append(event)
            raise KeyboardInterrupt

    step = plait.jit(double, **options)
    jax.monitoring.register_event_duration_secs_listener(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            step(model, 3.0)
    finally:
        jax.monitoring.unregister_event_duration_listener(interrupt)
    assert len(interrupts) == 1
    assert model.w[0] == 1
    step(model, 3.0)
    assert model.w[0] == 3
