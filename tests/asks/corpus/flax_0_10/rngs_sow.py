import jax
import jax.numpy as jnp
from flax import nnx


class Count(nnx.Variable):
    pass


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.rngs = rngs.fork()
        self.count = Count(0)

    def __call__(self, x):
        self.count.value += 1
        y = self.linear(x)
        self.sow(nnx.Intermediate, "hidden", y)
        return y + jax.random.normal(self.rngs.noise(), y.shape)


@nnx.jit
def forward(model: Noisy, x):
    return model(x)


model = Noisy(nnx.Rngs(0, noise=5))
x = jnp.ones((1, 2))
first, second = model(x), forward(model, x)
print(bool(jnp.allclose(first, second)), int(model.count.value), int(model.rngs.noise.count.value))
sown = nnx.pop(model, nnx.Intermediate)
print(len(sown.hidden.value), float(sown["hidden"].value[0].sum()))
print(float(first.sum()), float(second.sum()))
nnx.reseed(model, noise=5)
counts = nnx.state(model, Count).flat_state()
print(bool(jnp.allclose(model(x), model(x))), [leaf.type.__name__ for _, leaf in counts])
rngs = nnx.Rngs(7)
print([round(float(jax.random.uniform(rngs())), 5), round(float(jax.random.uniform(rngs.params())), 5)])
