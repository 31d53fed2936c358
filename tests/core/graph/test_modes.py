"""Tree mode and value-only updates (rules G57, U32, S5)."""

import threading

import jax
import jax.numpy as jnp
import pytest

import plait
from plait import Param
from plait.core.graph.modes import Crossing, graph_mode, graph_updates_mode
from plait.errors import ArgumentError, GraphError
from tests.environment import environment
from tests.forked import run_python
from tests.oracles import describe


def shared_model():
    weight = Param(jnp.ones(2))
    return plait.Dict(a=weight, inner=plait.Dict(b=weight))


FUNCTIONS = {
    "split": lambda m, **mode: plait.split(m, **mode),
    "state": lambda m, **mode: plait.state(m, **mode),
    "graphdef": lambda m, **mode: plait.graphdef(m, **mode),
    "variables": lambda m, **mode: plait.variables(m, **mode),
    "clone": lambda m, **mode: plait.clone(m, **mode),
    "flatten": lambda m, **mode: plait.flatten(m, **mode),
    "iter_graph": lambda m, **mode: list(plait.iter_graph(m, **mode)),
    "unpack": lambda m, **mode: plait.unpack(m, **mode),
    "iter_modules": lambda m, **mode: list(plait.iter_modules(m, **mode)),
    "iter_children": lambda m, **mode: list(plait.iter_children(m, **mode)),
    "iter_module_children": lambda m, **mode: list(plait.iter_module_children(m, **mode)),
    "map": lambda m, **mode: plait.map(lambda path, leaf: leaf, m, **mode),
    "recursive_map": lambda m, **mode: plait.recursive_map(lambda path, value: value, m, **mode),
    "view": lambda m, **mode: plait.view(m, **mode),
    "view_info": lambda m, **mode: plait.view_info(m, **mode),
    "with_attributes": lambda m, **mode: plait.with_attributes(m, **mode),
    "with_vars": lambda m, **mode: plait.with_vars(m, **mode, allow_duplicates=True),
    "as_abstract": lambda m, **mode: plait.as_abstract(m, **mode),
    "get_abstract_model": lambda m, **mode: plait.get_abstract_model(lambda: m, jax.make_mesh((1,), ("x",)), **mode),
    "jit": lambda m, **mode: plait.jit(lambda m, **mode: None, **mode)(m),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tree_mode_does_the_same_to_trees(name):
    """G57."""
    tree, other = (plait.Dict(a=Param(1.0), b=[Param(2.0)], c=plait.Dict(d=Param(3.0))) for _ in range(2))
    assert describe(FUNCTIONS[name](tree, graph=False)) == describe(FUNCTIONS[name](other))
    assert describe(tree) == describe(other)


def test_the_mode_of_the_thread_takes_effect_at_once_and_is_restored():
    """G57: as a call, a context manager and a decorator; the argument wins."""
    with plait.set_graph_mode(False):
        assert not graph_mode()
        assert graph_mode(True)
        with pytest.raises(GraphError, match="duplicate"):
            plait.split(shared_model())
        plait.split(shared_model(), graph=True)
    assert graph_mode()

    @plait.set_graph_mode(False)
    def inside():
        return graph_mode()

    assert not inside()
    assert graph_mode()
    plait.set_graph_mode(False)
    assert not graph_mode()
    plait.set_graph_mode(True)


def test_modes_belong_to_a_thread():
    """U37."""
    seen = []
    with plait.set_graph_mode(False):
        thread = threading.Thread(target=lambda: seen.append(graph_mode()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_modes_are_read_when_the_transform_is_called():
    """U32: not when it is made; so it is with the modes of the thread, and with one of them given."""
    jitted = plait.jit(lambda model: setattr(model, "new", 1))
    model = shared_model()
    with plait.set_graph_mode(False), pytest.raises(GraphError, match=r"model\.a and model\.inner\.b"):
        jitted(model)
    with plait.set_graph_updates(False):
        jitted(model)
        assert "new" not in model
    with plait.set_graph_mode(False):
        assert (Crossing().updates, Crossing(graph=True).updates) == (False, True)
    assert not Crossing(graph_updates=False).updates
    jitted(model)
    assert model.new == 1


def test_value_only_updates_carry_values_and_no_structure():
    """U32."""

    @plait.jit(graph_updates=False)
    def step(model):
        model.a[...] = model.a * 2
        model.new = Param(1.0)
        return Param(model.a.get_value())

    model = plait.Dict(a=Param(jnp.ones(2)))
    for turn in (2, 4):
        out = step(model)
        assert model.a[0] == turn
        assert out[0] == turn
        assert "new" not in model


def test_tree_mode_carries_values_only():
    """U32, G57."""

    def write(model):
        model.a[...] = model.a * 2
        model.new = 1

    for transform in (plait.jit, plait.remat):
        model = plait.Dict(a=Param(jnp.ones(2)))
        transform(write, graph=False)(model)
        assert model.a[0] == 2
        assert "new" not in model


def test_tree_mode_takes_no_filters():
    """X2, U32: as without structural updates."""
    axes = plait.StateAxes({...: None})
    with pytest.raises(ArgumentError, match="StateAxes"):
        plait.vmap(lambda model, x: x, in_axes=(axes, 0), graph=False)(plait.Dict(), jnp.ones(2))


def test_value_only_updates_take_shared_inputs():
    """U32: one variable, however many paths lead to it; a function sees it as one."""

    def write(model):
        model.a[...] = model.a * 2
        return model.inner.b.sum()

    for transform in (plait.jit, plait.remat):
        model = shared_model()
        run = transform(write, graph_updates=False)
        assert (run(model), run(model)) == (4, 8)
        assert model.a is model.inner.b
        assert model.a[0] == 4


def test_value_only_gradients_count_all_paths_of_a_shared_variable():
    """U32: the gradient has the sharing of its primal."""
    grads = plait.grad(lambda m: (m.a * 2 + m.inner.b).sum(), graph_updates=False)(shared_model())
    assert grads.a is grads.inner.b
    assert grads.a.value.tolist() == [3.0, 3.0]


def test_value_only_updates_refuse_returned_inputs():
    """U32."""
    with pytest.raises(ArgumentError, match="return an input variable"):
        plait.jit(lambda m: m.a, graph_updates=False)(plait.Dict(a=Param(1.0)))


RETURNING = {
    "jit": lambda f, m, **mode: plait.jit(f, **mode)(m),
    "jit in jit": lambda f, m, **mode: plait.jit(plait.jit(f, **mode), **mode)(m),
    "vmap": lambda f, m, **mode: plait.vmap(f, in_axes=None, axis_size=1, **mode)(m),
    "value_and_grad": lambda f, m, **mode: plait.value_and_grad(
        lambda x, m: (x.sum(), f(m)), has_aux=True, **mode
    )(jnp.ones(2), m)[0][1],
    "remat": lambda f, m, **mode: plait.remat(f, **mode)(m),
    "cond": lambda f, m, **mode: plait.cond(True, f, f, m, **mode),
    "jit_partial": lambda f, m, **mode: plait.jit_partial(f, m, **mode)(),
}  # fmt: skip


@pytest.mark.parametrize("mode", [{"graph_updates": False}, {"graph": False, "graph_updates": False}], ids=str)
@pytest.mark.parametrize("name", RETURNING)
def test_value_only_updates_return_a_copy_of_an_input_without_variables(name, mode):
    """U32: what the function did to it is in the copy only."""

    class Table(plait.Module):
        def __init__(self):
            self.rows, self.uses = jnp.arange(2.0), 0

    def use(model):
        model.table.rows, model.table.uses = model.table.rows + 1, model.table.uses + 1
        return plait.Dict(used=model.table)

    model = plait.Dict(table=Table())
    for _ in range(2):
        result = RETURNING[name](use, model, **mode)
        assert result.used is not model.table
        assert (result.used.rows.ravel().tolist(), result.used.uses) == ([1, 2], 1)
        assert (model.table.rows.tolist(), model.table.uses) == ([0, 1], 0)


def test_the_mode_for_updates_is_the_threads():
    """U32."""
    with plait.set_graph_updates(False):
        assert not graph_updates_mode()
        model = plait.Dict(a=Param(1.0))
        plait.jit(lambda m: m.update(b=Param(2.0)))(model)
    assert "b" not in model
    assert graph_updates_mode()


def test_a_mode_holds_for_functions_that_were_called_before():
    """U32: the fast path asks too."""
    step = plait.jit(lambda m: m.update(b=Param(jnp.ones(2))) if "b" not in m else None)
    shared, model = shared_model(), plait.Dict(a=Param(jnp.ones(2)))
    calls = plait.jit(lambda m: None)
    for _ in range(2):
        calls(shared)
        calls(model)
    with plait.set_graph_updates(False):
        calls(shared)
        step(model)
        assert "b" not in model
    with plait.set_graph_mode(False), pytest.raises(GraphError, match="duplicate"):
        calls(shared)


def test_the_environment_sets_the_defaults():
    """S5."""
    code = "from plait.core.graph.modes import Crossing, graph_mode, graph_updates_mode as u; print(graph_mode(), u())"
    done = run_python("-c", code, env=environment(PLAIT_GRAPH_MODE="0", PLAIT_GRAPH_UPDATES="false"), check=True)
    assert done.stdout.split() == ["False", "False"]
