"""Functions by name: what pickle cannot find by itself (ask 22)."""

import pickle

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.util.named import NamedFunction, find_named, from_named, name_of, to_named
from tests.forked import run_python

FUNCTIONS = [
    jax.nn.relu,
    jax.nn.silu,
    jnp.tanh,
    jax.nn.identity,
    jax.nn.gelu,
    jax.lax.dot_general,
    jnp.bfloat16,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_name_leads_back_to_the_function(function):
    assert find_named(name_of(function)) is function


@pytest.mark.parametrize(
    ("module", "name"),
    [(jax.nn, "gelu"), (jnp, "cumsum"), (jax.lax, "cumsum"), (jax.nn.initializers, "zeros"), (jax.random, "normal")],
)
def test_functions_of_jax_are_named_as_users_import_them(module, name):
    """Where JAX defines them is private, and may be another place in its next version."""
    assert name_of(getattr(module, name)) == f"{module.__name__}:{name}"


def test_functions_without_a_name_have_none():
    assert name_of(lambda x: x) is None
    assert name_of(3) is None
    assert find_named("no.such:thing") is None
    assert find_named("nothing") is None


def test_containers_are_kept_where_nothing_changes():
    plain = [1, (2, {"a": 3})]
    assert to_named(plain) is plain
    assert from_named(plain) is plain
    mixed = {"f": [jax.nn.relu, 1]}
    assert type(to_named(mixed)["f"][0]) is NamedFunction
    assert from_named(to_named(mixed)) == mixed


def test_a_name_that_is_gone_is_an_error():
    with pytest.raises(AttributeError, match=r"jax\.nn:no_such_function"):
        from_named(NamedFunction("jax.nn:no_such_function"))


@pytest.mark.slow
def test_a_module_with_activations_is_pickled_into_another_process(tmp_path):
    """Ask 22: with the standard pickle, in a fresh process."""
    model = plait.Sequential(
        plait.Linear(2, 3, rngs=plait.Rngs(0)), jax.nn.relu, plait.BatchNorm(3, rngs=plait.Rngs(0))
    )
    model.activations = {"tanh": jnp.tanh}
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(model))
    code = (
        "import pickle, sys, jax, jax.numpy as jnp; model = pickle.load(open(sys.argv[1], 'rb'));"
        "assert model.layers[1] is jax.nn.relu and model.activations['tanh'] is jnp.tanh;"
        "print(float(model(jnp.ones((2, 2))).sum()))"
    )
    done = run_python("-c", code, str(path), check=True)
    assert float(done.stdout) == pytest.approx(float(model(jnp.ones((2, 2))).sum()), abs=1e-6)
