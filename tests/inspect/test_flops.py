"""Operations are counted as XLA counts those of the program as written, and in every step of a scan. (rule D11)"""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import plait
from plait.inspect.flops import costliest, flops_of
from plait.inspect.module_operations import ModuleOperations

X = jnp.ones((4, 4))


def counted(f, *args):
    found = ModuleOperations(()).of(jax.jit(f).trace(*args).jaxpr, costliest)
    return sum(each.times * flops_of(each.eqn) for each in found)


def by_xla(f, *args):
    return jax.jit(f).lower(*args).cost_analysis()["flops"]


def convolution(**options):
    x, kernel = jnp.ones((2, 9, 8, 4)), jnp.ones((3, 2, 4 // options.get("feature_group_count", 1), 6))
    return lambda x: jax.lax.conv_general_dilated(
        x, kernel, **{"window_strides": (1, 1), **options}, dimension_numbers=("NHWC", "HWIO", "NHWC")
    ), x


SIZES = jnp.array([3, 5], jnp.int32)  # of the groups of a ragged product


def ragged(contracted, batch, groups=()):
    return jax.lax.RaggedDotDimensionNumbers((contracted, batch), [0], groups)


OPERATIONS = {
    "matmul": (lambda x: x @ x, X),
    "batched": (lambda x: jnp.einsum("bij,bkj->bik", x, x), jnp.ones((3, 4, 5))),
    "elementwise": (lambda x: jnp.where(x > 0, x * 2 + 1, -x), X),
    "transcendental": (lambda x: jnp.tanh(x) * jnp.exp(x), X),
    "reduction": (lambda x: x.sum(0), X),
    "softmax": (lambda x: jax.nn.softmax(x), X),
    "scatter": (lambda x: x.at[jnp.arange(64)].add(1.0), jnp.ones((64, 64))),
    "a reduction of the user's": (
        lambda x: jax.lax.reduce((x, x), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)),
        X,
    ),
    "pooling": (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 2), (1, 1), "SAME"), X),
    "pooling of the user's": (lambda x: jax.lax.reduce_window(x, 1.0, jax.lax.mul, (2, 2), (2, 2), "VALID"), X),
    "rounding": (lambda x: jax.lax.reduce_precision(x, 8, 7), X),
    "fft": (lambda x: jnp.fft.fft(x), jnp.ones((3, 20))),
    "irfft in two dimensions": (lambda x: jnp.fft.irfftn(x), jnp.ones((8, 5), complex)),
    "ragged product in a batch": (
        lambda x: jax.lax.ragged_dot_general(x, jnp.ones((8, 4, 3)), SIZES, ragged(((2,), (1,)), ((0,), (0,)))),
        jnp.ones((8, 5, 4)),
    ),
    "convolution": convolution(padding="VALID"),
    "convolution with padding": convolution(padding="SAME"),
    "convolution with strides": convolution(padding="SAME", window_strides=(2, 3)),
    "convolution with dilations": convolution(padding="SAME", rhs_dilation=(2, 1)),
    "convolution of groups": convolution(padding="SAME", feature_group_count=2),
    "transposed convolution": convolution(padding=((2, 2), (1, 1)), lhs_dilation=(2, 2)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_counts_as_xla_counts_it(name):
    f, x = OPERATIONS[name]
    assert counted(f, x) == pytest.approx(by_xla(f, x), rel=0.02)


PRODUCTS = {  # two numbers for each of 8 rows, 4 columns of the first and 3 of the second; XLA on a CPU computes more
    "ragged": (ragged(((1,), (1,)), ((), ()), [0]), (8, 4), (2, 4, 3)),
    "ragged, contracted": (ragged(((0,), (0,)), ((), ())), (8, 4), (8, 3)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_row_of_a_ragged_product_belongs_to_one_group(name):
    numbers, *shapes = PRODUCTS[name]
    a, b = map(jnp.ones, shapes)
    assert counted(lambda a, b: jax.lax.ragged_dot_general(a, b, SIZES, numbers), a, b) == 2 * 8 * 4 * 3


MOVES = {
    "stack": lambda x: jnp.stack([x, x]),
    "unstack": lambda x: jnp.unstack(x),
    "tile": lambda x: jnp.tile(x, (2, 3)),
    "name": lambda x: checkpoint_name(x, "x"),
    "ref": lambda x: jax.new_ref(x)[...],
}


@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_numbers_counts_nothing(name):
    assert counted(MOVES[name], X) == 0


def body(x):
    return jnp.tanh(x @ x)


jvp_rule, vjp_rule = jax.custom_jvp(body), jax.custom_vjp(body)
jvp_rule.defjvp(lambda primals, tangents: (body(*primals), tangents[0]))
vjp_rule.defvjp(lambda x: (body(x), None), lambda _, g: (g,))

INNER = {
    "scan": (lambda x: jax.lax.scan(lambda c, _: (body(c), None), x, None, length=5)[0], 5),
    "scan in scan": (lambda x: jax.lax.scan(lambda c, _: (INNER["scan"][0](c), None), x, None, length=3)[0], 15),
    "while_loop": (lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 3, body, x), 1),
    "cond": (lambda x: jax.lax.cond(x[0, 0] > 0, body, lambda x: x, x), 1),
    "checkpoint": (jax.checkpoint(body), 1),
    "jit": (jax.jit(body), 1),
    "custom_jvp": (jvp_rule, 1),
    "custom_vjp": (vjp_rule, 1),
    "vmap": (lambda x: jax.vmap(body)(jnp.stack([x, x])), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", INNER)
def test_a_program_inside_counts_as_often_as_it_runs(name):
    f, times = INNER[name]
    assert counted(f, X) // (2 * 4**3) == times


class Block(plait.Module):
    def __init__(self, rngs):
        self.norm, self.norm2 = plait.LayerNorm(16, rngs=rngs), plait.LayerNorm(16, rngs=rngs)
        self.attention = plait.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
        self.up, self.down = plait.Linear(16, 64, rngs=rngs), plait.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x), is_causal=True)
        return x + self.down(plait.gelu(self.up(self.norm2(x))))


def convolutional(rngs):
    return plait.Sequential(
        plait.Conv(3, 8, (3, 3), strides=2, rngs=rngs), plait.BatchNorm(8, rngs=rngs), plait.relu,
        plait.Conv(8, 8, (3, 3), feature_group_count=4, rngs=rngs), plait.relu, lambda x: x.mean((1, 2)),
        plait.Linear(8, 10, rngs=rngs),
    )  # fmt: skip


class Recurrent(plait.Module):
    def __init__(self, rngs):
        self.cell = plait.LSTMCell(32, 64, keep_rngs=True, rngs=rngs)

    def __call__(self, x):
        carry = self.cell.initialize_carry(x[:, 0].shape)
        for step in range(x.shape[1]):
            carry, y = self.cell(carry, x[:, step])
        return y


class Recomputed(plait.Module):
    def __init__(self, rngs):
        self.blocks = [Block(rngs) for _ in range(2)]

    def __call__(self, x):
        for block in self.blocks:
            x = plait.remat(Block.__call__)(block, x)
        return x


def forward(model, x):
    return model(x)


def gradient(model, x):
    return plait.grad(lambda model: (model(x) ** 2).mean())(model)


MODELS = {
    "a transformer": (lambda rngs: plait.Sequential(Block(rngs), Block(rngs)), (2, 12, 16)),
    "a convolutional net": (convolutional, (2, 16, 16, 3)),
    "a recurrent net": (Recurrent, (4, 6, 32)),
    "a transformer, recomputed": (Recomputed, (2, 12, 16)),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("f", [forward, gradient], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_the_total_of_a_model_is_within_two_percent_of_xla_s(name, f, users_promotion):
    make, shape = MODELS[name]
    model, x = make(plait.Rngs(0)), jnp.ones(shape)
    expected = plait.jit(f).lower(model, x).cost_analysis()["flops"]
    assert plait.cost(f, model, x, compile=False).flops == pytest.approx(expected, rel=0.02)


def test_a_stack_costs_what_its_blocks_cost(users_promotion):
    blocks = [Block(plait.Rngs(i)) for i in range(3)]
    listed = plait.cost(plait.Sequential(*blocks), jnp.ones((2, 12, 16)), compile=False)
    stacked = plait.cost(plait.Stack(blocks), jnp.ones((2, 12, 16)), compile=False)
    assert stacked.flops == pytest.approx(listed.flops, rel=0.01)
