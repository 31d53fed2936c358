"""What modules take and return, without a computation. (W7)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.explorer.calls import calls_of
from plait.explorer.costs import costs_of
from plait.explorer.outline import Call

NAME = "Bytes of outputs"
X = jax.ShapeDtypeStruct((4, 3), jnp.float32)


class Twice(plait.Module):
    def __init__(self):
        self.inner = plait.Linear(3, 3, rngs=plait.Rngs(0))
        self.norm = plait.BatchNorm(3, rngs=plait.Rngs(0))

    def __call__(self, x, scale=None, *, double=False):
        y = self.norm(self.inner(self.inner(x)))
        return (y * 2 if double else y), scale


def test_each_module_has_its_calls_and_equal_ones_are_counted():
    calls = calls_of(Twice(), (X,), {})
    array = "float32[4, 3]"
    assert calls["inner",] == [Call("__call__", (array,), (array,), times=2, output_bytes=48)]
    assert calls[()] == [Call("__call__", (array,), (array,), output_bytes=48)]


def test_modules_cost_the_bytes_of_what_they_return():
    costs = costs_of(Twice(), (X,), {}, calls_of(Twice(), (X,), {}))
    assert {path: names[NAME] for path, names in costs.items()} == {(): 48, ("inner",): 96, ("norm",): 48}


@pytest.mark.parametrize("options", [{}, {"scale": jnp.ones(2), "double": True}], ids=["usual", "doubled"])
def test_modules_cost_the_operations_of_plait_cost(options):
    """W7: a loop's body counts as often as it runs."""
    costs = costs_of(Twice(), (X,), options, {})
    assert costs["inner",]["FLOPs"] == 2 * (2 * 4 * 3 * 3 + 4 * 3)
    assert costs.get((), {}).get("FLOPs", 0) == (12 if options else 0)
    scanned = costs_of(Scanned(), (X,), {}, {})
    assert scanned["layers",]["FLOPs"] == pytest.approx(5 * (2 * 4 * 3 * 3 + 4 * 3), rel=0.05)  # and the counter


def test_keyword_arguments_may_be_arrays_and_settings():
    (call,) = calls_of(Twice(), (X,), {"scale": jnp.ones(2), "double": True})[()]
    assert call == Call("__call__", ("float32[4, 3]", "float32[2]"), ("float32[4, 3]", "float32[2]"), output_bytes=56)


def test_the_model_stays_as_it_is():
    model = Twice()
    before = jax.tree.map(jnp.copy, plait.state(model))
    calls_of(model, (jnp.ones((4, 3)),), {})
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, before, plait.state(model))))
    assert set(vars(model)) == set(vars(Twice()))


class Scanned(plait.Module):
    def __init__(self):
        @plait.split_rngs(splits=5)
        @plait.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return plait.Linear(3, 3, rngs=rngs)

        self.layers = make(plait.Rngs(0))

    def __call__(self, x):
        @plait.scan(in_axes=(plait.Carry, 0), out_axes=plait.Carry)
        def run(x, layer):
            return layer(x)

        return run(x, self.layers)


def test_layers_in_a_scan_have_the_shapes_of_all_iterations():
    (call,) = calls_of(Scanned(), (X,), {})["layers",]
    assert (call.inputs, call.outputs) == (("float32[5, 4, 3]",), ("float32[5, 4, 3]",))


@pytest.mark.parametrize("source", [plait.Dict(a=1), {"a": jnp.ones(2)}], ids=["module", "dict"])
def test_what_cannot_be_called_takes_no_inputs(source):
    with pytest.raises(TypeError, match=r"a model that can be called(.*\n)* +do +plait\.explore\(model\)"):
        calls_of(source, (X,), {})
