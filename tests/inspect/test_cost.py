"""What a call costs, by module. (rule D11)"""

import jax
import jax.numpy as jnp
import optax
import pytest

import plait as nnx
from plait.errors import ArgumentError, ArgumentTypeError


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.linear = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return x + nnx.gelu(self.linear(self.norm(x)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(16, 8, rngs=rngs)
        self.blocks = [Block(rngs) for _ in range(3)]
        self.stack = nnx.vmap(lambda key: Block(nnx.Rngs(key)))(jax.random.split(jax.random.key(0), 4))

    def __call__(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = nnx.remat(Block.__call__)(block, x)
        x = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.stack)
        return self.embed.attend(x)


@nnx.jit(donate_argnames="model")
def step(model, optimizer, ids):
    loss, grads = nnx.value_and_grad(lambda model: (model(ids) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def arguments():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param), jnp.ones((2, 3), int)


@pytest.mark.slow
def test_the_sums_are_those_of_modules(users_promotion):
    report = nnx.cost(step, *arguments(), compile=False)
    paths = {row.path: row.kind for row in report.modules}
    assert paths["blocks[2].linear"] == paths["stack.linear"] == "Linear"
    assert report.below("blocks[1]").flops == sum(
        row.flops for row in report.modules if row.path.startswith("blocks[1]")
    )
    assert (report.below("").flops, report.below("").written) == (report.flops, report.written)
    with pytest.raises(ArgumentError, match=r"at +blocks\[9\](?s:.*)blocks\[0\]"):
        report.below("blocks[9]")


@pytest.mark.slow
def test_memory_is_that_of_xla(users_promotion):
    args = arguments()
    report = nnx.cost(step, *args)
    sizes = step.lower(*args).compile().memory_analysis()
    assert report.temp_bytes == sizes.temp_size_in_bytes
    assert report.bytes == step.lower(*args).compile().cost_analysis()["bytes accessed"]
    assert report.alias_bytes == sizes.alias_size_in_bytes > 0  # donated
    assert report.peak_bytes == (
        sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
    )
    traced = nnx.cost(step, *args, compile=False)
    assert (traced.peak_bytes, traced.bytes) == (None, None)
    assert traced.modules == report.modules


def test_a_matrix_product_costs_what_the_formula_says():
    model = nnx.Sequential(nnx.Linear(256, 128, rngs=nnx.Rngs(0)), nnx.Linear(128, 8, rngs=nnx.Rngs(1)))
    report = nnx.cost(model, jax.ShapeDtypeStruct((32, 256), jnp.float32), compile=False)
    assert report.below("layers[0]").flops == 32 * 128 * (2 * 256 + 1)
    assert report.below("layers[1]").flops == 32 * 8 * (2 * 128 + 1)


def test_the_table_folds_equal_blocks_and_explains_its_sums(users_promotion):
    text = str(nnx.cost(step, *arguments()))
    assert "blocks[0…2].linear │ Linear" in text
    assert "3 × Block" in text
    assert "of donated arguments" in text.replace("\n", " ")


def test_nothing_runs_and_nothing_changes(users_promotion):
    args = arguments()
    before = nnx.to_pure_dict(nnx.state(args[0]))
    nnx.cost(step, *args)
    jax.tree.map(lambda a, b: None if a is b else pytest.fail("changed"), nnx.to_pure_dict(nnx.state(args[0])), before)
    assert args[1].step.value == 0


def test_a_function_without_modules_belongs_to_none():
    report = nnx.cost(lambda x: x @ x, jnp.ones((4, 4)), compile=False)
    assert [(row.path, row.kind, row.flops) for row in report.modules] == [("", "", 128.0)]
    assert nnx.cost(jax.jit(lambda x: x @ x), jnp.ones((4, 4))).flops == 128


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentTypeError, match="cost takes a function"):
        nnx.cost(3)


def test_a_captured_model_has_its_rows():
    model, x = nnx.Dict(a=Block(nnx.Rngs(0))), jnp.ones((2, 8))
    with pytest.warns(nnx.errors.CapturedModelWarning):
        captured = nnx.cost(lambda x: model.a(x), x, compile=False)
    given = nnx.cost(lambda model, x: model.a(x), model, x, compile=False)
    assert [(row.path, row.kind) for row in captured.modules] == [(row.path, row.kind) for row in given.modules]
    assert captured.below("a.linear").flops == 2 * 2 * 8 * 8 + 2 * 8


# Transforms of several modules ----------------------------------------------------------------------------------------


class Pair(nnx.Module):
    """Modules with different costs, under names that the functions below use for others."""

    def __init__(self, through):
        self.a, self.b = nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(1))
        self.parts = [nnx.Linear(8, 8, rngs=nnx.Rngs(2)), nnx.Linear(8, 8, rngs=nnx.Rngs(3))]
        self.through = through

    def __call__(self, x):
        return self.through(self, x)


def twice(b, a, x):
    return b(b(a(x)))


def in_a_scan(model, x):
    return nnx.scan(twice, in_axes=(None, None, nnx.Carry), out_axes=nnx.Carry, length=1)(model.parts[1], model.b, x)


def of_zeros():
    return nnx.Linear(8, 8, kernel_init=nnx.initializers.zeros_init(), rngs=nnx.Rngs(4))


def of_a_new_module(model, x):
    inner = nnx.Dict(a=of_zeros())
    return model.b(nnx.remat(lambda inner, x: inner.a(x))(inner, x))


def nested(model, x):
    return nnx.remat(lambda b, a, x: nnx.remat(twice)(a, b, x))(model.a, model.parts[0], x)


@nnx.custom_vjp
def with_rule(b, a, x):
    return b(a(x))


SEVERAL = {
    "exchanged": (lambda model, x: nnx.remat(twice)(model.a, model.b, x), {"a": 2, "b": 1}),
    "two times": (
        lambda model, x: nnx.remat(twice)(model.b, model.parts[0], nnx.remat(twice)(model.a, model.parts[1], x)),
        {"a": 2, "b": 2, "parts[0]": 1, "parts[1]": 1},
    ),
    "of a list": (
        lambda model, x: nnx.cond(x.sum() > 0, lambda f, g, x: f(x), lambda f, g, x: f(x), *model.parts, x),
        {"parts[0]": 1},
    ),
    "in a list": (
        lambda model, x: nnx.remat(lambda parts, x: parts[1](parts[0](x)))(model.parts, x),
        {"parts[0]": 1, "parts[1]": 1},
    ),
    "in branches that name them otherwise": (
        lambda model, x: nnx.cond(x.sum() > 0, lambda f, g, x: f(g(x)), lambda a, b, x: b(x), *model.parts, x),
        {"parts[0]": 1, "parts[1]": 1},
    ),
    "in branches that exchange the names": (
        lambda model, x: nnx.cond(x.sum() > 0, lambda a, b, x: b(a(a(x))), lambda b, a, x: x, *model.parts, x),
        {"": 3},
    ),
    "a rule": (lambda model, x: with_rule(model.parts[0], model.b, x), {"parts[0]": 1, "b": 1}),
    "one of them twice": (lambda model, x: nnx.remat(twice)(model.a, model.a, x), {"a": 3}),
    "itself and a part": (lambda model, x: nnx.remat(lambda a, m, x: a(m.a(x)))(model.b, model, x), {"a": 1, "b": 1}),
    "jit": (lambda model, x: nnx.jit(twice)(model.a, model.b, x), {"a": 2, "b": 1}),
    "scan": (in_a_scan, {"parts[1]": 2, "b": 1}),
    "nested": (nested, {"parts[0]": 2, "a": 1}),
    "a new module": (of_a_new_module, {"b": 1, "": 1}),
    "a new module beside one of the model": (
        lambda model, x: nnx.remat(twice)(model.a, of_zeros(), x), {"a": 2, "": 1},
    ),
}  # fmt: skip


with_rule.defvjp(lambda b, a, x: (b(a(x)), None), lambda saved, gradient: (None, None, gradient))


@pytest.mark.sampled
@pytest.mark.parametrize("inside", ["", "outer"])
@pytest.mark.parametrize("case", SEVERAL)
def test_the_modules_of_a_transform_cost_what_they_cost_wherever_they_came_from(case, inside):
    """D11: not by the names of the arguments of the inner function."""
    through, counts = SEVERAL[case]
    model, x = Pair(through), jnp.ones((4, 8))
    if inside:
        model = nnx.Dict(outer=model, a=nnx.Linear(8, 8, rngs=nnx.Rngs(5)))
    call = (lambda model, x: model.outer(x)) if inside else (lambda model, x: model(x))
    report = nnx.cost(call, model, x, compile=False)
    product = 2 * 4 * 8 * 8
    paths = {"/".join(filter(None, (inside, path))).replace("/", "."): count for path, count in counts.items()}
    found = {row.path: row.flops // product for row in report.modules if row.flops >= product}
    assert found == paths
    assert report.flops == pytest.approx(nnx.jit(call).lower(model, x).cost_analysis()["flops"], rel=0.05)


def test_equal_calls_of_a_transform_of_several_modules_are_traced_once():
    traces = []

    def pair(b, a, x):
        traces.append(x.shape)
        return b(a(x))

    model = Pair(lambda model, x: shared(model.parts[1], model.a, shared(model.a, model.parts[0], x)))
    shared = nnx.remat(pair)
    report = nnx.cost(model, jnp.ones((4, 8)), compile=False)
    assert len(traces) == 1
    found = {row.path: row.flops // 512 for row in report.modules if row.flops >= 512}
    assert found == {"a": 2, "parts[0]": 1, "parts[1]": 1}


def test_derivatives_of_a_transform_of_several_modules_belong_to_them():
    model, x = Pair(SEVERAL["nested"][0]), jnp.ones((4, 8))
    report = nnx.cost(lambda model, x: nnx.grad(lambda model: model(x).sum())(model), model, x, compile=False)
    products = {row.path: row.flops // (2 * 4 * 8 * 8) for row in report.modules if row.flops >= 2 * 4 * 8 * 8}
    assert products.keys() == {"parts[0]", "a"}
