"""``bridge.Module``: Linen's style without Linen."""

import dataclasses
import functools
import threading

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge, meta
from plait.errors import ArgumentError, ArgumentTypeError, ScopeParamShapeError, StreamKeyError
from tests.flax.bridge.flaxes import same_trees
from tests.sampling import slow_but

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


class Dense(bridge.Module):
    features: int

    @bridge.compact
    def __call__(self, x):
        kernel = self.param("kernel", plait.initializers.lecun_normal(), (x.shape[-1], self.features))
        return x @ kernel[...]


class Counts(bridge.Module):
    @bridge.compact
    def __call__(self, x):
        calls = self.variable("calls", "n", jnp.zeros, ())
        calls[...] = calls[...] + 1
        return calls[...]


class Block(bridge.Module):
    features: int = 3

    @bridge.compact
    def __call__(self, x):
        x = Dense(self.features)(x)
        x = Dense(self.features)(x)
        return Dense(2, name="last")(Setup(3)(x))


class Setup(bridge.Module):
    features: int

    def setup(self):
        self.first = Dense(self.features)
        self.rest = [Dense(2), {"deep": Dense(3)}]
        self.scale = self.param("scale", plait.initializers.ones, (3,))
        self.alias = self.first

    def __call__(self, x):
        x = self.rest[1]["deep"](self.rest[0](self.alias(x)))
        return x * self.scale[None]

    @bridge.compact
    def other(self, x):
        return Dense(4)(x)


class Rated(bridge.Module):
    rate: float = 0.5

    @bridge.compact
    def __call__(self, x, key_from="dropout"):
        self.sow(plait.Intermediate, "initializing", self.is_initializing())
        return x + jax.random.uniform(self.make_rng(key_from), x.shape)


def shapes(tree):
    return jax.tree.map(jnp.shape, tree)


def test_fields_are_those_of_a_dataclass():
    """B32."""
    assert (Dense(3).features, Block().features, Dense(features=4).features) == (3, 3, 4)
    assert repr(Dense(3)) == "Dense(features=3)"
    with pytest.raises(TypeError, match="features"):
        Dense()


def test_a_constructor_of_its_own_stays():
    """B32: with fields in an order that no generated one could take."""

    class Own(bridge.Module):
        scale: int = 2
        features: int

        def __init__(self, features):
            self.features = features * self.scale

    assert (Own(3).features, Own(3).scale) == (6, 2)


def test_init_gives_collections_and_apply_uses_them():
    """B32, B33: neither changes the instance, and an output comes with them on demand."""
    module = Block()
    variables = module.init(0, X)
    out, again = module.init_with_output(0, X)
    same_trees(again, variables)
    same_trees(module.apply(variables, X), out)
    assert shapes(variables)["params"]["Setup_0"] == {
        "first": {"kernel": (3, 3)},
        "rest": {0: {"kernel": (3, 2)}, 1: {"deep": {"kernel": (2, 3)}}},
        "scale": (3,),
    }
    assert vars(module) == {"features": 3}
    assert module.scope is None
    assert module.variables == {}


@pytest.mark.parametrize("rngs", [0, jax.random.key(0), {"params": 0}, plait.Rngs(0)], ids=type)
def test_any_source_of_keys_will_do(rngs):
    """B32: parameters draw from the stream ``params``."""
    expected = plait.initializers.lecun_normal()(plait.Rngs(0).params(), (2, 3))
    same_trees(Dense(3).init(rngs, X)["params"]["kernel"], expected)


def test_submodules_are_numbered_by_class_and_named_on_demand():
    """B35."""
    assert sorted(Block().init(0, X)["params"]) == ["Dense_0", "Dense_1", "Setup_0", "last"]


def test_apply_returns_mutable_collections_alone():
    """B33: False drops changes, and a list that leaves out a changed collection is an error."""
    variables = Counts().init(0, X)
    assert float(variables["calls"]["n"]) == 1
    assert float(Counts().apply(variables, X)) == 2
    out, updates = Counts().apply(variables, X, mutable=["calls"])
    assert (float(out), float(updates["calls"]["n"])) == (2, 2)
    assert float(variables["calls"]["n"]) == 1
    assert list(Counts().apply(variables, X, mutable=nn.DenyList("params"))[1]) == ["calls"]
    with pytest.raises(ArgumentError, match=r"'calls' was changed\n +at +Counts, n\n"):
        Counts().apply(variables, X, mutable=["params"])
    with pytest.raises(ArgumentError, match=r"at +Counts, calls/n(.|\n)*mutable=\['calls'\]"):
        Counts().apply({}, X)
    assert float(Counts().apply({}, X, mutable="calls")[0]) == 1


@pytest.mark.parametrize(
    ("layer", "collection", "name"),
    [(Dense(3), "params", "kernel"), (Counts(), "calls", "n")],
    ids=["param", "variable"],
)
def test_what_is_not_stored_is_told_and_made_as_the_advice_says(layer, collection, name):
    """B34: only in a collection that may change."""
    told = (
        rf"no variable '{name}' in the collection '{collection}'\n"
        rf" +at +{type(layer).__name__}, {collection}/{name}\n(.|\n)*mutable=\['{collection}'\]"
    )
    with pytest.raises(ArgumentError, match=told):
        layer.apply({}, X, rngs=0, mutable=["others"])
    out, made = layer.apply({}, X, rngs=0, mutable=[collection])
    assert list(made) == [collection]
    same_trees(out, layer.apply(made if collection == "params" else {}, X, rngs=0, mutable=[collection])[0])


def test_methods_are_chosen_by_name_or_callable():
    """B32: compact methods beside setup see what setup made."""
    for method in ("other", Setup.other, Setup(3).other):
        variables = Setup(3).init(0, np.ones((1, 3), np.float32), method=method)
        assert sorted(variables["params"]) == ["Dense_0", "scale"]
    with pytest.raises(ArgumentTypeError, match=r"at +Setup\.nothing"):
        Setup(3).init(0, X, method="nothing")


def test_param_and_variable_return_variables():
    """B34."""
    seen = []

    class Reads(bridge.Module):
        @bridge.compact
        def __call__(self):
            seen.append(self.param("w", plait.initializers.ones, (2,)))
            seen.append(self.variable("batch_stats", "mean", jnp.zeros, 2))
            seen.append(self.variables)

    Reads().init(0)
    assert [type(each) for each in seen[:2]] == [plait.Param, plait.BatchStat]
    assert shapes(seen[2]) == {"params": {"w": (2,)}, "batch_stats": {"mean": (2,)}}


def test_boxes_become_metadata_and_come_back():
    """B34: unbox=False gives the box itself; both are stored as the box."""
    seen = []

    class Named(bridge.Module):
        @bridge.compact
        def __call__(self):
            boxed = meta.with_partitioning(plait.initializers.ones, ("a",))
            seen.append(self.param("boxed", boxed, (2,)).out_sharding)
            seen.append(self.param("annotated", bridge.with_partitioning(plait.initializers.ones, ("b",)), (2,)).shape)
            seen.append(self.param("kept", boxed, (2,), unbox=False).value.names)

    variables = Named().init(0)
    assert {name: box.names for name, box in variables["params"].items()} == {
        "boxed": ("a",),
        "annotated": ("b",),
        "kept": ("a",),
    }
    Named().apply(variables)
    assert seen == [("a",), (2,), ("a",)] * 2


def test_a_stored_shape_that_differs_is_an_error():
    """B34: it names the parameter and both shapes."""
    with pytest.raises(ScopeParamShapeError, match=r"'kernel'(.|\n)*\(2, 4\)(.|\n)*\(2, 3\)"):
        Dense(3).apply(Dense(4).init(0, X), X)


def test_keys_come_from_named_streams():
    """B32: and initialization is known."""
    variables = Rated().init({"params": 0, "dropout": 1}, X)
    assert variables["intermediates"]["initializing"] == (True,)
    apply = lambda seed: Rated().apply({}, X, rngs={"dropout": seed})
    same_trees(apply(1), apply(1))
    assert not np.array_equal(apply(1), apply(2))
    with pytest.raises(StreamKeyError, match="'dropout'"):
        Rated().apply({}, X)


def test_a_shared_submodule_has_one_set_of_variables():
    """B35: calling it twice, holding it twice, and calling the parent's method twice."""

    class Tied(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            dense = Dense(2)
            self.held = dense
            return dense(dense(x))

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            tied = Tied(name="tied")
            return tied(tied(x)), Holder(tied, name="holder")(x)

    class Holder(bridge.Module):
        inner: bridge.Module

        def __call__(self, x):
            return self.inner(x)

    variables = Outer().init(0, X)
    assert shapes(variables) == {"params": {"tied": {"Dense_0": {"kernel": (2, 2)}}}}
    twice, once = Outer().apply(variables, X)
    kernel = variables["params"]["tied"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(once, X @ kernel @ kernel, rtol=1e-5)
    np.testing.assert_allclose(twice, X @ kernel @ kernel @ kernel @ kernel, rtol=1e-5)
    fields = Holder(Dense(3))
    assert shapes(fields.init(0, X)) == {"params": {"inner": {"kernel": (2, 3)}}}
    assert fields.apply(fields.init(0, X), X).shape == (4, 3)


def test_what_a_compact_method_assigns_is_a_submodule():
    """B35: modules without a parent, and modules of plait, take the variables that are stored under the attribute."""

    class Assigns(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            alone = Dense(2, parent=None)
            assert alone.scope is None
            self.dense = alone
            self.linear = plait.Linear(2, 3, rngs=plait.Rngs(len(x)))
            return self.linear(self.dense(x))

    out, variables = Assigns().init_with_output(0, X)
    assert sorted(variables["params"]) == ["dense", "linear"]
    same_trees(Assigns().apply(variables, X), out)
    same_trees(Assigns().apply(variables, X[:1]), out[:1])


def test_what_another_module_assigns_is_not_bound():
    """B35: nor what is assigned when none runs."""
    kept, spare = [], Dense(3)

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            kept.append(Dense(2, name="inner"))
            kept[0].late = spare
            return kept[0](x)

    variables = Outer().init(0, X)
    assert shapes(variables) == {"params": {"inner": {"kernel": (2, 2)}}}
    assert kept[0].scope is not None
    kept[0].later = spare
    assert spare.scope is None


def test_the_stronger_attribute_names_a_variable():
    """B36: AttrPriority."""

    class Aliased(bridge.Module):
        def setup(self):
            self.weak = Dense(2)
            self.strong = self.weak
            self.set_attr_priority("weak", bridge.AttrPriority.LOW)

        def __call__(self, x):
            return self.strong(x)

    assert list(Aliased().init(0, X)["params"]) == ["strong"]
    assert list(bridge.AttrPriority) == sorted(bridge.AttrPriority)
    assert bridge.AttrPriority.HIGH < bridge.AttrPriority.INIT_PARENT < bridge.AttrPriority.DEFAULT


class Misnamed(bridge.Module):
    keywords: dict

    @bridge.compact
    def __call__(self, x):
        Dense(2, name="taken")(x)
        return Dense(2, **(self.keywords or {"parent": self}))(x)


class Collides(bridge.Module):
    w: int = 3

    @bridge.compact
    def __call__(self, first, second):
        for name, collection in (first, second):
            self.variable(collection, name, jnp.zeros, ()) if collection else Dense(2, name=name)(X)


def test_a_constructor_gives_no_names():
    """B35: only a running module has names to give, whoever calls the constructor."""

    class Holder(bridge.Module):
        inner: Dense = dataclasses.field(default_factory=lambda: Dense(2, name="inner"))

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            Holder()

    for make in (Holder, lambda: Outer().init(0, X)):
        with pytest.raises(TypeError, match="'name'"):
            make()


@pytest.mark.parametrize("boxed", [True, False])
def test_a_parameter_that_stays_in_its_box_is_the_same_each_time(boxed):
    """B35: ``unbox=False``; also where there is no box."""
    init = meta.with_partitioning(plait.initializers.ones, ("x",)) if boxed else plait.initializers.ones

    class Twice(bridge.Module):
        @bridge.compact
        def __call__(self):
            first, second = (self.param("w", init, (2,), unbox=False) for _ in range(2))
            assert first is second
            return meta.is_axis_metadata(first.get_raw_value())

    found, variables = Twice().init_with_output(0)
    assert found is boxed
    assert Twice().apply(variables) is boxed


def test_a_variable_goes_by_the_name_that_it_was_made_with():
    """B35: whatever attribute it is assigned to beside that."""

    class Alias(bridge.Module):
        def setup(self):
            self.a = self.param("w", plait.initializers.ones, (2,))

        def __call__(self):
            return self.a[...]

    variables = Alias().init(0)
    assert list(variables["params"]) == ["w"]
    np.testing.assert_array_equal(Alias().apply(variables), 1)


def test_a_variable_that_is_missing_needs_an_initializer():
    """B35: also where it could be made."""

    class Needy(bridge.Module):
        @bridge.compact
        def __call__(self):
            return self.variable("stats", "mean")

    with pytest.raises(ArgumentError, match=r"no variable 'mean' (.|\n)*at +Needy, stats/mean\n(.|\n)*no init_fn"):
        Needy().init(0)


def test_a_module_that_does_not_run_is_not_initializing():
    assert not Dense(2).is_initializing()


def test_a_field_may_be_called_parent():
    """B35: it keeps what it is given, and the module is a submodule as any other."""

    class Child(bridge.Module):
        parent: str

        @bridge.compact
        def __call__(self, x):
            return Dense(2)(x), self.parent

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            return Child(parent="a word")(x)

    (_, parent), variables = Outer().init_with_output(0, X)
    assert (parent, list(variables["params"])) == ("a word", ["Child_0"])


def test_outside_of_compact_methods_parent_is_no_argument():
    """B35: in ``setup`` the attribute decides, so that there is none to give."""

    class Setup(bridge.Module):
        def setup(self):
            self.dense = Dense(2, parent=None)

        def __call__(self, x):
            return self.dense(x)

    with pytest.raises(TypeError, match="'parent'"):
        Setup().init(0, X)


BAD_NAMES = {
    "name": (Misnamed({"name": 3}), (X,), r"at +Dense\(name=...\)(.|\n)*3 of type int"),
    "parent": (Misnamed({}), (X,), r"at +Dense\(parent=...\)(.|\n)*Misnamed"),
    "a name twice": (Misnamed({"name": "taken"}), (X,), r"two submodules have the name 'taken'(.|\n)*Misnamed\.taken"),
    "two types": (Collides(), (("v", "params"), ("v", "calls")), r"Collides\.v(.|\n)*Param(.|\n)*'calls'"),
    "a field": (Collides(), (("w", "params"), ("v", "calls")), r"Collides\.w(.|\n)*'params'"),
    "a method": (Collides(), (("setup", "params"), ("v", "calls")), r"Collides\.setup(.|\n)*'params'"),
    "a submodule": (Collides(), (("v", "params"), ("v", "")), r"Collides\.v(.|\n)*Param"),
    "a variable": (Collides(), (("v", ""), ("v", "params")), r"Collides\.v(.|\n)*submodule(.|\n)*'params'"),
}


@pytest.mark.parametrize(("module", "args", "named"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_collide_are_told(module, args, named):
    """B35, section 9: ValueErrors that name module, name and both kinds."""
    with pytest.raises(ArgumentError, match=rf"(.|\n)*{named}"):
        module.init(0, *args)


def test_stored_variables_under_the_name_of_a_field_are_told():
    with pytest.raises(ArgumentError, match=r"at +Dense\.features"):
        Dense(3).apply({"params": {"features": jnp.ones(2)}}, X)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m: m.param("w", plait.initializers.ones, ()), r"param\(\)"),
        (lambda m: m.variable("calls", "w", lambda: 1), r"variable\(\)"),
        (lambda m: m.make_rng(), r"make_rng\(\)"),
    ],
    ids=["param", "variable", "make_rng"],
)
def test_variables_and_keys_are_made_in_setup_and_compact_methods(call, named):
    """Section 9: the message names the allowed places; what ``init`` calls is one of them, as in Flax."""

    class Plain(bridge.Module):
        def __call__(self):
            call(self)

    class Outer(bridge.Module):
        def setup(self):
            self.plain = Plain()

        def __call__(self):
            return self.plain()

    for run in (lambda: call(Dense(3)), lambda: Outer().init(0)):
        with pytest.raises(ArgumentError, match=rf"{named}(.|\n)*`setup\(\)`(.|\n)*`@compact`"):
            run()
    Plain().init(0)


def test_compact_methods_need_a_bridge_module_that_is_bound():
    """Section 9."""

    class Foreign(plait.Module):
        __call__ = bridge.compact(lambda self: 1)

    with pytest.raises(ArgumentError, match=r"at +Foreign\."):
        Foreign()()
    with pytest.raises(ArgumentError, match=r"outside of init and apply\n +at +Dense\.__call__"):
        Dense(3)(X)


def test_the_stack_of_modules_belongs_to_a_thread():
    """B35, B36: and is empty again after an error."""
    seen = []

    class Looks(bridge.Module):
        @bridge.compact
        def __call__(self):
            thread = threading.Thread(target=lambda: seen.append(bridge.current_module()))
            thread.start()
            thread.join()
            seen.append(bridge.current_module() is self)
            seen.append(bridge.current_context().in_compact)
            seen.append(isinstance(self.scope, bridge.Scope) and self.scope.mutable)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        Looks().init(0)
    assert seen == [None, True, True, True]
    assert bridge.current_context() is None


def test_plaits_transforms_work_inside_and_outside():
    """B26's like: jit and grad over apply, and vmap inside a compact method."""

    class Mapped(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            dense = Dense(3)
            dense(x[0])
            return plait.vmap(lambda dense, x: dense(x), in_axes=(None, 0))(dense, x)

    variables = Mapped().init(0, X[:, None])
    assert shapes(variables) == {"params": {"Dense_0": {"kernel": (2, 3)}}}
    expected = X[:, None] @ variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(jax.jit(Mapped().apply)(variables, X[:, None]), expected, rtol=1e-5)
    grads = jax.grad(lambda v: Mapped().apply(v, X[:, None]).sum())(variables)
    assert shapes(grads) == shapes(variables)


# Names in setup, and which module runs -------------------------------------------------------------------------------


def setups(bridge, nnx):
    """Modules in whose ``setup`` children are named, by what they show."""

    class Dense(bridge.Module):
        features: int

        @bridge.compact
        def __call__(self, x):
            return x @ self.param("kernel", nnx.initializers.ones, (x.shape[-1], self.features))

    class Named(bridge.Module):
        features: int
        name: str = "of the class"

        @bridge.compact
        def __call__(self, x):
            return x @ self.param("kernel", nnx.initializers.ones, (x.shape[-1], self.features))

    class Attribute(bridge.Module):
        def setup(self):
            self.a = Dense(2, name="layer_0")

        def __call__(self, x):
            return self.a(x)

    class Several(bridge.Module):
        def setup(self):
            self.layers = [Dense(2, name=f"layer_{i}") for i in range(2)]

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    class OfAnother(bridge.Module):
        def setup(self):
            self.a = Dense(2, name="b")
            self.b = Dense(2)

        def __call__(self, x):
            return self.a(self.b(x))

    class Field(bridge.Module):
        def setup(self):
            self.a = Named(2, name="foo")

        def __call__(self, x):
            assert self.foo is self.a
            return self.a(x)

    class FieldInCompact(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            y = Named(2, name="foo")(x)
            assert self.foo.name == "foo"
            return Named(2)(y)  # the field's default is no name that was given

    return {kind.__name__: kind for kind in (Attribute, Several, OfAnother, Field, FieldInCompact)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", setups(bridge, plait))
def test_a_name_that_is_given_names_the_parameters_as_in_flax(name):
    flax_nnx = pytest.importorskip("flax.nnx")
    shapes = []
    for library, nnx in ((bridge, plait), (flax_nnx.bridge, flax_nnx)):
        kind = setups(library, nnx)[name]
        variables = kind().init(0, jnp.ones((1, 2)))
        shapes.append(jax.tree.map(jnp.shape, variables))
        if name != "OfAnother":  # which Flax cannot apply
            shapes[-1]["out"] = kind().apply(jax.tree.map(lambda x: x * 2, variables), jnp.ones((1, 2))).tolist()
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("where", ["setup", "compact"])
def test_two_children_of_one_name(where):
    class Dense(bridge.Module):
        pass

    class Outer(bridge.Module):
        def setup(self):
            if where == "setup":
                self.layers = [Dense(name="same"), Dense(name="same")]

        @bridge.compact
        def __call__(self, x):
            Dense(name="same")
            Dense(name="same")

    with pytest.raises(ArgumentError, match=r"(?s)two submodules have the name 'same'"):
        Outer().init(0, jnp.ones(2))


def watched(bridge, nnx, seen):
    """A module that notes which module runs, in each of its parts."""

    def note(where):
        seen.append((where, type(bridge.current_module()).__name__))

    class Part(nnx.Module):
        def __init__(self):
            note("part made")
            self.w = nnx.Param(jnp.ones(2))

        def __call__(self, x):
            note("part called")
            return x * self.w

    class Child(bridge.Module):
        def setup(self):
            note("child set up")
            self.part = Part()

        def __call__(self, x):
            note("child called")
            return self.part(x)

    class Compact(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            note("compact child called")
            return x

    class Outer(bridge.Module):
        def setup(self):
            note("set up")
            self.part, self.child, self.compact = Part(), Child(), Compact()

        def __call__(self, x):
            note("called")
            x = self.compact(self.child(self.part(x)))
            note("after")
            scale = self.param("scale", nnx.initializers.ones, (2,))
            self.late = Child()
            return self.late(x * scale)

    return Outer()


@pytest.mark.oracle
def test_the_module_that_runs_is_flax_s_one():
    flax_nnx = pytest.importorskip("flax.nnx")
    found = []
    for library, nnx in ((bridge, plait), (flax_nnx.bridge, flax_nnx)):
        seen = []
        variables = watched(library, nnx, seen).init(0, jnp.ones(2))
        watched(library, nnx, seen).apply(variables, jnp.ones(2))
        found.append((seen, jax.tree.map(jnp.shape, variables)))
        assert library.current_module() is None
    assert found[0] == found[1]


# Parts that transforms of plait make and use --------------------------------------------------------------------------


def stacks(bridge, nnx):
    """Modules whose ``setup`` makes a stack of layers with ``vmap``; ``__call__`` scans over it."""

    def scanned(part, x, **options):
        return nnx.scan(lambda x, part: part(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **options)(x, part)

    class Bare(bridge.Module):
        def setup(self):
            self.layers = nnx.vmap(lambda key: nnx.Linear(3, 3, rngs=nnx.Rngs(key)))(
                jax.random.split(jax.random.key(0), 4)
            )

        def __call__(self, x):
            return scanned(self.layers, x)

    class Twice(Bare):
        @bridge.compact
        def __call__(self, x):
            return scanned(self.layers, scanned(self.layers, x, length=4))

    class OfParts(bridge.Module):
        def setup(self):
            def make(key):
                return nnx.Dict(
                    linear=nnx.Linear(3, 3, rngs=nnx.Rngs(key)),
                    norm=nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0)),
                )

            self.layers = nnx.vmap(make)(jax.random.split(jax.random.key(0), 4))

        def __call__(self, x):
            layer = lambda x, layer: layer.norm(layer.linear(x))
            return nnx.scan(layer, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)

    class OfLinen(bridge.Module):
        def setup(self):
            def make(key):
                return bridge.ToNNX(nn.Dense(3), rngs=nnx.Rngs(key)).lazy_init(jnp.ones((2, 3)))

            self.layers = nnx.vmap(make)(jax.random.split(jax.random.key(0), 4))

        def __call__(self, x):
            return scanned(self.layers, x)

    return {kind.__name__: kind for kind in (Bare, Twice, OfParts, OfLinen)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(["OfParts", "Bare"], stacks(bridge, plait)))
@pytest.mark.usefixtures("users_promotion")
def test_a_part_that_vmap_makes_in_setup_is_scanned_as_in_flax(name):
    flax_nnx = pytest.importorskip("flax.nnx")
    found, x = [], jnp.ones((2, 3))
    for library, nnx in ((bridge, plait), (flax_nnx.bridge, flax_nnx)):
        kind = stacks(library, nnx)[name]
        variables = kind().init(0, x)
        doubled = jax.tree.map(lambda leaf: leaf * 2, variables)
        found.append((jax.tree.map(jnp.shape, variables), *(kind().apply(v, x).tolist() for v in (variables, doubled))))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1:], found[1][1:], rtol=1e-5)


@pytest.mark.oracle
def test_update_adds_a_part_to_a_module_in_linens_style_as_in_flax():
    """G38: it waits for the module of that name. A plait module refuses it."""
    flax_nnx = pytest.importorskip("flax.nnx")
    found = []
    for library, nnx in ((bridge, plait), (flax_nnx.bridge, flax_nnx)):

        class Empty(library.Module):
            pass

        module = Empty()
        nnx.update(module, {"b": {"c": nnx.Param(jnp.ones(2)), "d": {"e": jnp.zeros(1)}}})
        found.append((type(module.b), type(module.b["d"]), module.b["c"][...].tolist(), module.b["d"]["e"].tolist()))
    assert found[0] == found[1]
    with pytest.raises(plait.errors.GraphError, match=r"at +b\n"):
        plait.update(plait.Dict(a=plait.Param(1.0)), {"b": {"c": plait.Param(2.0)}})


def test_an_added_part_is_bound_when_its_module_is_made():
    class Outer(bridge.Module):
        def setup(self):
            plait.update(self, {"dense": {"kernel": plait.Param(jnp.full((2, 3), 2.0))}})
            self.dense = Dense(3)

        def __call__(self, x):
            return self.dense(x)

    assert Outer().init_with_output(0, jnp.ones((1, 2)))[0].tolist() == [[4.0, 4.0, 4.0]]


def constructors(library, nnx):
    """Modules whose constructors make parts, by what they make and where."""

    class Dense(library.Module):
        features: int

        @library.compact
        def __call__(self, x):
            return x @ self.param("kernel", nnx.initializers.ones, (x.shape[-1], self.features))[...]

    class One(library.Module):
        def __init__(self, features=3):
            self.dense = Dense(features)

        @library.compact
        def __call__(self, x):
            return self.dense(x)

    class Later(library.Module):
        features: int = 3

        def __post_init__(self):
            self.dense = Dense(self.features)

        @library.compact
        def __call__(self, x):
            return self.dense(x)

    class Several(library.Module):
        def __init__(self):
            self.layers = nnx.List([Dense(3), Dense(2)])

        @library.compact
        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return Dense(1)(x)

    class OfTwoKinds(library.Module):
        def __init__(self):
            self.plain = nnx.Linear(3, 3, kernel_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
            self.bias = nnx.Param(jnp.full(3, 2.0))
            self.scale = 2

        @library.compact
        def __call__(self, x):
            return self.plain(x) * self.scale + self.bias[...]

    return {"constructor": One, "post init": Later, "list": Several, "plait modules": OfTwoKinds}


@pytest.mark.oracle
@pytest.mark.parametrize("name", constructors(bridge, plait))
@pytest.mark.usefixtures("users_promotion")
def test_parts_that_a_constructor_makes_are_bound_as_in_flax(name):
    """B35: under the names of their attributes, at each call."""
    flax_nnx = pytest.importorskip("flax.nnx")
    found, x = [], jnp.ones((2, 3))
    for library, nnx in ((bridge, plait), (flax_nnx.bridge, flax_nnx)):
        module = constructors(library, nnx)[name]()
        variables = module.init(0, x)
        doubled = jax.tree.map(lambda leaf: leaf * 2, variables)
        values = [module.apply(v, x).tolist() for v in (variables, doubled, variables)]
        found.append((jax.tree.map(jnp.shape, variables), values))
    assert found[0] == found[1]


def test_parts_in_plait_modules_are_bound():
    """B35: wherever they are below an attribute that ``setup`` or a constructor assigns, and in each call of it."""

    class Chain(bridge.Module):
        in_setup: bool

        def __post_init__(self):
            self.first = plait.Sequential(Dense(3), plait.List([Dense(2)]))

        def setup(self):
            self.second = plait.Dict(dense=Dense(1)) if self.in_setup else None

        @bridge.compact
        def __call__(self, x):
            dense, (other,) = self.first.layers
            x = other(dense(x))
            return self.second["dense"](x) if self.second else x

    class Twice(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            chain = Chain(False, name="chain")
            return chain(x) + chain(x)

    for module in (Chain(True), Chain(False), Twice()):
        variables = module.init(0, X)
        doubled = jax.tree.map(lambda leaf: leaf * 2, variables)
        factor = 2 ** len(jax.tree.leaves(variables))
        np.testing.assert_allclose(module.apply(doubled, X), factor * module.apply(variables, X), rtol=1e-6)
    assert sorted(Twice().init(0, X)["params"]) == ["chain"]


def test_a_submodule_that_is_made_again_is_made_with_its_arguments():
    """B35: a compact method that runs twice makes its submodules anew, with the same variables."""

    class Scale(bridge.Module):
        def __init__(self, scale, parts):
            self.scale = scale
            self.parts = plait.List([Dense(2) for _ in range(parts)])

        @bridge.compact
        def __call__(self, x):
            return sum(part(x) for part in self.parts) * self.scale

    class Outer(bridge.Module):
        @bridge.compact
        def __call__(self, x, scale, parts):
            return Scale(scale, parts, name="scale")(x)

    class Caller(bridge.Module):
        def setup(self):
            self.outer = Outer()

        def __call__(self, x):
            return self.outer(x, 1.0, 2), self.outer(x, 5.0, 2), self.outer(x, 1.0, 2)

    variables = Caller().init(0, X)
    assert sorted(variables["params"]["outer"]["scale"]["parts"]) == [0, 1]
    first, second, third = Caller().apply(variables, X)
    np.testing.assert_allclose(second, 5 * first, rtol=1e-6)
    np.testing.assert_array_equal(third, first)


class Bound(bridge.Module):
    def setup(self):
        self.kernel = self.param("kernel", plait.initializers.normal(), (2, 3))

    def __call__(self, x):
        return x @ self.kernel


def plain(f):
    return f


MADE = {
    "a compact submodule": lambda net: setattr(net, "part", Dense(3)),
    "a submodule with setup": lambda net: setattr(net, "part", Bound()),
    "a submodule in a list": lambda net: setattr(net, "part", plait.Sequential(Bound())),
    "a parameter": lambda net: setattr(net, "part", Held(net.param("kernel", plait.initializers.normal(), (2, 3)))),
}


class Held(plait.Pytree):
    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, x):
        return x @ self.kernel


class Net(bridge.Module):
    make: str
    transform: object = plain

    def setup(self):
        self.transform(MADE[self.make])(self)

    def __call__(self, x):
        return self.part(x)


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize(
    "transform", [plait.jit, plait.remat, lambda f: plait.jit(plait.remat(f))], ids=["jit", "remat", "both"]
)
def test_b35_a_transformed_function_in_setup_makes_what_it_makes_alone(make, transform):
    """B35."""
    alone, transformed = Net(make), Net(make, transform)
    variables = alone.init(0, X)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), transformed.init(0, X), variables)
    other = jax.tree.map(lambda value: 3 * value, variables)
    np.testing.assert_allclose(transformed.apply(other, X), alone.apply(other, X), rtol=1e-6)


def test_b35_another_module_is_not_the_running_one():
    """B35: only a copy of the running module takes part in its setup."""

    class Outer(bridge.Module):
        def setup(self):
            self.inner = Bound()
            plait.jit(lambda inner: inner.param("other", plait.initializers.ones, ()))(self.inner)

    with pytest.raises(ArgumentError, match=r"param\(\) works only while the module's own setup"):
        Outer().init(0, X, method=lambda self: None)
