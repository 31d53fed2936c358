"""Models of sequences: recurrent, convolutional, and transformers of several makes."""

import jax
import jax.numpy as jnp

import plait
from tests.export.zoo.images import Block

WORDS = 11


class WaveNet(plait.Module):
    """Van den Oord 2016: causal convolutions, each looking twice as far back, with gates and skips."""

    def __init__(self, rngs):
        self.inlet = plait.Linear(1, 6, rngs=rngs)
        self.filters = plait.List([self._conv(rate, rngs) for rate in (1, 2, 4)])
        self.gates = plait.List([self._conv(rate, rngs) for rate in (1, 2, 4)])
        self.skips = plait.List([plait.Linear(6, 6, rngs=rngs) for _ in range(3)])
        self.outlet = plait.Linear(6, 2, rngs=rngs)

    @staticmethod
    def _conv(rate, rngs):
        return plait.Conv(6, 6, 2, padding="CAUSAL", kernel_dilation=rate, rngs=rngs)

    def __call__(self, x):
        x, total = self.inlet(x), 0.0
        for filtered, gate, skip in zip(self.filters, self.gates, self.skips, strict=True):
            y = skip(plait.tanh(filtered(x)) * plait.sigmoid(gate(x)))
            x, total = x + y, total + y
        return self.outlet(plait.relu(total))


class Tagger(plait.Module):
    """A label for each word, from an LSTM."""

    def __init__(self, rngs):
        self.embed = plait.Embed(WORDS, 6, rngs=rngs)
        self.rnn = plait.RNN(plait.OptimizedLSTMCell(6, 8, rngs=rngs))
        self.head = plait.Linear(8, 4, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.rnn(self.embed(tokens)))


class GRUStep(plait.Module):
    """One step of a decoder; what it remembers comes in and goes out."""

    def __init__(self, rngs):
        self.embed, self.cell = plait.Embed(WORDS, 6, rngs=rngs), plait.GRUCell(6, 8, rngs=rngs)
        self.head = plait.Linear(8, WORDS, rngs=rngs)

    def __call__(self, token, hidden):
        hidden, y = self.cell(hidden, self.embed(token))
        return {"scores": self.head(y), "next_hidden": hidden}


class BothWays(plait.Module):
    """A label for sequences of several lengths, read from both ends; the padding is not read."""

    def __init__(self, rngs):
        self.embed = plait.Embed(WORDS, 6, rngs=rngs)
        self.rnn = plait.Bidirectional(
            plait.RNN(plait.GRUCell(6, 5, rngs=rngs)), plait.RNN(plait.SimpleCell(6, 5, rngs=rngs))
        )
        self.head = plait.Linear(10, 3, rngs=rngs)

    def __call__(self, tokens, lengths):
        outputs = self.rnn(self.embed(tokens), seq_lengths=lengths)
        real = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        return self.head(jnp.where(real[..., None], outputs, 0.0).sum(1))


class Generator(plait.Module):
    """Writes five words by itself: a loop inside of the file."""

    def __init__(self, rngs):
        self.step = GRUStep(rngs)

    def __call__(self, token):
        def one(carry, _):
            token, hidden = carry
            found = self.step(token, hidden)
            token = found["scores"].argmax(-1).astype(jnp.int32)
            return (token, found["next_hidden"]), token

        hidden = jnp.zeros((token.shape[0], 8))
        return jax.lax.scan(one, (token, hidden), None, length=5)[1].swapaxes(0, 1)


class Encoder(plait.Module):
    """Devlin 2018 (BERT): blocks in which every word sees every other, but no padding; the first one is the summary."""

    def __init__(self, rngs):
        self.embed, self.positions = plait.Embed(WORDS, 8, rngs=rngs), plait.Embed(16, 8, rngs=rngs)
        self.norm = plait.LayerNorm(8, rngs=rngs)
        self.blocks = plait.List([Block(rngs) for _ in range(2)])
        self.pool = plait.Linear(8, 8, rngs=rngs)

    def __call__(self, tokens, mask):
        x = self.norm(self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1]))[None])
        for block in self.blocks:
            x = block(x, mask=mask[:, None, None, :])
        return {"words": x, "summary": plait.tanh(self.pool(x[:, 0]))}


class GPT(plait.Module):
    """Radford 2019: causal blocks, learned positions, and one table for words in and words out."""

    def __init__(self, rngs):
        self.embed, self.positions = plait.Embed(WORDS, 8, rngs=rngs), plait.Embed(16, 8, rngs=rngs)
        self.blocks = plait.List([Block(rngs) for _ in range(2)])
        self.norm = plait.LayerNorm(8, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1]))[None]
        for block in self.blocks:
            x = block(x, is_causal=True)
        return self.embed.attend(self.norm(x))


class CacheStep(plait.Module):
    """One step of a decoder with rotary positions, whose keys and values are kept in a cache of fixed size."""

    def __init__(self, rngs):
        self.embed = plait.Embed(WORDS, 8, rngs=rngs)
        self.attention = plait.MultiHeadAttention(
            4, 8, num_kv_heads=2, decode=True, rotary_fn=plait.apply_rotary_embedding, rngs=rngs
        )
        self.attention.init_cache((2, 6, 8))

    def __call__(self, token):
        x = self.embed(token)
        return self.embed.attend(x + self.attention(x))


class GrowingCacheStep(plait.Module):
    """One step of a decoder; keys and values of all steps before come in, and go out with one more."""

    def __init__(self, rngs):
        self.embed = plait.Embed(WORDS, 8, rngs=rngs)
        self.out = plait.LinearGeneral((2, 4), 8, axis=(-2, -1), rngs=rngs)
        self.query, self.key, self.value = (plait.LinearGeneral(8, (2, 4), rngs=rngs) for _ in range(3))

    def __call__(self, token, past_key, past_value):
        x = self.embed(token)
        keys = jnp.concatenate([past_key, self.key(x)], axis=1)
        values = jnp.concatenate([past_value, self.value(x)], axis=1)
        y = plait.dot_product_attention(self.query(x), keys, values)
        return {"scores": self.embed.attend(x + self.out(y)), "present_key": keys, "present_value": values}


class Translator(plait.Module):
    """Vaswani 2017: an encoder, and a decoder that looks at it; two lengths."""

    def __init__(self, rngs):
        self.source, self.target = plait.Embed(WORDS, 8, rngs=rngs), plait.Embed(WORDS, 8, rngs=rngs)
        self.encoder, self.decoder = Block(rngs), Block(rngs)
        self.norm, self.head = plait.LayerNorm(8, rngs=rngs), plait.Linear(8, WORDS, rngs=rngs)
        self.cross = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

    def __call__(self, source, target):
        seen = self.encoder(self.source(source))
        x = self.decoder(self.target(target), is_causal=True)
        return self.head(x + self.cross(self.norm(x), seen))


class Llama(plait.Module):
    """Touvron 2023: RMS norms, rotary positions, heads that share keys, and a gated hidden layer; no biases."""

    def __init__(self, rngs, dtype=jnp.float32):
        options = {"use_bias": False, "param_dtype": dtype, "rngs": rngs}
        self.embed = plait.Embed(WORDS, 8, param_dtype=dtype, rngs=rngs)
        self.norms = plait.List([plait.RMSNorm(8, param_dtype=dtype, rngs=rngs) for _ in range(3)])
        self.attention = plait.MultiHeadAttention(
            4, 8, num_kv_heads=2, rotary_fn=lambda x, p: plait.apply_rotary_embedding(x, p, interleaved=False),
            decode=False, **options,
        )  # fmt: skip
        self.gate, self.up = plait.Linear(8, 16, **options), plait.Linear(8, 16, **options)
        self.down, self.head = plait.Linear(16, 8, **options), plait.Linear(8, WORDS, **options)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norms[0](x), is_causal=True)
        y = self.norms[1](x)
        x = x + self.down(plait.silu(self.gate(y)) * self.up(y))
        return self.head(self.norms[2](x))


class Mixture(plait.Module):
    """Shazeer 2017: each word asks two of four experts; all are computed, and most are weighed with zero."""

    def __init__(self, rngs):
        self.router = plait.Linear(8, 4, use_bias=False, rngs=rngs)
        self.up = plait.Einsum("btd,edh->bteh", (4, 8, 12), rngs=rngs)
        self.down = plait.Einsum("bteh,ehd->bted", (4, 12, 8), rngs=rngs)

    def __call__(self, x):
        best, chosen = jax.lax.top_k(self.router(x), 2)
        weights = (plait.one_hot(chosen, 4) * plait.softmax(best)[..., None]).sum(-2)
        return x + (self.down(plait.gelu(self.up(x))) * weights[..., None]).sum(-2)


class Perceiver(plait.Module):
    """Jaegle 2021: a few learned vectors look at an input of any length, then at each other."""

    def __init__(self, rngs):
        self.latents = plait.Param(rngs.params.normal((1, 4, 8)))
        self.widen = plait.Linear(3, 8, rngs=rngs)
        self.cross = plait.MultiHeadAttention(1, 8, decode=False, rngs=rngs)
        self.block, self.head = Block(rngs), plait.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        latents = jnp.broadcast_to(self.latents[...], (x.shape[0], 4, 8))
        latents = latents + self.cross(latents, self.widen(x))
        return self.head(self.block(latents).mean(1))


class Stack(plait.Module):
    """Layers made by ``vmap``, whose weights are stacked, and run by ``scan``."""

    def __init__(self, rngs):
        @plait.split_rngs(splits=3)
        @plait.vmap
        def make(rngs):
            return Block(rngs)

        self.embed, self.blocks = plait.Embed(WORDS, 8, rngs=rngs), make(rngs)
        self.head = plait.Linear(8, WORDS, rngs=rngs)

    def __call__(self, tokens):
        run = plait.scan(lambda x, block: block(x, is_causal=True), in_axes=(plait.Carry, 0), out_axes=plait.Carry)
        return self.head(run(self.embed(tokens), self.blocks))


class Speech(plait.Module):
    """Gulati 2020 (Conformer): a block of attention, then one of gated depthwise convolution over time."""

    def __init__(self, rngs):
        self.subsample = plait.Conv(4, 8, 3, strides=2, padding=((1, 1),), rngs=rngs)
        self.block, self.norm = Block(rngs), plait.LayerNorm(8, rngs=rngs)
        self.pointwise = plait.Linear(8, 16, rngs=rngs)
        self.depthwise = plait.Conv(8, 8, 5, feature_group_count=8, rngs=rngs)
        self.head = plait.Linear(8, WORDS, rngs=rngs)

    def __call__(self, frames):
        x = self.block(self.subsample(frames))
        y = self.depthwise(plait.glu(self.pointwise(self.norm(x))))
        return plait.log_softmax(self.head(x + plait.swish(y)))
