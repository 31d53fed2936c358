"""What is written into a state that was split from a model, and lost."""

import gc
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import LostUpdateWarning


def model():
    return plait.Linear(2, 3, rngs=plait.Rngs(0))


def heard(program):
    """The warnings of a program, with those of what dies at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
        gc.collect()
    return [(each.category, each.filename, str(each.message)) for each in caught]


def write(state, times=1):
    for _ in range(times):
        state["bias"][...] = jnp.ones(3)


LOST = {
    "split": lambda m: write(plait.split(m)[1]),
    "state": lambda m: write(plait.state(m)),
    "filtered": lambda m: write(plait.state(m, plait.Param)),
    "twice": lambda m: write(plait.state(m), times=2),
    "after reading": lambda m: plait.state(m)["bias"].set_value(m.bias.value + 1),
    "update of it": lambda m: plait.update(plait.state(m), {"bias": jnp.ones(3)}),
    "update of a part, by a state": lambda m: plait.update(
        {"m": plait.state(m)}, {"m": {"bias": plait.Param(jnp.ones(3))}}
    ),
    "a single variable": lambda m: plait.split(m.bias)[1].set_value(jnp.ones(3)),
}


@pytest.mark.parametrize("case", LOST)
def test_a_write_that_nobody_reads_is_told_with_its_place(case):
    """G31."""
    m = model()
    (told,) = heard(lambda: LOST[case](m))
    assert told[:2] == (LostUpdateWarning, __file__)
    assert "a Param of a state is lost" in told[2]
    assert "plait.update(model, state)" in told[2]


def test_a_write_in_a_transform_of_jax_is_told_with_its_path_and_place():
    def step(model):
        write(model["layers"][1].__dict__)

    (told,) = heard(lambda: jax.jit(step)(plait.Dict(layers=plait.List([model(), model()]))))
    assert told[:2] == (LostUpdateWarning, __file__)
    assert "layers[1].bias, a Param of shape (3,)" in told[2]


def written(m):
    graphdef, state = plait.split(m)
    write(state)
    return graphdef, state


KEPT = {
    "update": lambda m: plait.update(m, written(m)[1]),
    "merge": lambda m: plait.merge(*written(m)),
    "merge without copies": lambda m: plait.merge(*written(m), copy=False)(jnp.ones((1, 2))),
    "jax.tree": lambda m: jax.tree.leaves(written(m)[1]),
    "read": lambda m: written(m)[1]["bias"][...],
    "pure": lambda m: plait.to_pure_dict(written(m)[1]),
    "the live variables": lambda m: write(plait.variables(m)),
    "a clone": lambda m: write(vars(plait.clone(m))),
    "a mapped state": lambda m: write(jax.tree.map(lambda x: x, plait.state(m))),
    "only assigned": lambda m: plait.state(m).update(bias=plait.Param(jnp.ones(3))),
    "untouched": lambda m: plait.split(m),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_read_is_not_lost(case):
    """G31."""
    assert heard(lambda: KEPT[case](model())) == []


def test_each_place_is_told_once():
    """G31: under Python's own filter."""
    m = model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            write(plait.state(m))
    assert len(caught) == 1


SCRIPT = """
import jax.numpy as jnp, plait
state = plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)))
state["bias"][...] = jnp.ones(3)
"""


@pytest.mark.slow
def test_a_state_that_lives_as_long_as_the_program(tmp_path):
    """It is asked for before the interpreter takes its modules apart."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert f"{script}:4: LostUpdateWarning: a value written into a Param of a state is lost" in done.stderr
    assert "Exception" not in done.stderr
