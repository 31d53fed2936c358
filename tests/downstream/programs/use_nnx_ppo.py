"""nnx-ppo: steps of proximal policy optimization in its own test environment, its checkpoints, a recurrent layer."""

import tempfile

import jax
import jax.numpy as jnp
from flax import nnx
from nnx_ppo.algorithms import checkpointing, ppo
from nnx_ppo.algorithms.types import LoggingLevel
from nnx_ppo.networks.recurrent import LSTM
from nnx_ppo.test_dummies.dict_obs_act_env import DictObsActEnv, DictObsActNet
from results import hand_over


def parameters(networks):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(nnx.state(networks, nnx.Param))])


env = DictObsActEnv()
networks = DictObsActNet(nnx.Rngs(0))
config = ppo.default_config().ppo
state = ppo.new_training_state(env, networks, 4, 1)
rows = []
for _ in range(3):
    state, metrics = ppo.ppo_step(
        env, state, 4, 5, config.gae_lambda, config.discounting_factor, config.clip_range,
        config.normalize_advantages, config.combine_advantages, 2, 2, config.critic_loss_weight, LoggingLevel.ALL,
    )  # fmt: skip
    rows.append(jnp.stack([jnp.mean(metrics[name]) for name in sorted(metrics)]))
fresh = DictObsActNet(nnx.Rngs(9))
with tempfile.TemporaryDirectory() as folder:
    checkpointing.make_checkpoint_fn(folder)(state, 3)
    optimizer = ppo.new_training_state(env, fresh, 4, 2).optimizer
    loaded = checkpointing.load_checkpoint(f"{folder}/step_{3:010d}", fresh, optimizer)
lstm = LSTM(3, 4, rngs=nnx.Rngs(2))
hand_over(
    metrics=jnp.stack(rows),
    params=parameters(state.networks),
    restored=parameters(fresh),
    step=loaded["step"],
    lstm=lstm(lstm.initialize_state(2), jnp.ones((2, 3))).output,
)
