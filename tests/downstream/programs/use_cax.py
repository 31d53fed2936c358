"""cax: a neural cellular automaton that is trained through the scan of its steps and shows them by ``sow``; a VAE."""

import jax
import jax.numpy as jnp
from cax.core.cs import ComplexSystem
from cax.core.perceive import ConvPerceive
from cax.core.update import NCAUpdate
from cax.nn.vae import VAE
from flax import nnx
from results import hand_over, stored, train


class Automaton(ComplexSystem):
    def __init__(self, rngs):
        self.perceive = ConvPerceive(4, 8, rngs=rngs)
        self.update = NCAUpdate(4, 8, (16,), cell_dropout_rate=0.5, rngs=rngs)

    def _step(self, state, input=None, *, sow=False):
        new = self.update(state, self.perceive(state), input)
        if sow:
            self.sow(nnx.Intermediate, "state", new)
        return new


def make():
    return Automaton(nnx.Rngs(0))


x = jnp.zeros((8, 8, 4)).at[4, 4].set(1.0)
model = make()
losses = train(model, lambda m, x: ((m(x, num_steps=4) - 0.5) ** 2).mean(), x)
new = stored(model, make)
vae = VAE((8, 8), (1, 4, 8), 3, rngs=nnx.Rngs(2))
made, mean, logvar = vae(jax.random.normal(jax.random.key(3), (2, 8, 8, 1)))
after, restored = model(x, num_steps=3, sow=True), new(x, num_steps=3)
shown = nnx.pop(model, nnx.Intermediate)["state"][0]
hand_over(losses=losses, after=after, restored=restored, shown=shown, made=made, mean=mean, logvar=logvar)
