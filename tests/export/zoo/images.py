"""Models of images: the architectures that are exported most, a few channels wide."""

import jax
import jax.numpy as jnp

import plait


def norm(features, rngs):
    """Batch statistics that are not those of a new model: means and variances are drawn."""
    layer = plait.BatchNorm(features, rngs=rngs)
    layer.mean[...] = 0.3 * rngs.params.normal((features,))
    layer.var[...] = 0.5 + rngs.params.uniform((features,))
    return layer


def convolution(n_in, n_out, size, rngs, stride=1, **options):
    """A convolution padded as PyTorch's, which strides of any size can follow."""
    padding = ((size // 2, size // 2),) * 2
    return plait.Conv(n_in, n_out, (size, size), strides=stride, padding=padding, rngs=rngs, **options)


class MLP(plait.Module):
    def __init__(self, rngs):
        self.layers = plait.Sequential(
            plait.Linear(8, 16, rngs=rngs), plait.relu, plait.Dropout(0.5, rngs=rngs), plait.Linear(16, 3, rngs=rngs)
        )

    def __call__(self, x):
        return self.layers(x)


class LeNet(plait.Module):
    """LeCun 1998."""

    def __init__(self, rngs):
        self.conv1, self.conv2 = plait.Conv(1, 6, (5, 5), rngs=rngs), plait.Conv(6, 8, (5, 5), rngs=rngs)
        self.hidden, self.head = plait.Linear(3 * 3 * 8, 24, rngs=rngs), plait.Linear(24, 10, rngs=rngs)

    def __call__(self, x):
        x = plait.avg_pool(plait.tanh(self.conv1(x)), (2, 2), (2, 2))
        x = plait.max_pool(plait.tanh(self.conv2(x)), (2, 2), (2, 2))
        return self.head(plait.relu(self.hidden(x.reshape(x.shape[0], -1))))


class Residual(plait.Module):
    def __init__(self, n_in, n_out, stride, rngs):
        self.conv1 = convolution(n_in, n_out, 3, rngs, stride, use_bias=False)
        self.conv2 = convolution(n_out, n_out, 3, rngs, use_bias=False)
        self.norm1, self.norm2 = norm(n_out, rngs), norm(n_out, rngs)
        self.shortcut = convolution(n_in, n_out, 1, rngs, stride) if stride > 1 else None

    def __call__(self, x):
        y = self.norm2(self.conv2(plait.relu(self.norm1(self.conv1(x)))))
        return plait.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(plait.Module):
    """He 2015: images of any size, averaged at the end."""

    def __init__(self, rngs):
        self.stem, self.norm = convolution(3, 4, 3, rngs), norm(4, rngs)
        self.blocks = plait.List([Residual(4, 4, 1, rngs), Residual(4, 8, 2, rngs)])
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = plait.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class MobileNet(plait.Module):
    """Howard 2019: an inverted residual with depthwise convolution, group norm, and squeeze-and-excitation."""

    def __init__(self, rngs):
        self.stem = convolution(3, 8, 3, rngs, 2)
        self.expand = convolution(8, 16, 1, rngs)
        self.depthwise = convolution(16, 16, 3, rngs, feature_group_count=16)
        self.norm = plait.GroupNorm(16, num_groups=4, rngs=rngs)
        self.squeeze, self.excite = plait.Linear(16, 4, rngs=rngs), plait.Linear(4, 16, rngs=rngs)
        self.project, self.head = convolution(16, 8, 1, rngs), plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = plait.relu6(self.stem(x))
        y = plait.hard_swish(self.norm(self.depthwise(plait.relu6(self.expand(x)))))
        gate = plait.hard_sigmoid(self.excite(plait.relu(self.squeeze(y.mean((1, 2), keepdims=True)))))
        return self.head((x + self.project(y * gate)).mean((1, 2)))


class ConvNeXt(plait.Module):
    """Liu 2022: patches, wide depthwise convolution, layer norm, GELU, and a learned scale of the branch."""

    def __init__(self, rngs):
        self.patches = plait.Conv(3, 8, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.depthwise = plait.Conv(8, 8, (7, 7), feature_group_count=8, rngs=rngs)
        self.norm = plait.LayerNorm(8, rngs=rngs)
        self.up, self.down = plait.Linear(8, 32, rngs=rngs), plait.Linear(32, 8, rngs=rngs)
        self.scale = plait.Param(jnp.full((8,), 0.5))
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        branch = self.down(plait.gelu(self.up(self.norm(self.depthwise(x)))))
        return self.head((x + branch * self.scale[...].reshape(1, 1, 1, -1)).mean((1, 2)))


class Autoencoder(plait.Module):
    def __init__(self, rngs):
        self.encoder = plait.List([convolution(1, 4, 3, rngs, 2), convolution(4, 8, 3, rngs, 2)])
        self.decoder = plait.List(
            [plait.ConvTranspose(n_in, n_out, (3, 3), strides=2, rngs=rngs) for n_in, n_out in ((8, 4), (4, 1))]
        )

    def __call__(self, x):
        for conv in self.encoder:
            x = plait.elu(conv(x))
        return plait.sigmoid(self.decoder[1](plait.elu(self.decoder[0](x))))


class Decoder(plait.Module):
    """The decoder of a variational autoencoder (Kingma 2013): a code in, an image and its log-variance out."""

    def __init__(self, rngs):
        self.widen = plait.Linear(4, 3 * 3 * 8, rngs=rngs)
        self.up1 = plait.ConvTranspose(8, 4, (4, 4), strides=2, rngs=rngs)
        self.up2 = plait.ConvTranspose(4, 2, (4, 4), strides=2, padding="SAME", rngs=rngs)

    def __call__(self, code):
        x = plait.leaky_relu(self.widen(code)).reshape(code.shape[0], 3, 3, 8)
        mean, log_variance = jnp.split(self.up2(plait.leaky_relu(self.up1(x))), 2, axis=-1)
        return {"image": plait.sigmoid(mean), "log_variance": jnp.clip(log_variance, -4, 4)}


class UNet(plait.Module):
    """Ronneberger 2015: down and up again, with what was seen on the way down."""

    def __init__(self, rngs):
        self.down1, self.down2 = plait.Conv(1, 4, (3, 3), rngs=rngs), plait.Conv(4, 8, (3, 3), rngs=rngs)
        self.up = plait.ConvTranspose(8, 4, (2, 2), strides=2, rngs=rngs)
        self.join, self.head = plait.Conv(8, 4, (3, 3), rngs=rngs), plait.Conv(4, 2, (1, 1), rngs=rngs)
        self.norm = norm(8, rngs)

    def __call__(self, x):
        high = plait.relu(self.down1(x))
        low = plait.relu(self.norm(self.down2(plait.max_pool(high, (2, 2), (2, 2)))))
        joined = jnp.concatenate([high, self.up(low)], axis=-1)
        return plait.softmax(self.head(plait.relu(self.join(joined))))


class Upscaler(plait.Module):
    """Shi 2016 (ESPCN): a fine image from the channels of a coarse one of any size."""

    def __init__(self, rngs):
        self.conv1, self.conv2 = plait.Conv(1, 6, (5, 5), rngs=rngs), plait.Conv(6, 4, (3, 3), rngs=rngs)

    def __call__(self, x):
        y = self.conv2(plait.tanh(self.conv1(x)))
        batch, height, width, _ = y.shape
        fine = y.reshape(batch, height, width, 2, 2).transpose(0, 1, 3, 2, 4)
        return fine.reshape(batch, 2 * height, 2 * width, 1)


class Bytes(plait.Module):
    """Pixels as bytes in, as a camera gives them; scores and the class out."""

    def __init__(self, rngs):
        self.conv, self.norm = convolution(3, 6, 3, rngs, 2), plait.InstanceNorm(6, rngs=rngs)
        self.head = plait.Linear(6, 4, rngs=rngs)

    def __call__(self, image):
        x = image.astype(jnp.float32) / 127.5 - 1
        scores = self.head(plait.silu(self.norm(self.conv(x))).max((1, 2)))
        return {"scores": plait.log_softmax(scores), "class": scores.argmax(-1).astype(jnp.int32)}


class Block(plait.Module):
    """Attention and a hidden layer, each on a normalised input and added to it."""

    def __init__(self, rngs, features=8, heads=2):
        self.norm1, self.norm2 = plait.LayerNorm(features, rngs=rngs), plait.LayerNorm(features, rngs=rngs)
        self.attention = plait.MultiHeadAttention(heads, features, decode=False, rngs=rngs)
        self.up = plait.Linear(features, 2 * features, rngs=rngs)
        self.down = plait.Linear(2 * features, features, rngs=rngs)

    def __call__(self, x, mask=None, is_causal=False):
        x = x + self.attention(self.norm1(x), mask=mask, is_causal=is_causal)
        return x + self.down(plait.gelu(self.up(self.norm2(x))))


class ViT(plait.Module):
    """Dosovitskiy 2020: patches, a token for the class, positions, blocks."""

    def __init__(self, rngs):
        self.patches = plait.Conv(3, 8, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = plait.Param(rngs.params.normal((1, 1, 8)))
        self.positions = plait.Param(rngs.params.normal((1, 10, 8)))
        self.blocks = plait.List([Block(rngs) for _ in range(2)])
        self.norm, self.head = plait.LayerNorm(8, rngs=rngs), plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], 9, 8)
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (x.shape[0], 1, 8)), x], axis=1) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class Mixer(plait.Module):
    """Tolstikhin 2021: a hidden layer over the patches, then one over the channels."""

    def __init__(self, rngs):
        self.patches = plait.Conv(3, 8, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.norm1, self.norm2 = plait.LayerNorm(8, rngs=rngs), plait.LayerNorm(8, rngs=rngs)
        self.tokens1, self.tokens2 = plait.Linear(9, 12, rngs=rngs), plait.Linear(12, 9, rngs=rngs)
        self.channels1, self.channels2 = plait.Linear(8, 16, rngs=rngs), plait.Linear(16, 8, rngs=rngs)
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], 9, 8)
        mixed = self.tokens2(plait.gelu(self.tokens1(self.norm1(x).swapaxes(1, 2))))
        x = x + mixed.swapaxes(1, 2)
        x = x + self.channels2(plait.gelu(self.channels1(self.norm2(x))))
        return self.head(x.mean(1))


class Denoiser(plait.Module):
    """Ho 2020 (diffusion): a noisy image and the time of the noise, as sines that scale and shift the features."""

    def __init__(self, rngs):
        self.conv1, self.conv2 = plait.Conv(1, 8, (3, 3), rngs=rngs), plait.Conv(8, 1, (3, 3), rngs=rngs)
        self.norm = plait.GroupNorm(8, num_groups=2, rngs=rngs)
        self.film = plait.Linear(8, 16, rngs=rngs)

    def __call__(self, image, time):
        frequencies = jnp.exp(-jnp.log(100.0) * jnp.arange(4, dtype=jnp.float32) / 4)
        angles = time.astype(jnp.float32)[:, None] * frequencies[None]
        film = self.film(plait.silu(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)))
        scale, shift = jnp.split(film[:, None, None], 2, axis=-1)
        return self.conv2(plait.silu(self.norm(self.conv1(image)) * (1 + scale) + shift))


class Resizer(plait.Module):
    """Features of a pyramid: a map is made twice as large by interpolation and added to a finer one (Lin 2016)."""

    def __init__(self, rngs):
        self.fine, self.coarse = plait.Conv(1, 4, (3, 3), rngs=rngs), convolution(4, 4, 3, rngs, 2)
        self.head = plait.Conv(4, 1, (1, 1), rngs=rngs)

    def __call__(self, x):
        fine = plait.relu(self.fine(x))
        coarse = plait.relu(self.coarse(fine))
        return self.head(fine + jax.image.resize(coarse, fine.shape, "bilinear"))
