"""Copies that share variables: views, attributes, maps."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait import Param
from plait.errors import ArgumentError


class Switch(plait.Module):
    def __init__(self):
        self.deterministic = False
        self.weight = Param(jnp.ones(2))

    def set_view(self, deterministic: bool | None = None):
        """Whether noise is off."""
        if deterministic is not None:
            self.deterministic = deterministic


class Net(plait.Module):
    def __init__(self):
        self.switches = [Switch(), Switch()]
        self.again = self.switches[0]
        self.me = self


def test_a_view_shares_variables_and_changes_settings():
    """D9."""
    net = Net()
    calm = plait.view(net, deterministic=True)
    assert calm is not net
    assert calm.me is calm
    assert calm.again is calm.switches[0]
    assert calm.switches[1].weight is net.switches[1].weight
    assert [s.deterministic for s in calm.switches] == [True, True]
    assert not net.switches[0].deterministic


def test_a_view_can_be_limited_by_a_filter():
    """D9."""
    calm = plait.view(Net(), only=plait.PathContains(1), deterministic=True)
    assert [s.deterministic for s in calm.switches] == [False, True]


def test_view_info_shows_each_argument_with_its_text():
    """D9."""
    layers = [plait.BatchNorm(3, rngs=plait.Rngs(0)), plait.Dropout(0.5), Net()]
    assert plait.view_info(layers).splitlines() == [
        "BatchNorm:",
        "  use_running_average: bool | None = None",
        "    whether to use the running averages instead of the statistics of the batch.",
        "Dropout:",
        "  deterministic: bool | None = None",
        "    whether to return the input unchanged.",
        "Switch:",
        "  deterministic: bool | None = None",
    ]


class Documented(plait.Module):
    def set_view(self, first: int = 1, second=None, third: "str" = "", fourth: bool = False, **rest) -> None:
        """Change things.

        Args:
            first, second: one text
                on two lines: both theirs.
            third (str): typed.
            **rest: anything.

        Raises:
            ValueError: never.
        """


def test_view_info_reads_the_arguments_of_a_docstring():
    """D9."""
    assert plait.view_info(Documented()).splitlines() == [
        "Documented:",
        "  first: int = 1",
        "    one text",
        "    on two lines: both theirs.",
        "  second=None",
        "    one text",
        "    on two lines: both theirs.",
        "  third: str = ''",
        "    typed.",
        "  fourth: bool = False",
    ]


@pytest.mark.oracle
@pytest.mark.parametrize("make", [lambda nnx: nnx.Dropout(0.5), lambda nnx: nnx.BatchNorm(3, rngs=nnx.Rngs(0))])
def test_view_info_has_the_layout_of_flax(make):
    """D9: the name, the argument, and below it a text of one's own."""
    texts = [nnx.view_info(make(nnx)).splitlines() for nnx in (plait, pytest.importorskip("flax.nnx"))]
    assert texts[0][:2] == texts[1][:2]
    assert all(text[2].startswith("    ") for text in texts)


def test_with_attributes_is_set_attributes_on_a_copy():
    """D5."""
    net = Net()
    changed = plait.with_attributes(net, deterministic=True)
    assert changed.switches[0].deterministic
    assert not net.switches[0].deterministic
    assert changed.switches[0].weight is net.switches[0].weight
    with pytest.raises(ArgumentError, match="'missing'"):
        plait.with_attributes(net, missing=1)


def test_map_applies_to_each_leaf():
    """G56."""
    doubled = plait.map(lambda path, leaf: leaf.replace(leaf * len(path)), Net())
    assert doubled.switches[0].weight[0] == 2
    assert type(doubled.switches[0].weight) is Param


def test_recursive_map_replaces_children_first_and_shared_nodes_once():
    """G55."""
    shared = Switch()
    order = []

    def f(path, value):
        order.append(path)
        return value

    result = plait.recursive_map(f, [shared, shared])
    assert result[0] is result[1] is not shared
    assert order == [(0, "deterministic"), (0, "weight"), (0,), ()]


def test_with_vars_makes_references_and_takes_them_out():
    """G56."""
    model = plait.Dict(a=Param(jnp.ones(2)))
    held = plait.with_vars(model, ref=True)
    assert held.a.ref
    assert not model.a.ref
    held.a[...] = jnp.zeros(2)
    plain = plait.with_vars(held, ref=False)
    assert isinstance(plain.a.get_raw_value(), jax.Array)
    assert plain.a[0] == 0


def double_in_place(path, leaf):
    leaf[...] = leaf[...] * 2
    return leaf


def test_map_hands_out_the_live_variables_and_returns_others():
    """G56."""
    model = plait.Dict(a=plait.Param(jnp.ones(2)), b=plait.Dict(c=plait.Param(jnp.ones(2))))
    mapped = plait.map(double_in_place, model)
    assert model.a.value.tolist() == mapped.b.c.value.tolist() == [2.0, 2.0]
    mapped.a.value = jnp.zeros(2)
    assert model.a.value.tolist() == [2.0, 2.0]
    variable = plait.Param(jnp.ones(2))
    assert plait.map(double_in_place, variable) is not variable
    assert variable.value.tolist() == [2.0, 2.0]


@pytest.mark.oracle
def test_flax_maps_live_variables_too():
    """G56."""
    answers = []
    for nnx in (plait, pytest.importorskip("flax.nnx")):
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        nnx.map(double_in_place, model)
        answers.append(model.kernel[...].tolist())
    assert answers[0] == answers[1]
