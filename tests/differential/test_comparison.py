"""What runs and compares programs: it sees what differs, and a program prints as one that runs."""

import types

import hypothesis
import jax
import jax.numpy as jnp
import pytest

import plait
from tests.differential.areas import AREAS
from tests.differential.comparison import compare
from tests.differential.interpreter import run
from tests.differential.known import explaining
from tests.differential.program import program
from tests.differential.test_programs import flax_nnx
from tests.sampling import slow_but

SEEN = program(
    "test",
    ("m = nnx.Linear(2, 3, rngs=nnx.Rngs(0))", "m"),
    ("f = nnx.jit(lambda m, x: traces.update(f=1) or m(x))\ny = f(m, jnp.ones((1, 2)))", "y"),
    "s = nnx.state(m, nnx.Param)",
)


def changed(**names):
    """plait with other things under some names."""
    library = types.ModuleType("changed")
    library.__dict__.update({name: getattr(plait, name) for name in dir(plait)}, **names)
    return library


def linear(change):
    def make(*args, **kwargs):
        layer = plait.Linear(*args, **kwargs)
        change(layer)
        return layer

    return make


def twice(f):
    def call(*args):
        f(*args)
        return plait.jit(f)(*args)

    return call


def state(*args):
    raise RuntimeError("another class")


CHANGES = {
    "value": {"Linear": linear(lambda layer: layer.kernel.set_value(layer.kernel.value + 1))},
    "bits": {"Linear": linear(lambda layer: layer.kernel.set_value(layer.kernel.value * (1 + 1e-6)))},
    "dtype": {"Linear": linear(lambda layer: layer.bias.set_value(layer.bias.value.astype(jnp.bfloat16)))},
    "shape": {"Linear": linear(lambda layer: layer.bias.set_value(jnp.zeros((1, 3))))},
    "weak": {"Linear": linear(lambda layer: layer.bias.set_value(jnp.asarray(0.0) + jnp.zeros(3)))},
    "sharding": {
        "Linear": linear(
            lambda layer: layer.bias.set_value(
                jax.device_put(layer.bias.value, jax.NamedSharding(jax.make_mesh((2,), ("a",)), jax.P()))
            )
        )
    },
    "text": {"Linear": linear(lambda layer: layer.kernel.set_metadata(tag="x"))},
    "there": {"Linear": linear(lambda layer: setattr(layer, "more", 1))},
    "traces": {"jit": twice},
    "error": {"state": state},
}


@pytest.mark.parametrize("kind", [kind for kind in CHANGES if kind != "weak"])
def test_each_kind_of_difference_is_seen(kind):
    differences = compare(SEEN, run(SEEN, plait), run(SEEN, changed(**CHANGES[kind])))
    assert differences
    assert {difference.kind for difference in differences} == {kind}
    assert explaining(differences, SEEN) is None


def test_a_library_agrees_with_itself():
    assert compare(SEEN, run(SEEN, plait), run(SEEN, plait)) == []


@pytest.mark.oracle
@pytest.mark.parametrize("area", slow_but(lambda area: area != "sharding", AREAS))
def test_a_program_prints_as_one_that_runs(area, users_promotion, capsys):
    flax = flax_nnx()

    @hypothesis.settings(max_examples=1, phases=[hypothesis.Phase.generate])
    @hypothesis.given(AREAS[area]())
    def check(drawn):
        if run(drawn, flax).failure is None:
            exec(compile(drawn.text(), "<printed>", "exec"), {"__name__": "printed"})
            assert "Counter" in capsys.readouterr().out

    check()
