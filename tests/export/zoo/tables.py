"""Models of numbers and tables: recommenders, policies, flows, graphs; and models that were not written with plait."""

import jax
import jax.numpy as jnp

import plait


class Recommender(plait.Module):
    """Cheng 2016 (wide and deep): a person, several things that were looked at, and a few numbers."""

    def __init__(self, rngs):
        self.people, self.things = plait.Embed(11, 6, rngs=rngs), plait.Embed(11, 6, rngs=rngs)
        self.hidden, self.deep = plait.Linear(15, 8, rngs=rngs), plait.Linear(8, 1, rngs=rngs)
        self.wide = plait.Linear(3, 1, rngs=rngs)

    def __call__(self, person, seen, numbers):
        features = jnp.concatenate([self.people(person), self.things(seen).mean(1), numbers], axis=-1)
        score = self.deep(plait.relu(self.hidden(features))) + self.wide(numbers)
        return {"probability": plait.sigmoid(score)[:, 0], "taste": self.people(person)}


class Flow(plait.Module):
    """Dinh 2016 (RealNVP): an invertible map, and the logarithm of how much it stretches."""

    def __init__(self, rngs):
        layers = [(plait.Linear(2, 8, rngs=rngs), plait.Linear(8, 4, rngs=rngs)) for _ in range(3)]
        self.nets = plait.List([plait.Sequential(first, plait.tanh, last) for first, last in layers])

    def __call__(self, x):
        log_det = jnp.zeros(x.shape[:1])
        for net in self.nets:
            a, b = jnp.split(x, 2, axis=-1)
            scale, shift = jnp.split(net(a), 2, axis=-1)
            x = jnp.concatenate([b * jnp.exp(plait.tanh(scale)) + shift, a], axis=-1)
            log_det = log_det + plait.tanh(scale).sum(-1)
        return {"z": x, "log_det": log_det}


class Policy(plait.Module):
    """What to do, and what it is worth: two heads on one body."""

    def __init__(self, rngs):
        self.body, self.norm = plait.Linear(6, 12, rngs=rngs), plait.LayerNorm(12, rngs=rngs)
        self.action, self.value = plait.Linear(12, 4, rngs=rngs), plait.Linear(12, 1, rngs=rngs)

    def __call__(self, observation):
        x = plait.tanh(self.norm(self.body(observation)))
        return plait.log_softmax(self.action(x)), self.value(x)[:, 0]


class Dueling(plait.Module):
    """Wang 2015: a value and advantages, joined; actions that are not allowed are not taken."""

    def __init__(self, rngs):
        self.body = plait.Linear(6, 12, rngs=rngs)
        self.value, self.advantage = plait.Linear(12, 1, rngs=rngs), plait.Linear(12, 5, rngs=rngs)

    def __call__(self, observation, allowed):
        x = plait.selu(self.body(observation))
        advantage = self.advantage(x)
        q = self.value(x) + advantage - advantage.mean(-1, keepdims=True)
        return {"q": q, "action": jnp.where(allowed, q, -jnp.inf).argmax(-1).astype(jnp.int32)}


class Adapted(plait.Module):
    """Hu 2021: a trained layer with a low-rank change beside it."""

    def __init__(self, rngs):
        options = {"lora_rank": 2, "b_initializer": plait.initializers.normal(0.5), "rngs": rngs}
        self.hidden, self.head = plait.LoRALinear(6, 12, **options), plait.LoRALinear(12, 3, **options)

    def __call__(self, x):
        return self.head(plait.gelu(self.hidden(x)))


class Normed(plait.Module):
    """A critic (Miyato 2018): weights by length and direction, or of spectral norm one; slopes are learned."""

    def __init__(self, rngs):
        self.hidden = plait.WeightNorm(plait.Linear(6, 12, rngs=rngs), rngs=rngs)
        self.slope, self.bend = plait.PReLU(0.2), plait.Linear(12, 4, rngs=rngs)
        self.head = plait.SpectralNorm(plait.Linear(4, 1, rngs=rngs), rngs=rngs)

    def __call__(self, x):
        return self.head(plait.softplus(self.bend(self.slope(self.hidden(x)))))


class Field(plait.Module):
    """Mildenhall 2020 (NeRF): a place in space as sines, density and colour out."""

    def __init__(self, rngs):
        self.body, self.density = plait.Linear(18, 12, rngs=rngs), plait.Linear(12, 1, rngs=rngs)
        self.colour = plait.Linear(12, 3, rngs=rngs)

    def __call__(self, place):
        angles = place[..., None] * (2.0 ** jnp.arange(3, dtype=jnp.float32)).reshape(1, 1, -1)
        x = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(place.shape[0], -1)
        x = plait.relu(self.body(x))
        return {"density": plait.softplus(self.density(x)), "colour": plait.sigmoid(self.colour(x))}


class Graph(plait.Module):
    """Kipf 2016: what each node hears from its neighbours along the edges, added up; any number of nodes and edges."""

    def __init__(self, rngs):
        self.own, self.heard = plait.Linear(4, 8, rngs=rngs), plait.Linear(4, 8, rngs=rngs)
        self.head = plait.Linear(8, 2, rngs=rngs)

    def __call__(self, nodes, senders, receivers):
        messages = jnp.take(self.heard(nodes), senders, axis=0, mode="clip")
        heard = jnp.zeros((nodes.shape[0], 8)).at[receivers].add(messages)
        return self.head(plait.relu(self.own(nodes) + heard))


class Running(plait.Module):
    """Statistics that go on running where the model is used: part of what goes in and out."""

    def __init__(self, rngs):
        self.norm, self.head = plait.BatchNorm(5, momentum=0.9, rngs=rngs), plait.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


class Small(plait.Module):
    """Layers whose weights, and unless told otherwise their outputs, have another dtype than float32."""

    def __init__(self, rngs, dtype, computed=None):
        options = {"param_dtype": dtype, "dtype": computed, "rngs": rngs}
        self.hidden, self.norm = plait.Linear(6, 12, **options), plait.LayerNorm(12, **options)
        self.head = plait.Linear(12, 3, **options)

    def __call__(self, x):
        return self.head(plait.gelu(self.norm(self.hidden(x))))


def plain_function(rngs):
    """Parameters and a pure function of them: no module at all."""
    params = {
        "hidden": {"kernel": rngs.params.normal((6, 8)), "bias": jnp.zeros((8,))},
        "head": {"kernel": rngs.params.normal((8, 3))},
    }

    def predict(params, x):
        x = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"][None])
        return jax.nn.softmax(x @ params["head"]["kernel"])

    return params, predict


def linen(rngs):
    """A Linen model, through the bridge."""
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(4, (3, 3))(x))
            x = nn.BatchNorm(use_running_average=True)(x)
            return nn.Dense(3)(nn.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1))

    return plait.bridge.ToNNX(Net(), rngs=rngs).lazy_init(jnp.ones((1, 6, 6, 1)))
