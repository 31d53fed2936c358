import jax
import jax.numpy as jnp
from flax import nnx


class Count(nnx.Variable):
    pass


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.rngs = rngs.fork()
        self.count = Count(jnp.array(0))

    def __call__(self, x):
        self.count[...] += 1
        y = self.linear(x)
        self.sow(nnx.Intermediate, "hidden", y)
        return y + self.rngs.noise.normal(y.shape)


model = Noisy(nnx.Rngs(0, noise=5))
x = jnp.ones((1, 2))
first, second = model(x), nnx.jit(lambda model, x: model(x))(model, x)
print(bool(jnp.allclose(first, second)), int(model.count[...]), int(model.rngs.noise.count[...]))
sown = nnx.pop(model, nnx.Intermediate)
print(len(sown["hidden"].get_value()), float(sown["hidden"].get_value()[0].sum()))
print(float(first.sum()), float(second.sum()))
nnx.reseed(model, noise=5)
print(bool(jnp.allclose(model(x), model(x))), [type(v).__name__ for _, v in nnx.to_flat_state(nnx.state(model, Count))])
rngs = nnx.Rngs(7)
print([round(float(jax.random.uniform(rngs())), 5), round(float(jax.random.uniform(rngs.params())), 5)])
