"""A program as a user writes it. Type checkers reject the lines that say ``# error``, and no others, and infer what
stands after ``# reveals:``. ``test_types.py`` has them read it; it is never run."""

from typing import reveal_type

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

import plait as nnx
from plait.training import fit


class Block(nnx.Module):
    def __init__(self, features: int, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.linear = nnx.Linear(features, features, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return x + self.linear(self.norm(x))


class Net(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.blocks = nnx.Stack(lambda rngs: Block(8, rngs=rngs), 3, rngs=rngs, remat=True)
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(8))
        self.mean = nnx.BatchStat(jnp.zeros(8))
        self.table = nnx.Param(rngs.params.normal((3, 8)))
        self.other = nnx.Param(rngs.normal((3, 8)))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.blocks(self.dropout(self.first(x)))
        for layer in self.layers:
            x = nnx.relu(layer(x))
        self.mean[...] = 0.9 * self.mean + 0.1 * x.mean(0)
        return x * self.scale + self.table[0] @ jnp.ones((8, 8))

    @nnx.jit
    def predict(self, x: jax.Array, *, temperature: float = 1.0) -> jax.Array:
        return self(x) / temperature

    @nnx.remat(static_argnums=(2,))
    def encode(self, x: jax.Array, train: bool) -> jax.Array:
        return self(x)


# Instances
rngs = nnx.Rngs(0, dropout=1)
net = Net(rngs=rngs)
x, y = jnp.ones((2, 4)), jnp.ones((2, 8))
reveal_type(net)  # reveals: Net
reveal_type(net.first)  # reveals: Linear
reveal_type(net.first.out_features)  # reveals: int
reveal_type(net(x))  # reveals: Array
reveal_type(rngs.params())  # reveals: Array
Net()  # error
nnx.Linear(4)  # error
nnx.Linear(4, 8, use_bais=True, rngs=rngs)  # error
net.frist  # error
net.trian()  # error
net.first(x, sharding=None)  # error
nnx.Linaer  # error
nnx.training.fitt  # error
net.train(dropout=0.1)

# Variables
reveal_type(net.first.kernel)  # reveals: Param[Array]
reveal_type(net.first.kernel[...])  # reveals: Array
reveal_type(net.first.kernel[0])  # reveals: Array
reveal_type(net.scale.value)  # reveals: Array
reveal_type(net.scale.get_value())  # reveals: Array
reveal_type(net.scale.copy())  # reveals: Param[Array]
reveal_type(net.scale + 1)  # reveals: Array
reveal_type(1 - net.scale)  # reveals: Array
reveal_type(net.scale @ net.scale)  # reveals: Array
reveal_type(-net.scale)  # reveals: Array
reveal_type(net.scale > 0)  # reveals: Array
reveal_type(net.scale.shape)  # reveals: tuple[int, ...]
reveal_type(net.scale.sum())  # reveals: Array
reveal_type(jnp.tanh(net.scale))  # reveals: Array
reveal_type(nnx.Variable(3).value)  # reveals: int
net.first.bias[...] = 0.0
net.scale += 1
net.scale.value = net.scale * 2
reveal_type(net.scale)  # reveals: Param[Array]


class Statistic(nnx.Variable[jax.Array]):
    pass


reveal_type(Statistic(x).value)  # reveals: Array

# Stacks and containers
reveal_type(net.blocks)  # reveals: Stack[Block]
reveal_type(net.blocks[0])  # reveals: Block
reveal_type(net.blocks[1:])  # reveals: list[Block]
reveal_type([block.linear for block in net.blocks])  # reveals: list[Linear]
reveal_type(net.blocks(y))  # reveals: Array
reveal_type(nnx.Stack([Block(8, rngs=rngs)]))  # reveals: Stack[Block]
reveal_type(nnx.Stack([lambda rngs: Block(8, rngs=rngs)], 2, rngs=rngs)[0])  # reveals: Block
net.blocks(y, mask=None)
net.blocks(y, nnx.PerLayer.stacked(jnp.ones((3, 8))))
net.blocks(y, maks=None)  # error
net.blocks()  # error
nnx.Stack(lambda rngs: Block(8, rngs=rngs), 3, rngs=rngs, rematt=True)  # error
reveal_type(nnx.PerLayer([jnp.zeros(2), jnp.ones(2)])[0])  # reveals: Array
reveal_type(nnx.as_list(net.blocks))  # reveals: List[Block]
reveal_type(nnx.as_stack(nnx.as_list(net.blocks)))  # reveals: Stack[Block]
reveal_type(nnx.as_list(net))  # reveals: Net
reveal_type(nnx.as_stack(net, "layers"))  # reveals: Net
reveal_type(net.layers[0])  # reveals: Linear
heads = nnx.Dict(left=nnx.Linear(8, 1, rngs=rngs), right=nnx.Dropout(0.1))
heads["left"].kernel
heads.right.rate


def with_mean(block: Block, x: jax.Array) -> tuple[jax.Array, float]:
    return block(x), 0.0


reveal_type(net.blocks.scan(with_mean, y))  # reveals: tuple[Array, PerLayer[float]]

# Graphs and states
graphdef, state = nnx.split(net)
reveal_type(graphdef)  # reveals: GraphDef[Net]
reveal_type(state)  # reveals: State
reveal_type(nnx.merge(graphdef, state))  # reveals: Net
graphdef, params, rest = nnx.split(net, nnx.Param, ...)
reveal_type(nnx.merge(graphdef, params, rest))  # reveals: Net
reveal_type(nnx.state(net, nnx.Param))  # reveals: State
reveal_type(nnx.clone(net))  # reveals: Net
reveal_type(nnx.view(net, deterministic=True))  # reveals: Net
reveal_type(nnx.graphdef(net))  # reveals: GraphDef[Net]
reveal_type(nnx.eval_shape(lambda: Net(rngs=nnx.Rngs(0))))  # reveals: Net
nnx.merge(graphdef)  # error
nnx.clone(net, array=True)  # error


# Transforms
def loss_fn(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((net(x) - y) ** 2)


def loss_and_output(net: Net, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jnp.mean(net(x)), {"x": x}


@nnx.jit
def step(net: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(net, x, y)
    reveal_type(loss)  # reveals: Array
    optimizer.update(net, grads)
    return loss


@nnx.jit(donate_argnums=0)
def forward(net: Net, x: jax.Array) -> jax.Array:
    return net(x)


@nnx.vmap(in_axes=(None, 0))
def of_each(net: Net, x: jax.Array) -> jax.Array:
    return net(x)


@nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return carry, x


optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
reveal_type(optimizer)  # reveals: Optimizer[Net]
reveal_type(step(net, optimizer, x, y))  # reveals: Array
reveal_type(forward(net, x))  # reveals: Array
reveal_type(net.predict(x, temperature=2.0))  # reveals: Array
reveal_type(Net.predict(net, x))  # reveals: Array
reveal_type(net.encode(x, True))  # reveals: Array
reveal_type(of_each(net, x))  # reveals: Array
reveal_type(body(x, x))  # reveals: tuple[Array, Array]
reveal_type(nnx.remat(loss_fn)(net, x, y))  # reveals: Array
reveal_type(nnx.vmap(loss_fn, in_axes=(None, 0, 0), graph=True)(net, x, y))  # reveals: Array
reveal_type(nnx.value_and_grad(loss_and_output, has_aux=True)(net, x)[0])  # reveals: tuple[Array, dict[str, Array]]
reveal_type(nnx.grad(loss_and_output, has_aux=True)(net, x)[1])  # reveals: dict[str, Array]
reveal_type(nnx.cond(True, loss_fn, loss_fn, net, x, y))  # reveals: Array
step.lower(net, optimizer, x, y).compile()
step(net, optimizer, x)  # error
forward(net)  # error
net.predict(x, temprature=2.0)  # error
net.encode(x)  # error
nnx.grad(loss_fn)(net, x)  # error
nnx.value_and_grad(loss_fn)(net, x, y, 3)  # error
nnx.grad(loss_fn, has_axu=True)  # error
nnx.vmap(loss_fn, in_axis=(None, 0, 0))  # error
nnx.jit(loss_fn, static_argnum=1)  # error
nnx.scan(body, lenght=3)  # error


# Training
metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
metrics.update(loss=step(net, optimizer, x, y))
metrics.loss.compute()
result = fit(step, {"net": net, "optimizer": optimizer}, [(x, y)], steps=3)
reveal_type(result.step)  # reveals: int
fit(step, {"net": net}, [(x, y)], step=3)  # error


@nnx.dataclass
class Affine(nnx.Module):
    scale: jax.Array
    name: str = nnx.static(default="affine")


reveal_type(Affine(x))  # reveals: Affine
Affine()  # error
Affine(x, nmae="x")  # error
