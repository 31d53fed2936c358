"""What instructions cost, by module: the sums are XLA's own."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

from plait._compat import program_costs, program_text
from plait.inspect.cost import figures
from plait.inspect.hlo import CostsByModule, Figures, Modules, Program
from tests.sampling import slow_but

X = jnp.ones((4, 4))
SOME = Modules([("a",), ("a", "b"), ("c",)])


def scoped(name, f):
    def inner(x):
        with jax.named_scope(name):
            return f(x)

    return inner


def body_of(x):
    return jnp.tanh(x @ x)


OPERATIONS = {
    "matmul": lambda x: x @ x,
    "softmax": lambda x: jax.nn.softmax(x),
    "sort": lambda x: jnp.sort(x, axis=0),
    "scan": lambda x: jax.lax.scan(lambda c, _: (scoped("b", body_of)(c), None), x, None, length=5)[0],
    "fori_loop": lambda x: jax.lax.fori_loop(2, 5, lambda _, c: scoped("b", body_of)(c), x),
    "while_loop": lambda x: jax.lax.while_loop(lambda c: c.sum() < 3, scoped("b", lambda c: c * 2 + 1), x),
    "cond": lambda x: jax.lax.cond(x.sum() > 0, body_of, lambda x: x - 1, x),
    "checkpoint": lambda x: jax.checkpoint(scoped("b", body_of))(x),
    "jit": lambda x: jax.jit(scoped("b", body_of))(x),
    "gather": lambda x: x[jnp.array([0, 2, 1, 3])],
    "scatter": lambda x: x.at[jnp.array([0, 2])].add(1.0),
    "conv": lambda x: jax.lax.conv(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0],
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
}


def spread_of(stage, modules=SOME):
    text = program_text(stage)
    failed = []

    def measure(text):
        try:
            return figures(program_costs(text))
        except ValueError as error:
            failed.append((text, error))
            return Figures()

    found = CostsByModule(Program(text), modules, measure).spread()
    assert not failed
    return found


def summed(spread):
    return [sum(each[number] for each in spread.values()) for number in range(4)]


def by_xla(stage):
    found = stage.cost_analysis()
    names = ("flops", "transcendentals", "bytes accessed", "bytes accessedout{}")
    return [pytest.approx(found.get(name, 0.0), rel=1e-5) for name in names]


@pytest.mark.parametrize("operation", slow_but([*OPERATIONS][::2], OPERATIONS))
def test_the_sums_are_those_of_xla(operation):
    """D11: of the program as written and as compiled, of values and of gradients."""
    f = scoped("a", OPERATIONS[operation])
    stages = [jax.jit(f).lower(X)]
    if operation != "while_loop":
        stages.append(jax.jit(jax.grad(lambda x: f(x).sum())).lower(X))
    for stage in stages:
        assert summed(spread_of(stage)) == by_xla(stage)
    compiled = stages[-1].compile()
    assert summed(spread_of(compiled)) == by_xla(compiled)


@settings(max_examples=10)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(["a", "a/b", "c", "else"])), max_size=4))
def test_the_sums_of_any_program_are_those_of_xla(steps):
    """D11."""

    def f(x):
        for operation, scope in steps:
            x = scoped(scope, OPERATIONS[operation])(x)
        return x

    stage = jax.jit(f).lower(X)
    assert summed(spread_of(stage)) == by_xla(stage)


@pytest.mark.parametrize("name", ["scan", "fori_loop", "jit", "checkpoint"])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_runs_inside_belongs_to_the_module_inside(name, compiled):
    stage = jax.jit(scoped("a", OPERATIONS[name])).lower(X)
    found = spread_of(stage.compile() if compiled else stage)
    assert found["a", "b"].flops == 2 * 4**3
    trips = {"scan": 5, "fori_loop": 3}.get(name, 1)
    assert found["a", "b"].executed_flops == trips * 2 * 4**3


def test_a_loop_that_does_not_count_runs_an_unknown_number_of_times():
    found = spread_of(jax.jit(OPERATIONS["while_loop"]).lower(X))
    assert summed(found)[0] == sum(each.executed_flops for each in found.values())


def test_the_costlier_branch_counts():
    def f(x):
        return jax.lax.cond(x.sum() > 0, scoped("a", body_of), scoped("c", lambda x: x - 1), x)

    found = spread_of(jax.jit(f).lower(X))
    assert found["a",].flops == 2 * 4**3
    assert ("c",) not in found


def test_what_has_no_name_belongs_where_it_is_used():
    """XLA keeps no name for a constant, or what it makes of one."""
    found = spread_of(jax.jit(scoped("a", lambda x: x + 2.5)).lower(X))
    assert set(found) == {("a",)}


def test_attributes_with_braces_and_quotes_are_read():
    text = """HloModule m

ENTRY %main (p: f32[2]) -> (f32[2], s32[]) {
  %p = f32[2]{0} parameter(0), metadata={op_name="p[\\"k{\\"]"}
  %c = s32[] constant(3)
  %n = f32[2]{0} negate(%p), sharding={devices=[2]<=[2]}, metadata={op_name="jit(f)/a/neg" source_file="x}.py"}
  ROOT %t = (f32[2]{0}, s32[]) tuple(%n, %c)
}
"""
    program = Program(text)
    p, c, n, t = program.computations["main"]
    assert (n.op_name, n.opcode, n.attributes, n.operand_names()) == ("jit(f)/a/neg", "negate", "", ["p"])
    assert (p.op_name, c.operands, t.shape, t.is_root) == ('p[\\"k{\\"]', "3", "(f32[2]{0}, s32[])", True)
    found = CostsByModule(program, SOME, lambda text: figures(program_costs(text))).spread()
    assert found["a",].flops == 2
