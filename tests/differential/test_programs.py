"""Programs over the public surface do the same with Flax and with plait, but for the table of known differences."""

import collections
import itertools
import types

import hypothesis
import pytest

import plait
from tests.differential.areas import AREAS
from tests.differential.comparison import compare
from tests.differential.interpreter import run
from tests.differential.known import explaining
from tests.differential.program import program
from tests.sampling import slow_but

FEW, SOME = 2, 24  # of each area; the nox session `differential` runs thousands
SHARE_OF_ERRORS = 0.7  # of one area; a program that ends early shows little


@pytest.mark.oracle
@pytest.mark.parametrize("live", [False, True], ids=["detached", "live"])
@pytest.mark.parametrize("count", [FEW, pytest.param(SOME, marks=pytest.mark.slow)])
@pytest.mark.parametrize("area", slow_but(lambda area: area not in ("sharding", "layers"), AREAS))
def test_programs_do_the_same_on_both(area, count, live):
    flax = flax_nnx()
    seen: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate])
    @hypothesis.given(AREAS[area]())
    def check(program):
        one = run(program, flax)
        with plait.compat.live_states(live):
            other = run(program, plait)
        seen.update(programs=1, errors=one.failure is not None)
        differences = compare(program, one, other)
        if differences and explaining(differences, program, live=live) is None:
            raise AssertionError("\n".join([f"after: {differences[0].step}", *map(str, differences)]))

    check()
    assert count == FEW or seen["errors"] <= SHARE_OF_ERRORS * seen["programs"]


def flax_nnx() -> types.ModuleType:
    return pytest.importorskip("flax.nnx")


PAIRS = [f"graph={graph}, graph_updates={updates}" for graph in (True, False) for updates in (True, False)]
NET = """\
class Net(nnx.Module):
    def __init__(self, shared, random):
        self.w = nnx.Param(jnp.ones(2))
        self.count = Count(jnp.zeros(()))
        if shared:
            self.again = self.count
        if random:
            self.rngs = nnx.Rngs(0)"""
BODIES = {  # what a function does with a model, and what it returns
    "reads": ("", "y"),
    "writes": ("m.count[...] += 1", "y"),
    "adds": ("m.new = Count(jnp.ones(()))", "y"),
    "deletes": ("del m.count", "y"),
    "shared": ("m.again[...] += 1", "y"),
    "writes and returns": ("m.count[...] += 1", "(y, m)"),
    "shared and returned": ("m.again[...] += 1", "(y, m)"),
    "a state": ("m.count[...] += 1", "(y, nnx.state(m))"),
}
CALLS = {
    "jit": "nnx.jit(f, $)(m, x)",
    "jit_partial": "nnx.jit_partial(f, m, $)(x)",
    "cached_partial": "nnx.cached_partial(nnx.jit(f, $), m, $)(x)",
    "remat": "nnx.remat(f, $)(m, x)",
    "checkify": "nnx.checkify(f, $)(m, x)[1]",
    "eval_shape": "nnx.eval_shape(f, m, x, $)",
    "make_jaxpr": "nnx.make_jaxpr(f, $)(m, x).out_avals",
    "vmap": "nnx.vmap(f, in_axes=(None, 0), $)(m, xs)",
    "pmap": "nnx.pmap(f, in_axes=(None, 0), $)(m, xs[:1])",
    "scan": "nnx.scan(f, in_axes=(None, 0), out_axes=0, $)(m, xs)",
    "cond": "nnx.cond(x.sum() > 0, f, f, m, x, $)",
    "switch": "nnx.switch(jnp.array(1), [f, f], m, x, $)",
    "shard_map": "nnx.shard_map(f, mesh=jax.make_mesh((1,), ('a',)), in_specs=(P(), P('a')), out_specs=P(), $)(m, x)",
    "split_rngs": "nnx.split_rngs(splits=2, $)(f)(m, x)",
    "fork_rngs": "nnx.fork_rngs($)(f)(m, x)",
    "with_rngs": "nnx.with_rngs(fork=..., $)(f)(m, x)",
    "grad of aux": "nnx.grad(f, has_aux=True, $)(m, x)",
    "grad": "nnx.grad(f, $)(m, x)",
    "value_and_grad": "nnx.value_and_grad(f, argnums=(0, 1), $)(m, x)",
    "vjp": "(lambda y, back: (y, back(jnp.ones(()))))(*nnx.vjp(f, m, x, $))",
    "jvp": "nnx.jvp(f, (m, x), (nnx.clone(m), x), $)",
    "scan of a carry": "nnx.scan(lambda m, x: (m, f(m, x)), $)(m, xs)",
    "fori_loop": "nnx.fori_loop(0, 2, lambda i, v: (v[0], v[1] + f(*v)), (m, x), $)",
    "while_loop": "nnx.while_loop(lambda v: v[1].sum() < 9, lambda v: (v[0], v[1] + f(*v)), (m, x), $)",
}
OF_A_NUMBER = ("grad", "value_and_grad", "vjp", "jvp", "scan of a carry", "fori_loop", "while_loop")


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_each_transform_does_the_same_under_the_four_pairs_of_modes(name):
    flax = flax_nnx()
    found = []
    for (body, (statement, result)), pair in itertools.product(BODIES.items(), PAIRS):
        if result != "y" if name in OF_A_NUMBER else name == "grad of aux" and result == "y":
            continue
        given = program(
            "modes",
            f"def f(m, x):\n    {statement or 'pass'}\n    y = (m.w * x).sum()\n    return {result}",
            f"m, x, xs = Net({'again' in statement}, {name != 'jvp'}), jnp.ones(2), jnp.ones((2, 2))",
            (f"y = {CALLS[name].replace('$', pair)}", "y", "m"),
            definitions=NET,
        )
        one = run(given, flax)
        with plait.compat.live_states():
            differences = compare(given, one, run(given, plait))
        if differences and explaining(differences, given, live=True) is None:
            found.append("\n".join([f"{body}: {differences[0].step}", *map(str, differences)]))
    assert not found, "\n".join(found)
