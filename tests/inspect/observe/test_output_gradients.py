"""Outputs of modules and the gradients at them, by path, on models that were not written for it. (ask 23; rule D3)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait as nnx
from plait.errors import ShapeError
from tests.sampling import slow_but

X = jnp.asarray([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]])


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.norm = nnx.Linear(3, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.norm(self.linear(x)))


class Looped(nnx.Module):
    def __init__(self, rngs):
        self.layers = [Block(rngs) for _ in range(3)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Scanned(nnx.Module):
    """The same blocks, stacked."""

    def __init__(self, looped):
        graphdefs, states = zip(*map(nnx.split, looped.layers), strict=True)
        self.layers = nnx.merge(graphdefs[0], jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))

    def __call__(self, x):
        run = nnx.scan(lambda layer, x: layer(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        return run(self.layers, x)


def loss(model, x):
    return (model(x) ** 2).sum()


def outputs_of(model, pattern):
    return nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate, only=pattern)


def expected_outputs():
    """What the linear layers return, found by calling the parts by hand."""
    model, x, seen = Looped(nnx.Rngs(0)), X, []
    for layer in model.layers:
        h = layer.linear(x)
        seen.append(h)
        x = x + jnp.tanh(layer.norm(h))
    return seen


@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_by_path_pattern(compiled):
    model = Looped(nnx.Rngs(0))
    look = outputs_of(model, "layers[*].linear")
    if compiled:
        look = nnx.jit(lambda model, x: outputs_of(model, "layers[*].linear")(x))
        look = lambda x, look=look: look(model, x)
    _, seen = look(X)
    paths = [path for path, _ in nnx.to_flat_state(seen)]
    assert paths == [("layers", i, "linear", "__call__") for i in range(3)]
    for i, expected in enumerate(expected_outputs()):
        (output,) = seen["layers"][i]["linear"]["__call__"].value
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    assert nnx.state(model, nnx.Intermediate) == nnx.State({})


def test_outputs_inside_scan_are_stacked():
    model = Scanned(Looped(nnx.Rngs(0)))
    _, seen = nnx.jit(lambda model, x: outputs_of(model, "layers.linear")(x))(model, X)
    (output,) = seen["layers"]["linear"]["__call__"].value
    np.testing.assert_allclose(output, jnp.stack(expected_outputs()), rtol=1e-5, atol=1e-5)


def test_a_filter_keeps_subclasses_apart():
    class Louder(nnx.Linear):
        def __call__(self, x):
            return 2 * super().__call__(x)

    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), Louder(3, 3, rngs=nnx.Rngs(1)))
    for only, expected in ((nnx.Linear, [0, 1]), (Louder, [1]), (lambda path, m: type(m) is nnx.Linear, [0])):
        _, seen = outputs_of(model, only)(X)
        assert [path[1] for path, _ in nnx.to_flat_state(seen)] == expected


def expected_gradients():
    """By adding an offset to each output by hand."""
    model = Looped(nnx.Rngs(0))

    def shifted(offsets):
        x = X
        for layer, offset in zip(nnx.clone(model).layers, offsets, strict=True):
            x = x + jnp.tanh(layer.norm(layer.linear(x) + offset))
        return (x**2).sum()

    return jax.grad(shifted)([jnp.zeros_like(X)] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", slow_but([True], [False, True]))
def test_gradients_by_path_pattern(compiled):
    """D2: at each output; what the model writes is written once."""
    model, reference = Looped(nnx.Rngs(0)), Looped(nnx.Rngs(0))
    look = nnx.capture_gradients(loss, only="layers[*].linear")
    value, gradients = (nnx.jit(look) if compiled else look)(model, X)
    np.testing.assert_allclose(value, loss(reference, X), rtol=1e-5)
    for i, expected in enumerate(expected_gradients()):
        gradient = gradients["layers"][i]["linear"]["__call__"][...]
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(model.layers[i].norm.mean[...], reference.layers[i].norm.mean[...], rtol=1e-5)
    assert nnx.graphdef(model) is nnx.graphdef(reference)


@pytest.mark.slow
def test_gradients_inside_scan_are_stacked():
    model = Scanned(Looped(nnx.Rngs(0)))
    _, gradients = nnx.capture_gradients(loss, only="layers.linear")(model, X)
    gradient = gradients["layers"]["linear"]["__call__"][...]
    np.testing.assert_allclose(gradient, jnp.stack(expected_gradients()), rtol=1e-4, atol=1e-4)


def test_a_method_called_twice_gets_the_sum():
    layer = nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0))

    def twice(layer, x):
        return 2 * layer(x).sum() + 3 * layer(x).sum(), "aux"

    (_, aux), gradients = nnx.capture_gradients(twice, has_aux=True)(layer, X)
    assert aux == "aux"
    np.testing.assert_array_equal(gradients["__call__"][...], np.full((2, 3), 5.0))
    with pytest.raises(ShapeError, match=r"(?s)'__call__'.*\(2, 3\).*\(3,\)"):
        nnx.capture_gradients(lambda layer, x: layer(x).sum() + layer(x[0]).sum())(layer, X)


def test_outputs_of_several_arrays_and_of_integers():
    class Two(nnx.Module):
        def __call__(self, x):
            return {"a": x, "b": (2 * x, jnp.arange(3))}

    def loss(model, x):
        out = model(x)
        return (out["a"] + 5 * out["b"][0]).sum()

    _, gradients = nnx.capture_gradients(loss)(Two(), X[0])
    assert [(path, leaf[...].tolist()) for path, leaf in nnx.to_flat_state(gradients)] == [
        (("__call__[0]",), [1.0] * 3),
        (("__call__[1]",), [5.0] * 3),
    ]


def test_looking_costs_nothing_when_it_is_off():
    model = Looped(nnx.Rngs(0))
    before = str(nnx.make_jaxpr(loss)(model, X))
    outputs_of(model, ...)(X)
    nnx.capture_gradients(loss)(model, X)
    assert str(nnx.make_jaxpr(loss)(model, X)) == before
    assert "__call__" not in str(vars(nnx.Linear).get("__call__").__dict__)


class WithLoss(Looped):
    def loss(self, x, scale):
        return scale * (self(x) ** 2).sum()


class Trainer:
    """Not a module; its methods take the model."""

    def loss(self, model, x, scale):
        return model.loss(x, scale)


WAYS_TO_SAY_IT = {
    "a bound method": lambda model: lambda *args: nnx.capture_gradients(model.loss)(*args),
    "a module": lambda model: lambda *args: nnx.capture_gradients(Calling(model))(*args),
    "a method of something else": lambda model: lambda *args: nnx.capture_gradients(Trainer().loss)(model, *args),
}


class Calling(nnx.Module):
    def __init__(self, model):
        self.model = model

    def __call__(self, x, scale):
        return self.model.loss(x, scale)


@pytest.mark.parametrize("way", slow_but(["a module"], WAYS_TO_SAY_IT))
def test_the_model_may_be_in_the_function(way):
    """D3: as with `capture`."""
    model, twin = WithLoss(nnx.Rngs(0)), WithLoss(nnx.Rngs(0))
    expected = nnx.capture_gradients(lambda model, x: model.loss(x, 3.0))(twin, X)
    value, gradients = WAYS_TO_SAY_IT[way](model)(X, 3.0)
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    gradients = gradients["model"] if way == "a module" else gradients
    for (path, leaf), (other, gradient) in zip(
        nnx.to_flat_state(expected[1]), nnx.to_flat_state(gradients), strict=True
    ):
        assert path == other
        np.testing.assert_allclose(gradient[...], leaf[...], rtol=1e-5)
    np.testing.assert_allclose(model.layers[0].norm.mean[...], twin.layers[0].norm.mean[...], rtol=1e-6)
    assert "_pytree__sown" not in vars(model)
