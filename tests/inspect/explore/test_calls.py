"""What modules take and return, without a computation. (W7)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.inspect.explore.calls import calls_of
from plait.inspect.explore.costs import costs_of
from plait.inspect.explore.outline import Call

NAME = "Bytes of outputs"
X = jax.ShapeDtypeStruct((4, 3), jnp.float32)


class Twice(plait.Module):
    def __init__(self):
        self.inner = plait.Linear(3, 3, rngs=plait.Rngs(0))
        self.norm = plait.BatchNorm(3, rngs=plait.Rngs(0))

    def __call__(self, x, scale=None, *, double=False):
        y = self.norm(self.inner(self.inner(x)))
        return (y * 2 if double else y), scale


def test_each_module_has_its_calls_and_equal_ones_are_counted():
    calls = calls_of(Twice(), (X,), {})
    array = "float32[4, 3]"
    assert calls["inner",] == [Call("__call__", (array,), (array,), times=2, output_bytes=48)]
    assert calls[()] == [Call("__call__", (array,), (array,), output_bytes=48)]


def test_modules_cost_the_bytes_of_what_they_return():
    costs = costs_of(Twice(), (X,), {}, calls_of(Twice(), (X,), {}))
    assert {path: names[NAME] for path, names in costs.items()} == {(): 48, ("inner",): 96, ("norm",): 48}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"scale": jnp.ones(2), "double": True}], ids=["usual", "doubled"])
def test_modules_cost_the_operations_of_plait_cost(options):
    """W7: a loop's body counts as often as it runs."""
    costs = costs_of(Twice(), (X,), options, {})
    assert costs["inner",]["FLOPs"] == 2 * (2 * 4 * 3 * 3 + 4 * 3)
    assert costs.get((), {}).get("FLOPs", 0) == (12 if options else 0)
    scanned = costs_of(Scanned(), (X,), {}, {})
    assert scanned["layers",]["FLOPs"] == pytest.approx(5 * (2 * 4 * 3 * 3 + 4 * 3), rel=0.05)  # and the counter


def test_keyword_arguments_may_be_arrays_and_settings():
    (call,) = calls_of(Twice(), (X,), {"scale": jnp.ones(2), "double": True})[()]
    assert call == Call("__call__", ("float32[4, 3]", "float32[2]"), ("float32[4, 3]", "float32[2]"), output_bytes=56)


class Dropping(plait.Module):
    def __init__(self):
        self.dropout = plait.Dropout(0.5)

    def __call__(self, x, *, rngs):
        return self.dropout(x, rngs=rngs)


def test_keyword_arguments_may_be_random_streams():
    model, rngs = Dropping(), plait.Rngs(0)
    calls = calls_of(model, (X,), {"rngs": rngs})
    assert calls["dropout",] == [Call("__call__", ("float32[4, 3]",), ("float32[4, 3]",), output_bytes=48)]
    assert costs_of(model, (X,), {"rngs": rngs}, calls)["dropout",]["FLOPs"] > 0
    assert rngs.default.count[...] == 0


class Scanned(plait.Module):
    def __init__(self):
        @plait.split_rngs(splits=5)
        @plait.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return plait.Linear(3, 3, rngs=rngs)

        self.layers = make(plait.Rngs(0))

    def __call__(self, x):
        @plait.scan(in_axes=(plait.Carry, 0), out_axes=plait.Carry)
        def run(x, layer):
            return layer(x)

        return run(x, self.layers)


def test_layers_in_a_scan_have_the_shapes_of_all_iterations():
    (call,) = calls_of(Scanned(), (X,), {})["layers",]
    assert (call.inputs, call.outputs) == (("float32[5, 4, 3]",), ("float32[5, 4, 3]",))


@pytest.mark.parametrize("source", [plait.Dict(a=1), {"a": jnp.ones(2)}], ids=["module", "dict"])
def test_what_cannot_be_called_takes_no_inputs(source):
    with pytest.raises(TypeError, match=r"a model that can be called(.*\n)* +do +plait\.explore\(model\)"):
        calls_of(source, (X,), {})


class Choosing(plait.Module):
    """A layer that runs inside of something."""

    def __init__(self, through):
        self.inner = plait.Dict(linear=plait.Linear(3, 3, rngs=plait.Rngs(0)))
        self.last = plait.Linear(3, 3, rngs=plait.Rngs(1))
        self.through = through

    def __call__(self, x):
        return self.last(self.through(self.inner.linear, x))


def turn(carry):
    step, part, x = carry
    return step + 1, part, part(x)


SHUT_IN = {
    "cond": lambda part, x: plait.cond(x.sum() > 0, lambda part, x: part(x), lambda part, x: x, part, x),
    "switch": lambda part, x: plait.switch(1, [lambda part, x: x, lambda part, x: part(x)], part, x),
    "while_loop": lambda part, x: plait.while_loop(lambda carry: carry[0] < 3, turn, (jnp.int32(0), part, x))[2],
    "fori_loop": lambda part, x: plait.fori_loop(0, 3, lambda i, c: (c[0], c[0](c[1])), (part, x))[1],
    "vmap inside of cond": lambda part, x: plait.cond(
        True, plait.vmap(lambda part, x: part(x), in_axes=(None, 0)), lambda part, x: x, part, x
    ),
    "cond of JAX": lambda part, x: jax.lax.cond(x.sum() > 0, lambda x: part(x), lambda x: x, x),
    "checkpoint of JAX": lambda part, x: jax.checkpoint(lambda x: part(x))(x),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHUT_IN)
def test_modules_inside_of_branches_and_loops_have_the_shapes_of_one_turn(kind):
    """W7: and the page says inside of what."""
    calls = calls_of(Choosing(SHUT_IN[kind]), (X,), {})
    (call,) = calls["inner", "linear"]
    shape = "float32[3]" if kind.startswith("vmap") else "float32[4, 3]"
    assert (call.method, call.inputs, call.outputs, call.times) == ("__call__", (shape,), (shape,), 1)
    assert call.inside in (kind, "cond" if "cond" in kind else "remat")
    (last,) = calls["last",]
    assert (last.inside, last.outputs) == ("", ("float32[4, 3]",))


def test_calls_inside_and_outside_of_a_branch_are_told_apart():
    def both(part, x):
        return SHUT_IN["cond"](part, part(x))

    calls = calls_of(Choosing(both), (X,), {})["inner", "linear"]
    assert [call.inside for call in calls] == ["", "cond"]


class Making(plait.Module):
    """Makes a layer while it runs, of a class that it has another one of."""

    def __init__(self):
        self.layer = plait.Linear(3, 3, rngs=plait.Rngs(0))

    def __call__(self, x):
        return plait.Linear(3, 2, rngs=plait.Rngs(0))(self.layer(x))


def test_a_layer_that_is_made_during_the_call_runs_and_has_no_place():
    given = ("float32[4, 3]",)
    assert calls_of(Making(), (X,), {}) == {
        (): [Call("__call__", given, ("float32[4, 2]",), output_bytes=32)],
        ("layer",): [Call("__call__", given, given, output_bytes=48)],
    }


class Helped(plait.Module):
    def __init__(self):
        self.own = plait.Linear(3, 3, rngs=plait.Rngs(0))

    def __call__(self, x, helper):
        return helper(self.own(x))


@pytest.mark.parametrize("by_keyword", [False, True])
def test_costs_are_those_of_the_model_where_another_one_is_an_input(by_keyword):
    """The names of rows start with those of arguments then."""
    model, helper = Helped(), plait.Linear(3, 3, rngs=plait.Rngs(1))
    inputs, options = ((X,), {"helper": helper}) if by_keyword else ((X, helper), {})
    costs = costs_of(model, inputs, options, {})
    assert [*costs] == [("own",)]
    assert costs == costs_of(model, (X, jnp.asarray), {}, {})
