"""Rows of "Gives other numbers" in docs/flax-differences.md say themselves where they are met, when asked. (rule X32)"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.generation.decoder import decoder_of
from plait.ground import differences
from plait.ground.differences import DIFFERENCES
from plait.ground.environment import flag
from tests.differential.comparison import compare
from tests.differential.interpreter import run
from tests.differential.known import KNOWN
from tests.differential.program import Program, program
from tests.differential.test_programs import flax_nnx

PAGE = Path(__file__).parents[2] / "docs" / "flax-differences.md"
TITLE = "### Gives other numbers, or another object"
ROWS = {row.id: row for row in KNOWN}
ATTENTION = (
    "m = nnx.MultiHeadAttention(1, 2, decode=True, rngs=nnx.Rngs(0)); m.init_cache((1, 3, 2)); x = jnp.ones((1, 1, 2))"
)
RNN = (
    "m = nnx.RNN(nnx.SimpleCell(2, 3, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0)); x = jnp.ones((1, 4, 2)); n = jnp.array([0])"
)
LINEN = (
    "import flax.linen\n"
    "class Twice(flax.linen.Module):\n    @flax.linen.compact\n    def __call__(self, x):\n"
    "        m = nnx.bridge.to_linen(nnx.Linear, 2, 2)\n        return m(m(x))"
)

# Rows whose example is not in the table of the differential test.
EXAMPLES = {
    "decoding steps with is_causal": program("said", ATTENTION, "y = m(x, is_causal=True)"),
    "the carry of no steps": program("said", RNN, "y = m(x, seq_lengths=n, return_carry=True)"),
    "PReLU of integers": program("said", "y = nnx.PReLU()(jnp.array([-1]))"),
    "a second call in init": program("said", LINEN, "Twice().init(jax.random.key(0), jnp.ones((1, 2)))"),
    "names of mapped axes": program(
        "said", "m = nnx.vmap(lambda k: nnx.Param(jnp.ones(2), out_sharding=('a',)))(jnp.arange(3))"
    ),
    "equal containers": program("said", "y = nnx.List([1]) == nnx.List([1])"),
    "caches of views": program("said", ATTENTION, "v = nnx.view(m, batch_size=5, max_length=7)"),
}  # fmt: skip

# The first words of a row that no ``FlaxDifferenceWarning`` says, and how its example says itself, or why it does not.
SAID_OTHERWISE = {
    "leaves of `split(model)[1]`": "a LostUpdateWarning, if nothing reads what was written",
    "the model whose state was merged": "the row of merge, before the new model runs",
}
NOT_SAID = {
    "a state that was taken before": "a state does not know its model",
    "last digits": "nobody knows them before XLA has compiled",
    "a parameter used both inside and outside": "the use outside is an ordinary read",
    "a changed global or class attribute": "plait does not see what a function reads",
    "an array that two attributes hold": "a dispatched call compares no arrays",
}

# Programs that nearly meet a row, and give the same in both libraries.
NEAR = {
    "merge makes variables": ("graphdef, s = nnx.split(nnx.Dict(a=nnx.Param(jnp.ones(2))))", ("m = nnx.merge(graphdef, nnx.to_pure_dict(s))", "m")),
    "one object twice under cached_partial": (
        "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", ("y = nnx.cached_partial(nnx.jit(lambda a, b: a is b), m)(nnx.clone(m))", "y")),
    "values with hooks": ("m = nnx.Dict(v=nnx.Param(jnp.ones(2)))", ("r = nnx.to_pure_dict(nnx.state(m))", "r")),
    "views of streams": (
        "m = nnx.Dict(r=nnx.Rngs(0), s=nnx.Rngs(params=0), d=nnx.Dropout(0.5, rngs=nnx.Rngs(0)))",
        ("v = nnx.view(m, deterministic=True, only=nnx.Dropout)", "m")),
    "calls on states": (
        "graphdef, s = nnx.split(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))", ("y = nnx.call((graphdef, s))(jnp.ones((1, 2)))[0]", "y", "s")),
    "methods in attributes": (
        "m = nnx.Dict(act=jax.nn.relu, w=nnx.Param(jnp.ones(2)))", ("y = nnx.grad(lambda m: m.act(m.w[...]).sum())(m)", "y")),
    "decoding steps with is_causal": (ATTENTION, ("y = m(x)", "y")),
    "precision of attention": (
        "q = jnp.linspace(0, 1, 12).reshape(3, 2, 2)", ("y = nnx.dot_product_attention(q, q, q, precision='highest', dropout_rate=0.5, deterministic=True)", "y")),
    "attention weights in bfloat16": (
        "q = jnp.linspace(0, 1, 12).reshape(3, 2, 2).astype(jnp.bfloat16)", ("y = nnx.dot_product_attention(q, q, q)", "y")),
    "attention of float64": (
        "with jax.enable_x64(True):\n    q = jnp.linspace(0, 1, 12).reshape(3, 2, 2)",
        ("with jax.enable_x64(True):\n    y = nnx.dot_product_attention(q, q, q, dropout_rate=0.5, deterministic=True)", "y")),
    "the carry of no steps": (RNN, ("y = m(x, seq_lengths=n + 1, return_carry=True)", "y")),
    "variables that recursive_map replaces": (
        "m = nnx.Dict(a=nnx.Param(jnp.ones(2)))", ("r = nnx.recursive_map(lambda path, v: v, m)", "m", "r")),
    "shapes of array attributes": (("r = nnx.eval_shape(lambda: nnx.Dict(a=nnx.Param(jnp.ones(2))))", "r"),),
    "round": (("y = round(nnx.Param(jnp.ones(2)), 1), round(nnx.Param(jnp.ones(2, int)))", "y"),),
    "PReLU of integers": (("y = nnx.PReLU()(jnp.array([-1.0])), nnx.PReLU(dtype=jnp.float32)(jnp.array([-1]))", "y"),),
    "names of mapped axes": (
        ("m = nnx.vmap(lambda k: nnx.Param(jnp.ones(2)), transform_metadata={nnx.PARTITION_NAME: 'b'})(jnp.arange(3))", "m"),),
    "equal containers": (("y = nnx.List([1]) == [1], nnx.Dict(a=1) == nnx.Dict(a=2), nnx.Dict(a=1) == 3", "y"),),
    "weak types of cotangents": (
        "m = nnx.Dict(a=nnx.Param(jnp.asarray(2.0, jnp.float32)))", "f = nnx.custom_vjp(lambda m, x: m.a * x)",
        "f.defvjp(lambda m, x: (f(m, x), m), lambda m, g: (nnx.clone(g[0][0]), g[1]))", ("g = nnx.grad(f)(m, 1.0)", "g")),
    "arrays of carried modules without updates": (
        "m = nnx.Dict(a=nnx.Param(jnp.array(0)))", "def body(i, m):\n    m.a[...] += 1\n    return m",
        ("nnx.fori_loop(0, 2, body, m, graph_updates=False)", "m")),
    "EMA of integers": (
        "m = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=Count(jnp.array(0)))", "ema = nnx.EMA(m, decay=0.5, only=nnx.Param)", ("ema.update(m)", "ema")),
    "masks of Welford": ("m = nnx.metrics.Welford('loss')", ("m.update(loss=jnp.arange(3.0))", "m")),
    "sums of metrics": ("m = nnx.metrics.Average('loss')", ("m.update(loss=jnp.arange(3))", "m")),
    "caches of views": (ATTENTION, ("v = nnx.view(m, deterministic=True)", "m")),
}  # fmt: skip
# No program comes near: all uses of it differ.
ALWAYS = {"scales", "a second call in init"}

# What ``do`` says, as a program and what is true after it; ``FLAX``: both libraries then give the same.
FLAX = "the same in both"
ADVICE = {
    "merge makes variables": (
        ("with nnx.compat.live_states():\n    m = nnx.Dict(a=nnx.Param(jnp.ones(2))); n = nnx.merge(*nnx.split(m), copy=False)",), "n.a is m.a"),
    "one object twice under cached_partial": (NEAR["one object twice under cached_partial"], FLAX),
    "values with hooks": (
        ("class Hooked(nnx.Variable):\n    def on_get_value(self, value):\n        return value * 2", "m = nnx.Dict(v=Hooked(jnp.ones(2)))",
         ("r = nnx.to_pure_dict(nnx.state(m), lambda variable: variable.get_value())", "r")), FLAX),
    "views of streams": (("rngs = nnx.Rngs(0); rngs()",), "rngs.default.count[...] == 1"),
    "calls on states": (
        ("pair = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))", ("out, (graphdef, state) = nnx.call(pair)(jnp.ones(9))", "out", "state")), FLAX),
    "methods in attributes": (
        (ROWS["methods in attributes"].example.definitions, "other = Other(); m = nnx.Dict(other=other, act=lambda x: other.act(x))",
         ("y = nnx.grad(lambda m: m.act(jnp.ones(2)).sum())(m)", "y")), FLAX),
    "decoding steps with is_causal": (NEAR["decoding steps with is_causal"], FLAX),
    "precision of attention": (
        ("q = jnp.linspace(0, 1, 12).reshape(3, 2, 2)", ("y = nnx.dot_product_attention(q, q, q)", "y")), FLAX),
    "attention weights in bfloat16": (
        ("q = jnp.linspace(0, 1, 12).reshape(3, 2, 2).astype(jnp.bfloat16)",
         ("y = nnx.dot_product_attention(q, q, q, dropout_rate=0.5, deterministic=True, dtype=jnp.float32)", "y")), FLAX),
    "attention of float64": (
        ("with jax.enable_x64(True):\n    q = jnp.linspace(0, 1, 12).reshape(3, 2, 2)",
         ("with jax.enable_x64(True):\n    y = nnx.dot_product_attention(q, q, q, dtype=jnp.float32)", "y")), FLAX),
    "scales": (
        ("m = nnx.WeightNorm(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))",),
        "list(nnx.state(m, nnx.All(nnx.Param, nnx.Not(nnx.PathContains('scales'))))) == ['layer_instance']"),
    "the carry of no steps": ((RNN, ("y = m(x, seq_lengths=jnp.where(n == 0, 4, n), return_carry=True)[0]", "y")), "(y == m(x, return_carry=True)[0]).all()"),
    "variables that recursive_map replaces": (
        (ROWS["variables that recursive_map replaces"].example.steps[0].text,
         ("r = nnx.recursive_map(lambda path, v: v.replace(jnp.zeros(2)) if isinstance(v, nnx.Param) else v, m); nnx.update(m, nnx.state(r))", "m")), FLAX),
    "shapes of array attributes": (("m = nnx.eval_shape(lambda: nnx.Dict(a=nnx.data(jnp.ones(2))))",), "m.a.shape == (2,)"),
    "round": ((("y = round(nnx.Param(jnp.ones(2)), 0)", "y"),), FLAX),
    "PReLU of integers": ((("x = jnp.array([-1, 3]); y = nnx.PReLU()(x).astype(x.dtype)", "y"),), FLAX),
    "a second call in init": (
        (LINEN.replace("m(m(x))", "m(x)"), "p = Twice().init(jax.random.key(0), jnp.ones((1, 2)))['params']"), "len(p) == 1"),
    "names of mapped axes": (
        (("m = nnx.vmap(lambda k: nnx.Param(jnp.ones(2), out_sharding=('a',), eager_sharding=False), "
          "transform_metadata={nnx.PARTITION_NAME: 'layers'})(jnp.arange(3)).get_metadata('out_sharding')"),), "m == ('layers', 'a')"),
    "equal containers": (
        (("y = list(nnx.List([1])) == list(nnx.List([1])), dict(nnx.Dict(a=1)) == dict(nnx.Dict(a=1))", "y"),), FLAX),
    "weak types of cotangents": (NEAR["weak types of cotangents"], FLAX),
    "arrays of carried modules without updates": (
        ("m = nnx.Dict(a=nnx.data(jnp.array(0)))", "def body(i, m):\n    m.a = m.a + 1\n    return m",
         ("nnx.fori_loop(0, 2, body, nnx.clone(m), graph_updates=False)", "m")), FLAX),
    "EMA of integers": (NEAR["EMA of integers"], FLAX),
    "masks of Welford": (NEAR["masks of Welford"], FLAX),
    "sums of metrics": (
        ("m = nnx.metrics.Average('loss')", ("m.update(loss=jnp.linspace(0, 1, 9).astype(jnp.bfloat16).astype(jnp.float32))", "m")), FLAX),
    "caches of views": ((ATTENTION, "v = nnx.view(m, deterministic=True)"), "v.cached_key is m.cached_key"),
}  # fmt: skip


def example_of(name: str) -> Program:
    return EXAMPLES[name] if name in EXAMPLES else ROWS[name].example


def line_of(name: str) -> str:
    return f"| {' | '.join(DIFFERENCES[name][:3])} |"


def assert_same_in_both(program: Program) -> None:
    mine, theirs = run(program, plait), run(program, flax_nnx())
    assert mine.failure is None
    assert any(mine.shown)
    assert compare(program, theirs, mine) == []


def said_of(name: str) -> list[str]:
    return [f"a difference from Flax: {DIFFERENCES[name].what}"]


def said(program: Program, *, asked: bool = True) -> list[str]:
    """The first lines of the texts of all ``FlaxDifferenceWarning`` of a program."""
    with plait.compat.say_differences(asked):
        outcome = run(program, plait)
    assert outcome.failure is None, outcome.failure
    return [text.splitlines()[0] for text in outcome.messages if text.startswith("a difference from Flax")]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(differences, "_said", set())


def test_every_row_says_itself_or_has_a_reason():
    section = PAGE.read_text().partition(TITLE)[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    known = {line_of(name) for name in DIFFERENCES}
    assert [line for line in known if line not in rows] == []
    left = [row for row in rows if row not in known]
    reasons = [*SAID_OTHERWISE, *NOT_SAID]
    assert len(left) == len(reasons)
    assert all(any(row.startswith(f"| {words}") for words in reasons) for row in left)


@pytest.mark.oracle
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_row_says_itself_once(name):
    assert said(example_of(name)) == said_of(name)
    assert said(example_of(name)) == []


def test_a_model_whose_state_was_merged_is_said_by_merge():
    assert said(ROWS["merged models write"].example) == said_of("merge makes variables")


@pytest.mark.oracle
@pytest.mark.parametrize("name", DIFFERENCES)
def test_nothing_is_said_unasked(name, monkeypatch):
    monkeypatch.setattr(differences, "say", lambda *_: pytest.fail("something is said"))
    assert said(example_of(name), asked=False) == []


@pytest.mark.parametrize("name", NEAR)
def test_nothing_is_said_where_both_do_the_same(name):
    assert said(program("near", *NEAR[name])) == []


@pytest.mark.oracle
@pytest.mark.parametrize("name", NEAR)
def test_both_do_the_same_there(name):
    assert_same_in_both(program("near", *NEAR[name]))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ADVICE)
def test_advice_is_true(name):
    steps, true = ADVICE[name]
    advised = program("advice", *steps)
    if true == FLAX:
        assert_same_in_both(advised)
    else:
        namespace = {"nnx": plait, "jax": jax, "jnp": jnp}
        for step in advised.steps:
            exec(step.text, namespace)
        assert eval(true, namespace)


def test_every_row_has_its_tests():
    assert {*NEAR, *ALWAYS} == set(DIFFERENCES) == set(ADVICE)


def test_the_warning_answers_four_questions():
    parts = "(?s)at .*Average.*found .*plait: .*expected .*Flax: .*do "
    with plait.compat.say_differences(), pytest.warns(plait.errors.FlaxDifferenceWarning, match=parts):
        plait.metrics.Average().update(values=jnp.ones(2, jnp.bfloat16))


def test_nothing_is_said_of_states_that_are_live():
    with plait.compat.live_states():
        assert said(example_of("calls on states")) == []


PROGRAM = "import plait; plait.PReLU()(__import__('jax').numpy.array([1]))"


def test_the_environment_asks():
    environment = {**os.environ, "PLAIT_SAY_DIFFERENCES": "1"}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert found.stderr.count("FlaxDifferenceWarning") == 1


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("true", True), ("0", False), ("off", False), ("", False)])
def test_a_switch_of_the_environment(value, is_on, monkeypatch):
    monkeypatch.setenv("PLAIT_SAY_DIFFERENCES", value)
    assert flag("PLAIT_SAY_DIFFERENCES", "0") == is_on


def test_containers_compare_by_their_slots_unless_asked():
    """Then lists of them are compared by identity, as before (the fast path of dispatch)."""
    with plait.compat.say_differences():
        assert plait.List.__eq__ is not object.__eq__
    assert plait.List.__eq__ is object.__eq__ is plait.Dict.__eq__


def test_the_functions_of_plait_itself_say_nothing():
    """They view models, and make shapes of them, where a program asked for something that Flax does not have."""
    model = plait.Dict(rngs=plait.Rngs(0), attention=plait.MultiHeadAttention(1, 2, decode=True, rngs=plait.Rngs(0)))
    with plait.compat.say_differences(), warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder_of(model, 2, 3)
