"""Every row of "Different on purpose" in docs/flax-differences.md holds, and says itself when it is met.

What the differential test can draw has a row in its table of known differences, which says how a user learns of it.
All others are here: a program, and the error or warning that it meets; or what it gives, if the user wants that.
"""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.differential.known import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "flax-differences.md"
MESH = "mesh = jax.make_mesh((2,), ('a',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])"
ATTENTION = (
    "m = nnx.MultiHeadAttention(1, 2, decode=True, rngs=nnx.Rngs(0)); m.init_cache((1, 3, 2)); x = jnp.ones((1, 1, 2))"
)
RNN = "cell = nnx.SimpleCell(2, 3, rngs=nnx.Rngs(0)); m = nnx.RNN(cell, rngs=nnx.Rngs(0)); x = jnp.ones((1, 2, 2))"
D = "m = nnx.Dict(w=nnx.Param(jnp.ones(2)))"

# The first words of a row → a program, and what it meets: an error, a warning, or an expression that is true.
MET = {
    "leaves of `split(model)[1]`": (f"{D}; s = nnx.state(m); s['w'][...] = jnp.zeros(2); del s", "LostUpdateWarning"),
    "a state that was taken before the model changed": (
        f"{D}; s = nnx.state(m); m.w[...] = jnp.zeros(2)", "s['w'][...].sum() == 2"),
    "a decoding step with `is_causal=True`": (
        f"{ATTENTION}; m(x); n = nnx.clone(m)", "jnp.array_equal(m(2 * x, is_causal=True), n(2 * x))"),
    "a decoding step with several positions": (ATTENTION, "m(jnp.ones((1, 2, 2))).shape == (1, 2, 2)"),
    "a decoding step past the end": (f"{ATTENTION}; m(jnp.ones((1, 3, 2))); m(x)", "ArgumentError"),
    "`precision` of attention": (
        "f = lambda q: nnx.dot_product_attention(q, q, q, precision='highest')", "'HIGHEST' in str(jax.make_jaxpr(f)(jnp.ones((2, 1, 2))))"),
    "`ConvTranspose(padding=\"valid\")`": (
        "f = lambda p: nnx.ConvTranspose(1, 1, 3, padding=p, rngs=nnx.Rngs(0))(jnp.ones((1, 4, 1)))", "f('valid').shape == f('VALID').shape == (1, 6, 1)"),
    "a name of a padding that": ("nnx.max_pool(jnp.ones((1, 4, 1)), (2,), padding='CIRCULAR')", "ArgumentError"),
    "an array that a constructor keeps": (
        "class M(nnx.Module):\n    def __init__(self, x): self.x = x\nm = nnx.jit(M)(jnp.ones(2))", "m.x.sum() == 2 and len(nnx.state(m)) == 1"),
    "statistics in references": (
        "m = nnx.BatchNorm(3, rngs=nnx.Rngs(0)); m.mean = nnx.BatchStat(m.mean[...], ref=True)\n"
        "nnx.jit(lambda m: nnx.value_and_grad(lambda m: m(jnp.ones((2, 3))).sum())(m)[0])(m)", "m.mean[...].all()"),
    "a layer of `flax.nnx` in a plait model": (
        f"{D}; m.v = type('Plain', (), {{'__module__': 'program'}})(); m.v.w = jnp.ones(2); nnx.grad(lambda m: m.w[...].sum())(m)", "UntrainedPartWarning"),
    "a keyword in the call of a `Sequential`": ("nnx.Sequential(nnx.relu)(jnp.ones(2), mask=None)", "UnusedArgumentWarning"),
    "the steps of a reversed `RNN`": (
        f"{RNN}; y = lambda n: m(x * jnp.array([[[1.0], [2.0]]]), reverse=True, seq_lengths=jnp.array([n]))", "jnp.array_equal(y(3), y(2))"),
    "the carry of `RNN` after": (
        f"{RNN}; c, _ = m(x, seq_lengths=jnp.array([0]), return_carry=True)", "jnp.array_equal(c, jnp.zeros((1, 3)))"),
    "`RNN` with a narrower initial carry": (
        f"{RNN}; y = m(x, initial_carry=jnp.zeros((1, 3), jnp.bfloat16))", "y.dtype == jnp.float32"),
    "a `jax.Ref` that a function of `jit` returns": (
        "r, m = jax.new_ref(jnp.ones(())), nnx.Dict()\ntry: nnx.jit(lambda r: r)(r)\n"
        "except ValueError: nnx.jit(lambda m: m.update(v=nnx.Param(jnp.ones(()), ref=True)))(m)", "ValueError"),
    "a changed global or class attribute": (
        "RATE = 2.0\nf = lambda x: x * RATE\nold = nnx.remat(f)(1.0), jax.checkpoint(f)(1.0)\nRATE = 3.0",
        "old == (nnx.remat(f)(1.0), jax.checkpoint(f)(1.0)) and nnx.remat(lambda x: f(x))(1.0) == 3.0 "
        "and not jax.clear_caches() and nnx.remat(f)(1.0) == 3.0"),
    "`get_pspec_from_jax_arrays` of arrays on two": (
        "from plait import export\nmeshes = [jax.sharding.Mesh(jax.devices()[:1], name) for name in 'ab']\n"
        "arrays = [jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P())) for mesh in meshes]\n"
        "export.get_pspec_from_jax_arrays(arrays)", "ValueError"),
    "a jitted or other transformed function, made": (
        f"f = nnx.jit(lambda m: m.update(b=nnx.Param(jnp.ones(1)))); {D}\nwith nnx.set_graph_updates(False): f(m)",
        "'b' not in m"),
    "`PReLU` of integers": ("y = nnx.PReLU()(jnp.array([-1]))", "y.dtype == jnp.float32"),
    "`BatchNorm` training with one value": (
        "nnx.BatchNorm(2, use_running_average=False, rngs=nnx.Rngs(0))(jnp.ones((1, 2)))", "SingleValueWarning"),
    "a variable with a dimension that the mesh": (
        f"{MESH}\nwith jax.set_mesh(mesh): nnx.Param(jnp.ones(3), out_sharding=('a',))", "UnevenLayoutWarning"),
    "`grad` or `Optimizer` with a filter": (
        f"{D}; nnx.grad(lambda m: m.w[...].sum(), argnums=nnx.DiffState(0, nnx.BatchStat))(m)", "NothingSelectedWarning"),
    "a jitted function that captures a model": (f"{D}; nnx.jit(lambda x: m.w * x)(jnp.ones(2))", "CapturedModelWarning"),
    "`batch_size` and `max_length` of a view": (
        f"{ATTENTION}; v = nnx.view(m, batch_size=5, max_length=7)", "v.cached_key.shape[:2] == (5, 7)"),
    "`nnx.tabulate`": (
        "m = nnx.Dict(b=nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0))])); text = nnx.tabulate(m)", "'b[0]' in text"),
    "errors": (f"{D}; nnx.split(m, nnx.BatchStat)", "ValueError"),
    "`repr` of modules, filters and sizes": (
        "m = nnx.Linear(40, 64, rngs=nnx.Rngs(0)); text = repr(m)",
        "'2,624 (10.2 KB)' in text and len(text.splitlines()) == 1 and repr(nnx.filterlib.OfType(nnx.Param)) == 'OfType(Param)'"),
    "`bridge.Module`: a change in a collection": (
        "class N(nnx.bridge.Module):\n  @nnx.bridge.compact\n  def __call__(self, x):\n"
        "    v = self.variable('batch_stats', 'v', lambda: x); v.value = v.value + x; return x\n"
        "N().apply(N().init(0, 1.0), 1.0, mutable=['other'])", "ArgumentError"),
    "`bridge.Module`: stored parameters whose shape": (
        "class N(nnx.bridge.Module):\n  @nnx.bridge.compact\n  def __call__(self, x):\n"
        "    return self.param('w', nnx.initializers.ones, (2,))\n"
        "N().apply({'params': {'w': jnp.ones(3)}}, 1.0)", "ScopeParamShapeError"),
    "`bridge.Module`: two submodules of one name": (
        "class P(nnx.bridge.Module):\n  @nnx.bridge.compact\n  def __call__(self, x):\n"
        "    return self.param('w', nnx.initializers.ones, ()) * x\n"
        "class N(nnx.bridge.Module):\n  @nnx.bridge.compact\n  def __call__(self, x):\n"
        "    return P(name='a')(P(name='a')(x))\nN().init(0, 1.0)", "PlaitError"),
    "`out_sharding` of variables that a `vmap`": (
        "m = nnx.vmap(lambda k: nnx.Param(jnp.ones(2), out_sharding=('a',)))(jnp.arange(3))", "m.get_metadata('out_sharding') == (None, 'a')"),
    "`nnx.Dict` and `nnx.List` compared": ("a, b = nnx.List([1]), nnx.List([1])", "a != b and a == a"),
    "`dot_product_attention(dropout_rate=1.0)`": (
        "q = jnp.ones((1, 2, 1, 2)); nnx.dot_product_attention(q, q, q, dropout_rate=1.0, dropout_rng=jax.random.key(0))", "ArgumentError"),
    "attributes of `LoRA` and `LoRALinear`": ("m = nnx.LoRA(2, 1, 2, rngs=nnx.Rngs(0))", "hasattr(m, 'alpha')"),
    "`from flax.nnx.nn.linear import Linear`": ("from plait.nn.linear import Linear", "Linear is nnx.Linear"),
}  # fmt: skip
# Shown by tests of their own, which need another library or a model of some size: the file and the test.
ELSEWHERE = {
    "`v[...] = 300` with dtype int8": (
        "tests/core/variables/test_variables.py", "test_an_integer_that_does_not_fit_is_an_error"),
    "a parameter used both inside and outside a `custom_vjp`": (
        "tests/transforms/test_custom_rules.py", "test_a_variable_that_was_not_written_is_differentiated_beside_the_rule"),
    "`to_linen`: a parameter that `apply` is not given": (
        "tests/flax/bridge/wrappers/test_linen_wrapper.py", "test_a_parameter_that_is_missing_is_not_made_up"),
    "`to_linen`: a module that is called twice": (
        "tests/flax/bridge/wrappers/test_linen_wrapper.py", "test_a_second_call_in_init_keeps_the_parameters_of_the_first"),
    "`to_linen`: one key for all streams": (
        "tests/flax/bridge/test_interop.py", "test_what_a_call_draws_depends_on_its_keys"),
    "`to_linen`: arrays outside of variables": (
        "tests/flax/bridge/test_bare_arrays.py", "test_a_compiled_init_stores_the_same_arrays"),
}  # fmt: skip


def rows(only=True) -> list[str]:
    text = PAGE.read_text()
    tables = text[text.index("## Different on purpose") :].partition("\n## ")[0] if only else text
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| what |", "| --- |"))]


def test_every_row_is_met_by_a_program():
    drawn = {row.line for row in KNOWN}
    left = [row for row in rows() if row not in drawn]
    names = {*MET, *ELSEWHERE}
    assert [row for row in left if not any(row.startswith(f"| {name}") for name in names)] == []
    assert [name for name in names if not any(row.startswith(f"| {name}") for row in rows(only=False))] == []
    for file, test in ELSEWHERE.values():
        assert f"\ndef {test}(" in (PAGE.parents[1] / file).read_text(encoding="utf-8")


@pytest.mark.sampled
@pytest.mark.parametrize("name", MET)
def test_a_row_says_itself(name):
    program, met = MET[name]
    namespace = {"nnx": plait, "jax": jax, "jnp": jnp, "np": np}
    kind = getattr(plait.errors, met, None) or {"ValueError": ValueError}.get(met)
    if kind is None:
        exec(program, namespace)
        assert eval(met, namespace)
    elif issubclass(kind, Warning):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(program, namespace)
        assert kind in {each.category for each in caught}
    else:
        with pytest.raises(kind):
            exec(program, namespace)
