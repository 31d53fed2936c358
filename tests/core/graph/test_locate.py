"""Paths of objects in error messages."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.graph.locate import describe_place, find_path
from plait.core.module_calls.running_modules import modules_of_error
from plait.errors import TraceContextError
from plait.util.jax_versions import whole_tracebacks
from tests.strategies import Node


def test_an_object_is_found_from_the_modules_that_run():
    class Outer(plait.Module):
        def __init__(self):
            self.layers = [Node(w=plait.Param(1.0))]

        def __call__(self):
            return describe_place(self.layers[0].w)

    assert Outer()() == "layers[0].w (a Param)"


@pytest.mark.parametrize("order", ["outer first", "inner first"])
def test_of_several_models_that_hold_an_object_the_outermost_names_it(order):
    def look(first, second, target):
        return find_path(target)

    w = plait.Param(1.0)
    inner = Node(w=w)
    outer = Node(inner=inner)
    if order == "outer first":
        assert look(outer, inner, w) == "first.inner.w"
    else:
        assert look(inner, outer, w) == "second.inner.w"


def test_a_name_that_begins_with_an_underscore_names_nothing():
    """Such names are of libraries and of throwaway values."""
    _net = Node(inner=Node(w=plait.Param(1.0)))
    assert find_path(_net.inner.w) is None


def test_the_methods_that_an_error_went_through_have_the_paths_of_their_objects():
    """From the first of them, outermost first."""

    class Inner(plait.Module):
        def __call__(self):
            raise ZeroDivisionError("no")

    class Outer(plait.Module):
        def __init__(self):
            self.layers = [Inner()]

        def __call__(self):
            return self.layers[0]()

    with pytest.raises(ZeroDivisionError, match="no") as caught:
        Outer()()
    found = modules_of_error(caught.value)
    assert [(type(each.module).__name__, each.method, each.path) for each in found] == [
        ("Outer", "__call__", ()),
        ("Inner", "__call__", ("layers", 0)),
    ]


def test_a_function_is_no_method_because_a_method_has_its_name():
    """Only what is called on an object stands for nothing in a path; an argument has its name there."""

    def train(batch, net):
        return find_path(net.inner.w)

    assert hasattr(plait.Module, "train")
    assert train(1, Node(inner=Node(w=plait.Param(1.0)))) == "net.inner.w"


def test_an_object_is_found_from_models_that_were_walked():
    holder = [Node(inner=plait.Param(1.0))]
    plait.split(holder[0])
    assert find_path(holder[0].inner) == "inner"


def test_looking_for_a_path_keeps_no_model_alive():
    """U14: locals of running functions are read, and let go."""
    model = Node(w=plait.Param(1.0))

    def write(x):
        model.w.value = x
        return x

    with pytest.raises(TraceContextError):
        jax.jit(write)(1.0)
    alive = weakref.ref(model)
    model = write = None
    gc.collect()
    assert alive() is None


def test_the_receiver_of_a_method_may_have_any_name():
    class Inner(plait.Module):
        def __call__(this, x):
            return describe_place(this)

    class Outer(plait.Module):
        def __init__(s):
            s.blocks = [Inner(), Inner()]

        def __call__(s, x):
            return s.blocks[1](x)

    assert Outer()(1) == "blocks[1] (an Inner)"


def test_paths_go_on_inside_a_transform():
    """An error says, on its way out, which objects each call had outside and inside."""

    class Inner(plait.Module):
        def __call__(self, x):
            raise ZeroDivisionError("no")

    class Outer(plait.Module):
        def __init__(self):
            self.layers = [Inner()]

        def __call__(self, x):
            return plait.remat(lambda layers, x: plait.grad(lambda x: layers[0](x))(x))(self.layers, x)

    with pytest.raises(ZeroDivisionError, match="no") as caught, whole_tracebacks():
        plait.remat(lambda model, x: model(x))(Node(body=Outer()).body, jnp.float32(1))
    assert [each.path for each in modules_of_error(caught.value)] == [(), ("layers", 0)]


def test_what_an_error_carries_keeps_no_model_alive():
    model = Node(w=plait.Param(jnp.float32(1)))
    with pytest.raises(ZeroDivisionError) as caught:
        plait.remat(lambda model: 1 // 0)(model)
    error, alive = caught.value.with_traceback(None), weakref.ref(model)
    model = caught = None
    gc.collect()
    assert (alive(), vars(error) != {}) == (None, True)
