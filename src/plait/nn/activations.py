"""Activations: re-exported functions of ``jax.nn`` and ``jax.numpy``. (rule F1)"""

from __future__ import annotations

from jax import nn
from jax.numpy import tanh as tanh

celu = nn.celu
elu = nn.elu
gelu = nn.gelu
glu = nn.glu
hard_sigmoid = nn.hard_sigmoid
hard_silu = nn.hard_silu
hard_swish = nn.hard_swish
hard_tanh = nn.hard_tanh
identity = nn.identity
leaky_relu = nn.leaky_relu
log_sigmoid = nn.log_sigmoid
log_softmax = nn.log_softmax
logsumexp = nn.logsumexp
mish = nn.mish
one_hot = nn.one_hot
relu = nn.relu
relu6 = nn.relu6
selu = nn.selu
sigmoid = nn.sigmoid
silu = nn.silu
soft_sign = nn.soft_sign
softmax = nn.softmax
softplus = nn.softplus
sparse_plus = nn.sparse_plus
sparse_sigmoid = nn.sparse_sigmoid
squareplus = nn.squareplus
standardize = nn.standardize
swish = nn.swish
