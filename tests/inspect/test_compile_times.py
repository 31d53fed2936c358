"""What a first call does before it runs: seconds and operations by module, and what has changed. (rule D13)"""

import time

import jax
import jax.numpy as jnp
import optax
import pytest

import plait
from plait.errors import ArgumentTypeError


class Slow(plait.Module):
    def __call__(self, x):
        time.sleep(0.2)
        return x + 1


class Model(plait.Module):
    def __init__(self, rngs):
        self.up = plait.Linear(4, 8, rngs=rngs)
        self.slow = Slow()

    def __call__(self, x):
        return jnp.tanh(self.slow(self.up(x)))


def loss(model, x):
    return model(x).sum()


@pytest.fixture
def model():
    return Model(plait.Rngs(0))


def rows(report):
    return {row.path: row for row in report.modules}


def test_d13_seconds_and_operations_belong_to_modules(model):
    report = plait.explain_compile(model, jnp.ones((2, 4)))
    found = rows(report)
    assert {path: row.kind for path, row in found.items()} == {"": "Model", "up": "Linear", "slow": "Slow"}
    assert found["slow"].trace_seconds >= 0.2 > found[""].trace_seconds
    assert sum(row.trace_seconds for row in report.modules) == pytest.approx(report.trace_seconds)
    assert report.seconds == report.trace_seconds + report.lower_seconds + report.compile_seconds
    assert min(report.lower_seconds, report.compile_seconds) > 0
    assert all(row.operations > 0 for row in report.modules)


def test_d13_a_loop_over_blocks_grows_with_them_and_a_stack_does_not():
    def operations(blocks, stacked):
        layers = [plait.Linear(4, 4, rngs=plait.Rngs(i)) for i in range(blocks)]
        model = plait.Stack(layers) if stacked else plait.Sequential(*layers)
        return plait.explain_compile(model, jnp.ones((2, 4))).operations

    assert operations(4, stacked=False) - operations(2, stacked=False) > 4
    assert operations(4, stacked=True) == operations(2, stacked=True)


@pytest.mark.slow
@pytest.mark.parametrize("donate", [False, True])
def test_d13_nothing_is_run_and_later_explanations_are_as_without_it(model, donate):
    optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)

    @plait.jit(donate=donate)
    def step(model, optimizer, x):
        optimizer.update(model, plait.grad(loss)(model, x))

    before = jax.tree.map(jnp.array, plait.as_pure(plait.state(model)))
    report = plait.explain_compile(step, model, optimizer, jnp.ones((2, 4)))
    assert report.change == "step: traced for the first time"
    assert rows(report)["slow"].trace_seconds >= 0.2
    after = plait.as_pure(plait.state(model))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), before, after))
    with plait.explain_retraces(lambda _: None) as explained:
        step(model, optimizer, jnp.ones((2, 4)))
        assert plait.explain_compile(step, model, optimizer, jnp.ones((3, 4))).change == (
            "step: traced again\n  arg x: float32[2,4] -> float32[3,4]"
        )
    assert explained.messages[0] == "step: traced for the first time"
    assert plait.explain_compile(step, model, optimizer, jnp.ones((2, 4))).change == (
        "step: compiled for such arguments before"
    )


def test_d13_shapes_are_enough(model):
    shapes = plait.eval_shape(lambda: Model(plait.Rngs(0)))
    x = jax.ShapeDtypeStruct((2, 4), jnp.float32)
    assert plait.explain_compile(shapes, x).operations == plait.explain_compile(model, jnp.ones((2, 4))).operations


def test_d13_the_report_is_a_table(model):
    text = str(plait.explain_compile(model, jnp.ones((2, 4))))
    assert text.splitlines()[0] == "what a first call does"
    assert all(word in text for word in ("traced, s", "operations", "slow", "Slow", "compiled "))


def test_d13_other_things_are_errors():
    with pytest.raises(ArgumentTypeError, match=r"explain_compile"):
        plait.explain_compile(3)
