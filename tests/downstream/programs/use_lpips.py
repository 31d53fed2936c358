"""lpips-nnx: the distance of images with random weights of VGG16, its gradient, and its linear layers trained."""

import collections

import jax
import jax.numpy as jnp
import lpips_nnx.vgg
from flax import nnx
from results import hand_over, stored, train

sizes = {
    0: (3, 64),
    2: (64, 64),
    5: (64, 128),
    7: (128, 128),
    10: (128, 256),
    12: (256, 256),
    14: (256, 256),
    17: (256, 512),
}
sizes = collections.defaultdict(lambda: (512, 512), sizes)
keys = {f"conv_{i}": jax.random.key(i) for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)}
lpips_nnx.vgg.load_vgg16_weights = lambda: {
    name: {
        "kernel": nnx.initializers.he_normal()(key, (3, 3, *sizes[int(name[5:])])),
        "bias": jnp.full(sizes[int(name[5:])][1], 0.1),
    }
    for name, key in keys.items()
}


def make():
    return lpips_nnx.LPIPS(rngs=nnx.Rngs(0, dropout=1))


x, y = jax.random.uniform(jax.random.key(1), (2, 1, 16, 16, 3))
model = make()
model.eval()
grads = jax.grad(lambda x: model(x, y).sum())(x)
losses = train(model, lambda m, x, y: m(x, y).mean(), x, y, wrt=nnx.PathContains("lins"))
new = stored(model, make, nnx.Param)
new.eval()
hand_over(losses=losses, grads=grads, after=model(x, y), restored=new(x, y))
