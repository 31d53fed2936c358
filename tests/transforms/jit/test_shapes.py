"""eval_shape, make_jaxpr and checkify. (rules X23, X24, X25)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.errors import ArgumentError
from tests.oracles import describe
from tests.strategies import Node

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
SHAPE = jax.ShapeDtypeStruct((2, 3), jnp.float32)


def shape_of(value):
    raw = value.get_raw_value() if isinstance(value, plait.Variable) else value
    assert isinstance(raw, jax.ShapeDtypeStruct)
    return raw.shape, raw.dtype


# eval_shape -----------------------------------------------------------------------------------------------------------


def test_a_model_too_large_for_memory():
    """X23: nothing is allocated."""
    size = 2**30
    model = plait.eval_shape(lambda: plait.Sequential(plait.Linear(size, size, rngs=plait.Rngs(0)), plait.relu))
    assert shape_of(model.layers[0].kernel) == ((size, size), jnp.float32)
    assert plait.eval_shape(lambda m, x: m(x), model, jax.ShapeDtypeStruct((4, size), jnp.float32)).shape == (4, size)


def test_shapes_are_those_of_the_real_thing():
    """X23: kinds, paths, metadata and shapes are what the function itself makes; keyword arguments pass."""

    def make(width, *, depth):
        shared = plait.Param(jnp.ones(width), note="shared")
        return Node(layers=[Node(w=shared, n=plait.BatchStat(jnp.zeros((), jnp.int32))) for _ in range(depth)])

    abstract, concrete = plait.eval_shape(lambda x: make(3, depth=2), SHAPE), make(3, depth=2)
    assert plait.graphdef(abstract) == plait.graphdef(concrete)
    pairs = zip(plait.to_flat_state(plait.state(abstract)), plait.to_flat_state(plait.state(concrete)), strict=True)
    for (path, ours), (expected_path, expected) in pairs:
        assert (path, shape_of(ours)) == (expected_path, (expected.shape, expected.dtype))
    assert abstract.layers[0].w is abstract.layers[1].w
    assert plait.eval_shape(lambda x, *, y: x + y, SHAPE, y=jnp.ones((1, 3))).shape == (2, 3)


def test_arguments_stay_as_they_are():
    """X23: whatever the function does; the output has private objects."""

    def f(model, x):
        model.w[...] = model.w[...] + x.sum()
        model.new = plait.Param(x)
        del model.old
        return model, x

    for updates in (True, None):
        model = Node(w=plait.Param(jnp.ones(2)), old=1)
        before = describe(model)
        out, x = plait.eval_shape(f, model, jnp.ones((2, 3)), graph_updates=updates)
        assert describe(model) == before
        assert out is not model
        assert not hasattr(out, "old")
        assert (shape_of(out.new), shape_of(x)) == (((2, 3), jnp.float32),) * 2


def test_abstract_modules_are_arguments():
    model = plait.eval_shape(lambda: Node(w=plait.Param(jnp.ones((3, 4)))))
    assert plait.eval_shape(lambda m, x: x @ m.w[...], model, SHAPE).shape == (2, 4)
    assert shape_of(plait.eval_shape(lambda m: m, model).w) == ((3, 4), jnp.float32)


def test_references_have_the_shape_of_their_content():
    made = plait.eval_shape(lambda: plait.Variable(jnp.ones(3), ref=True))
    assert shape_of(made) == ((3,), jnp.float32)
    assert made.get_metadata()["ref"] is True


def annotated(**metadata):
    return Node(w=plait.Param(jnp.ones((4, 8)), out_sharding=("data", "model"), **metadata), b=plait.Param(jnp.ones(8)))


def test_without_a_mesh_there_is_no_sharding():
    made = plait.eval_shape(annotated)
    assert (made.w.get_raw_value().sharding, made.w.out_sharding) == (None, ("data", "model"))


def test_an_ambient_mesh_gives_shardings():
    """X23: a NamedSharding of the annotation; what has none is replicated."""
    with jax.set_mesh(MESH):
        made = plait.eval_shape(annotated)
    assert made.w.get_raw_value().sharding == NamedSharding(MESH.abstract_mesh, P("data", "model"))
    assert made.b.get_raw_value().sharding == NamedSharding(MESH.abstract_mesh, P())


ANNOTATIONS = {
    "own mesh": ({"out_sharding": ("data", None), "mesh": MESH}, NamedSharding(MESH, P("data", None))),
    "spec": ({"out_sharding": P(None, "model"), "mesh": MESH}, NamedSharding(MESH, P(None, "model"))),
    "several axes": (
        {"out_sharding": (("data", "model"), None), "mesh": MESH},
        NamedSharding(MESH, P(("data", "model"), None)),
    ),
    "rules": (
        {"out_sharding": ("embed", "heads"), "sharding_rules": (("embed", None), ("heads", "data")), "mesh": MESH},
        NamedSharding(MESH, P(None, "data")),
    ),
    "sharding": ({"out_sharding": NamedSharding(MESH, P("data"))}, NamedSharding(MESH, P("data"))),
    "abstract mesh": (
        {"out_sharding": ("x", None), "mesh": AbstractMesh((2,), ("x",))},
        NamedSharding(AbstractMesh((2,), ("x",)), P("x", None)),
    ),
}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations_become_shardings(name):
    metadata, expected = ANNOTATIONS[name]
    made = plait.eval_shape(lambda: plait.Param(jnp.ones((8, 8)), **metadata))
    assert made.get_raw_value().sharding == expected


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (("data", "model"), (4,), r"\(4,\)\n +expected +at most 1\n"),
        (("batch",), (4,), r"'batch'.*\n.*axes of the mesh: \('data', 'model'\)"),
    ],
)
def test_annotations_that_do_not_fit_are_named(names, shape, message):
    def make():
        return Node(layers=[Node(w=plait.Param(jnp.ones(shape), out_sharding=names, eager_sharding=False))])

    with jax.set_mesh(MESH), pytest.raises(ArgumentError, match=rf"at +layers\[0\]\.w\n.*{message}"):
        plait.eval_shape(make)


@pytest.mark.oracle
def test_shapes_and_shardings_are_flax_s():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        with jax.set_mesh(MESH):
            made = lib.eval_shape(
                lambda: lib.Linear(4, 8, rngs=lib.Rngs(0), kernel_metadata={"out_sharding": ("data", "model")})
            )
        return [made.kernel.get_raw_value(), made.bias.get_raw_value()]

    assert run(plait) == run(nnx)


# make_jaxpr -----------------------------------------------------------------------------------------------------------


def test_the_jaxpr_is_that_of_the_function_of_arrays():
    """X24: arrays in the order of the arguments; what is written does not come out, and nothing is changed."""

    def f(x, model, scale=1.0):
        model.count[...] += 1
        return {"y": (x @ model.w[...]) * scale, "v": plait.Param(model.count[...])}

    model = Node(count=plait.Variable(jnp.zeros(())), w=plait.Param(jnp.ones((3, 4))))
    before = describe(model)
    jaxpr = plait.make_jaxpr(f)(SHAPE, model, scale=2.0)

    def pure(x, count, w, scale):
        return count + 1, (x @ w) * scale

    assert str(jaxpr) == str(jax.make_jaxpr(pure)(SHAPE, jnp.zeros(()), jnp.ones((3, 4)), 2.0))
    assert describe(model) == before


def test_static_arguments_of_a_jaxpr():
    @plait.make_jaxpr(static_argnums=1)
    def f(v, name):
        return v * 2 if name == "double" else v.value

    v = plait.Param(jnp.ones(2))
    assert (len(f(v, "double").eqns), len(f(v, "same").eqns)) == (1, 0)


@pytest.mark.oracle
def test_the_jaxpr_is_flax_s():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        w = lib.Param(jnp.ones((3, 4)))

        def f(x, w):
            w[...] = w[...] * 2
            return x @ w[...]

        return str(lib.make_jaxpr(f, graph_updates=False)(SHAPE, w))

    assert run(plait) == run(nnx)


# checkify -------------------------------------------------------------------------------------------------------------


def root(model, x):
    model.calls[...] += 1
    checkify.check(jnp.all(x >= 0), "negative: {x}", x=x[0])
    return jnp.sqrt(x) * model.scale[...]


def rooted():
    return Node(calls=plait.Variable(jnp.zeros((), jnp.int32)), scale=plait.Param(jnp.float32(2)))


WRAPPINGS = {
    "plain": plait.checkify,
    "jit outside": lambda f: plait.jit(plait.checkify(f)),
    "jit inside": lambda f: plait.checkify(plait.jit(f)),
    "decorator": lambda f: plait.checkify(errors=checkify.user_checks)(f),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_errors_are_returned_and_updates_kept(name):
    """X25."""
    model, f = rooted(), WRAPPINGS[name](root)
    error, out = f(model, jnp.array([4.0, 9.0]))
    assert (error.get(), out.tolist()) == (None, [4.0, 6.0])
    error, out = f(model, x=jnp.array([-4.0, 9.0]))
    assert error.get().startswith("negative: -4.0")
    assert (model.calls.item(), np.isnan(out[0]).item()) == (2, True)
    with pytest.raises(checkify.JaxRuntimeError, match="negative"):
        error.throw()


def test_the_set_of_checks_is_an_argument():
    error, _ = plait.checkify(lambda v: jnp.log(v[...]), errors=checkify.nan_checks)(plait.Param(jnp.float32(-1)))
    assert "nan generated by primitive: log" in error.get()


def test_structure_comes_back_from_a_checked_function():
    """U15, U18."""

    def f(model):
        model.new = plait.Param(model.scale[...])
        return model

    model = rooted()
    error, out = plait.checkify(f)(model)
    assert (out is model, model.new.item(), error.get()) == (True, 2.0, None)
    before = describe(model)
    with pytest.raises(ArgumentError, match="bound method"):
        plait.checkify(plait.Linear(2, 2, rngs=plait.Rngs(0)).__call__)
    with pytest.raises(RuntimeError, match="stop"):
        plait.checkify(lambda m: (m.calls.set_value(jnp.int32(5)), (_ for _ in ()).throw(RuntimeError("stop"))))(model)
    assert describe(model) == before
