"""Methods are watched while a block runs, and are themselves again after it."""

import threading

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.module_calls.layer_scopes import layer_of, layer_scopes
from plait.core.module_calls.method_observers import observed_methods


class Base(plait.Module):
    def __call__(self, x):
        return x + 1


class Layer(Base):
    @staticmethod
    def twice(x):
        return 2 * x

    @classmethod
    def name(cls):
        return cls.__name__

    def __call__(self, x):
        return super().__call__(self.twice(x))


class Net(plait.Module):
    def __init__(self):
        self.layers = plait.List([Layer(), Layer()])
        self.plain = Base()

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.plain(x)


def watching(seen):
    def observer(module, name, call):
        seen.append((type(module).__name__, name))
        return call()

    return observer


def test_calls_are_seen_once_each_and_methods_come_back():
    net, before = Net(), dict(vars(Layer))
    seen: list = []
    observer = watching(seen)
    with observed_methods([*net.layers, net.plain], observer), observed_methods(net.layers, observer):
        assert net(1) == 8
        assert Layer.twice(3) == 6  # not a method of an object, though called through a class that is watched
        assert Layer.name() == "Layer"
    assert seen == [("Layer", "__call__"), ("Layer", "__call__"), ("Base", "__call__")]
    assert dict(vars(Layer)) == before
    net(1)
    assert len(seen) == 3


def test_an_error_inside_restores_the_methods():
    net, before = Net(), vars(Base)["__call__"]
    with pytest.raises(ZeroDivisionError), observed_methods([net.plain], watching([])):
        raise ZeroDivisionError
    assert vars(Base)["__call__"] is before


def test_blocks_of_two_threads_may_end_in_any_order():
    net, before = Net(), dict(vars(Layer))
    seen: dict[str, list] = {"a": [], "b": []}
    a_in, b_in, a_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with observed_methods(net.layers, watching(seen["a"])):
            a_in.set()
            b_in.wait(10)
        a_out.set()

    def second():
        a_in.wait(10)
        with observed_methods(net.layers, watching(seen["b"])):
            b_in.set()
            a_out.wait(10)
            net(1)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(seen["a"]), len(seen["b"])) == (0, 2)
    assert dict(vars(Layer)) == before


def test_operations_carry_the_path_of_their_layer():
    net = Net()
    with layer_scopes(net):
        jaxpr = jax.make_jaxpr(lambda x: net(jnp.sin(x)))(1.0).jaxpr
    assert [layer_of(eqn) for eqn in jaxpr.eqns] == [
        None, "layers[0]", "layers[0]", "layers[1]", "layers[1]", "plain",
    ]  # fmt: skip
    assert [layer_of(eqn) for eqn in jax.make_jaxpr(net)(1.0).jaxpr.eqns] == [None] * 5


class Hooked(plait.Module):
    def hook(self, x):
        raise NotImplementedError

    def __call__(self, x):
        return self.hook(x) if type(self).hook is not Hooked.hook else x


class Plain(Hooked):
    pass


class Overriding(Hooked):
    def hook(self, x):
        return 2 * x


@pytest.mark.parametrize(("cls", "expected"), [(Plain, 1), (Overriding, 2)])
def test_whether_a_class_overrides_a_method_can_be_asked(cls, expected):
    """A base class may run a hook only if it is overridden, which the identity of the method says."""
    model = cls()
    assert model(1) == plait.jit(cls.__call__)(model, jnp.int32(1)) == expected
    seen = []
    with observed_methods([model], lambda module, name, call: seen.append(name) or call()):
        assert model(1) == expected
        with observed_methods([Plain(), Overriding()], lambda module, name, call: call()):
            assert type(model).hook is (Hooked.hook if cls is Plain else vars(Overriding)["hook"])
        assert model(1) == expected
    assert seen == (["__call__"] if cls is Plain else ["__call__", "hook"]) * 2
    assert "hook" not in vars(Plain)
    assert not hasattr(Hooked.hook, "__wrapped__")
