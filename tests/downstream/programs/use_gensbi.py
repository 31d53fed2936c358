"""GenSBI: its Simformer and Flux1 transformers, trained to give a velocity, as flow matching does."""

import jax
import jax.numpy as jnp
from flax import nnx
from gensbi.models import Flux1, Flux1Params, Simformer, SimformerParams
from results import hand_over, stored, train

obs = jax.random.normal(jax.random.key(0), (3, 4, 1))
target = jax.random.normal(jax.random.key(1), obs.shape)
cond = jax.random.normal(jax.random.key(2), (3, 5, 2))
t = jnp.linspace(0.1, 0.9, 3)
ids, cond_ids = jnp.arange(4), jnp.arange(5)
fixed = jnp.zeros((3, 4, 1)).at[:, :2].set(1.0)


def make_simformer():
    params = SimformerParams(
        rngs=nnx.Rngs(0), in_channels=1, val_emb_dim=8, id_emb_dim=4, cond_emb_dim=4, dim_joint=4, num_heads=2, depth=2,
        fourier_features=8, qkv_features=16,
    )  # fmt: skip
    return Simformer(params)


def make_flux():
    params = Flux1Params(
        in_channels=1, vec_in_dim=None, context_in_dim=2, mlp_ratio=2.0, num_heads=2, depth=1, depth_single_blocks=1,
        qkv_bias=True, rngs=nnx.Rngs(1), dim_obs=4, dim_cond=5, axes_dim=[8], param_dtype=jnp.float32,
        id_merge_mode="sum",
    )  # fmt: skip
    return Flux1(params)


def by_simformer(model, obs):
    return model(t, obs, ids, fixed)


def by_flux(model, obs):
    return model(t, obs, ids[None, :, None], cond, cond_ids[None, :, None])


simformer, flux = make_simformer(), make_flux()
losses = train(simformer, lambda model, obs: ((by_simformer(model, obs) - target) ** 2).mean(), obs)
flux_losses = train(flux, lambda model, obs: ((by_flux(model, obs) - target) ** 2).mean(), obs)
hand_over(
    losses=losses,
    flux_losses=flux_losses,
    predicted=by_simformer(simformer, obs),
    restored=by_simformer(stored(simformer, make_simformer, nnx.Param), obs),
    flux=by_flux(flux, obs),
    jitted=nnx.jit(by_flux)(flux, obs),
)
