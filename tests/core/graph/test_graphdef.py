"""Graphdefs: what they say, when they are equal, that they are one object. (rules G11 to G17)"""

import collections
import dataclasses
import gc
import pickle
import typing
import weakref

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.graph.graphdef import with_index_mapping
from plait.errors import CapturedModelWarning
from plait.graph import LeafAttribute, NodeDef, NodeRef, StaticAttribute, SubGraphAttribute, VariableDef
from tests.strategies import Box, Leafy, Node


class Unhashable:
    """Equal by content, without a hash."""

    __hash__ = None

    def __init__(self, content):
        self.content = content

    def __eq__(self, other):
        return isinstance(other, Unhashable) and self.content == other.content


def tied():
    model = Node(enc=plait.Param(jnp.eye(2)), steps=3)
    model.dec, model.me = model.enc, model
    return model


def test_every_form_of_root_gives_a_graphdef():
    """G11: nodes, variables, arrays."""
    for root in (Node(), [1], plait.Param(1.0), jnp.zeros(2)):
        assert isinstance(plait.split(root)[0], plait.GraphDef)


def test_the_fields_say_what_is_where():
    """G12, G20, G21, G23: entries in path order, one counter, back-references to what was met."""
    graphdef = plait.graphdef(tied())
    assert (type(graphdef), graphdef.type, graphdef.index, graphdef.index_mapping) == (NodeDef, Node, 0, None)
    found = [(type(entry), entry.key, type(entry.value)) for entry in graphdef.attributes]
    assert found == [
        (LeafAttribute, "dec", VariableDef),
        (LeafAttribute, "enc", NodeRef),
        (SubGraphAttribute, "me", NodeRef),
        (StaticAttribute, "steps", int),
    ]
    dec, enc, me, _ = (entry.value for entry in graphdef.attributes)
    assert (dec.type, dec.index, enc.index, me.index) == (plait.Param, 1, 1, 0)
    assert dict(dec.metadata) == plait.Param(0.0).get_metadata()


def test_views_list_the_nodes_and_count_the_leaves():
    """G13: pre-order, static values and arrays left out of the nodes; back-references carry no leaf."""
    graphdef = plait.graphdef(Node(a=[plait.Param(1.0), 3], b=jnp.ones(2), c=tied()))
    assert [type(part).__name__ for part in graphdef.nodes] == [
        "NodeDef", "NodeDef", "VariableDef", "NodeDef", "VariableDef", "NodeRef", "NodeRef",
    ]  # fmt: skip
    assert graphdef.num_leaves == 3


def test_graphdefs_are_static_for_jax():
    """G14: no leaves, part of the treedef, usable as a static argument."""
    graphdef = plait.graphdef(tied())
    assert jax.tree.leaves(graphdef) == []
    assert jax.tree.structure([graphdef]) == jax.tree.structure([plait.graphdef(tied())])
    assert jax.jit(lambda x, g: x + g.num_leaves, static_argnums=1)(1, graphdef) == 2


def test_graphdefs_cannot_be_changed():
    """G14."""
    with pytest.raises(AttributeError, match=r"NodeDef.index"):
        plait.graphdef(tied()).index = 5


EQUAL = {
    "other values": (lambda: Node(a=plait.Param(1.0)), lambda: Node(a=plait.Param(jnp.ones((3, 3))))),
    "a clone": (tied, lambda: plait.clone(tied())),
    "order of assignment": (lambda: Node(a=1, b=2), lambda: Node(b=2, a=1)),
    "equal static values": (lambda: Node(a=(1, "x")), lambda: Node(a=(1, "x"))),
    "order of metadata": (lambda: plait.Param(1.0, a=1, b=2), lambda: plait.Param(1.0, b=2, a=1)),
    "unhashable but equal": (lambda: Node(a=Unhashable(1)), lambda: Node(a=Unhashable(1))),
    "functions of one factory": (lambda: Node(a=(lambda x: x)), None),
}
UNEQUAL = {
    "static value": (lambda: Node(a=1), lambda: Node(a=2)),
    "type of static value": (lambda: Node(a=1), lambda: Node(a=True)),
    "sign of zero": (lambda: Node(a=0.0), lambda: Node(a=-0.0)),
    "hash collision": (lambda: Node(a=-1), lambda: Node(a=-2)),
    "class of a node": (Node, Leafy),
    "class of a variable": (lambda: Node(a=plait.Param(1.0)), lambda: Node(a=plait.Cache(1.0))),
    "name": (lambda: Node(a=plait.Param(1.0)), lambda: Node(b=plait.Param(1.0))),
    "metadata": (lambda: Node(a=plait.Param(1.0)), lambda: Node(a=plait.Param(1.0, note=1))),
    "sharing": (tied, lambda: Node(enc=plait.Param(1.0), dec=plait.Param(1.0), me=None, steps=3)),
    "container": (lambda: [1], lambda: (1,)),
    "length": (lambda: [1], lambda: [1, 1]),
    "unhashable and unequal": (lambda: Node(a=Unhashable(1)), lambda: Node(a=Unhashable(2))),
    "mark": (lambda: Node(a=plait.static(())), lambda: Node(a=())),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_structures_are_equal(case):
    """G15; interned ones are one object."""
    first, second = EQUAL[case]
    second = second or first
    a, b = plait.graphdef(first()), plait.graphdef(second())
    assert a == b
    assert (a is b) == ("unhashable" not in case)


@pytest.mark.parametrize("case", UNEQUAL)
def test_different_structures_are_unequal(case):
    """G15."""
    first, second = UNEQUAL[case]
    assert plait.graphdef(first()) != plait.graphdef(second())


@dataclasses.dataclass
class Settings:
    """A config as users write them: ``==``, and no hash."""

    size: int
    targets: set[str]


class Uncopied:
    """``==``, no hash, and no copy."""

    def __eq__(self, other):
        return isinstance(other, Uncopied)

    def __deepcopy__(self, memo):
        raise RuntimeError("one of a kind")


WITHOUT_A_HASH = {
    "set": lambda: {"q", "v"},
    "dict subclass": lambda: collections.OrderedDict(a=1, b=[2]),
    "marked list": lambda: plait.static([64, 32]),
    "dataclass": lambda: Settings(3, {"q"}),
    "own equality": lambda: Unhashable(1),
}


@pytest.mark.parametrize("name", WITHOUT_A_HASH)
def test_a_static_value_without_a_hash_is_part_of_the_compile_key(name):
    """G16: an equal model shares the compiled function."""
    traces = []

    @plait.jit
    def f(model, x):
        traces.append(1)
        return model.w * x

    for _ in range(2):
        model = Node(w=plait.Param(jnp.ones(())), config=WITHOUT_A_HASH[name]())
        f(model, 1.0), f(model, 2.0)
    assert len(traces) == 1


def test_a_static_value_that_changes_in_place_is_another_structure():
    """G16: the key is taken anew at each call."""

    @plait.jit
    def f(model):
        return len(model.names) * model.w

    model = Node(w=plait.Param(jnp.float32(1)), names={"q"}, config=Settings(1, set()))
    before = plait.graphdef(model)
    assert float(f(model)) == 1
    model.names.add("v")
    assert float(f(model)) == 2
    assert plait.graphdef(model) != before
    again = plait.graphdef(model)
    model.config.targets.add("k")
    assert plait.graphdef(model) != again


def test_what_cannot_be_copied_is_compared_by_identity():
    """G16: the last resort."""
    one = Uncopied()
    first, same, other = (plait.graphdef(Node(config=config)) for config in (one, one, Uncopied()))
    assert (first == same, hash(first) == hash(same), first == other) == (True, True, False)


def test_metadata_without_a_hash_goes_by_what_it_holds():
    """G16."""
    first, same, other = (plait.graphdef(Node(w=plait.Param(1.0, note=[n]))) for n in (1, 1, 2))
    assert (first == same, hash(first) == hash(same), first == other) == (True, True, False)


def test_a_comparison_that_is_no_bool_counts_as_unequal():
    """G16: unless the objects are identical."""

    class Vague:
        __hash__ = None

        def __eq__(self, other):
            return jnp.array([True, True])

    vague = Vague()
    assert plait.graphdef(Node(a=vague)) == plait.graphdef(Node(a=vague))
    assert plait.graphdef(Node(a=vague)) != plait.graphdef(Node(a=Vague()))


def test_repr_is_a_tree_without_values():
    """G17."""
    text = repr(plait.graphdef(Node(a=plait.Param(jnp.full(3, 7.25), note="n"), b=[1])))
    for part in ("NodeDef(", "type=Node", "VariableDef(", "type=Param", "'note': 'n'", "type=list", "index=1"):
        assert part in text
    assert "7.25" not in text


def test_graphdefs_travel_by_pickle():
    """G14, G15: into the same interned object."""
    for model in (tied(), Node(a=Box(plait.Param(1.0), jnp.ones(2)), b=Unhashable(3))):
        graphdef = plait.graphdef(model)
        assert pickle.loads(pickle.dumps(graphdef)) == graphdef
    assert pickle.loads(pickle.dumps(plait.graphdef(tied()))) is plait.graphdef(tied())


def test_the_table_of_parts_forgets_dead_structures():
    """U34: nothing keeps a graphdef alive that no one holds."""
    from plait.core.graph.graphdef import _TABLE

    gc.collect()
    before = len(_TABLE)
    graphdefs = [plait.graphdef(Node(a=plait.Param(1.0, note=f"t{i}"), b=f"t{i}")) for i in range(50)]
    assert len(_TABLE) > before + 100
    del graphdefs
    gc.collect()
    assert len(_TABLE) <= before + 2


def test_a_static_value_that_leads_back_to_the_model_does_not_keep_it_alive():
    """U34: a bound method, or a closure over the model, as an attribute."""

    class Caller(plait.Module):
        def __init__(self):
            self.w = plait.Param(1.0)
            self.run = self.forward
            self.again = lambda: self.w

        def forward(self):
            return self.w

    model = Caller()
    with pytest.warns(CapturedModelWarning, match=r"at +again"):
        plait.split(model)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_graphdef_can_be_annotated_with_its_class():
    """G11."""
    assert typing.get_origin(plait.GraphDef[plait.Linear]) is plait.GraphDef
    assert typing.get_args(plait.GraphDef[plait.Linear]) == (plait.Linear,)


@pytest.mark.parametrize("root", [Node(w=plait.Param(1.0)), plait.Param(1.0)], ids=["a node", "a variable"])
def test_an_index_mapping_is_replaced_by_another_and_taken_away(root):
    """G12, G14: each is one object, whichever mapping was there before."""
    plain = plait.graphdef(root)
    first, second = (with_index_mapping(plain, {0: index}) for index in (1, 2))
    assert first is not second
    assert with_index_mapping(first, {0: 2}) is second
    assert with_index_mapping(second, None) is plain


def test_a_graphdef_that_is_not_interned_takes_index_mappings_too():
    """G12, G14: they compare by content, and the same graphdef is under all of them."""
    plain = plait.graphdef(Node(w=plait.Param(1.0), names={"a"}))
    first, second, again = (with_index_mapping(plain, {0: index}) for index in (1, 2, 1))
    assert first == again != second
    assert first != plain
    assert with_index_mapping(second, {0: 1}) == first
    assert with_index_mapping(first, None) is plain
    assert pickle.loads(pickle.dumps(first)) == first
