"""transform_metadata: the name of a mapped axis, stated on the function. (rules X27, V40)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import AxisNameMismatchError
from tests.oracles import describe
from tests.sampling import slow_but
from tests.strategies import Node

named = plait.transform_metadata(partition="layers")


def layers(names=("layers", "in")):
    return Node(w=plait.Param(jnp.ones((4, 2)), out_sharding=names), b=plait.Param(jnp.zeros(4)))


TRANSFORMS = {
    "vmap": lambda f: plait.vmap(f),
    "scan": lambda f: plait.scan(f, in_axes=(0,), out_axes=0),
    "pmap": lambda f: plait.pmap(f),
    "vmap of remat": lambda f: plait.vmap(plait.remat(f)),
    "vmap of jit": lambda f: plait.vmap(plait.jit(f)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_inside_a_transform_the_name_is_gone_and_afterwards_it_is_back(name):
    """X27: inputs lose the name, and get it back; new variables get it, wherever they appear."""
    seen = []

    @TRANSFORMS[name]
    @named
    def f(model):
        seen.append(model.w.out_sharding)
        model.new = plait.Cache(jnp.zeros(2), out_sharding=("in",))
        return plait.Param(model.w[...], out_sharding=("in",))

    model = layers()
    out = f(model)
    assert set(seen) == {("in",)}
    assert model.w.out_sharding == model.new.out_sharding == out.out_sharding == ("layers", "in")
    assert (model.new.shape, out.shape) == ((4, 2), (4, 2))


SHORT = [(), ("in",), ("in", None), ("in", "mid"), ("in", "mid", None), (None, "mid"), ("in", "mid", "out")]
SHORT_TRANSFORMS = {
    "vmap": plait.vmap,
    "vmap of jit": lambda f, **axes: plait.vmap(plait.jit(f), **axes),
    "vmap of remat": lambda f, **axes: plait.vmap(plait.remat(f), **axes),
    "pmap": plait.pmap,
}


def without(names, axis):
    """What is left of the names of three axes, as far as they were stated."""
    place = axis % 3
    return (*names[:place], *names[place + 1 :])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "axis"),
    slow_but(
        lambda row: row[1] in (-1, 0),
        [(name, axis) for name in SHORT_TRANSFORMS for axis in range(-3, 3) if name != "pmap" or axis >= 0],
    ),
)
@pytest.mark.parametrize("names", SHORT, ids=str)
def test_names_that_stop_early_stay_as_they_are(names, name, axis):
    """V40: names may be fewer than axes; reading and writing values does not make them more."""
    model = Node(w=plait.Param(jnp.ones((2, 2, 2)), out_sharding=names))
    seen = []

    def f(model):
        seen.append(model.w.out_sharding)
        model.w[...] *= 2
        return model.w.sum()

    SHORT_TRANSFORMS[name](f, in_axes=axis)(model)
    assert set(seen) == {without(names, axis)}
    assert model.w.out_sharding == names


def test_it_does_what_the_argument_of_the_transform_does():
    """X27: the same result and the same hook calls as transform_metadata={PARTITION_NAME: name}."""
    calls = []

    class Telling(plait.Param):
        def add_axis(self, axis, name):
            calls.append(("add", axis, name))

        def remove_axis(self, axis, name):
            calls.append(("remove", axis, name))

    def model():
        return Node(w=Telling(jnp.ones((4, 2)), out_sharding=("layers", "in")))

    def f(model):
        return plait.Param(model.w[...], out_sharding=("in",))

    first = plait.vmap(named(f))(model())
    first_calls = list(calls)
    calls.clear()
    second = plait.vmap(f, transform_metadata={plait.PARTITION_NAME: "layers"})(model())
    assert describe(first) == describe(second)
    assert first_calls == calls
    assert {("remove", 0, "layers"), ("add", 0, "layers")} <= set(calls)


def test_the_next_transform_around_does_not_take_the_name_too():
    @plait.vmap(transform_metadata={plait.PARTITION_NAME: "outer"})
    @plait.vmap
    @plait.transform_metadata(partition="inner")
    def f(x):
        return plait.Param(x, out_sharding=("in",))

    assert f(jnp.ones((2, 3, 4))).out_sharding == ("outer", "inner", "in")


def test_another_name_is_refused_and_nothing_is_changed():
    model = layers(("depth", "in"))
    before = describe(model)
    for f in (plait.vmap(named(lambda m: m.w[...])), named(lambda m: m.w[...])):
        with pytest.raises(AxisNameMismatchError, match="'layers'"):
            f(model)
        assert describe(model) == before


def test_under_jax_s_own_vmap_the_function_sees_to_the_names_itself():
    """X27: where no transform of plait stands around it, in_axes and out_axes say where the axis is."""
    axes = plait.StateAxes({plait.PathContains("w"): 1, ...: None})
    seen = []

    @plait.transform_metadata(in_axes=(axes, 0), out_axes=1, partition="layers")
    def f(model, x):
        seen.append((model.w.out_sharding, model.b.out_sharding))
        model.new = plait.Param(x, out_sharding=())
        return plait.Param(model.w[...] * x, out_sharding=("in",))

    @jax.jit
    def pure(graphdef, state, xs):
        made = []

        def one(w, x):
            model = plait.merge(graphdef, state)
            model.w = plait.Param(w, out_sharding=("in", "layers"))
            out = f(model, x)
            made.append((model.w.out_sharding, out.out_sharding, model.new.out_sharding))
            return out[...]

        out = jax.vmap(one, in_axes=(1, 0))(state["w"][...], xs)
        assert made == [(("in", "layers"), ("in", "layers"), ())]
        return out

    model = Node(w=plait.Param(jnp.ones((2, 4))), b=plait.Param(jnp.zeros(3), out_sharding=("in",)))
    assert pure(*plait.split(model), jnp.ones(4)).shape == (4, 2)
    assert seen == [(("in",), ("in",))]


def test_names_come_back_when_the_function_raises():
    """U21."""

    def f(model):
        raise RuntimeError("stop")

    model = layers()
    before = describe(model)
    with pytest.raises(RuntimeError, match="stop"):
        named(f)(model)
    assert describe(model) == before


@pytest.mark.oracle
def test_names_are_those_of_flax():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        seen = []

        @lib.vmap(in_axes=0, out_axes=0)
        @lib.transform_metadata(in_axes=0, out_axes=0, partition="layers")
        def f(w):
            seen.append(w.out_sharding)
            return lib.Param(w[...], out_sharding=("in",))

        w = lib.Param(jnp.ones((4, 2)), out_sharding=("layers", "in"), eager_sharding=False)
        with_default = f(w)
        return seen, w.out_sharding, with_default.out_sharding

    before = nnx.use_eager_sharding(False)
    with before:
        assert run(plait) == run(nnx)


AXIS_USES = {
    "vmap, read": lambda nnx, kind: nnx.vmap(lambda v: v + 0.0, **named_in(nnx))(kind(jnp.ones((3, 2)))),
    "vmap, returned": lambda nnx, kind: nnx.vmap(kind, **named_in(nnx))(jnp.ones((3, 2))),
    "scan": lambda nnx, kind: nnx.scan(
        lambda c, v: c + v[...], in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **named_in(nnx)
    )(jnp.zeros(2), kind(jnp.ones((3, 2)))),
}


def named_in(nnx):
    return {"transform_metadata": {nnx.PARTITION_NAME: "layers"}}


def axis_calls(nnx, use):
    calls = []

    class Telling(nnx.Variable):
        def add_axis(self, axis, name):
            calls.append(("add", axis, name))

        def remove_axis(self, axis, name):
            calls.append(("remove", axis, name))

    AXIS_USES[use](nnx, Telling)
    return calls


@pytest.mark.oracle
@pytest.mark.parametrize("use", AXIS_USES)
def test_flax_tells_a_variable_of_the_same_axes(use):
    """V31."""
    assert axis_calls(plait, use) == axis_calls(pytest.importorskip("flax.nnx"), use)
