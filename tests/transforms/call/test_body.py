"""What JAX says of the places in ports, said in the user's words. (rules X18, U18)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError, DispatchError
from plait.transforms.call import enter_leave
from plait.transforms.call.arguments import gather
from plait.transforms.call.enter_leave import TracedArguments
from tests.core.graph.test_walks import EDITS, model as model_of_all_kinds
from tests.oracles import describe
from tests.strategies import Node


def model():
    return Node(a=plait.Param(jnp.zeros(())), layers=[Node(mean=plait.BatchStat(jnp.zeros(())))])


def writes(model, x):
    model.layers[0].mean[...] = x


def writes_and_changes(model, x):
    model.layers[0].mean[...] = x
    del model.a
    model.flag = True


def adds(model, x):
    model.new = plait.Cache(x)


BATCHED = {
    "a written variable": (writes, 0, r"m\.layers\[0\]\.mean"),
    "a written variable beside a change of structure": (writes_and_changes, 0, r"m\.layers\[0\]\.mean"),
    "a new variable": (adds, 0, r"m\.new"),
    "a plain output": (lambda m, x: (1.0, {"loss": x}), (None, None), r"the output\[1\]\['loss'\]"),
    "a whole output": (lambda m, x: x, None, r"the output"),
    "a plain output beside an object": (lambda m, x: {"v": plait.Param(1.0), "x": x}, None, r"the output\['x'\]"),
    "a variable of the output": (lambda m, x: [plait.Param(0.0), Node(v=plait.Param(x))], None, r"the output\[1\]\.v"),
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_value_that_depends_on_the_example_is_named(name):
    """X18: what has axis None may not differ between examples; JAX's own message names only places in our ports."""
    f, out_axes, place = BATCHED[name]
    m = model()
    before = describe(m)

    def named(m, x):
        return f(m, x)

    with pytest.raises(ArgumentError, match=rf"at +{place}\n +found +axis None"):
        plait.vmap(named, in_axes=(None, 0), out_axes=out_axes)(m, jnp.arange(3.0))
    assert describe(m) == before


def test_advice_for_a_variable_works():
    """X18: a mean over the examples is the same for all of them; an axis takes what differs."""

    def f(m, x):
        m.a[...] = jax.lax.pmean(x, "examples")
        m.layers[0].mean[...] = x

    m = model()
    m.layers[0].mean = plait.BatchStat(jnp.zeros(3))
    axes = plait.StateAxes({plait.BatchStat: 0, ...: None})
    plait.vmap(f, in_axes=(axes, 0), axis_name="examples")(m, jnp.arange(3.0))
    assert (m.a.item(), m.layers[0].mean.tolist()) == (1.0, [0.0, 1.0, 2.0])


def test_errors_of_the_function_itself_stay():
    def f(m, x):
        return jax.vmap(lambda y: y, out_axes=None)(jnp.ones(2))

    with pytest.raises(ValueError, match="at vmap out_axes") as caught:
        plait.vmap(f, in_axes=(None, 0))(model(), jnp.ones(3))
    assert not isinstance(caught.value, ArgumentError)


def test_the_inner_of_two_vmaps_speaks():
    inner = plait.vmap(writes, in_axes=(None, 0))
    with pytest.raises(ArgumentError, match=r"at +model\.layers\[0\]\.mean"):
        plait.vmap(inner, in_axes=(None, 0))(model(), jnp.ones((2, 3)))


@pytest.mark.parametrize("transform", [lambda f: plait.vmap(f, in_axes=(0, None)), plait.grad], ids=["vmap", "grad"])
def test_a_type_error_of_the_function_stays_its_own(transform):
    """Also where JAX accepts an argument that is not an array, since it is not mapped or differentiated."""

    def f(x, how):
        raise TypeError("of the function")

    with pytest.raises(TypeError, match=r"^of the function"):
        transform(f)(jnp.ones(2), "relu")


def entered(model):
    gathered = gather(((model,), {}))
    return TracedArguments(gathered.structure, gathered.values(), gathered.plain, with_contents=True)


def comparable_model():
    """Without registered containers, whose objects are walked again always."""
    model = model_of_all_kinds()
    del model.pair, model.box, model.ordered
    return model


@pytest.mark.parametrize("edit", sorted(EDITS))
def test_a_change_of_a_private_object_is_seen(edit):
    """U27: what is compared in place of a walk is all that a walk reads."""
    inside = entered(comparable_model())
    assert inside.is_unchanged(inside.variables())
    try:
        EDITS[edit](inside.roots[0])
    except AttributeError:  # of what is not there
        return
    assert not inside.is_unchanged(inside.variables())


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: (delattr(m, "a"), setattr(m, "b", 1)),
        lambda m: setattr(m, "flag", plait.static(("a",))),
        lambda m: setattr(m, "arr", plait.data(m.arr)),
        lambda m: m.list.__setitem__(0, plait.data(1.0)),
        lambda m: setattr(m, "items", list(m.items)),
    ],
)
def test_a_mark_or_an_equal_container_counts_as_a_change(edit):
    """U27."""
    inside = entered(comparable_model())
    edit(inside.roots[0])
    assert not inside.is_unchanged(inside.variables())


def test_values_do_not_count_as_a_change():
    """U27: nor does metadata that was taken away and put back."""
    inside = entered(comparable_model())
    (root,) = inside.roots
    root.a[...] = jnp.zeros(2)
    root.a.set_metadata(note=1)
    root.a.del_metadata("note")
    assert inside.is_unchanged(inside.variables())


def test_what_cannot_be_compared_is_walked():
    """U27: registered containers, static values that change in place, and functions whose closure may."""

    names = []
    for model in (model_of_all_kinds(), Node(names={"a"}), Node(f=lambda: names)):
        assert entered(model).contents is None


def test_the_checking_mode_compares_with_a_walk(monkeypatch):
    """U33: a change that the comparison did not see is an error there."""
    monkeypatch.setattr(enter_leave, "CHECK_DISPATCH", True)
    inside = entered(comparable_model())
    assert inside.is_unchanged(inside.variables())
    inside.roots[0].z = 1
    inside.contents = []
    with pytest.raises(DispatchError, match="another structure"):
        inside.is_unchanged(inside.variables())
