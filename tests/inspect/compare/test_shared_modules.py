"""``compare`` and ``explore`` where a transform maps over examples that share a module. (rules D1, D2)"""

import jax.numpy as jnp
import pytest

import plait
from plait.inspect.explore.calls import calls_of


class Mapped(plait.Module):
    """A layer of its own, and one that a transform calls for each example."""

    def __init__(self, apply):
        rngs = plait.Rngs(0)
        self.apply = apply
        self.shared = plait.Sequential(plait.Linear(3, 3, rngs=rngs), plait.relu)
        self.own = plait.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.own(self.apply(self.shared, x))


def in_remat(layer, x):
    return plait.remat(lambda layer, x: layer(x))(layer, x)


def scanned(layer, x):
    return plait.scan(lambda _, layer, x: (0.0, layer(x)), in_axes=(plait.Carry, None, 0))(0.0, layer, x)[1]


SHARING = {
    "vmap": lambda layer, x: plait.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(layer, x),
    "vmap of remat": lambda layer, x: plait.vmap(in_remat, in_axes=(None, 0))(layer, x),
    "vmap of vmap": lambda layer, x: plait.vmap(SHARING["vmap"], in_axes=(None, 0))(layer, x[:, None])[:, 0],
    "scan": scanned,
}


@pytest.mark.parametrize("name", SHARING)
def test_they_say_what_the_transform_keeps_and_see_the_rest(name):
    model, x = Mapped(SHARING[name]), jnp.arange(12.0).reshape(4, 3)
    report = plait.compare(model, Mapped(SHARING[name]), x)
    assert report.agrees
    transform = name.split()[0]
    assert f"shared (in {transform})" in str(report)
    assert "own (in" not in str(report)
    calls = calls_of(model, (x,), {})
    assert {call.inside for call in calls["shared",]} == {transform}
    assert {call.inside for call in calls["own",]} == {""}
    assert not any("_pytree__sown" in node.__dict__ for _, node in plait.iter_modules(model))


def test_a_module_that_has_an_axis_is_seen():
    def stacked(layer, x):
        return plait.vmap(lambda layer, x: layer(x), in_axes=(plait.StateAxes({plait.Param: None, ...: 0}), 0))(
            layer, x
        )

    calls = calls_of(Mapped(stacked), (jnp.ones((4, 3)),), {})
    assert {call.inside for call in calls["shared",]} == {""}
