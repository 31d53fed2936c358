"""Modules: attributes, the JAX face, identity, copies, classes of all kinds, and settings on many modules."""

import abc
import copy
import functools
import pickle
import threading
import typing
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import plait as nnx
from plait.core.graph.walks import Walk
from plait.core.nodes.pytree import own_info
from plait.core.variables.cells import clock
from plait.errors import ArgumentError, TraceContextError
from tests.forked import run_python
from tests.oracles import describe

T = typing.TypeVar("T")


class Layer(nnx.Module):
    def __init__(self, value=1.0, name="layer"):
        self.w = nnx.Param(jnp.full((2,), value))
        self.name = name
        self.deterministic = False

    def __call__(self, x):
        return x * self.w


class Net(nnx.Module):
    def __init__(self):
        self.first = Layer(1.0)
        self.rest = [Layer(2.0), {"last": Layer(3.0)}]
        self.tied = self.first.w
        self.key = nnx.RngKey(jax.random.key(0), tag="params")
        self.scale = nnx.static(2)


class Generic(nnx.Module, typing.Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value
        self.w = nnx.Param(jnp.ones(2))


def test_classes_are_what_they_are():
    """G58, row 1 to 3."""
    assert issubclass(nnx.Module, nnx.Pytree)
    assert issubclass(nnx.Object, nnx.Pytree)
    assert nnx.M.__bound__ in (nnx.Module, "Module") or "Module" in str(nnx.M.__bound__)


# The JAX face ---------------------------------------------------------------------------------------------------------


def test_data_attributes_are_children_in_name_order():
    """G63: with attribute keys; static attributes are aux data."""
    model = Net()
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    assert paths == [".first.w.value", ".key.value", ".rest[0].w.value", ".rest[1]['last'].w.value", ".tied.value"]
    other = Net()
    assert jax.tree.structure(model) == jax.tree.structure(other)
    other.scale = 3
    assert jax.tree.structure(model) != jax.tree.structure(other)


@pytest.mark.filterwarnings("ignore::plait.errors.LostSharingWarning")  # a layer is tied, and JAX copies it
def test_mapping_gives_a_new_module_and_leaves_the_old_one_alone():
    """G63: a shared variable appears once per path."""
    model = Net()
    del model.key
    mapped = jax.tree.map(lambda x: x + 1, model)
    assert type(mapped) is Net
    assert mapped.first.w is not mapped.tied
    assert (model.first.w[0], mapped.first.w[0], mapped.rest[1]["last"].name) == (1, 2, "layer")
    assert jax.tree.structure(mapped) == jax.tree.structure(model)


@pytest.mark.filterwarnings("ignore::plait.errors.LostSharingWarning")  # a layer is tied, and JAX copies it
@pytest.mark.parametrize("transform", [jax.jit, functools.partial(jax.vmap, in_axes=(None, 0)), jax.grad], ids=range(3))
def test_transforms_of_jax_take_a_module(transform):
    """G63."""

    def f(model, x):
        return (model.first(x) * model.rest[0].w).sum()

    model = Net()
    del model.key
    x = jnp.ones((1, 2)) if transform not in (jax.jit, jax.grad) else jnp.ones(2)
    out = transform(f)(model, x)
    if transform is jax.grad:
        assert isinstance(out, Net)
        assert out.first.w.value.tolist() == [2.0, 2.0]
    else:
        assert jnp.sum(out) == 4


def test_structures_with_unhashable_static_values_compare():
    """G16."""
    models = [Layer() for _ in range(2)]
    for model in models:
        model.table = nnx.static({"a": [1]})
    assert jax.tree.structure(models[0]) == jax.tree.structure(models[1])
    assert hash(nnx.graphdef(models[0])) == hash(nnx.graphdef(models[1]))


# Identity and the trace guard -----------------------------------------------------------------------------------------


def test_modules_hash_and_compare_by_identity():
    """G64."""
    a, b = Layer(), Layer()
    assert a == a
    assert a != b
    assert {a: 1, b: 2}[a] == 1


WRITES = {
    "set": lambda m: setattr(m, "w", 1),
    "set new": lambda m: setattr(m, "new", 1),
    "delete": lambda m: delattr(m, "w"),
    "set below": lambda m: setattr(m.items["x"], "w", 1),
    "list append": lambda m: m.layers.append(1),
    "list set": lambda m: m.layers.__setitem__(0, 1),
    "list delete": lambda m: m.layers.__delitem__(0),
    "list insert": lambda m: m.layers.insert(0, 1),
    "dict set": lambda m: m.table.__setitem__("b", 1),
    "dict delete": lambda m: m.table.__delitem__("a"),
    "sow": lambda m: m.sow(nnx.Intermediate, "h", 1.0),
    "set_attributes": lambda m: m.set_attributes(name="other"),
}


@pytest.mark.filterwarnings("ignore:sow outside:DeprecationWarning")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_change_from_another_trace_is_refused_and_changes_nothing(write):
    """G64; error table: mutation from another trace level."""
    model = nnx.Dict(w=0, items={"x": Layer()}, layers=nnx.List([1]), table=nnx.Dict(a=1), name="n")
    before = nnx.graphdef(model)
    with pytest.raises(TraceContextError, match=r"(?s)(Dict|List|Layer).*a different trace"):
        jax.jit(lambda: write(model))()
    assert nnx.graphdef(model) == before


REBUILDS = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "unflatten": lambda m: jax.tree.map(lambda x: x, m),
    "clone": nnx.clone,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(PICKLED),
    "constructor": lambda m: Layer(),
}
PICKLED = pickle.dumps(Layer())


@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
def test_what_is_rebuilt_belongs_to_the_current_trace(rebuild):
    """G42, G64."""
    model = Layer()

    @jax.jit
    def inside():
        own = rebuild(model)
        own.name = "changed"
        own.extra = 3
        return own.w[...]

    inside()
    assert (model.name, hasattr(model, "extra")) == ("layer", False)


# Copies ---------------------------------------------------------------------------------------------------------------


def test_copy_keeps_attributes_and_statuses():
    """G42: shallow, with a dictionary of its own."""
    model = Net()
    fresh = copy.copy(model)
    assert fresh.first is model.first
    fresh.new = 1
    fresh.scale = nnx.data(5)
    assert not hasattr(model, "new")
    assert "scale" not in nnx.state(model)
    assert "scale" in nnx.state(fresh)


def test_deepcopy_copies_buffers_and_keeps_sharing_and_cycles():
    """G41."""
    model = Net()
    model.me = model
    model.sizes = nnx.static([1, 2])
    fresh = copy.deepcopy(model)
    assert fresh.me is fresh
    assert fresh.first.w is fresh.tied is not model.tied
    assert fresh.first.w.unsafe_buffer_pointer() != model.first.w.unsafe_buffer_pointer()
    assert fresh.sizes is not model.sizes
    assert nnx.graphdef(fresh) == nnx.graphdef(model)
    assert nnx.state(fresh) == nnx.state(model)


def test_deepcopy_shares_what_is_shared_between_two_models():
    """G41: one memo for everything."""
    shared = Layer()
    first, second = nnx.Dict(layer=shared), nnx.Dict(layer=shared, w=shared.w)
    a, b = copy.deepcopy((first, second))
    assert a.layer is b.layer
    assert b.w is b.layer.w is not shared.w


def test_pickle_keeps_the_graph_here_and_in_a_fresh_process(tmp_path):
    """G42."""
    model = nnx.Dict(layers=nnx.List([nnx.Param(jnp.arange(2.0), note="n"), "x"]), size=nnx.static((1, 2)))
    model.me = model
    model.tied = model.layers[0]
    again = pickle.loads(pickle.dumps(model))
    assert nnx.graphdef(again) == nnx.graphdef(model)
    assert nnx.state(again) == nnx.state(model)
    assert again.me is again
    again.layers.append(1)
    file = tmp_path / "model"
    file.write_bytes(pickle.dumps((model, nnx.graphdef(model))))
    program = (
        "import pickle, sys, plait\n"
        "model, graphdef = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert plait.graphdef(model) == graphdef\n"
        "model.layers[0][...] += 1\n"
        "print(model.tied is model.layers[0], model.me is model, model.tied.tolist(), model.size)\n"
    )
    run = run_python("-c", program, str(file), check=True)
    assert run.stdout == "True True [1.0, 2.0] (1, 2)\n"


# Kinds of classes -----------------------------------------------------------------------------------------------------


def test_a_generic_module_is_the_same_with_and_without_parameters():
    """Row 1: the parameters are no attribute of the graph."""
    plain, typed = Generic(3), Generic[int](3)
    assert nnx.graphdef(plain) == nnx.graphdef(typed)
    assert "__orig_class__" not in dict(nnx.iter_graph(typed))
    assert jax.tree.structure(plain) == jax.tree.structure(typed)

    class Concrete(Generic[str]):
        pass

    assert nnx.clone(Concrete("a")).value == "a"
    assert typed.__orig_class__ == Generic[int]


def test_init_subclass_with_options():
    """G7: hooks of a user's own base run, and subclasses register themselves."""
    seen = []

    class Base(nnx.Module):
        def __init_subclass__(cls, *, tag="none", **options):
            super().__init_subclass__(**options)
            seen.append((cls.__name__, tag, cls._pytree__is_tree))

    class First(Base, tag="a"): ...

    class Second(First, pytree=False): ...

    assert seen == [("First", "a", True), ("Second", "none", False)]
    assert nnx.graph.is_node(First())
    with pytest.raises(TypeError, match="no keyword arguments"):
        type("Third", (nnx.Module,), {}, unknown=1)


def test_abstract_and_mixed_classes():
    """Row 3."""

    class Model(nnx.Module, abc.ABC):
        @abc.abstractmethod
        def __call__(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Model()

    class Mixin:
        def __init__(self, *args, size, **kwargs):
            super().__init__(*args, **kwargs)
            self.size = size

    class Both(Mixin, Layer): ...

    assert nnx.clone(Both(size=3)).size == 3

    class Callable(Model):
        def __call__(self):
            return 1

    assert Callable()() == 1


def test_properties_and_class_attributes_are_ordinary_python():
    """G58."""

    class Model(nnx.Module):
        rate = 0.5

        @property
        def half(self):
            return self._half

        @half.setter
        def half(self, value):
            self._half = value / 2

    model = Model()
    model.half = 4.0
    assert (model.half, model.rate, nnx.clone(model).half) == (2.0, 0.5, 2.0)
    with pytest.raises(AttributeError, match="missing"):
        model.missing
    with pytest.raises(AttributeError, match="missing"):
        del model.missing


def test_a_key_that_is_no_attribute_name():
    """Error table: Cannot set key, Cannot pop key."""
    impl = nnx.graph.get_node_impl(Layer())
    with pytest.raises(ValueError, match=r"(?s)Cannot set key 3.*attribute name"):
        impl.set_key(Layer(), 3, 1)
    with pytest.raises(ValueError, match=r"(?s)Cannot pop key 'x' of a Layer.*name"):
        impl.pop_key(Layer(), "x")


def test_a_key_that_is_popped_is_returned():
    layer = Layer()
    w = layer.w
    assert nnx.graph.get_node_impl(layer).pop_key(layer, "w") is w
    assert "w" not in vars(layer)


def test_a_variable_cannot_be_updated_into_a_static_attribute():
    """G38; error table: Variable/array into static attribute."""
    model = Layer()
    with pytest.raises(ValueError, match=r"(?s)static.*Layer\.name.*Param"):
        nnx.update(model, {"name": nnx.Param(1)})
    assert model.name == "layer"


# Settings on many modules ---------------------------------------------------------------------------------------------


def test_attributes_are_set_on_all_modules_below():
    """Rows 6 and 7: in containers too."""
    model = Net()
    model.set_attributes(name="new")
    assert [layer.name for layer in (model.first, model.rest[0], model.rest[1]["last"])] == ["new"] * 3
    model.set_attributes(nnx.PathContains("rest"), name="rest")
    assert (model.first.name, model.rest[1]["last"].name) == ("new", "rest")
    model.eval()
    assert model.first.deterministic
    model.train(name="training")
    assert (model.first.deterministic, model.rest[0].name) == (False, "training")
    model.tied = model.first
    for graph in (True, False):  # as in Flax, where a shared module is no error here
        model.set_attributes(name=f"graph={graph}", graph=graph)
        assert model.tied.name == f"graph={graph}"


def test_streams_get_no_attributes():
    """Row 7: an ``Rngs`` answers to every name, with its default stream."""
    rngs = nnx.Rngs(0)
    model = nnx.Dict(rngs=rngs)
    model.eval()
    copied = nnx.with_attributes(model, deterministic=True, raise_if_not_found=False)
    assert "deterministic" not in vars(rngs).keys() | vars(copied["rngs"]).keys()


def test_check_pytree_takes_anything_that_is_in_order():
    """Row 17."""
    model = Net()
    before = describe(model)
    assert [nnx.check_pytree(value) for value in (model, 3, [model], jnp.ones(1))] == [None] * 4
    assert describe(model) == before


# Rendering ------------------------------------------------------------------------------------------------------------


def test_a_module_that_was_printed_shows_dots():
    """G66: cycles, and shared modules."""
    model = nnx.Dict(a=Layer())
    model.b, model.me = model.a, model
    text = repr(model)
    assert text.count("Layer(w=") == 1
    assert "b=Layer(...)" in text
    assert "me=Dict(...)" in text
    assert repr(model) == text, "printing leaves nothing behind"


def test_the_count_has_each_variable_once():
    """G66."""
    assert repr(Net()).startswith("Net( # Param: 6 (24 B), RngState: 1 (")


def test_repr_inside_a_trace():
    """G66: tracers show shape and dtype."""
    texts = []
    jax.jit(lambda x: texts.append(repr(Layer(x))))(1.0)
    assert texts == ["Layer(w=Param(float32[2]), deterministic=False)  # Param: 2 (8 B)"]


@pytest.mark.oracle
@pytest.mark.parametrize(
    "ask",
    [
        lambda nnx, m: [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(m)],
        lambda nnx, m: [path for path, _ in nnx.to_flat_state(nnx.state(m))],
        lambda nnx, m: type(jax.tree.map(lambda x: x, m)).__name__,
        lambda nnx, m: nnx.graphdef(m) == nnx.graphdef(nnx.clone(m)),
        lambda nnx, m: len(nnx.has_data([m, 3, [m.scale]])),
    ],
    ids=["jax paths", "state paths", "map", "clone", "has_data"],
)
def test_flax_answers_the_same(ask):
    """G58 to G64."""
    flax_nnx = pytest.importorskip("flax.nnx")
    answers = []
    for library in (nnx, flax_nnx):

        class Inner(library.Module):
            def __init__(self, library=library):
                self.w = library.Param(jnp.ones(2))
                self.n = library.data(3)
                self.name = "x"

        class Outer(library.Module):
            def __init__(self, library=library, inner=Inner):
                self.items = library.List([inner(), inner()])
                self.table = library.Dict(a=inner())
                self.scale = library.static((1, 2))

        answers.append(ask(library, Outer()))
    assert answers[0] == answers[1]


def test_nodes_that_were_merged_together_have_stamps_of_their_own():
    """U33: a change of one of them is not one of another, and moves the clock only if a walk has seen it."""
    merged = nnx.merge(*nnx.split(nnx.Dict(a=nnx.Dict(n=1), b=nnx.Dict(n=1), c=nnx.Dict(n=1))))
    before = clock.now
    merged.c.n = 2  # not seen yet
    assert clock.now == before
    graphdefs = [nnx.graphdef(node) for node in (merged.a, merged.b)]
    stamps = [node._pytree__info for node in (merged.a, merged.b)]
    assert stamps[0] is not stamps[1]
    merged.c.n = 3
    assert clock.now == before
    merged.a.n = 2
    assert clock.now == stamps[0].version > before
    assert stamps[1].version < clock.now
    assert [nnx.graphdef(node) == old for node, old in zip((merged.a, merged.b), graphdefs, strict=True)] == [
        False,
        True,
    ]
    walk = Walk()
    walk.add(merged)
    assert len(set(map(id, walk.stamps))) == 4


def test_threads_that_see_a_merged_node_first_agree_on_its_stamp():
    """U33: all of them hold the stamp that a change will move."""
    for _ in range(20):
        merged = nnx.merge(*nnx.split(nnx.Dict(a=nnx.Param(1.0))))
        barrier = threading.Barrier(4)

        def see(node=merged, barrier=barrier):
            barrier.wait()
            return own_info(node)

        with ThreadPoolExecutor(4) as pool:
            infos = [job.result() for job in [pool.submit(see) for _ in range(4)]]
        assert {id(info) for info in infos} == {id(merged._pytree__info)}


class Remembered:
    """A base that says itself how it is stored, as those of Keras do."""

    def __reduce__(self):
        return type(self), (self.size + 1,)


class StoredByBase(nnx.Module, Remembered):
    def __init__(self, size):
        self.size = size


def test_a_class_may_say_itself_how_it_is_pickled():
    assert pickle.loads(pickle.dumps(StoredByBase(3))).size == 4
    assert pickle.loads(pickle.dumps(nnx.Dict(size=3))).size == 3


class Thermostat(nnx.Module):
    """A mode that is no attribute of its name, and one that is."""

    def __init__(self):
        self.heating = True
        self.strict = False

    def set_view(self, deterministic: bool | None = None, strict: bool | None = None) -> None:
        if deterministic is not None:
            self.heating = not deterministic


def test_a_mode_that_is_no_attribute_goes_to_set_view():
    """D4, L6: what a mode means for a layer is the layer's own business."""
    house = nnx.Dict(room=Thermostat())
    house.eval()
    assert house.room.heating is False
    assert not hasattr(house.room, "deterministic")
    house.train(strict=True)
    assert (house.room.heating, house.room.strict) == (True, True)
    with pytest.raises(ArgumentError, match=r"following attributes: \['warmth'\]"):
        house.set_attributes(deterministic=True, warmth=3)


def test_a_set_view_that_takes_any_name_is_asked_by_view_alone():
    class Forwarding(nnx.Module):
        def set_view(self, **settings):
            raise AssertionError(settings)

    Forwarding().eval()


def test_a_class_may_have_a_new_of_its_own():
    """Also one that calls ``object.__new__``, and one for a subclass."""

    class Own(nnx.Module):
        def __new__(cls, n):
            return object.__new__(cls)

        def __init__(self, n):
            self.n, self.w = n, nnx.Param(jnp.ones(2))

    class Sub(Own):
        def __new__(cls, n):
            return super().__new__(cls, n)

    class Other(nnx.Module):
        def __new__(cls):
            return 7

    for made in (Own(1), Sub(1), nnx.clone(Sub(1))):
        assert (made.n, nnx.jit(lambda m: m.w.sum())(made)) == (1, 2.0)
    assert Other() == 7


def test_the_new_of_another_base_runs():
    """G58: as Keras stores the arguments of its layers."""

    class Saved:
        def __new__(cls, *args):
            made = super().__new__(cls)
            made.given = args
            return made

    class Layer(nnx.Module, Saved):
        def __init__(self, n):
            self.n, self.w = n, nnx.Param(jnp.ones(2))

    class Sub(Layer):
        def __new__(cls, n):
            return super().__new__(cls, n)

    for made in (Layer(1), Sub(1), nnx.clone(Sub(1))):
        assert (made.n, made.given, nnx.jit(lambda m: m.w.sum())(made)) == (1, (1,), 2.0)


def test_a_number_that_is_marked_as_static_is_so_in_the_place_of_an_array():
    """Without a mark, a number in the place of data is data."""
    node = nnx.Module()
    node.a = node.b = jnp.ones(())
    node.a, node.b = nnx.static(3), 3
    assert [*nnx.to_flat_state(nnx.state(node))] == [(("b",), 3)]
    assert nnx.merge(*nnx.split(node)).a == 3
