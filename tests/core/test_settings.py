"""Settings belong to a thread, and in it to a task. (S5, U37)"""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.settings import Restoring, set_default
from plait.core.states.live import _live, are_live


@dataclasses.dataclass(frozen=True)
class Setting:
    """A public setting: two ways to set it for a block, and what a program sees of it."""

    name: str
    one: Callable[[], Any]
    other: Callable[[], Any]
    seen: Callable[[], Any]


SETTINGS = [
    Setting(
        "set_graph_mode",
        lambda: plait.set_graph_mode(False),
        lambda: plait.set_graph_mode(True),
        plait.set_graph_mode.current_value,
    ),
    Setting(
        "set_graph_updates",
        lambda: plait.set_graph_updates(False),
        lambda: plait.set_graph_updates(True),
        plait.set_graph_updates.current_value,
    ),
    Setting(
        "use_eager_sharding",
        lambda: plait.use_eager_sharding(False),
        lambda: plait.use_eager_sharding(True),
        plait.using_eager_sharding,
    ),
    Setting(
        "var_defaults",
        lambda: plait.var_defaults(ref=True),
        lambda: plait.var_defaults(ref=False),
        lambda: plait.Param(1.0).ref,
    ),
    Setting(
        "logical_axis_rules",
        lambda: plait.logical_axis_rules([("embed", "model")]),
        lambda: plait.logical_axis_rules([("embed", "data")]),
        plait.spmd.get_logical_axis_rules,
    ),
    Setting(
        "compat.live_states",
        lambda: plait.compat.live_states(True),
        lambda: plait.compat.live_states(False),
        lambda: plait.state(model := plait.Dict(x=plait.Param(1.0)))["x"] is model.x,
    ),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)


def in_two_tasks(first, second):
    """Run two tasks, of which each goes on when the other waits."""

    async def both():
        return await asyncio.gather(first(), second())

    return asyncio.run(both())


@each_setting
def test_a_task_that_waits_in_a_block_leaves_others_their_own(setting):
    """The first leaves its block while the second is inside its own."""

    async def task(block):
        seen = [setting.seen()]
        with block():
            for _ in range(2):
                seen.append(setting.seen())
                await asyncio.sleep(0)
            seen.append(setting.seen())
        for _ in range(2):
            seen.append(setting.seen())
            await asyncio.sleep(0)
        return seen

    async def outside():
        seen = [setting.seen()]
        for _ in range(6):
            await asyncio.sleep(0)
            seen.append(setting.seen())
        return set(seen)

    async def late():
        await asyncio.sleep(0)
        return await task(setting.other)

    async def all_three():
        return await asyncio.gather(task(setting.one), late(), outside())

    usual = setting.seen()
    with setting.one():
        one = setting.seen()
    with setting.other():
        other = setting.seen()
    assert one != other
    expected = [[usual, *[value] * 3, usual, usual] for value in (one, other)]
    assert asyncio.run(all_three()) == [*expected, {usual}]
    assert setting.seen() == usual


@each_setting
def test_what_is_traced_in_a_task_has_its_settings(setting):
    """U29: a jitted function is traced once for each, and each task runs its own program."""
    traced, model = [], plait.Dict(x=plait.Param(jnp.ones(2)))

    @plait.jit
    def number_of_trace(model, x):
        traced.append(setting.seen())
        return x * len(traced)

    async def task(block, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        with block():
            numbers = []
            for _ in range(3):
                numbers += [int(number_of_trace(model, 1)) for _ in range(3)]
                await asyncio.sleep(0)
            return setting.seen(), numbers

    found = in_two_tasks(lambda: task(setting.one, 0), lambda: task(setting.other, 1))
    assert found == [(traced[0], [1] * 9), (traced[1], [2] * 9)]
    assert len(traced) == 2


def test_a_thread_of_a_task_has_its_settings():
    async def task():
        with plait.set_graph_mode(False):
            return await asyncio.to_thread(plait.jit(lambda x: x * int(plait.set_graph_mode.current_value())), 1)

    assert asyncio.run(task()) == 0
    assert plait.set_graph_mode.current_value()


def test_a_trace_of_jax_has_the_settings_that_jax_keeps_it_by():
    """A task cannot tell ``jax.jit`` its settings; what is kept for those of another must be the other's."""
    jitted = jax.jit(lambda x: x * int(plait.set_graph_mode.current_value()))
    seen = []

    async def first():
        with plait.set_graph_mode(False):
            await asyncio.sleep(0)
            seen.append(int(jitted(1)))

    async def second():
        jitted(1)

    in_two_tasks(first, second)
    with plait.set_graph_mode(False):
        seen.append(int(jitted(1)))
    assert (seen, int(jitted(1))) == ([0, 0], 1)


@each_setting
@pytest.mark.parametrize("transform", [plait.jit, jax.jit, jax.grad], ids=["plait.jit", "jax.jit", "jax.grad"])
def test_what_is_set_in_a_trace_stays_for_all_that_follows(setting, transform):
    """S5: for plait, and for what JAX traces next."""

    def leave_set(x):
        for block in (setting.other, setting.one):
            block()
            inside.append(setting.seen())
        return x

    def work():
        transform(leave_set)(1.0)
        after.append(setting.seen())
        jax.jit(lambda x: (after.append(setting.seen()), x)[1])(1.0)

    inside, after = [], []
    thread = threading.Thread(target=work)  # whose settings end with it
    thread.start()
    thread.join()
    assert inside[0] != inside[1]
    assert after == [inside[1], inside[1]]


def test_a_thread_or_task_that_has_left_its_blocks_follows_the_default():
    """X34: it has no settings of its own."""
    seen = []

    def work():
        with plait.compat.live_states(), plait.set_graph_mode(False):
            pass
        left.set()
        changed.wait()
        seen.append(are_live())

    left, changed = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    left.wait()
    set_default(_live, "on", True)
    changed.set()
    thread.join()
    set_default(_live, "on", False)
    assert seen == [True]


def test_retraces_are_explained_to_the_task_that_asked():
    traces = {}

    async def task(name):
        with plait.explain_retraces(lambda message: None) as found:
            await asyncio.sleep(0)
            jitted = plait.jit(lambda x: x)
            jitted(jnp.ones(len(name)))
            await asyncio.sleep(0)
        traces[name] = len(found.messages)

    in_two_tasks(lambda: task("a"), lambda: task("bc"))
    assert traces == {"a": 1, "bc": 1}


def test_an_update_context_is_that_of_its_task():
    """U3, U37."""

    async def task():
        with plait.update_context("x") as context:
            await asyncio.sleep(0)
            return plait.current_update_context("x") is context

    assert in_two_tasks(task, task) == [True, True]


def test_every_public_setting_has_a_row():
    names = [*plait._public.PUBLIC, "compat.live_states"]
    found = {name for name in names if is_setting(name)}
    assert found == {setting.name for setting in SETTINGS}


def is_setting(name):
    value = plait
    for part in name.split("."):
        value = getattr(value, part)
    of = getattr(value, "__annotations__", {}).get("return", "")
    return (isinstance(value, type) and issubclass(value, Restoring)) or of in ("Restoring", "_VariableDefaults")
