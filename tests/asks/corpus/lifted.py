import jax
import jax.numpy as jnp
from flax import nnx


class Counter(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.steps = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.steps[...] += 1
        return nnx.sigmoid(self.linear(x))


model = Counter(nnx.Rngs(4))
x = jnp.ones((1, 2))


@nnx.jit
def branch(model, x, flag):
    return nnx.cond(flag, lambda model, x: model(x), lambda model, x: x * 2, model, x)


print(float(branch(model, x, True).sum()), float(branch(model, x, False).sum()), int(model.steps[...]))


def body(carry):
    model, x = carry
    return model, model(x)


model, y = nnx.while_loop(lambda carry: carry[0].steps[...] < 5, body, (model, x))
print(float(y.sum()), int(model.steps[...]))
model, y = nnx.fori_loop(0, 3, lambda i, carry: (carry[0], carry[0](carry[1]) + i), (model, x))
print(float(y.sum()), int(model.steps[...]))


@nnx.remat
def forward(model, x):
    return model(model(x))


loss, grads = nnx.value_and_grad(lambda model: forward(model, x).sum())(model)
print(float(loss), float(grads["linear"]["kernel"][...].sum()), int(model.steps[...]))


@nnx.custom_vjp
def scaled(model, x):
    return (model.linear.kernel[...] * x.sum()).sum()


def scaled_fwd(model, x):
    return scaled(model, x), x


def scaled_bwd(residual, cotangents):
    input_gradients, out = cotangents
    model_gradients, _ = input_gradients
    model_gradients["linear"]["kernel"][...] = 10 * out * jnp.ones((2, 2))
    return model_gradients, jnp.zeros_like(residual)


scaled.defvjp(scaled_fwd, scaled_bwd)
print(float(nnx.grad(scaled)(model, x)["linear"]["kernel"][...].sum()))
abstract = nnx.eval_shape(lambda: Counter(nnx.Rngs(0)))
print(abstract.linear.kernel.get_value().shape, type(abstract.linear.kernel.get_value()) is jax.ShapeDtypeStruct)
