"""netket: variational Monte Carlo of a chain of spins, with an NNX module as its state."""

import jax
import jax.numpy as jnp
import netket as nk
import numpy as np
from flax import nnx
from results import hand_over, stored


class Amplitude(nnx.Module):
    def __init__(self, sites, *, rngs):
        self.hidden = nnx.Linear(sites, 2 * sites, rngs=rngs, param_dtype=jnp.float64)
        self.norm = nnx.LayerNorm(2 * sites, rngs=rngs, param_dtype=jnp.float64)

    def __call__(self, x):
        return jnp.sum(nk.nn.activation.log_cosh(self.norm(self.hidden(x))), axis=-1)


hilbert = nk.hilbert.Spin(s=1 / 2, N=4)
hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=0.5)


def make():
    return Amplitude(4, rngs=nnx.Rngs(0))


model = make()
state = nk.vqs.FullSumState(hilbert, model)
driver = nk.driver.VMC(hamiltonian, nk.optimizer.Sgd(0.1), variational_state=state)
energies = []
for _ in range(3):
    driver.run(1, out=(), show_progress=False)
    energies.append(state.expect(hamiltonian).mean.real)

graphdef, _ = nnx.split(model)
trained = nnx.merge(graphdef, nnx.state(make()))
target = nnx.state(trained)
values = state.parameters.to_pure_dict() if hasattr(state.parameters, "to_pure_dict") else state.parameters
nnx.replace_by_pure_dict(target, jax.tree.map(jnp.asarray, dict(values)))
nnx.update(trained, target)
spins = hilbert.all_states()
new = stored(trained, make)
hand_over(losses=np.array(energies), after=trained(spins), restored=new(spins), amplitudes=state.to_array())
