"""Ask 2: updates are never silently lost or doubled, whatever the transform and whatever the mutation.

Each cell of the matrix runs a function that mutates its model under a transform, twice in a row, and compares the model
with one that the same function was run on without a transform; or it raises, and changes nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import plait
from plait.errors import PlaitError
from tests.compare import assert_same, readable
from tests.sampling import slow_but


class Inner(plait.Module):
    def __init__(self):
        self.value = plait.Variable(jnp.float32(1))


class Model(plait.Module):
    def __init__(self):
        self.weight = plait.Param(jnp.float32(2))
        self.count = plait.BatchStat(jnp.float32(0))
        self.spare = plait.Variable(jnp.float32(5))
        self.inner = Inner()
        self.other = Inner()
        self.rngs = plait.Rngs(0)


def set_value(model):
    model.count += model.weight[...]


def new_attribute(model):
    model.extra = plait.Variable(model.weight[...] * 3)


def new_static(model):
    model.label = "seen"


def removed_attribute(model):
    if hasattr(model, "spare"):
        del model.spare


def shared_child(model):
    model.other = model.inner
    model.other.value += 1


def swapped_children(model):
    model.inner, model.other = model.other, model.inner
    model.inner.value += 1


def sown(model):
    model.sow(plait.Intermediate, "h", model.weight[...])


def key_drawn(model):
    model.count[...] = jax.random.uniform(model.rngs.dropout())


MUTATIONS = [
    set_value,
    new_attribute,
    new_static,
    removed_attribute,
    shared_child,
    swapped_children,
    sown,
    key_drawn,
]


def _pass(model):
    return model


def _scan(f, model):
    def body(model, x):
        f(model)
        return model

    plait.scan(body, in_axes=(plait.Carry, 0), out_axes=plait.Carry)(model, jnp.arange(2.0))


def _while(f, model):
    def body(value):
        model, i = value
        f(model)
        return model, i + 1

    plait.while_loop(lambda value: value[1] < 2, body, (model, 0))


def _fori(f, model):
    def body(_, model):
        f(model)
        return model

    plait.fori_loop(0, 2, body, model)


def _grad(f, model):
    def loss(model):
        f(model)
        return model.weight[...] ** 2

    grads = plait.grad(loss)(model)
    assert float(grads["weight"][...]) == 4.0


def _vmap(f, model):
    def one(model, x):
        f(model)
        return x + model.weight[...]

    out = plait.vmap(one, in_axes=(None, 0))(model, jnp.arange(3.0))
    if not isinstance(out, jax.core.Tracer):
        np.testing.assert_array_equal(out, [2, 3, 4])


def _shard_map(f, model):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def one(model, x):
        f(model)
        return x + model.weight[...]

    plait.shard_map(one, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"))(model, jnp.arange(8.0))


def _custom_vjp(f, model):
    @plait.custom_vjp
    def square(model):
        f(model)
        return model.weight[...] ** 2

    def forward(model):
        return square(model), model.weight[...]

    def backward(weight, gradients):
        updates, _ = gradients
        return (jax.tree.map(jnp.zeros_like, updates[0]),)

    square.defvjp(forward, backward)
    square(model)


# name → (how to run a mutation of a model under it, how often the mutation happens)
TRANSFORMS = {
    "jit": (lambda f, model: plait.jit(f)(model), 1),
    "jit_returning": (lambda f, model: plait.jit(lambda m: (f(m), m)[1])(model), 1),
    "grad": (_grad, 1),
    "vmap": (_vmap, 1),
    "scan": (_scan, 2),
    "remat": (lambda f, model: plait.remat(lambda m: f(m))(model), 1),
    "cond": (lambda f, model: plait.cond(True, lambda m: f(m), lambda m: f(m), model), 1),
    "cond_one_side": (lambda f, model: plait.cond(True, lambda m: f(m), lambda m: None, model), 1),
    "switch": (lambda f, model: plait.switch(1, [lambda m: None, lambda m: f(m)], model), 1),
    "shard_map": (_shard_map, 1),
    "custom_vjp": (_custom_vjp, 1),
    "while_loop": (_while, 2),
    "fori_loop": (_fori, 2),
    "jit_of_scan": (lambda f, model: plait.jit(lambda m: _scan(f, m))(model), 2),
    "scan_of_cond": (
        lambda f, model: _scan(lambda m: plait.cond(True, lambda m: f(m), lambda m: f(m), m), model),
        2,
    ),
    "grad_of_remat": (lambda f, model: _grad(lambda m: plait.remat(lambda m: f(m))(m), model), 1),
    "jit_of_vmap": (lambda f, model: plait.jit(lambda m: _vmap(f, m))(model), 1),
}
ITERATED = {"scan", "while_loop", "fori_loop", "jit_of_scan", "scan_of_cond"}
ONE_SIDED = {"cond_one_side", "switch"}
STRUCTURAL = {new_attribute, new_static, removed_attribute, shared_child, swapped_children, sown}


def snapshot(model):
    """Everything that can be told about a model, by value."""
    graphdef, state = plait.split(model)
    leaves = {
        str(path): {type(v).__qualname__: jax.tree.map(readable, raw(v))} for path, v in plait.to_flat_state(state)
    }
    return graphdef, leaves


def raw(variable):
    return variable.get_raw_value() if hasattr(variable, "get_raw_value") else variable


def assert_unchanged(first, second):
    assert first[0] == second[0], str(plait.diff(first[0], second[0]))
    assert_same(first[1], second[1], {"rtol": 1e-6, "atol": 0.0})


def refused(name, mutation):
    """Whether a mutation cannot be done under a transform whose body is traced once for all iterations or branches."""
    return mutation in STRUCTURAL and name in ITERATED | ONE_SIDED


PAIRS = [(name, mutation) for name in TRANSFORMS for mutation in MUTATIONS]
# Each transform and each mutation is in some of them.
in_a_sixth = lambda pair: (list(TRANSFORMS).index(pair[0]) + list(MUTATIONS).index(pair[1])) % 6 == 0


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:sow outside")
@pytest.mark.parametrize(("name", "mutation"), slow_but(in_a_sixth, PAIRS), ids=lambda x: getattr(x, "__name__", x))
def test_a_mutation_is_as_without_the_transform_or_raises(name, mutation):
    run, times = TRANSFORMS[name]
    model, twin = Model(), Model()
    objects = [model.weight, model.count, model.inner, model.other]
    for _ in range(2):
        before = snapshot(model)
        if refused(name, mutation):
            with pytest.raises(PlaitError):
                run(mutation, model)
            assert_unchanged(before, snapshot(model))
            continue
        with jax.checking_leaks():
            run(mutation, model)
        for _ in range(times):
            mutation(twin)
        assert_unchanged(snapshot(model), snapshot(twin))
    assert model.weight is objects[0]
    assert model.count is objects[1]
    assert {id(model.inner), id(model.other)} <= set(map(id, objects[2:]))
