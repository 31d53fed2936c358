"""Variables: construction, value access, metadata, hooks, copies, the trace guard, the pytree face."""

import copy
import functools
import pickle
import threading
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.core.variables import variable_metadata, variables
from plait.core.variables.cells import PLAIN_METADATA
from plait.errors import TraceContextError

KINDS = {
    nnx.Variable: object,
    nnx.Param: nnx.Variable,
    nnx.LoRAParam: nnx.Param,
    nnx.BatchStat: nnx.Variable,
    nnx.Cache: nnx.Variable,
    nnx.Intermediate: nnx.Variable,
    nnx.Perturbation: nnx.Intermediate,
    nnx.RngState: nnx.Variable,
    nnx.RngKey: nnx.RngState,
    nnx.RngCount: nnx.RngState,
}


@pytest.fixture(autouse=True)
def hooks_were_warned_about(monkeypatch):
    """The warning comes once per process (V30), so it would strike whichever test happens to be first."""
    monkeypatch.setattr(variable_metadata, "_hooks_warned", {"warned"})


def add(amount):
    return lambda variable, value: value + amount


def plus_one(variable, value):
    return value + 1


class Noisy(nnx.Param):
    """Hooks as methods (V30); every one leaves a trace in ``log``."""

    def on_create_value(self, value):
        return value + 100

    def on_get_value(self, value):
        return value + 1

    def on_set_value(self, value):
        return value * 2


class Clipped(nnx.Param):
    def set_value(self, value, **options):
        super().set_value(jnp.clip(value, -1, 1), **options)


# Kinds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_has_its_parent(kind):
    """V1."""
    assert issubclass(kind, KINDS[kind])
    assert getattr(nnx, kind.__name__) is kind


def test_a_users_kind_works_in_filters_without_registration():
    """V2."""

    class Moment(nnx.Variable):
        pass

    state = nnx.State({"a": Moment(jnp.ones(2)), "b": nnx.Param(jnp.ones(2))})
    assert list(state.filter(Moment)) == ["a"]


def test_a_variable_has_no_dict_and_kinds_can_be_generic():
    """V2."""
    T = typing.TypeVar("T")

    class Pair(nnx.Variable[T], typing.Generic[T]):
        pass

    for variable in (nnx.Param(1.0), Pair(1.0), Pair[float](1.0), nnx.Variable[int](1)):
        assert not hasattr(variable, "__dict__")


class Tagging(typing.Generic[typing.TypeVar("T")]):
    """A mixin of the user's, whose objects have attributes."""

    kind = "tagging"


def tagged(nnx, *, early):
    """A variable that assigns an attribute in its constructor, before or after that of its base."""

    class Tagged(Tagging[jax.Array], nnx.Variable[jax.Array]):
        def __init__(self, value, tag, **metadata):
            if early:
                self.tag = tag
            super().__init__(value, **metadata)
            if not early:
                self.tag = tag

    return Tagged(jnp.ones(2), tag="x")


@pytest.mark.parametrize("early", [False, True])
def test_what_a_class_with_a_mixin_assigns_is_metadata(early):
    """V2: so that it is in every copy."""
    v = tagged(nnx, early=early)
    holder = nnx.Dict(v=v)
    again = [nnx.merge(*nnx.split(v)), v.copy(), copy.deepcopy(v), jax.tree.map(jnp.copy, v), nnx.clone(holder).v]
    assert [each.tag for each in (v, *again)] == ["x"] * 6
    assert v.get_metadata("tag") == "x"
    assert nnx.jit(lambda holder: holder.v.tag == "x")(holder)
    with pytest.raises(AttributeError, match="Cannot set attribute 'kind'"):
        v.kind = "other"  # the class has one, which would hide it
    with pytest.raises(AttributeError, match="Cannot set attribute 'tag'"):
        nnx.Param(1.0).tag = "x"


@pytest.mark.oracle
@pytest.mark.parametrize("ask", [lambda nnx, v: v.tag, lambda nnx, v: nnx.merge(*nnx.split(nnx.Dict(v=v))).v.tag])
def test_flax_keeps_what_a_class_with_a_mixin_assigns(ask):
    """V2."""
    libraries = nnx, pytest.importorskip("flax.nnx")
    ours, theirs = (ask(library, tagged(library, early=False)) for library in libraries)
    assert ours == theirs


# Construction ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, "text", None, (1, 2), {"a": [1.0]}, np.arange(3), jnp.ones(2)], ids=repr)
def test_any_value_can_be_held(value):
    """V3."""
    assert nnx.Variable(value).get_raw_value() is value


def test_the_constructor_works_in_order():
    """V4: create hooks run left to right, then create_value, and the result is stored."""
    order = []

    class Ordered(nnx.Variable):
        def create_value(self, value):
            order.append(("create_value", value))
            return value * 10

    def hook(name):
        def run(variable, value):
            order.append((name, value))
            return value + 1

        return run

    made = Ordered(1, on_create_value=[hook("first"), hook("second")])
    assert order == [("first", 1), ("second", 2), ("create_value", 3)]
    assert made.get_raw_value() == 30


def test_the_three_flags_are_always_there():
    """V5."""
    assert nnx.Param(1.0).get_metadata() == {"hijax": False, "ref": False, "eager_sharding": True}
    assert nnx.Variable.required_metadata == {"hijax", "ref", "eager_sharding"}
    assert nnx.Param.from_metadata(1.0, {"note": 1}).get_metadata().keys() == {*nnx.Variable.required_metadata, "note"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.Param(1.0, hijax=True),
        lambda: nnx.Param.from_metadata(1.0, {"hijax": True}),
        lambda: nnx.Param(1.0).copy(hijax=True),
    ],
    ids=["constructor", "from_metadata", "copy"],
)
def test_hijax_is_not_offered(make):
    """V5; error table: hijax=True."""
    with pytest.raises(NotImplementedError, match="hijax"):
        make()


def test_a_box_gives_its_value_hooks_and_metadata():
    """V6."""
    box = nnx.VariableMetadata(jnp.ones(2), on_get_value=add(1), metadata={"note": "demo"})
    made = nnx.Param(box)
    assert made.note == "demo"
    assert made[...].tolist() == [2.0, 2.0]


def test_of_box_and_keywords_our_hooks_win_and_its_metadata_wins():
    """V6."""
    box = nnx.VariableMetadata(1, on_get_value=add(1), metadata={"note": "box"})
    made = nnx.Param(box, on_get_value=add(10), note="keyword", more=2)
    assert made.get_value() == 11
    assert (made.note, made.more) == ("box", 2)


def test_with_metadata_keeps_the_signature_and_takes_one_hook_or_several():
    """V7."""

    def initializer(key, shape):
        "Ones."
        return jnp.ones(shape)

    wrapped = nnx.with_metadata(initializer, on_set_value=plus_one, on_get_value=[plus_one, plus_one], note="demo")
    assert (wrapped.__name__, wrapped.__doc__) == ("initializer", "Ones.")
    box = wrapped(None, (2,))
    assert isinstance(box, nnx.VariableMetadata)
    assert box.on_set_value == (plus_one,)
    assert box.on_get_value == (plus_one, plus_one)
    assert (box.metadata, box.raw_value.tolist()) == ({"note": "demo"}, [1.0, 1.0])


def test_boxes_compare_by_content():
    """V6."""
    value = jnp.ones(2)
    box = nnx.VariableMetadata(value, metadata={"note": 1})
    assert box == nnx.VariableMetadata(value, metadata={"note": 1})
    assert box != nnx.VariableMetadata(value, metadata={"note": 2})
    assert box != value.shape
    assert "note" in repr(box)


def test_from_metadata_runs_nothing():
    """V8."""

    class Refusing(Noisy):
        def create_value(self, value):
            raise AssertionError

    value = jnp.ones(2)
    made = Refusing.from_metadata(value, {"note": 1})
    assert made.get_raw_value() is value
    assert made.note == 1
    assert type(made) is Refusing


def test_defaults_can_be_set_read_and_restored():
    """V9: as a mapping, a context manager and a decorator."""
    assert dict(nnx.var_defaults()) == {"hijax": False, "ref": False}
    setting = nnx.var_defaults(ref=True)
    try:
        assert nnx.var_defaults()["ref"]
        assert "ref=True" in repr(setting)
    finally:
        with setting:
            assert nnx.Param(jnp.ones(2)).ref
    assert not nnx.var_defaults()["ref"]
    with setting:
        assert nnx.var_defaults()["ref"], "it can be entered again"
    assert len(setting) == 2

    @nnx.var_defaults(ref=True)
    def make():
        return nnx.Param(jnp.ones(2))

    assert not nnx.var_defaults()["ref"]
    assert make().ref
    assert make.__name__ == "make"
    assert not nnx.Param(1.0).ref


def test_defaults_belong_to_a_thread():
    """V9."""
    seen = []
    with nnx.var_defaults(ref=True), nnx.use_eager_sharding(False):
        thread = threading.Thread(target=lambda: seen.extend([nnx.var_defaults()["ref"], nnx.using_eager_sharding()]))
        thread.start()
        thread.join()
    assert seen == [False, True]


def test_eager_sharding_can_be_switched():
    """V9."""
    assert nnx.using_eager_sharding()
    with nnx.use_eager_sharding(False):
        assert not nnx.using_eager_sharding()
        assert nnx.Param(1.0).get_metadata("eager_sharding") is False
        assert nnx.Param(1.0, eager_sharding=True).get_metadata("eager_sharding") is True
    assert nnx.using_eager_sharding()


# Value access ---------------------------------------------------------------------------------------------------------


def test_value_access_runs_hooks_and_raw_access_does_not():
    """V10, V11, V29."""
    v = Noisy(jnp.zeros(()))
    assert v.get_raw_value() == 100
    assert v.get_value() == v.value == v[...] == 101
    v.set_value(jnp.asarray(5.0))
    assert v.raw_value == 10
    v.value = jnp.asarray(6.0)
    assert v.get_raw_value() == 12
    v.set_raw_value(7.0)
    assert v.raw_value == 7
    v.raw_value = 8.0
    assert v.value == 9


def test_containers_are_copied_on_the_way_in_and_out():
    """V12: arrays in them are not copied."""
    array = jnp.ones(2)
    v = nnx.Variable({"a": [array]})
    v.get_value()["a"].append(1)
    given = {"b": [array]}
    assert v.get_value() == {"a": [array]}
    v.set_value(given)
    given["b"].clear()
    assert v.value["b"][0] is array


@pytest.mark.parametrize(
    ("value", "index", "expected"),
    [
        (jnp.arange(3), 1, 1),
        (jnp.arange(6).reshape(2, 3), (1, 2), 5),
        (np.arange(3), slice(1, 3), [1, 2]),
        ({"a": 7}, "a", 7),
        ([7, 8], 1, 8),
        ((7, 8), 0, 7),
        (3.5, ..., 3.5),
        (True, ..., True),
        ([7, 8], ..., [7, 8]),
        ({"a": 7}, ..., {"a": 7}),
    ],
    ids=str,
)
def test_indexing_reads_a_part(value, index, expected):
    """V13, V15."""
    assert np.asarray(nnx.Variable(value)[index]).tolist() == np.asarray(expected).tolist()


def test_the_get_hook_sees_the_indexed_part():
    """V13."""
    seen = []
    v = nnx.Variable(jnp.arange(4.0), on_get_value=lambda variable, value: seen.append(value.shape) or value)
    _ = v[1], v[:2], v[...]
    assert seen == [(), (2,), (4,)]


def test_the_whole_array_is_replaced_when_shape_dtype_and_sharding_agree():
    """V14."""
    v, new = nnx.Param(jnp.zeros(3)), jnp.ones(3)
    v[...] = new
    assert v.get_raw_value() is new


@pytest.mark.parametrize(
    ("index", "new", "expected"),
    [
        (..., 2.0, [2.0, 2.0, 2.0]),
        (..., np.float64(2.0), [2.0, 2.0, 2.0]),
        (..., np.arange(3), [0.0, 1.0, 2.0]),
        (..., [5, 6, 7], [5.0, 6.0, 7.0]),
        (..., jnp.arange(3, dtype=jnp.int8), [0.0, 1.0, 2.0]),
        (1, True, [0.0, 1.0, 0.0]),
        (slice(0, 2), jnp.ones(()), [1.0, 1.0, 0.0]),
    ],
    ids=str,
)
def test_writing_a_part_keeps_shape_and_dtype(index, new, expected):
    """V14: the new value is broadcast and cast."""
    v = nnx.Param(jnp.zeros(3))
    v[index] = new
    assert (v.dtype, v.shape) == (jnp.float32, (3,))
    assert v[...].tolist() == expected


def test_a_float_written_into_integers_is_cast():
    """V14."""
    v = nnx.Variable(jnp.zeros(2, jnp.int32))
    v[...] = 1.75
    v[1] = jnp.float32(2.5)
    assert (v[...].tolist(), v.dtype) == ([1, 2], jnp.int32)


@pytest.mark.parametrize(
    ("dtype", "number"), [(jnp.int32, 2**40), (jnp.int8, 300), (jnp.uint32, -1), (jnp.int4, 8), (jnp.int32, 2**70)]
)
@pytest.mark.parametrize("index", [..., 0])
@pytest.mark.parametrize("ref", [False, True], ids=["array", "reference"])
def test_an_integer_that_does_not_fit_is_an_error(dtype, number, index, ref):
    """V14: the variable keeps its value."""
    v = nnx.Variable(jnp.ones(2, dtype), ref=ref)
    with pytest.raises(OverflowError, match=f"{number} out of bounds for {jnp.dtype(dtype)}"):
        v[index] = number
    with pytest.raises(OverflowError, match=f"{number} out of bounds"):
        v[...] = [1, number]
    assert v[...].tolist() == [1, 1]


def test_an_integer_is_written_into_floats_of_any_size():
    """V14."""
    v = nnx.Variable(jnp.zeros(2))
    v[...] = 2**40
    assert v[...].tolist() == [2.0**40] * 2


def test_item_assignment_of_numpy_arrays_dicts_and_lists():
    """V14. Arrays are copied on write: a detached leaf shares its NumPy array with the model (G32)."""
    array = np.zeros(2)
    v = nnx.Variable(array)
    leaf = v.copy()
    v[0] = 1
    assert (v.value.tolist(), leaf.value.tolist(), array.tolist()) == ([1, 0], [0, 0], [0, 0])
    d = nnx.Variable({"a": 1})
    d["b"] = 2
    assert d.value == {"a": 1, "b": 2}
    items = nnx.Variable([1, 2])
    items[0] = 9
    assert items.value == [9, 2]
    items[...] = [4]
    assert items.value == [4]


@pytest.mark.parametrize("value", [1, 2.5, True])
def test_a_python_scalar_can_be_indexed_with_an_ellipsis(value):
    """V15."""
    v = nnx.Variable(value)
    v[...] = v[...] + 1
    assert v.value == value + 1
    v[...] += 1
    assert v.get_raw_value() == value + 2


def test_set_value_may_change_shape_dtype_and_type():
    """V16."""
    v = nnx.Param(jnp.zeros(3))
    for new in (jnp.ones((2, 2), jnp.int32), np.zeros(1), {"a": 1}, "text", None):
        v.set_value(new)
        assert jax.tree.structure(v.value) == jax.tree.structure(new)
    v.value = nnx.Param(4)
    assert v.get_raw_value() == 4, "a variable given as a value gives its value"


def test_container_protocol_acts_on_the_value():
    """V17."""
    v = nnx.Variable({"a": 1, "b": 2})
    del v["a"]
    assert v.get_raw_value() == {"b": 2}
    assert (len(v), list(v), "b" in v, "a" in v) == (1, ["b"], True, False)
    assert nnx.Variable(lambda x, y=0: x + y)(1, y=2) == 3
    assert [float(x) for x in nnx.Param(jnp.arange(2.0))] == [0.0, 1.0]


def test_unknown_attributes_come_from_metadata_then_from_the_value():
    """V18."""
    v = nnx.Param(jnp.arange(6.0).reshape(2, 3), tag="t", ndim="metadata wins")
    assert (v.tag, v.ndim, v.shape, v.T.shape, v.sum()) == ("t", "metadata wins", (2, 3), (3, 2), 15)
    assert not hasattr(v, "__cuda_array_interface__")
    assert {"tag", "shape", "sum", "set_metadata"} <= set(dir(v))


def test_a_variable_whose_cell_is_missing_says_so():
    """V18: copy and pickle look attributes up before there is a cell."""
    with pytest.raises(AttributeError, match="_cell"):
        object.__new__(nnx.Param).anything


# Attributes -----------------------------------------------------------------------------------------------------------


def test_a_property_of_a_subclass_can_be_assigned():
    """V22: only what nobody declared is refused."""

    class Scaled(nnx.Param):
        @property
        def half(self):
            return self.value / 2

        @half.setter
        def half(self, value):
            self.value = value * 2

    v = Scaled(jnp.ones(()))
    v.half = jnp.asarray(4.0)
    assert v.value == 8


# Metadata -------------------------------------------------------------------------------------------------------------


def test_get_metadata_in_its_forms():
    """V23."""
    v = nnx.Param(1.0, note=1)
    everything = v.get_metadata()
    everything["note"] = 2
    assert v.get_metadata(exclude_required=True) == {"note": 1}
    assert (v.get_metadata("note"), v.get_metadata("x", None), v.get_metadata("x", default=3)) == (1, None, 3)
    assert (v.has_metadata("note"), v.has_metadata("x")) == (True, False)


def test_set_metadata_in_its_forms():
    """V24."""
    v = nnx.Param(1.0, note=1)
    v.set_metadata("more", 2)
    v.set_metadata(note=3, other=4)
    assert v.get_metadata(exclude_required=True) == {"note": 3, "more": 2, "other": 4}
    v.set_metadata({"new": 5})
    assert v.get_metadata(exclude_required=True) == {"new": 5}
    v.set_metadata({"ref": False})
    v.set_metadata("hijax", False)
    assert v.get_metadata() == PLAIN_METADATA
    v.set_metadata(a=1)
    v.del_metadata("a")
    assert v.get_metadata() == PLAIN_METADATA


def test_metadata_is_part_of_the_structure():
    """V25: of the tree structure and of the graphdef, by content, with a hash or without."""
    plain, noted = nnx.Param(jnp.ones(2)), nnx.Param(jnp.zeros(2), note=(1, 2))
    again = nnx.Param(jnp.zeros(2), note=(1, 2))
    assert jax.tree.structure(noted) == jax.tree.structure(again) != jax.tree.structure(plain)
    assert nnx.graphdef(noted) == nnx.graphdef(again) != nnx.graphdef(plain)
    listed = [nnx.graphdef(nnx.Param(jnp.ones(2), note=[n])) for n in (1, 1, 2)]
    assert hash(listed[0]) == hash(listed[1])
    assert listed[0] == listed[1] != listed[2]


def test_set_metadata_of_many_variables():
    """V26."""
    model = nnx.Dict(a=nnx.Param(1.0), b=nnx.BatchStat(1.0))
    nnx.set_metadata(model, only=nnx.Param, note="demo")
    assert model.a.note == "demo"
    assert not model.b.has_metadata("note")


# Hooks ----------------------------------------------------------------------------------------------------------------


def test_hooks_run_in_order_each_on_the_result_of_the_one_before():
    """V28, V29."""
    v = nnx.Variable(1, on_set_value=[lambda _, x: x + 1, lambda _, x: x * 10], on_get_value=(lambda _, x: -x,))
    v.value = 2
    assert v.get_raw_value() == 30
    assert v.value == -30
    assert v + 0 == -30


def test_the_set_hook_sees_what_is_assigned_to_a_part():
    """V14, V28."""
    v = nnx.Param(jnp.zeros(3), on_set_value=add(1.0))
    v[0] = jnp.asarray(1.0)
    assert v[...].tolist() == [2.0, 0.0, 0.0]


def test_axis_hooks_run_on_the_variable_and_change_its_metadata():
    """V28, V31."""

    def added(variable, index, name):
        variable.set_metadata(axes=(*variable.axes[:index], name, *variable.axes[index:]))

    def removed(variable, index, name):
        variable.set_metadata(axes=tuple(axis for axis in variable.axes if axis != name))

    v = nnx.Param(jnp.ones((2, 3)), on_add_axis=added, on_remove_axis=removed, axes=("a", "b"))
    assert v.add_axis(1, "layers") is None
    assert v.axes == ("a", "layers", "b")
    v.remove_axis(1, "layers")
    assert v.axes == ("a", "b")
    nnx.Param(1.0).add_axis(0, "no hooks")


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v.get_raw_value(),
        lambda v: v.set_raw_value(jnp.ones(2)),
        lambda v: v.copy(jnp.ones(2)),
        lambda v: v.replace(value=jnp.ones(2)),
        lambda v: type(v).from_metadata(jnp.ones(2), v.get_metadata()),
        lambda v: v.update_from_state(v.copy()),
        lambda v: nnx.update(nnx.Dict(v=v), nnx.State({"v": jnp.ones(2)})),
        lambda v: jax.tree.map(lambda x: x, v),
        lambda v: nnx.merge(*nnx.split(nnx.Dict(v=v))),
        lambda v: nnx.clone(v),
    ],
    ids=[
        "get_raw",
        "set_raw",
        "copy",
        "replace",
        "from_metadata",
        "update_from_state",
        "update",
        "map",
        "merge",
        "clone",
    ],
)
def test_where_hooks_do_not_run(use):
    """V29."""

    def refuse(variable, value):
        raise AssertionError("a hook ran")

    v = nnx.Param.from_metadata(jnp.zeros(2), dict.fromkeys(variable_metadata.HOOKS, (refuse,)))
    use(v)


def test_methods_are_hooks_unless_the_metadata_has_that_hook():
    """V30."""
    v = Noisy(1, on_get_value=add(5))
    assert v.get_raw_value() == 101
    assert v.value == 106


def test_metadata_hooks_warn_once_per_process_at_the_callers_line(monkeypatch):
    """V30: methods of a subclass do not warn."""
    monkeypatch.setattr(variable_metadata, "_hooks_warned", set())
    Noisy(1)
    Clipped(jnp.ones(2)).value = jnp.ones(2)
    with pytest.warns(DeprecationWarning, match="overrides get_value") as seen:
        nnx.Param(1.0, on_get_value=plus_one)
    assert [warning.filename for warning in seen] == [__file__]
    nnx.Param(1.0, on_get_value=plus_one)
    nnx.Param(1.0).set_metadata(on_set_value=plus_one)


def test_overriding_the_accessors_is_enough():
    """V30; the example of section 14."""
    w = Clipped(jnp.zeros(3), note="demo")
    w[...] = jnp.array([5.0, -0.5, -9.0])
    assert w[...].tolist() == [1.0, -0.5, -1.0]
    w += 10.0
    assert w[...].tolist() == [1.0, 1.0, 1.0]


# Leaves and copies ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::plait.errors.LostUpdateWarning")  # what is written is not read again
def test_state_leaves_are_detached_variables_of_the_same_class():
    """V32."""
    model = nnx.Dict(w=Clipped(jnp.ones(2), note=1))
    leaf = nnx.state(model)["w"]
    assert type(leaf) is Clipped
    assert leaf is not model.w
    leaf[...] = jnp.zeros(2)
    assert model.w[0] == 1


def test_variable_state_is_the_name_of_every_leaf():
    """V33."""
    assert isinstance(nnx.Param(1.0), nnx.VariableState)
    assert not isinstance(1.0, nnx.VariableState)
    assert issubclass(nnx.Param, nnx.VariableState)
    assert not issubclass(int, nnx.VariableState)
    for leaf in (nnx.VariableState(nnx.Param, 1.0, note=2), nnx.VariableState(type=nnx.Param, value=1.0, note=2)):
        assert type(leaf) is nnx.Param
        assert (leaf.value, leaf.note) == (1.0, 2)


def test_members_of_a_leaf():
    """V34."""
    v = Noisy(jnp.ones(2), note=1)
    raw = v.get_raw_value()
    assert v.type is v.var_type is Noisy
    for fresh in (v.copy(), v.replace(), v.to_variable(), v.to_state(), copy.copy(v)):
        assert fresh is not v
        assert type(fresh) is Noisy
        assert fresh.get_raw_value() is raw
        assert fresh.get_metadata() == v.get_metadata()
    other = jnp.zeros(3)
    assert v.copy(other).get_raw_value() is v.replace(value=other).get_raw_value() is other
    changed = v.copy(note=2, more=3)
    assert (changed.note, changed.more, v.note) == (2, 3, 1)
    assert nnx.Variable(1).copy(on_get_value=plus_one).value == 2


def test_copy_from_takes_value_and_metadata():
    """V35."""
    first, second = nnx.Param(jnp.ones(2), note=1), nnx.Param(jnp.zeros(3), more=2)
    first.copy_from(second)
    assert first.get_raw_value() is second.get_raw_value()
    assert first.get_metadata() == second.get_metadata()


def test_update_from_state_checks_no_class_and_keeps_the_flags():
    """V35."""
    v = nnx.Param(jnp.zeros(2), ref=True)
    reference = v.get_raw_value()
    v.update_from_state(nnx.BatchStat(jnp.ones(2), note=1))
    assert v.get_raw_value() is reference
    assert (v[...].tolist(), v.note, v.ref) == ([1.0, 1.0], 1, True)
    plain = nnx.Param(jnp.zeros(2))
    plain.update_from_state(v)
    assert (plain.ref, plain.note, plain.get_raw_value().tolist()) == (False, 1, [1.0, 1.0])


def test_deepcopy_copies_buffers_and_keeps_sharing():
    """V36."""
    array = np.ones(2)
    v = nnx.Param({"a": jnp.ones(2), "b": array}, note=[1])
    first, second = copy.deepcopy([v, v])
    assert first is second
    assert first is not v
    assert first.value["b"] is not array
    assert first.value["a"].unsafe_buffer_pointer() != v.value["a"].unsafe_buffer_pointer()
    assert first.note == [1]
    assert first.note is not v.note


def test_deepcopy_of_a_variable_with_a_mesh():
    """V36: a mesh is one object per layout."""
    mesh = jax.make_mesh((2,), ("data",))
    v = copy.deepcopy(nnx.Param(jnp.ones(2), mesh=mesh, eager_sharding=False))
    assert v.get_metadata("mesh") == mesh


@pytest.mark.parametrize(
    "value",
    [jnp.ones(2), jax.random.key(3), {"key": jax.random.split(jax.random.key(0), 2), "n": 1}, np.ones(2), "text"],
    ids=["array", "key", "keys in a dict", "numpy", "string"],
)
@pytest.mark.parametrize("metadata", [{}, {"note": (1, 2)}], ids=["plain", "with metadata"])
def test_pickle_keeps_class_value_and_metadata(value, metadata):
    """V36."""
    v = nnx.LoRAParam(value, **metadata)
    again = pickle.loads(pickle.dumps(v))
    assert type(again) is nnx.LoRAParam
    assert again.get_metadata() == v.get_metadata()
    assert nnx.State({"v": again}) == nnx.State({"v": v})


def test_pickle_into_another_trace():
    """V36: the trace marker is made anew on load. (Another process: ``test_module.py``.)"""
    text = pickle.dumps(nnx.Param(jnp.arange(3.0), note="demo"))

    @jax.jit
    def inside():
        v = pickle.loads(text)
        v[...] = v + 1
        return v[...]

    assert inside().tolist() == [1.0, 2.0, 3.0]


# Sharding metadata ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["sharding", "sharding_names"])
@pytest.mark.parametrize(
    "make",
    [
        lambda **entry: nnx.Param(jnp.ones((2, 2)), eager_sharding=False, **entry),
        lambda **entry: nnx.Param(nnx.VariableMetadata(jnp.ones((2, 2)), metadata=entry), eager_sharding=False),
        lambda **entry: nnx.Param.from_metadata(jnp.ones((2, 2)), entry),
        lambda **entry: nnx.Param(jnp.ones((2, 2))).copy(**entry),
        lambda **entry: _set(nnx.Param(jnp.ones((2, 2))), lambda v: v.set_metadata(**entry)),
        lambda **entry: _set(nnx.Param(jnp.ones((2, 2))), lambda v: v.set_metadata(entry)),
        lambda **entry: _set(nnx.Param(jnp.ones((2, 2))), lambda v: v.set_metadata(*next(iter(entry.items())))),
    ],
    ids=["constructor", "box", "from_metadata", "copy", "set keywords", "set dict", "set name"],
)
def test_old_sharding_names_are_renamed_with_a_warning(old, make):
    """V37: at the caller's line."""
    with pytest.warns(DeprecationWarning, match=rf"'{old}'(?s:.*)use 'out_sharding'") as seen:
        v = make(**{old: ("a", None)})
    assert [warning.filename for warning in seen] == [__file__]
    assert v.get_metadata(exclude_required=True) == {"out_sharding": ("a", None)}


def _set(variable, change):
    change(variable)
    return variable


def test_sharding_names_reads_the_annotation_and_sharding_is_the_arrays():
    """V37."""
    v = nnx.Param(jnp.ones((2, 2)), out_sharding=("a", None), eager_sharding=False)
    with pytest.warns(DeprecationWarning, match="out_sharding"):
        assert v.sharding_names == ("a", None)
    assert v.sharding == v.get_raw_value().sharding
    with pytest.raises(AttributeError, match="sharding_names"):
        nnx.Param(jnp.ones(2)).sharding_names


def test_annotations_of_layout_are_metadata():
    """V37, V38: any of the forms is kept as it is."""
    for layout in (("a", ("b", "c"), None), jax.sharding.PartitionSpec("a", None)):
        v = nnx.Param(jnp.ones((2, 2)), out_sharding=layout, sharding_rules=(("a", "x"),), eager_sharding=False)
        assert (v.out_sharding, v.sharding_rules) == (layout, (("a", "x"),))


def test_with_partitioning_is_with_metadata_for_a_layout():
    """V41."""
    initializer = nnx.with_partitioning(lambda key, shape: jnp.ones(shape), (None, "model"), note=1)
    v = nnx.Param(initializer(None, (2, 2)), eager_sharding=False)
    assert v.get_metadata(exclude_required=True) == {"out_sharding": (None, "model"), "mesh": None, "note": 1}


# The trace guard ------------------------------------------------------------------------------------------------------

WRITES = {
    "set_value": lambda v: v.set_value(1.0),
    "value": lambda v: setattr(v, "value", 1.0),
    "index": lambda v: v.__setitem__(..., 1.0),
    "set_raw_value": lambda v: v.set_raw_value(1.0),
    "raw_value": lambda v: setattr(v, "raw_value", 1.0),
    "in place": lambda v: v.__iadd__(1.0),
    "set_metadata": lambda v: v.set_metadata(note=1),
    "del_metadata": lambda v: v.del_metadata("note"),
    "copy_from": lambda v: v.copy_from(nnx.Param(2.0)),
    "update_from_state": lambda v: v.update_from_state(nnx.Param(2.0)),
    "update_from_state, metadata": lambda v: v.update_from_state(nnx.Param(0.0, note=1)),
    "add_axis hook": lambda v: v.add_axis(0, "a"),
}

TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(jnp.ones(())),
    "grad": lambda f: jax.grad(lambda x: f(x) or x)(jnp.ones(())),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones(2)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_from_another_trace_is_refused_and_changes_nothing(write, transform):
    """V42; error table: write from another trace."""
    v = nnx.Param(0.0, note=0, on_add_axis=lambda v, *_: v.set_metadata(note=2))
    with pytest.raises(TraceContextError, match=r"(?s)Param.*do +(make the model an argument|return the new value)"):
        transform(lambda x: write(v))
    assert (v.value, v.note) == (0.0, 0)


def test_reading_is_always_allowed():
    """V42."""
    v = nnx.Param(jnp.arange(2.0), note=3)
    assert jax.jit(lambda: v + v[0] + v.note + v.sum())().tolist() == [4.0, 5.0]


REBUILDS = {
    "unflatten": lambda v: jax.tree.map(lambda x: x, v),
    "copy": lambda v: v.copy(),
    "to_variable": lambda v: v.to_variable(),
    "from_metadata": lambda v: nnx.Param.from_metadata(v.value, v.get_metadata()),
    "merge": lambda v: nnx.merge(*nnx.split(nnx.Dict(v=v))).v,
    "deepcopy": copy.deepcopy,
    "constructor": lambda v: nnx.Param(v.value),
}


@pytest.mark.filterwarnings("ignore::plait.errors.LostUpdateWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
def test_what_is_rebuilt_inside_a_trace_belongs_to_it(rebuild):
    """V43."""
    v = nnx.Param(jnp.zeros(2), note=1)

    @jax.jit
    def inside(x):
        own = rebuild(v)
        own[...] = x
        own.set_metadata(note=2)
        return own[...]

    assert inside(jnp.ones(2)).tolist() == [1.0, 1.0]
    assert v.value.tolist() == [0.0, 0.0]


def test_what_another_thread_takes_apart_does_not_make_a_copy_an_argument():
    """V45: the copy belongs to the trace that made it, whatever other threads flatten between its two halves."""

    def flatten_elsewhere(leaf):
        thread = threading.Thread(target=jax.tree.leaves, args=(nnx.Param(0.0),))
        thread.start()
        thread.join()
        return leaf

    @jax.jit
    def inside(v):
        own = jax.tree.map(flatten_elsewhere, v)
        own[...] = own * 2
        return own[...]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inside(nnx.Param(jnp.ones(2))).tolist() == [2.0, 2.0]


def test_an_argument_of_jax_jit_can_be_written():
    """V43, V45."""

    @jax.jit
    def step(v):
        v[...] = v + 1
        return v

    v = nnx.Param(jnp.zeros(2))
    assert step(v)[...].tolist() == [1.0, 1.0]
    assert v[...].tolist() == [0.0, 0.0]


# References -----------------------------------------------------------------------------------------------------------


def test_a_reference_backed_variable_looks_like_any_other():
    """V5, V18, V44."""
    v = nnx.Param(jnp.arange(3.0), ref=True)
    reference = v.get_raw_value()
    assert (v.ref, v.shape, v.sum(), v[1]) == (True, (3,), 3.0, 1.0)
    assert isinstance(v.get_value(), jax.Array)
    v[0] = 5.0
    v += 1
    v.set_raw_value(v.value * 2)
    assert v.get_raw_value() is reference
    assert v[...].tolist() == [12.0, 4.0, 6.0]
    with pytest.raises(AttributeError, match="frobnicate"):
        v.frobnicate


@pytest.mark.parametrize(
    "write",
    [lambda v, x: v.set_value(x), lambda v, x: v.__setitem__(..., x), lambda v, x: v.set_raw_value(x)],
    ids=["set_value", "index", "set_raw_value"],
)
def test_a_reference_is_written_through_from_another_trace(write):
    """V44: JAX carries the write out; the guard still applies to metadata."""
    v = nnx.Param(jnp.zeros(2), ref=True)

    @jax.jit
    def inside(x):
        write(v, x)
        return v[0]

    assert inside(jnp.ones(2)) == 1
    assert v[...].tolist() == [1.0, 1.0]
    with pytest.raises(TraceContextError, match="metadata of Param"):
        jax.jit(lambda: v.set_metadata(note=1))()


def test_copies_of_a_reference_are_references_of_their_own():
    """V34, V36."""
    v = nnx.Param(jnp.zeros(2), ref=True)
    for fresh in (v.copy(), copy.deepcopy(v), pickle.loads(pickle.dumps(v)), v.copy(jnp.zeros(2))):
        fresh[...] = jnp.ones(2)
        assert fresh.get_raw_value() is not v.get_raw_value()
        assert (fresh.ref, v[...].tolist()) == (True, [0.0, 0.0])
    plain = v.copy(ref=False)
    assert isinstance(plain.get_raw_value(), jax.Array)
    assert not isinstance(plain.get_raw_value(), type(v.get_raw_value()))
    assert isinstance(nnx.Param(jnp.ones(2)).copy(ref=True).get_raw_value(), type(v.get_raw_value()))


def test_a_shape_stays_a_shape_until_there_is_a_value():
    """V44: as what ``eval_shape`` returns."""
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    v = nnx.Param(shape, ref=True)
    for each in (v, nnx.with_vars(nnx.Param(shape), ref=True), v.copy()):
        assert (each.ref, each.get_raw_value()) == (True, shape)
    assert isinstance(v.copy(jnp.ones(2)).get_raw_value(), type(nnx.Param(jnp.ones(2), ref=True).get_raw_value()))


def test_mapping_a_reference_to_an_array_leaves_a_variable_that_works():
    """V44, V45."""
    v = jax.tree.map(lambda ref: ref[...] * 2, nnx.Param(jnp.ones(2), ref=True))
    v[0] = 5.0
    v.value = v.value + 1
    assert v[...].tolist() == [6.0, 3.0]


# The pytree face ------------------------------------------------------------------------------------------------------


def test_a_variable_is_a_pytree_with_one_child():
    """V45."""
    v = Noisy(jnp.ones(2), note=1)
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(v)
    assert jax.tree_util.keystr(path) == ".value"
    assert leaf is v.get_raw_value()
    mapped = jax.tree.map(jnp.negative, v)
    assert type(mapped) is Noisy
    assert (mapped.get_metadata(), mapped.get_raw_value().tolist()) == (v.get_metadata(), [-101.0, -101.0])


def test_leaves_inside_the_value():
    """V45."""
    v = nnx.Variable({"a": 1, "b": [2, 3]})
    assert jax.tree.leaves(v) == [1, 2, 3]
    assert jax.tree.map(lambda x: x + 1, v).value == {"a": 2, "b": [3, 4]}
    assert jax.tree.leaves(nnx.Variable(None)) == []


def test_metadata_order_does_not_matter():
    """V45: the static part is sorted."""
    first, second = nnx.Param(1.0, a=1, b=2), nnx.Param(1.0, b=2, a=1)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert hash(jax.tree.structure(first)) == hash(jax.tree.structure(second))


def test_variables_can_be_leaves():
    """V46."""
    tree = {"a": nnx.Param(1.0), "b": [nnx.BatchStat(2.0)]}
    kinds = jax.tree.map(lambda v: type(v).__name__, tree, is_leaf=lambda x: isinstance(x, nnx.Variable))
    assert kinds == {"a": "Param", "b": ["BatchStat"]}


@given(st.dictionaries(st.sampled_from("abc"), st.integers() | st.floats() | st.text(max_size=3)), st.booleans())
def test_flatten_and_unflatten_are_inverse(metadata, as_param):
    """V45."""
    kind = nnx.Param if as_param else nnx.BatchStat
    v = kind(jnp.arange(2), **metadata)
    leaves, structure = jax.tree.flatten(v)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is kind
    assert again.get_raw_value() is v.get_raw_value()
    assert jax.tree.structure(again) == structure
    assert repr(again.get_metadata()) == repr(v.get_metadata())


def test_a_variable_can_be_referred_to_weakly_and_refuses_hashing():
    """V20: use identity-keyed maps."""
    import weakref

    v = nnx.Param(1.0)
    assert weakref.ref(v)() is v
    with pytest.raises(TypeError, match="unhashable type: 'Param'"):
        hash(v)


# Flax as an oracle ----------------------------------------------------------------------------------------------------

# What a user of Flax does with a variable, and what both libraries must answer.
SAME = {
    "shape": lambda nnx: nnx.Param(jnp.ones((2, 3))).shape,
    "read": lambda nnx: nnx.Param(jnp.arange(3))[1].item(),
    "dict item": lambda nnx: nnx.Variable({"a": 1})["a"],
    "metadata": lambda nnx: nnx.Param(1.0, a=2).get_metadata(),
    "metadata without flags": lambda nnx: nnx.Param(1.0, a=2).get_metadata(exclude_required=True),
    "metadata default": lambda nnx: nnx.Param(1.0).get_metadata("a", 5),
    "has metadata": lambda nnx: (nnx.Param(1.0, a=1).has_metadata("a"), nnx.Param(1.0).has_metadata("a")),
    "required": lambda nnx: sorted(nnx.Variable.required_metadata),
    "copy": lambda nnx: nnx.Param(1.0, a=1).copy(2.0, b=3).get_metadata(exclude_required=True),
    "copy value": lambda nnx: nnx.Param(1.0).copy(value=2.0).get_raw_value(),
    "copy keeps": lambda nnx: nnx.Param(1.0).copy().get_raw_value(),
    "type": lambda nnx: nnx.Param(1.0).type.__name__,
    "isinstance": lambda nnx: isinstance(nnx.Perturbation(1.0), nnx.Intermediate),
    "box metadata wins": lambda nnx: nnx.Param(nnx.VariableMetadata(1.0, metadata={"a": 1}), a=2).a,
    "our hooks win": lambda nnx: nnx.Param(
        nnx.VariableMetadata(1, on_get_value=(add(1),)), on_get_value=add(10)
    ).get_value(),
    "create hook": lambda nnx: nnx.Param(1, on_create_value=add(3)).get_raw_value(),
    "with_partitioning": lambda nnx: sorted(
        nnx.Param(nnx.with_partitioning(jnp.ones, ("a",))((2,)), eager_sharding=False).get_metadata()
    ),
    "defaults": lambda nnx: sorted(nnx.var_defaults()),
    "names": lambda nnx: (nnx.variable_name_from_type(nnx.Param), nnx.variable_type_from_name("cache").__name__),
    "leaves": lambda nnx: [x.tolist() for x in jax.tree.leaves(nnx.Param({"a": jnp.ones(2)}))],
    "sum": lambda nnx: (nnx.Param(jnp.ones(2)) + nnx.Param(jnp.ones(2))).tolist(),
    "numpy first": lambda nnx: type(np.ones(2, np.float32) + nnx.Param(jnp.ones(2))).__name__,
    "restore": lambda nnx: nnx.restore_int_paths({"1": {"-2": 1, "a": 2}}),
    "pure": lambda nnx: nnx.to_pure_dict(nnx.State({"a": nnx.Param(1), "b": {0: nnx.Param(2)}})),
}


@pytest.mark.oracle
@pytest.mark.parametrize("ask", SAME.values(), ids=SAME)
def test_flax_answers_the_same(ask):
    """Section 13: what is not listed there is the same."""
    flax_nnx = pytest.importorskip("flax.nnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ask(nnx) == ask(flax_nnx)


@pytest.mark.oracle
def test_every_public_name_of_a_flax_variable_is_there():
    """Rows 29 to 38 of the checklist."""
    flax_nnx = pytest.importorskip("flax.nnx")
    v = nnx.Param(jnp.ones(2))
    names = {name for name in dir(flax_nnx.Variable) if not name.startswith("_")}
    missing = {name for name in names if not hasattr(v, name)}
    assert missing == {"sharding_names"}, "which a variable has while it is annotated (V37)"


def test_partials_as_hooks_are_static_by_content():
    """V25, V28."""

    def scale(factor, variable, value):
        return value * factor

    made = [nnx.Param(1.0, on_get_value=functools.partial(scale, 2)) for _ in range(2)]
    assert nnx.graphdef(made[0]) == nnx.graphdef(made[1])


def test_entries_without_a_meaning_to_the_library_are_free():
    """V27: kept as they are, and through split and merge; those with a meaning are not data."""
    free = {"note": "x", "units": ("m", "s"), "number": 3}
    known = {"sharding_rules": (("a", "b"),), "optimizer_sharding": ("a",), "tag": "t", "linen_meta_type": int}
    v = nnx.Param(jnp.ones(2), **free, **known)
    (again,) = nnx.merge(*nnx.split([v]))
    for name, value in {**free, **known}.items():
        assert v.get_metadata(name) == again.get_metadata(name) == value
    assert [path for path, _ in nnx.to_flat_state(nnx.state([v]))] == [(0,)]


@pytest.mark.parametrize(
    ("metadata", "is_placed"), [({"out_sharding": ("a",)}, True), ({}, False), ({"out_sharding": None}, False)]
)
def test_a_new_value_is_placed_if_the_variable_has_a_layout(monkeypatch, metadata, is_placed):
    """By whoever has registered for it, and not where the caller places values later."""
    seen = []
    monkeypatch.setattr(
        variables, "eager_sharding_hooks", [lambda variable, value: seen.append(type(variable)) or value]
    )
    nnx.Param(jnp.ones(2), **metadata)
    assert seen == [nnx.Param] * is_placed
    nnx.Param(jnp.ones(2), eager_sharding=False, **metadata)
    assert seen == [nnx.Param] * is_placed
