"""The status of attributes: marks, declarations, and what values say by themselves."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.errors import AttributeStatusError


class Holder(nnx.Module):
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


@nnx.register_data_type
class Handle:
    """A leaf that JAX does not know."""


def leaves_of(model):
    return nnx.to_pure_dict(nnx.state(model))


DATA = {
    "array": jnp.ones(2),
    "numpy array": np.ones(2),
    "key": jax.random.key(0),
    "variable": nnx.Param(1),
    "module": Holder(),
    "reference": jax.new_ref(jnp.ones(2)),
    "registered": Handle(),
    "mark": nnx.data(3),
}
NO_DATA = {
    "number": 3,
    "string": "a",
    "None": None,
    "function": len,
    "list": [jnp.ones(2)],
    "dict": {"a": nnx.Param(1)},
    "tuple": (jnp.ones(2),),
    "numpy number": np.float32(1),
    "mark": nnx.static(3),
}


@pytest.mark.parametrize("value", DATA.values(), ids=DATA)
def test_what_is_data_by_itself(value):
    """G59."""
    assert nnx.is_data(value)


@pytest.mark.parametrize("value", NO_DATA.values(), ids=NO_DATA)
def test_what_is_not(value):
    """G59: containers are not by themselves."""
    assert not nnx.is_data(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], False),
        ([1, [2, {"a": ()}]], False),
        ([1, [2, {"a": (jnp.ones(2),)}]], True),
        ({"a": Holder()}, True),
        (collections.namedtuple("P", "x")(nnx.Param(1)), True),
        (3, False),
        (jnp.ones(2), True),
        (nnx.State({"a": 1}), False),
    ],
)
def test_data_is_found_in_containers(value, expected):
    """G59."""
    assert bool(nnx.has_data(value)) is expected


def test_the_data_found_is_listed():
    """G59."""
    a, b = nnx.Param(1), jnp.ones(2)
    found = nnx.has_data({"x": [a, 3], "y": b})
    assert found[0] is a
    assert found[1] is b
    assert nnx.has_data(a)[0] is a


def test_a_registered_type_is_a_leaf():
    """G1, G59: usable as a decorator; a subclass is another type."""
    handle = Handle()
    assert leaves_of(Holder(h=handle)) == {"h": handle}
    assert not nnx.is_data(type("Other", (Handle,), {})())


# Statuses (G58) -------------------------------------------------------------------------------------------------------


def test_a_mark_on_assignment_wins():
    """G58."""
    model = Holder(a=nnx.data(3), b=nnx.static((1, 2)), c=4)
    assert leaves_of(model) == {"a": 3}
    assert (model.a, model.b, model.c) == (3, (1, 2), 4)
    assert jax.tree.leaves(model) == [3]


class Declared(nnx.Module):
    a: int = nnx.data()
    b: tuple = nnx.static()
    c: nnx.Data[int]
    d: nnx.Static[tuple]

    def __init__(self, b=(1,)):
        self.a, self.b, self.c, self.d = 1, b, 3, (4,)


class AlsoDeclared(Declared):
    e: "nnx.Data[int]"

    def __init__(self):
        super().__init__()
        self.e = 5


def test_a_declaration_in_the_class_counts_and_is_inherited():
    """G58: also in the older annotation form, and as a string."""
    assert leaves_of(Declared()) == {"a": 1, "c": 3}
    assert leaves_of(AlsoDeclared()) == {"a": 1, "c": 3, "e": 5}
    with pytest.raises(ValueError, match=r"Declared\.b"):
        Declared(b=jnp.ones(2))


def test_a_mark_on_assignment_wins_over_the_declaration():
    """G58."""
    model = Declared()
    model.b, model.a = nnx.data(7), nnx.static(8)
    assert leaves_of(model) == {"b": 7, "c": 3}


# Plain containers (G60) -----------------------------------------------------------------------------------------------


def test_a_container_is_data_exactly_while_it_holds_data():
    """G60: decided when the graph is walked."""
    model = Holder(layers=[])
    assert leaves_of(model) == {}
    model.layers.append(nnx.Param(1.0))
    assert leaves_of(model) == {"layers": {0: 1.0}}
    model.layers.append("static")
    assert leaves_of(nnx.clone(model)) == {"layers": {0: 1.0}}
    assert nnx.clone(model).layers[1] == "static"
    model.layers.clear()
    assert leaves_of(model) == {}
    assert nnx.graphdef(model) == nnx.graphdef(Holder(layers=[]))


def test_elements_that_are_not_data_are_never_leaves_of_the_jax_face():
    """G60, G63."""
    model = Holder(mixed={"w": jnp.ones(2), "n": 3, "name": "x", "none": None, "inner": [1, nnx.Param(jnp.zeros(2))]})
    assert [leaf.shape for leaf in jax.tree.leaves(model)] == [(2,), (2,)]
    again = jax.tree.map(lambda x: x + 1, model)
    assert (again.mixed["n"], again.mixed["name"], again.mixed["none"], again.mixed["inner"][0]) == (3, "x", None, 1)
    assert again.mixed["inner"][1].value.tolist() == [1.0, 1.0]
    assert jax.tree.structure(Holder(mixed={"w": 1.0, "n": 3})) != jax.tree.structure(Holder(mixed={"w": 1.0, "n": 4}))


def test_a_container_marked_as_data_keeps_its_mark():
    """G60: accepted everywhere."""
    model = Holder(layers=nnx.data([nnx.Param(1.0)]), table=nnx.Dict(a=nnx.Param(2.0)))
    assert leaves_of(model) == {"layers": {0: 1.0}, "table": {"a": 2.0}}


# Re-assignment (G61) --------------------------------------------------------------------------------------------------


def test_an_explicit_status_stays():
    """G61: data → any value stays data; static → data needs a mark."""
    model = Holder(a=nnx.data(1), b=nnx.static(2))
    model.a, model.b = "text", 3
    assert leaves_of(model) == {"a": "text"}
    with pytest.raises(AttributeStatusError, match=r"(?s)Holder\.b.*Array.*plait\.data"):
        model.b = jnp.ones(2)
    assert model.b == 3
    model.b = nnx.data(jnp.ones(2))
    model.a = nnx.static(4)
    assert list(leaves_of(model)) == ["b"]


def test_without_a_mark_the_value_decides_again():
    """G58, G61."""
    model = Holder(a=3)
    model.a = jnp.ones(2)
    assert list(leaves_of(model)) == ["a"]
    model.a = "text"
    assert leaves_of(model) == {}


@pytest.mark.parametrize("before", [jnp.ones(2), nnx.Param(jnp.ones(2)), Holder()], ids=["array", "Param", "module"])
@pytest.mark.parametrize("number", [7, 2.5, True, 1j])
def test_a_number_in_the_place_of_data_is_data(before, number):
    """G61: a counter that is reset stays a counter."""
    model = Holder(a=before)
    model.a = number
    assert leaves_of(model) == {"a": number}
    assert leaves_of(nnx.clone(model)) == {"a": number}


def test_a_counter_that_is_reset_to_a_number_does_not_trace_again():
    """G61: its value is no part of the program, in jit and outside of it."""
    model, traces = Holder(a=jnp.int32(0)), []

    @nnx.jit
    def count(model):
        traces.append(1)
        model.a = model.a + 1

    count(model)
    for start in (0, 7, 8):
        model.a = start
        count(model)
        assert int(model.a) == start + 1
    assert len(traces) == 2  # of an int32 and of a Python number, whose type is weak


def test_data_put_into_a_static_container_later_is_found_at_the_next_walk():
    """G61; error table: data in a container under an attribute marked static."""
    model = Holder(inner=Holder(sizes=nnx.static([1])))
    model.inner.sizes.append({"w": nnx.Param(1)})
    for look in (nnx.state, nnx.graphdef, nnx.clone, lambda m: nnx.check_pytree(m.inner)):
        with pytest.raises(ValueError, match=r"(?s)Holder\.sizes\[1\]\.w.*a Param.*plait\.data"):
            look(model)
    assert "sizes" in repr(model), "an object can always be printed"


# Dataclasses (G62) ----------------------------------------------------------------------------------------------------


@nnx.dataclass
class Config(nnx.Module):
    scale: jax.Array
    steps: int = nnx.data(default=3)
    name: str = nnx.static(default="x")
    sizes: tuple = nnx.static(default_factory=tuple)
    count: int = nnx.data(init=False, default_factory=int)
    plain: float = 1.5
    depth: int = nnx.static(4)


@nnx.dataclass(kw_only=True)
class Wider(Config):
    extra: jax.Array = nnx.data()
    extra_name: str = nnx.static(default="y")

    def __post_init__(self):
        self.count = 7


def test_a_dataclass_understands_the_fields():
    """G62, row 10."""
    model = Config(jnp.ones(2))
    assert sorted(leaves_of(model)) == ["count", "scale", "steps"]
    assert (model.name, model.sizes, model.plain, model.depth) == ("x", (), 1.5, 4)
    assert [field.name for field in dataclasses.fields(Config)][:2] == ["scale", "steps"]
    assert repr(model).startswith("Config(")
    assert "dataclass" not in repr(model)


def test_a_dataclass_can_be_inherited_and_keeps_its_hooks():
    """G62."""
    model = Wider(jnp.ones(2), extra=jnp.zeros(2), name="z")
    assert (model.count, model.name, model.extra_name) == (7, "z", "y")
    assert sorted(leaves_of(model)) == ["count", "extra", "scale", "steps"]
    with pytest.raises(TypeError, match="extra"):
        Wider(jnp.ones(2))


def test_a_dataclass_is_compared_by_identity_and_goes_round():
    """G62, G64."""
    model = Config(jnp.ones(2))
    assert model != Config(model.scale)
    assert len({model, model}) == 1
    again = nnx.merge(*nnx.split(model))
    assert (again.steps, again.name) == (3, "x")
    mapped = jax.tree.map(lambda x: x * 2, model)
    assert (mapped.steps, mapped.scale.tolist(), type(mapped)) == (6, [2.0, 2.0], Config)


def test_a_frozen_dataclass():
    """G62: frozen for the user, not for the library."""

    @nnx.dataclass(frozen=True)
    class Fixed(nnx.Module):
        w: jax.Array
        n: int = nnx.static(default=2)

    model = Fixed(jnp.ones(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.n = 3
    assert nnx.clone(model).n == 2
    assert jax.tree.map(lambda x: x + 1, model).w.tolist() == [2.0, 2.0]


def test_without_the_jax_face_there_are_no_statuses():
    """G62: the class option ``pytree=False``."""

    class Loose(nnx.Module, pytree=False):
        late: int = nnx.data()

        def __init__(self):
            self.a, self.b, self.late = nnx.data(1), nnx.static([nnx.Param(2.0)]), 3

    model = Loose()
    assert (model.a, leaves_of(model)) == (1, {"b": {0: 2.0}})
    assert jax.tree.leaves(model) == [model]
    assert isinstance(model, nnx.Pytree)

    class Tight(Loose, pytree=True):
        def __init__(self):
            self.a, self.b = nnx.data(1), [nnx.Param(2.0)]

    assert jax.tree.leaves(Tight()) == [1, 2.0]


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from([nnx.data, nnx.static, lambda v: v]), min_size=1))
def test_statuses_go_round(marks):
    """G37, G58: through split and merge, the JAX face and pickle-like state."""
    model = Holder(**{name: mark(n) for n, (name, mark) in enumerate(marks.items())})
    data = {name for name, mark in marks.items() if mark is nnx.data}
    for again in (model, nnx.clone(model), jax.tree.map(lambda x: x, model), nnx.clone(nnx.clone(model))):
        assert set(leaves_of(again)) == data
        assert len(jax.tree.leaves(again)) == len(data)
        assert nnx.graphdef(again) == nnx.graphdef(model)


@pytest.mark.oracle
@pytest.mark.parametrize("value", [*DATA.values(), *NO_DATA.values()], ids=[*DATA, *NO_DATA])
def test_flax_agrees_what_is_data(value):
    """G59."""
    flax_nnx = pytest.importorskip("flax.nnx")
    theirs = {nnx.Param: flax_nnx.Param(1), Holder: flax_nnx.Dict()}.get(type(value), value)
    if not isinstance(value, (Handle, type(nnx.data(1)))):
        assert flax_nnx.is_data(theirs) == nnx.is_data(value)


def test_a_pytree_registered_as_data_is_walked():
    """Its variables have paths of their own, and filters see them."""

    @nnx.register_data_type
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Quantized:
        value: object

    model = nnx.Dict(kernel=Quantized(nnx.Param(jnp.ones(2))))
    assert [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))] == [("kernel", "value")]
    assert nnx.is_data(Quantized(1))


SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)


class Abstract(nnx.Module):
    def __init__(self, mark=lambda value: value):
        self.spec, self.specs = mark(SHAPE), mark([SHAPE, {"a": SHAPE}])
        self.array, self.arrays = jnp.ones(2), [jnp.ones(2)]


@pytest.mark.parametrize("mark", [lambda value: value, nnx.static])
def test_shapes_and_dtypes_that_a_program_assigns_are_static(mark):
    assert list(nnx.state(Abstract(mark))) == ["array", "arrays"]
    assert nnx.jit(lambda model: model.array * model.spec.shape[0])(Abstract(mark)).tolist() == [2.0, 2.0]
    assert list(nnx.state(Abstract(nnx.data))) == ["array", "arrays", "spec", "specs"]


def test_shapes_and_dtypes_that_stand_for_arrays_are_data():
    abstract = nnx.eval_shape(Abstract)
    assert (abstract.array, abstract.arrays) == (SHAPE, [SHAPE])
    assert list(nnx.state(abstract)) == ["array", "arrays"]
    abstract.array, abstract.arrays = SHAPE, [SHAPE]
    assert list(nnx.state(abstract)) == ["array", "arrays"]
    nnx.update(abstract, {"new": SHAPE})
    assert list(nnx.state(abstract)) == ["array", "arrays", "new"]
    assert len(jax.tree.leaves(jax.tree.map(lambda x: SHAPE, Abstract()))) == 2
