"""gpjax: a Gaussian process whose constrained parameters are trained in a scan, in float64."""

import gpjax as gpx
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from results import hand_over, stored

jax.config.update("jax_enable_x64", True)
x = jax.random.uniform(jax.random.key(0), (20, 1), minval=-3.0, maxval=3.0)
data = gpx.Dataset(x, jnp.sin(x) + 0.1 * jax.random.normal(jax.random.key(1), x.shape))
at = jnp.linspace(-3, 3, 7)[:, None]


def make():
    kernel = gpx.kernels.RBF(lengthscale=0.5) + gpx.kernels.White(variance=0.1) * gpx.kernels.Matern32()
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(0.5), kernel=kernel)
    return prior * gpx.likelihoods.Gaussian(num_datapoints=data.n)


def loss(model, data):
    return -gpx.objectives.conjugate_mll(model, data)


model, losses = gpx.fit(
    model=make(), objective=loss, train_data=data, optim=optax.adam(0.05), num_iters=20, verbose=False
)
by_lbfgs, loss_of_lbfgs = gpx.fit_lbfgs(model=make(), objective=loss, train_data=data, max_iters=10)
inducing = gpx.variational_families.VariationalGaussian(posterior=make(), inducing_inputs=at)
inducing, losses_of_batches = gpx.fit(
    model=inducing,
    objective=lambda q, data: -gpx.objectives.elbo(q, data),
    train_data=data,
    optim=optax.adam(0.05),
    num_iters=10,
    batch_size=8,
    verbose=False,
)
hand_over(
    losses=losses,
    after=model.predict(at, data).mean,
    restored=stored(model, make, gpx.parameters.Parameter).predict(at, data).mean,
    loss_of_lbfgs=loss_of_lbfgs,
    mean_of_lbfgs=by_lbfgs.predict(at, data).mean,
    losses_of_batches=losses_of_batches,
    variances=inducing.predict(at).variance,
    parameters=jnp.array([leaf.size for leaf in jax.tree.leaves(nnx.state(inducing))]),
)
