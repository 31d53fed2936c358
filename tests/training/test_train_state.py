"""TrainState: a functional training step, compared with Flax's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax needs JAX's own promotion

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.layers = [plait.Linear(3, 3, rngs=rngs)]
        self.norm = plait.BatchNorm(3, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.layers[0](x))

    def first(self, x):
        return self.layers[0](x)


class Training(plait.TrainState):
    stats: plait.State
    label: str = dataclasses.field(default="none", metadata={"static": True})


def created(tx=None, **extra):
    graphdef, params, stats = plait.split(Net(), plait.Param, ...)
    return Training.create(graphdef, params=params, tx=tx or optax.adam(0.1), stats=stats, **extra)


def train_step(state, x):
    def loss(params):
        out, (_, new) = state.apply(params, "stats")(x)
        return jnp.mean((out - 1) ** 2), plait.filter_state(new, plait.BatchStat)

    grads, stats = jax.grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads, stats=stats)


def test_it_is_a_pytree_of_what_is_not_static():
    """O9: graphdef, tx and static fields are in the treedef, everything else is a leaf with its path."""
    tx = optax.sgd(0.1)
    state, other = created(tx), created(tx, label="other")
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    assert paths[0].startswith(".params")
    assert {path.split(".")[1].split("[")[0] for path in paths} == {"params", "step", "stats"}
    assert jax.tree.structure(state) == jax.tree.structure(created(tx))
    assert jax.tree.structure(state) != jax.tree.structure(other)
    doubled = jax.tree.map(lambda leaf: leaf * 2, state)
    assert type(doubled) is Training
    assert doubled.graphdef == state.graphdef


def test_it_is_frozen():
    state = created()
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.step = 1
    assert int(state.replace(step=5).step) == 5
    assert int(state.step) == 0


def test_apply_takes_names_of_fields_and_states_alike():
    """O9: and gives what the model gives, with the changed state beside it."""
    state, model = created(), Net()
    expected = model(X)
    for states in (("params", "stats"), (state.params, state.stats), ("params", state.stats)):
        out, (graphdef, new) = state.apply(*states)(X)
        np.testing.assert_array_equal(out, expected)
        assert graphdef == state.graphdef
        np.testing.assert_array_equal(new["norm"]["mean"][...], model.norm.mean[...])
    assert not state.stats["norm"]["mean"][...].any()


def test_apply_selects_a_method():
    state = created()
    out, _ = state.apply("params", "stats").first(X)
    np.testing.assert_array_equal(out, Net().first(X))


@pytest.mark.parametrize("wrap", [pytest.param(lambda f: f, marks=pytest.mark.slow), jax.jit])
def test_steps_equal_those_of_an_optimizer(wrap):
    """O2, O9: statistics are carried by hand."""
    state, step = created(optax.sgd(0.1)), wrap(train_step)
    model = Net()
    optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)
    for _ in range(4):
        state = step(state, X)
        optimizer.update(model, plait.grad(lambda model: jnp.mean((model(X) - 1) ** 2))(model))
    assert int(state.step) == 4
    _, params, stats = plait.split(model, plait.Param, ...)
    for found, expected in ((state.params, params), (state.stats, stats)):
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_it_is_the_carry_of_a_scan():
    begin = created(optax.sgd(0.1))
    scanned, _ = jax.lax.scan(lambda state, x: (train_step(state, x), None), begin, jnp.stack([X, X]))
    unrolled = train_step(train_step(begin, X), X)
    for one, other in zip(jax.tree.leaves(scanned), jax.tree.leaves(unrolled), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.oracle
def test_flax_trains_alike():
    flax_nnx = pytest.importorskip("flax.nnx")
    theirs, ours = flax_nnx.Linear(3, 2, rngs=flax_nnx.Rngs(0)), plait.Linear(3, 2, rngs=plait.Rngs(0))
    ours.kernel.value = theirs.kernel[...]
    states = []
    for nnx, model in ((flax_nnx, theirs), (plait, ours)):
        graphdef, params = nnx.split(model)
        state = nnx.TrainState.create(graphdef, params=params, tx=optax.adamw(0.1), step=2)
        for _ in range(3):
            grads = jax.grad(lambda params, state=state: (state.apply(params)(X)[0] ** 2).sum())(state.params)
            state = state.apply_gradients(grads)
        states.append(state)
    assert states[0].step == states[1].step == 5
    assert states[0].step.dtype == states[1].step.dtype
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(states[0].params[name][...], states[1].params[name][...], rtol=1e-6)
