"""plait.compat: the functions that know modes, in graph mode with graph updates. (rule X29)"""

import inspect

import jax.numpy as jnp
import pytest

import plait
from plait import compat
from tests.strategies import Node

NAMES = (
    "jit grad value_and_grad custom_vjp vjp jvp remat vmap pmap scan while_loop fori_loop cond switch eval_shape "
    "checkify shard_map split state clone graphdef flatten iter_graph iter_modules iter_children recursive_map view "
    "view_info split_rngs fork_rngs reseed backup_keys cached_partial get_abstract_model"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_every_name_is_there_with_its_modes_fixed(name):
    """X29: whichever of the two modes the function takes is True."""
    function = getattr(compat, name)
    takes = {"graph", "graph_updates"} & set(inspect.signature(getattr(plait, name)).parameters)
    assert function.keywords == dict.fromkeys(takes, True)
    assert name in dir(compat)
    assert function.__doc__ == getattr(plait, name).__doc__


def test_it_is_the_public_module():
    from plait.compat import jit

    assert plait.compat is compat
    assert jit is compat.jit
    assert len(compat.NAMES) == len(set(NAMES.split()) & set(dir(plait)))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = compat.nothing


def shared():
    inner = Node(w=plait.Param(jnp.ones(2)))
    return Node(a=inner, b=inner)


def grow(model):
    model.extra = plait.Param(model.a.w[...] * 2)
    return model.extra[...].sum()


CALLS = {
    "jit": lambda m: compat.jit(grow)(m),
    "jit with options": lambda m: compat.jit(keep_unused=True)(grow)(m),
    "value_and_grad": lambda m: compat.value_and_grad(grow)(m),
    "remat": lambda m: compat.remat(grow)(m),
    "vmap": lambda m: compat.vmap(grow, in_axes=0, out_axes=0)(m),
    "cond": lambda m: compat.cond(True, grow, grow, m),
    "checkify": lambda m: compat.checkify(grow)(m),
    "cached_partial": lambda m: compat.cached_partial(compat.jit(grow), m)(),
}


@pytest.mark.parametrize("name", CALLS)
def test_shared_models_and_structural_changes_work_in_any_mode(name):
    """X29, U32: whatever the modes of the thread are."""
    model = shared()
    with plait.set_graph_mode(False), plait.set_graph_updates(False):
        CALLS[name](model)
    assert model.extra.shape == (2,)
    assert model.a is model.b


def test_functions_without_structure_take_shared_graphs():
    model = shared()
    with plait.set_graph_mode(False):
        graphdef, state = compat.split(model)
        assert plait.merge(graphdef, state).a is not None
        assert compat.clone(model).b.w is not model.a.w
        assert len(list(compat.iter_modules(model))) == 2
        assert compat.eval_shape(lambda m: m, model).a.w.shape == (2,)
