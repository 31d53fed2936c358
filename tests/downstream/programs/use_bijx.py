"""bijx: a normalizing flow of several kinds of layers, trained by maximum likelihood."""

import bijx
import jax
import jax.numpy as jnp
from flax import nnx
from results import hand_over, stored, train


class Embedding(nnx.Module):
    """Parameters of the inner bijection for each passive coordinate."""

    def __init__(self, size, rngs):
        self.linear = nnx.Linear(1, size, rngs=rngs)

    def __call__(self, x):
        return self.linear(x[..., None])


def make():
    rngs = nnx.Rngs(0)
    base = bijx.ModuleReconstructor(bijx.AffineLinear(rngs=rngs))
    coupling = bijx.GeneralCouplingLayer(
        embedding_net=Embedding(base.params_total_size, rngs),
        mask=bijx.BinaryMask.from_boolean_mask(jnp.array([True, False])),
        bijection_reconstructor=base,
    )
    continuous = bijx.ContFlowDiffrax(vf=bijx.AutoJacVF(lambda t, x: -x))
    flow = bijx.Chain(bijx.Shift(jnp.array([5.0, -2.0])), bijx.Scaling(jnp.array([2.0, 0.5])), coupling, continuous)
    return bijx.Transformed(bijx.IndependentNormal(event_shape=(2,), rngs=rngs), flow)


data = jax.random.normal(jax.random.key(1), (8, 2)) * 2 + 1
model = make()
losses = train(model, lambda m, x: -m.log_density(x).mean(), data)
new = stored(model, make, nnx.Param)
y, log_p = model.sample(batch_shape=(5,), rng=jax.random.key(2))
x, _ = model.bijection.reverse(y, log_p)
hand_over(
    losses=losses, sample=y, log_density=log_p, reverse=x, restored=new.log_density(data), after=model.log_density(data)
)
