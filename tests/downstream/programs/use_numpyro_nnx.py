"""numpyro: a network whose parameters are trained by SVI, and one whose parameters are sampled."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from results import hand_over


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.norm(self.hidden(x))))


x = jax.random.normal(jax.random.key(0), (12, 2))
y = x[:, :1] * 2 - 1


def trained(x, y=None):
    net = nnx_module("net", Net(nnx.Rngs(0)))
    numpyro.sample("y", dist.Normal(net(x), 0.1).to_event(2), obs=y)


def sampled(x, y=None):
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(1))
    net = random_nnx_module("net", linear, prior={"kernel": dist.Normal(), "bias": dist.Cauchy()})
    numpyro.sample("y", dist.Normal(net(x), 0.5).to_event(2), obs=y)


svi = SVI(trained, lambda x, y=None: None, numpyro.optim.Adam(0.01), Trace_ELBO())
result = svi.run(jax.random.key(1), 3, x, y, progress_bar=False)
mcmc = MCMC(NUTS(sampled), num_warmup=3, num_samples=3, progress_bar=False)
mcmc.run(jax.random.key(2), x, y)
samples = mcmc.get_samples()
hand_over(
    losses=result.losses,
    params=jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(result.params)]),
    state=jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(result.state.mutable_state)]),
    predictions=Predictive(sampled, samples)(jax.random.key(3), x)["y"],
    **{name.replace("/", "_"): value for name, value in samples.items()},
)
