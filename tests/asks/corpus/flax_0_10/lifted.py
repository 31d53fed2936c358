from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


class Counter(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.steps = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.steps.value += 1
        return nnx.sigmoid(self.linear(x))


model = Counter(nnx.Rngs(4))
x = jnp.ones((1, 2))


@nnx.jit
def branch(model: Counter, x, flag):
    return nnx.cond(flag, Counter.__call__, lambda model, x: x * 2, model, x)


print(float(branch(model, x, True).sum()), float(branch(model, x, False).sum()), int(model.steps.value))
graphdef, state = nnx.split(model)


def body(carry):
    model = nnx.merge(graphdef, carry[0])
    y = model(carry[1])
    return nnx.state(model), y


state, y = jax.lax.while_loop(lambda carry: carry[0].steps.value < 5, body, (state, x))
nnx.update(model, state)
print(float(y.sum()), int(model.steps.value))
y = x
for i in range(3):
    y = model(y) + i
print(float(y.sum()), int(model.steps.value))


class Twice(nnx.Module):
    def __init__(self, counter):
        self.counter = counter

    @nnx.remat
    def __call__(self, x):
        return self.counter(self.counter(x))


@partial(nnx.value_and_grad, argnums=nnx.DiffState(0, nnx.Param))
def loss_fn(model: Twice):
    return model(x).sum()


loss, grads = loss_fn(Twice(model))
print(float(loss), float(grads.counter.linear.kernel.value.sum()), int(model.steps.value))


@partial(nnx.custom_vjp, nondiff_argnums=(nnx.DiffState(0, nnx.Param),))
def scaled(model, x):
    return (model.linear.kernel.value * x.sum()).sum()


def scaled_fwd(model, x):
    return scaled(model, x), x


def scaled_bwd(residual, cotangents):
    (model_gradients, _), out = cotangents
    model_gradients.linear.kernel.value = 10 * out * jnp.ones((2, 2))
    return model_gradients.filter(nnx.Param), jnp.zeros_like(residual)


scaled.defvjp(scaled_fwd, scaled_bwd)
print(float(nnx.grad(scaled)(model, x).linear.kernel.value.sum()))
abstract = nnx.eval_shape(lambda: Counter(nnx.Rngs(0)))
print(abstract.linear.kernel.value.shape, type(abstract.linear.kernel.value) is jax.ShapeDtypeStruct)
