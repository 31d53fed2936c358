"""Ask 5: programs in the spellings of Flax 0.10, 0.11 and 0.12 run after one changed import, with the same numbers.

The programs of ``corpus/`` are written as for Flax 0.12; ``OLDER`` says what they had in its place before. What Flax
prints for the new spelling is what plait must print for both.
"""

import contextlib
import functools
import io
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.errors import PlaitError

CORPUS = Path(__file__).parent / "corpus"
PROGRAMS = sorted(file.stem for file in CORPUS.glob("*.py"))
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
IMPORT, NEW_IMPORT = "from flax import nnx\n", "import plait as nnx\n"

# In all programs, and in one: what is written now → what was written before.
BEFORE = {"].get_value()": "].value", ".get_value()": ".value", "[...]": ".value"}
OLDER = {
    "batch_stats": {
        "Dropout(0.5, rngs=rngs)": "Dropout(0.5)",
        "(self, x)": "(self, x, *, rngs: nnx.Rngs | None = None)",
        "x.mean((1, 2)))": "x.mean((1, 2)), rngs=rngs)",
        "model.train()": "model.dropout.rngs = nnx.Rngs(0, dropout=3).dropout.fork()",
        "lambda model, x: model(x)": "lambda model, x: model(x, rngs=model.dropout.rngs)",
        "model.eval()": "model.set_attributes(deterministic=True, use_running_average=True, raise_if_not_found=False)",
    },
    "ensemble": {
        "@nnx.vmap(in_axes=(0,), out_axes=0)": "@nnx.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0}),), "
        "out_axes=nnx.StateAxes({nnx.Param: 0, ...: None}))",
        "in_axes=(0, None)": "in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), None)",
        "nnx.grad(loss)": "nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param))",
        "state = nnx.state(models)": "graphdef, state = nnx.split(models)",
        "nnx.graphdef(models)": "graphdef",
    },
    "lifted": {
        '["linear"]["kernel"]': ".linear.kernel",
        "@nnx.custom_vjp": "@functools.partial(nnx.custom_vjp, nondiff_argnums=(nnx.DiffState(0, nnx.Param),))",
        "import jax\n": "import functools\n\nimport jax\n",
        "input_gradients, out = cotangents": "(model_gradients, _), out = cotangents",
        "    model_gradients, _ = input_gradients\n": "",
        "return model_gradients,": "return model_gradients.filter(nnx.Param),",
        "lambda: Counter(nnx.Rngs(0))": "Counter, nnx.Rngs(0)",
    },
    "mlp_training": {
        "nnx.List([": "([",
        "nnx.Variable(jnp.array(0))": "nnx.Variable(0)",
        "nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)": "nnx.ModelAndOptimizer(model, optax.adam(1e-2))",
        "def train_step(model, optimizer": "def train_step(optimizer",
        "(loss_fn)(model)": "(loss_fn)(optimizer.model)",
        "update(model, grads)": "update(grads)",
        "train_step(model, optimizer": "train_step(optimizer",
    },
    "rngs_sow": {
        "Count(jnp.array(0))": "Count(0)",
        "self.rngs.noise.normal(y.shape)": "jax.random.normal(self.rngs.noise(), y.shape)",
        "type(v).__name__ for _, v in nnx.to_flat_state(nnx.state(model, Count))": (
            "leaf.type.__name__ for _, leaf in nnx.state(model, Count).flat_state()"
        ),
    },
    "scan_stack": {
        'grads["blocks"]["norm"]["scale"]': "grads.blocks.norm.scale",
        "in_axes=(nnx.Carry, 0)": "in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), nnx.Carry)",
        "(x, block)": "(block, x)",
        "forward(x, self.blocks)": "forward(self.blocks, x)",
        "@nnx.vmap(in_axes=(0,), out_axes=0)": "@nnx.vmap(axis_size=depth)",
    },
    "sharding": {
        "with_metadata(nnx.initializers.lecun_normal(), out_sharding=": (
            "with_partitioning(nnx.initializers.lecun_normal(), "
        ),
        "jnp.zeros(8), out_sharding": "jnp.zeros(8), sharding",
        "model.kernel.out_sharding, model.bias.out_sharding": (
            'model.kernel.get_metadata("sharding"), model.bias.sharding_names'
        ),
    },
    "split_merge": {
        '".".join(path) for path, _ in nnx.to_flat_state(params)': (
            '".".join(path) for path, leaf in params.flat_state() if isinstance(leaf, nnx.VariableState)'
        ),
        "model = nnx.merge(graphdef, params, stats)\n    y = model(x)": (
            "y, (_, state) = nnx.call((graphdef, nnx.State.merge(params, stats)))(x)"
        ),
        "nnx.state(model, nnx.BatchStat)": "state.filter(nnx.BatchStat)",
        "lambda a: 2 * a, params": (
            "lambda v: v.replace(2 * v.value), params, is_leaf=lambda v: isinstance(v, nnx.VariableState)"
        ),
        "nnx.to_pure_dict(doubled)": "doubled.to_pure_dict()",
    },
}

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("users_promotion")]


@pytest.fixture(autouse=True)
def settings_kept():
    from flax import nnx

    before = plait.using_eager_sharding(), nnx.using_eager_sharding()
    yield
    plait.use_eager_sharding(before[0])
    nnx.use_eager_sharding(before[1])


def output_of(source, name):
    """What a program prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def source_of(program):
    return (CORPUS / f"{program}.py").read_text()


@functools.cache
def output_of_flax(program):
    return output_of(source_of(program), program)


def assert_prints_the_same(source, program):
    assert source.count(IMPORT) == 1
    found, expected = output_of(source.replace(IMPORT, NEW_IMPORT), program), output_of_flax(program)
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, expected)]
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_after_one_changed_import(program):
    assert_prints_the_same(source_of(program), program)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_runs_as_it_was_written_before(program):
    source = source_of(program)
    for new, old in {**OLDER.get(program, {}), **BEFORE}.items():
        assert new in source or new in BEFORE, new
        source = source.replace(new, old)
    assert_prints_the_same(source, program)


OLD_CALLS = {
    "an optimizer without wrt": (
        "nnx.Optimizer(model, optax.sgd(0.1))",
        r"Optimizer\(model, .*wrt=",
    ),
    "an update with gradients alone": (
        "nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(nnx.state(model))",
        r"update\(model, grads\)",
    ),
    "the model of an optimizer": (
        "nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).model",
        r"ModelAndOptimizer|update\(model",
    ),
}


@pytest.mark.parametrize("case", OLD_CALLS)
def test_old_calls_of_the_optimizer_print_the_new_one(case):
    code, words = OLD_CALLS[case]
    before = "import optax\nimport plait as nnx\nmodel = nnx.Linear(2, 2, rngs=nnx.Rngs(0))\n"
    with pytest.raises((PlaitError, TypeError, AttributeError), match=words):
        output_of(before + code, case)
