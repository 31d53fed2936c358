"""What people do with Optax: masks, groups by filter, line search, accumulation, injected hyperparameters, placement.

Ask 19. The reference is Optax on a plain dict of arrays.
"""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait as nnx
from tests.compare import CLOSE, assert_same

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("users_promotion")


class Net(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.body, self.head = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.tanh(self.body(x)))


def loss(model, x=X, y=Y):
    return ((model(x) - y) ** 2).mean()


def plain_loss(params, x=X, y=Y):
    h = jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"])
    return ((h @ params["head"]["kernel"] + params["head"]["bias"] - y) ** 2).mean()


def params_of(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def train_plainly(tx, params, steps, batches=None):
    opt_state = tx.init(params)
    for i in range(steps):
        grads = jax.grad(plain_loss)(params, *(batches[i] if batches else ()))
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params


@nnx.jit
def step(model, optimizer, x=X, y=Y):
    return optimizer.update(model, nnx.grad(loss)(model, x, y))


def groups_by_place(tree):
    """Labels of ``multi_transform``: the first key of each path."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].key, tree)


@pytest.mark.slow
def test_groups_by_place():
    """One transformation for each part: labels by path, as Optax takes them."""
    tx = optax.multi_transform({"body": optax.sgd(0.1), "head": optax.adam(0.01)}, groups_by_place)
    model = Net()
    expected = train_plainly(tx, params_of(model), 3)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for _ in range(3):
        step(model, optimizer)
    assert_same(params_of(model), expected, CLOSE)


def test_masks():
    """Weight decay on kernels alone."""

    def kernels(tree):
        return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in str(path[-1]), tree)

    tx = optax.chain(optax.masked(optax.add_decayed_weights(0.1), kernels), optax.sgd(0.1))
    model = Net()
    expected = train_plainly(tx, params_of(model), 3)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for _ in range(3):
        step(model, optimizer)
    assert_same(params_of(model), expected, CLOSE)


def test_groups_by_filter_are_two_optimizers():
    """``wrt`` takes any filter; each optimizer holds state for its own part only."""
    body, head = nnx.All(nnx.Param, nnx.PathContains("body")), nnx.All(nnx.Param, nnx.PathContains("head"))
    model = Net()
    tx = optax.multi_transform({"body": optax.sgd(0.1), "head": optax.adam(0.01)}, groups_by_place)
    expected = train_plainly(tx, params_of(model), 3)
    optimizers = nnx.Optimizer(model, optax.sgd(0.1), wrt=body), nnx.Optimizer(model, optax.adam(0.01), wrt=head)
    assert nnx.state(optimizers[0], nnx.OptVariable) == nnx.State({})
    held = {path[-2] for path, _ in nnx.to_flat_state(nnx.state(optimizers[1], nnx.OptVariable))}
    assert held == {"head"}

    @nnx.jit
    def both(model, optimizers):
        grads = nnx.grad(loss)(model)
        for optimizer in optimizers:
            optimizer.update(model, grads)

    for _ in range(3):
        both(model, optimizers)
    assert_same(params_of(model), expected, CLOSE)


@pytest.mark.slow
def test_line_search_gets_the_value_and_the_function():
    """L-BFGS needs the loss, the gradient and the function of the parameters; nothing is wrapped anew in a step."""
    tx = optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(max_backtracking_steps=10))
    model = Net()
    params = params_of(model)
    opt_state = tx.init(params)
    plain_traces = []

    @jax.jit
    def plain_search(params, opt_state):
        plain_traces.append(1)
        value, grads = jax.value_and_grad(plain_loss)(params)
        updates, opt_state = tx.update(grads, opt_state, params, value=value, grad=grads, value_fn=plain_loss)
        return optax.apply_updates(params, updates), opt_state

    for _ in range(4):
        params, opt_state = plain_search(params, opt_state)

    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    traces = []

    @nnx.jit
    def search(model, optimizer):
        traces.append(1)
        graphdef, _, rest = nnx.split(model, nnx.Param, ...)
        value, grads = nnx.value_and_grad(loss)(model)
        value_fn = lambda params: loss(nnx.merge(graphdef, params, rest))
        raw = nnx.as_pure(grads)
        optimizer.update(model, grads, value=value, grad=raw, value_fn=value_fn)
        return value

    values = [float(search(model, optimizer)) for _ in range(4)]
    assert values == sorted(values, reverse=True)
    assert_same(params_of(model), params, CLOSE)
    assert len(traces) == len(plain_traces)  # two: Optax starts with a number of weak type


@pytest.mark.slow
def test_gradients_are_accumulated():
    """MultiSteps: the parameters move on every third call, by the mean of the gradients."""
    batches = [(X[i : i + 2], Y[i : i + 2]) for i in (0, 2, 4, 6, 1, 3)]
    tx = optax.MultiSteps(optax.adam(0.05), every_k_schedule=3)
    model = Net()
    start = params_of(model)
    expected = train_plainly(tx.gradient_transformation(), start, 6, batches)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for number, (x, y) in enumerate(batches):
        step(model, optimizer, x, y)
        if number < 2:
            assert_same(params_of(model), start, CLOSE)
    assert_same(params_of(model), expected, CLOSE)


def test_hyperparameters_are_changed_between_steps_without_a_new_trace():
    """``inject_hyperparams``: the rate is a value of the optimizer's state."""
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    model, traces = Net(), []
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = params_of(model)

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        optimizer.update(model, nnx.grad(loss)(model))
        return nnx.learning_rate(optimizer)

    for rate in (0.1, 0.1, 0.5):
        optimizer.opt_state.hyperparams["learning_rate"].value = jnp.asarray(rate)
        np.testing.assert_allclose(step(model, optimizer), rate)
        params = jax.tree.map(lambda p, g, rate=rate: p - rate * g, params, jax.grad(plain_loss)(params))
    assert_same(params_of(model), params, CLOSE)
    assert len(traces) == 1


@pytest.mark.slow
def test_the_updates_are_returned():
    model = Net()
    before = params_of(model)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    updates = step(model, optimizer)
    after = jax.tree.map(lambda p, u: p + u, before, nnx.to_pure_dict(updates))
    assert_same(params_of(model), after, CLOSE)
    assert optax.tree.norm(nnx.as_pure(updates)) > 0


@pytest.mark.slow
def test_the_state_of_the_optimizer_lies_otherwise_than_the_parameters():
    """``optimizer_sharding``: moments spread over the devices, the kernel on each of them (ZeRO)."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        model = nnx.Linear(
            16, 8, kernel_metadata={"out_sharding": (None, None), "optimizer_sharding": ("data", None)},
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        moments = [leaf for path, leaf in nnx.to_flat_state(nnx.state(optimizer)) if path[-1] == "kernel"]
        assert len(moments) == 2

        @nnx.jit
        def step(model, optimizer):
            optimizer.update(model, nnx.grad(lambda model: (model(jnp.ones((4, 16))) ** 2).mean())(model))

        for _ in range(2):
            step(model, optimizer)
        moments = [leaf for path, leaf in nnx.to_flat_state(nnx.state(optimizer)) if path[-1] == "kernel"]
        for moment in moments:
            assert {shard.data.shape for shard in moment[...].addressable_shards} == {(2, 8)}
        assert {shard.data.shape for shard in model.kernel[...].addressable_shards} == {(16, 8)}
    alone = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(alone, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(2):
        step(alone, optimizer)
    np.testing.assert_allclose(model.kernel[...], alone.kernel[...], rtol=1e-5)


def products(jaxpr):
    """Matrix products of a program and of those inside it."""
    inner = [p for eqn in jaxpr.eqns for p in jax.extend.core.jaxprs_in_params(eqn.params)]
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(map(products, inner))


def test_gradients_of_frozen_parts_are_not_computed():
    """Two products forwards; backwards two for the head (its kernel and its input), one for the body's kernel."""
    model = Net()

    def count(wrt):
        step = nnx.grad(loss, argnums=nnx.DiffState(0, wrt))
        return products(nnx.make_jaxpr(nnx.jit(step))(model).jaxpr)

    assert count(nnx.Param) == 5
    assert count(nnx.All(nnx.Param, nnx.PathContains("head"))) == 3
    nnx.select(model, "body").freeze()
    assert count(nnx.trainable) == 3
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.trainable)
    held = {path[-2] for path, _ in nnx.to_flat_state(nnx.state(optimizer, nnx.OptVariable))}
    assert held == {"head"}
