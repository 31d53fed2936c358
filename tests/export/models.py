"""Small modules for the tests of exports."""

import jax.numpy as jnp
import numpy as np

import plait
from plait.export import InputSpec


class Net(plait.Module):
    """Two methods, dropout and batch statistics; several outputs."""

    def __init__(self, seed=0):
        rngs = plait.Rngs(seed)
        self.body, self.norm = plait.Linear(4, 8, rngs=rngs), plait.BatchNorm(8, rngs=rngs)
        self.drop, self.head = plait.Dropout(0.5, rngs=rngs), plait.Linear(8, 2, rngs=rngs)

    def encode(self, x):
        return plait.relu(self.norm(self.body(x)))

    def __call__(self, x):
        hidden = self.encode(x)
        return {"logits": self.head(self.drop(hidden)), "hidden": hidden}


class Decoder(plait.Module):
    """One step of an autoregressive model: a token in, scores of the next one out, with a cache."""

    def __init__(self, length=6):
        rngs = plait.Rngs(1)
        self.embed = plait.Embed(11, 8, rngs=rngs)
        self.attention = plait.MultiHeadAttention(2, 8, decode=True, rngs=rngs)
        self.attention.init_cache((1, length, 8))

    def __call__(self, token):
        return self.embed.attend(self.attention(self.embed(token)))


TOKEN = InputSpec((1, 1), "int32", "token")


def trained(seed=0):
    """A net in evaluation mode whose statistics are not those of a new one."""
    model = Net(seed)
    for _ in range(3):
        model(jnp.asarray(batch(8)))
    model.eval()
    return model


def batch(size, seed=0):
    return np.random.default_rng(seed).normal(1, 2, (size, 4)).astype(np.float32)


def decoded(step, state, steps=5):
    """The tokens that a step function chooses, one after the other."""
    token, tokens = np.zeros((1, 1), np.int32), []
    for _ in range(steps):
        outputs = step(token=token, **state)
        scores = np.asarray(outputs["y"])
        state = {name: outputs[name] for name in state}
        token = scores.argmax(-1).astype(np.int32)
        tokens.append(int(token[0, 0]))
    return tokens


def expected_tokens(steps=5):
    model = Decoder()
    return decoded(lambda token: {"y": model(jnp.asarray(token))}, {}, steps)
