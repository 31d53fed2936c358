"""Models that mix both libraries, three levels deep, against the same model in Linen alone."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait import bridge
from tests.flax.bridge.flaxes import plain, same_trees

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(3, name="dense", kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("in", None)))(x)
        return nn.BatchNorm(use_running_average=not train, name="norm")(x)


class PlaitMiddle(plait.Module):
    def __init__(self, rngs):
        self.inner = bridge.ToNNX(Inner(), rngs)
        self.shared = self.inner

    def __call__(self, x, train):
        return self.shared(x, train) * 2


class LinenMiddle(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return Inner(name="inner")(x, train) * 2


class Outer(nn.Module):
    middle: type

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(2, name="first")(x)
        middle = self.middle if issubclass(self.middle, nn.Module) else functools.partial(bridge.to_linen, self.middle)
        return middle(name="middle")(x, train)


@pytest.mark.slow
def test_linen_in_plait_in_linen_is_the_pure_model_to_the_last_bit():
    """Outputs, gradients and statistics; the same paths, boxes and dtypes."""
    variables = plain(Outer(PlaitMiddle).init(KEYS, X))
    pure = plain(Outer(LinenMiddle).init(KEYS, X))
    assert jax.tree.structure(variables) == jax.tree.structure(pure)

    def run(middle, params):
        given = {"params": params, "batch_stats": pure["batch_stats"]}
        out, updates = Outer(middle).apply(given, X, True, mutable=["batch_stats"])
        return (out**2).sum(), (out, plain(updates))

    mixed, linen = (
        jax.value_and_grad(functools.partial(run, middle), has_aux=True)(pure["params"])
        for middle in (PlaitMiddle, LinenMiddle)
    )
    same_trees(mixed, linen)
    assert not np.array_equal(mixed[0][1][1]["batch_stats"]["middle"]["inner"]["norm"]["mean"], np.zeros(3))


@pytest.mark.slow
def test_plait_around_all_of_it_is_the_pure_model_too():
    """Plait, Linen, plait, Linen: with plait's own grad, and statistics written back through every level."""
    model = bridge.ToNNX(Outer(PlaitMiddle)).lazy_init(X, rngs=KEYS)
    variables = attributes(model)

    def loss(params):
        given = {"params": params, "batch_stats": variables["batch_stats"]}
        out, updates = Outer(LinenMiddle).apply(given, X, True, mutable=["batch_stats"])
        return (out**2).sum(), updates

    grads, updates = jax.grad(loss, has_aux=True)(variables["params"])
    found = plait.grad(lambda model: (model(X, True, mutable=["batch_stats"]) ** 2).sum())(model)
    same_trees(bridge.nnx_attrs_to_linen_vars(found)["params"], grads)
    same_trees(attributes(model)["batch_stats"], plain(updates["batch_stats"]))


def attributes(model):
    attrs = {name: value for name, value in vars(model).items() if not name.startswith("to_nnx__")}
    return bridge.nnx_attrs_to_linen_vars(attrs)


# Compositions of vmap, scan and the bridge ---------------------------------------------------------------------------

NAMES = st.sampled_from(["layers", "experts", None])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["vmap", "scan"]), NAMES, st.sampled_from([0, 1])), st.just(("cross", None, None))
    ),
    min_size=1,
    max_size=4,
)


class Kernel(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        return x @ self.param("kernel", init, (2, 2))


class LinenStack(nn.Module):
    """A Linen module, twice, by a transform of Linen."""

    make: object
    how: str
    name_of_axis: object
    axis: int

    @nn.compact
    def __call__(self, x):
        options = {
            "variable_axes": {"params": self.axis},
            "split_rngs": {"params": True},
            "metadata_params": {nn.PARTITION_NAME: self.name_of_axis},
        }
        if self.how == "scan":
            return nn.scan(lambda layer, x, _: (layer(x), None), length=2, **options)(self.make(), x, None)[0]
        return nn.vmap(lambda layer, x: layer(x), in_axes=None, axis_size=2, **options)(self.make(), x).sum(0)


class PlaitStack(plait.Module):
    """A plait module, twice, by a transform of plait."""

    def __init__(self, make, how, name_of_axis, axis, rngs):
        self.how, self.metadata = how, {plait.PARTITION_NAME: name_of_axis}
        self.axes = plait.StateAxes({plait.Param: axis, ...: 0})
        with_axis = plait.vmap(make, in_axes=0, out_axes=self.axes, transform_metadata=self.metadata)
        self.layers = with_axis(rngs.split(2))

    def __call__(self, x):
        options = {"transform_metadata": self.metadata}
        if self.how == "scan":
            axes = (self.axes, plait.Carry)
            return plait.scan(lambda layer, x: layer(x), in_axes=axes, out_axes=plait.Carry, **options)(self.layers, x)
        return plait.vmap(lambda layer, x: layer(x), in_axes=(self.axes, None), **options)(self.layers, x).sum(0)


def plait_kernel(rngs):
    init = plait.with_partitioning(plait.initializers.lecun_normal(), ("in", "out"))
    return plait.Linear(2, 2, use_bias=False, kernel_init=init, rngs=rngs)


def composed(steps, side):
    """A maker of a model on either side, and the names that its kernel must have."""
    make = Kernel if side == "linen" else plait_kernel
    names = ["in", "out"]
    for how, name, axis in steps:
        if how == "cross":
            if side == "linen":
                make, side = (
                    functools.partial(lambda make, rngs: bridge.ToNNX(make(), rngs).lazy_init(X), make),
                    "plait",
                )
            else:
                make, side = functools.partial(bridge.to_linen, make), "linen"
            continue
        names.insert(axis, name)
        stack = LinenStack if side == "linen" else PlaitStack
        make = functools.partial(stack, make, how, name, axis)
    return make, side, tuple(names)


@pytest.mark.slow
@settings(max_examples=12)
@given(STEPS, st.sampled_from(["linen", "plait"]))
def test_names_have_the_length_of_the_shape_under_any_composition(steps, side):
    """Ask 8 and 18: each axis has the name that its transform gave, on whichever side the transform is."""
    make, side, names = composed(steps, side)
    if side == "linen":
        model = make()
        variables = model.init(KEYS, X)
        out, updates = model.apply(variables, X, mutable=["params"])
        collections = [variables, plain(updates)]
    else:
        model = make(rngs=plait.Rngs(0))
        collections = [bridge.to_collections(model)]
        out = model(X)
        collections.append(bridge.to_collections(model))
    assert out.shape == X.shape
    for collection in collections:
        (box,) = jax.tree.leaves(collection, is_leaf=plait.meta.is_axis_metadata)
        assert len(box.get_partition_spec()) == box.unbox().ndim
        assert tuple(box.get_partition_spec()) == names
