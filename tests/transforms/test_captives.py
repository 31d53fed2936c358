"""Captured objects that a function returns: a copy, or an error. (rule U26)"""

import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError

OBJECTS = {
    "module": lambda: plait.List([plait.Param(jnp.ones(2))]),
    "state": lambda: plait.state(plait.List([plait.Param(jnp.ones(2))])),
    "variable": lambda: plait.Param(jnp.ones(2)),
}
COPYING = {
    "cond": lambda f: plait.cond(True, f, f),
    "switch": lambda f: plait.switch(0, [f, f]),
    "remat": lambda f: plait.remat(f)(),
    "grad": lambda f: plait.grad(lambda w: (w * 2, f()), has_aux=True)(1.0)[1],
    "value_and_grad": lambda f: plait.value_and_grad(lambda w: (w * 2, f()), has_aux=True)(1.0)[0][1],
    "checkify": lambda f: plait.checkify(f)()[1],
}
OTHERS = {
    "jit": lambda f: plait.jit(f)(),
    "vmap": lambda f: plait.vmap(lambda x: f())(jnp.ones(2)),
    "scan": lambda f: plait.scan(lambda c, x: (c, f()))(1.0, jnp.ones(2)),
    "values only": lambda f: plait.remat(f, graph_updates=False)(),
}


def variable_of(made):
    return made if isinstance(made, plait.Variable) else made[0]


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("run", COPYING)
def test_a_copy_comes_out_with_the_latest_values(run, kind):
    made = OBJECTS[kind]()

    def f():
        return made

    for value in (1.0, 5.0):
        variable_of(made)[...] = jnp.full(2, value)
        found = COPYING[run](f)
        assert type(found) is type(made)
        assert found is not made
        assert variable_of(found)[...].tolist() == [value, value]
    variable_of(found)[...] = jnp.zeros(2)
    assert variable_of(made)[...].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("run", OTHERS)
def test_it_is_an_error_where_the_values_would_be_those_of_a_program(run):
    made = OBJECTS["module"]()
    with pytest.raises(ArgumentError, match="cannot return an object that the function captured"):
        OTHERS[run](lambda: made)


def test_eval_shape_and_loops():
    made = OBJECTS["variable"]()
    assert plait.eval_shape(lambda: made).shape == (2,)
    assert plait.eval_shape(lambda: made, graph_updates=False).shape == (2,)
    assert plait.fori_loop(0, 2, lambda i, c: made, plait.Param(jnp.zeros(2)))[...].tolist() == [1.0, 1.0]
