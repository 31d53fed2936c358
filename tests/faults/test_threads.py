"""Eight threads call jitted functions on models of their own, and on a shared one whose structure changes meanwhile."""

import contextlib
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import PlaitError

# The checking mode walks the model once more, when another thread may have changed it.
pytestmark = pytest.mark.unchecked
ROUNDS = 60


class Layer(plait.Module):
    def __init__(self, factor: float) -> None:
        self.w = plait.Param(jnp.full((2,), factor))

    def __call__(self, x):
        return x * self.w.value


class Shared(plait.Module):
    """A product of layers; each layer doubles, so the answer says how many there were."""

    def __init__(self) -> None:
        self.layers = plait.List([Layer(2.0)])
        self.calls = plait.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def in_threads(jobs):
    """Run them at the same time; the errors, in the order of the jobs."""
    errors, start = [None] * len(jobs), threading.Barrier(len(jobs))

    def run(number, job):
        start.wait()
        try:
            job()
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("transform", [plait.jit, lambda f: f, lambda f: plait.jit(plait.remat(f))])
def test_calls_on_a_model_that_changes_its_structure_answer_for_one_structure(transform):
    """U37: readers see the layers as they were at one moment, never a mixture; the writer's own calls are exact."""
    f = transform(lambda model, x: model(x))
    shared, x, allowed = Shared(), jnp.ones(2), {2.0, 4.0, 8.0}

    def read():
        for _ in range(ROUNDS):
            answer = np.asarray(f(shared, x))
            assert answer[0] == answer[1]
            assert float(answer[0]) in allowed

    def change():
        for number in range(ROUNDS):
            shared.layers = plait.List([Layer(2.0) for _ in range(1 + number % 3)])
            assert f(shared, x).tolist() == [2.0 ** (1 + number % 3)] * 2

    def own():
        model = Shared()
        count = transform(lambda model: setattr(model.calls, "value", model.calls.value + 1))
        for number in range(ROUNDS):
            count(model)
            if number % 10 == 0:
                model.layers.append(Layer(1.0))
        assert int(model.calls.value) == ROUNDS

    assert in_threads([change, read, read, read, own, own, own, own]) == [None] * 8
    assert f(shared, x).tolist() == [2.0 ** (1 + (ROUNDS - 1) % 3)] * 2


def test_layers_that_are_appended_and_taken_away_under_a_call():
    """A list that is changed in place under a walk may be refused; no answer is wrong, and nothing is lost."""
    f = plait.jit(lambda model, x: model(x))
    shared, x, allowed = Shared(), jnp.ones(2), {2.0, 4.0, 8.0}

    def read():
        for _ in range(ROUNDS):
            with contextlib.suppress(PlaitError):
                assert float(f(shared, x)[0]) in allowed

    def change():
        for _ in range(ROUNDS):
            shared.layers.append(Layer(2.0))
            shared.layers.append(Layer(2.0))
            shared.layers.pop()
            shared.layers.pop()

    assert in_threads([change, *[read] * 7]) == [None] * 8
    assert f(shared, x).tolist() == [2.0, 2.0]
