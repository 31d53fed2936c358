"""Whatever takes a graph says so when it is given something else, under its own name."""

import jax.numpy as jnp
import optax
import pytest

import plait
from plait.errors import GraphTypeError


def ema():
    return plait.EMA(plait.Dict(w=plait.Param(jnp.ones(2))), decay=0.9)


# What the error calls the operation, and a call of it.
OPERATIONS = {
    "state": lambda x, path: plait.state(x),
    "variables": lambda x, path: plait.variables(x),
    "pop": lambda x, path: plait.pop(x, plait.Intermediate),
    "with_rngs": lambda x, path: plait.with_rngs(x, split=2),
    "split_rngs": lambda x, path: plait.split_rngs(x, splits=2),
    "fork_rngs": lambda x, path: plait.fork_rngs(x, split=2),
    "backup_keys": lambda x, path: plait.backup_keys(x),
    "reseed": lambda x, path: plait.reseed(x, params=0),
    "Optimizer": lambda x, path: plait.Optimizer(x, optax.sgd(1.0), wrt=plait.Param),
    "EMA": lambda x, path: plait.EMA(x, decay=0.9),
    "apply_to": lambda x, path: ema().apply_to(x),
    "a checkpoint": lambda x, path: plait.checkpoint.save(path / "1", x),
}


@pytest.mark.parametrize("root", [3, "model", object()], ids=["a number", "a text", "an object"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_no_graph_is_refused_by_name(name, root, tmp_path):
    with pytest.raises(GraphTypeError, match=rf"^{name} takes a module, a variable or a container of them\n  found +"):
        OPERATIONS[name](root, tmp_path)
    assert list(tmp_path.iterdir()) == []
