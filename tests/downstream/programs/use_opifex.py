"""opifex: a Fourier neural operator and a DeepONet, each of which learns the derivative of waves."""

import jax
import jax.numpy as jnp
from flax import nnx
from opifex.neural.operators import DeepONet, FourierNeuralOperator
from results import hand_over, stored, train


def make_fourier():
    return FourierNeuralOperator(1, 1, 8, 4, 2, spatial_dims=1, rngs=nnx.Rngs(0))


def make_deep():
    return DeepONet([16, 12, 8], [1, 12, 8], rngs=nnx.Rngs(1))


points = jnp.linspace(0.0, 2 * jnp.pi, 16, endpoint=False)
phases = jax.random.uniform(jax.random.key(0), (4, 1))
waves, slopes = jnp.sin(points + phases), jnp.cos(points + phases)
at = jnp.broadcast_to(points[None, :, None], (4, 16, 1))

fourier, deep = make_fourier(), make_deep()
losses = train(fourier, lambda m, x, y: ((m(x) - y) ** 2).mean(), waves[:, None], slopes[:, None])
losses_of_deep = train(deep, lambda m, x, y: ((m(x, at) - y) ** 2).mean(), waves, slopes)
new = stored(fourier, make_fourier, nnx.Param)
hand_over(
    losses=losses,
    losses_of_deep=losses_of_deep,
    after=fourier(waves[:, None]),
    restored=new(waves[:, None]),
    deep=stored(deep, make_deep, nnx.Param)(waves, at),
)
