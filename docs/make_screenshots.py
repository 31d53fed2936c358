"""Write docs/images/explore-*.png: pages of ``plait.explore`` in Chromium. Needs what `make browser` installs."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp

import plait
from tests.browser import chromium, opened

IMAGES = Path(__file__).resolve().parent / "images"
# Name → page, fragment, scheme, size of the window, and the part of it that is shown.
PICTURES = {
    "explore-model": ("model", "#blocks%5B2%5D", "light", (1280, 760), (0, 0, 1280, 760)),
    "explore-variable": ("model", "#blocks%5B2%5D.up.kernel", "dark", (1280, 960), (0, 0, 1280, 960)),
    "explore-compare": ("pair", "#blocks%5B1%5D.up.kernel", "light", (1280, 760), (0, 0, 1280, 760)),
    "explore-narrow": ("model", "", "light", (440, 1500), (0, 752, 440, 520)),
}


class Block(plait.Module):
    """A block of a transformer, its two large kernels sharded over the axis ``model``."""

    def __init__(self, features, rngs):
        columns, rows = ({"out_sharding": axes} for axes in ((None, "model"), ("model", None)))
        self.norm1, self.norm2 = (plait.LayerNorm(features, rngs=rngs) for _ in range(2))
        self.attention = plait.MultiHeadAttention(4, features, rngs=rngs, decode=False)
        self.up = plait.Linear(features, 4 * features, rngs=rngs, kernel_metadata=columns)
        self.down = plait.Linear(4 * features, features, rngs=rngs, kernel_metadata=rows)
        self.dropout = plait.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(plait.gelu(self.up(self.norm2(x)))))


class GPT(plait.Module):
    """A small GPT whose output layer is tied to its embedding."""

    def __init__(self, blocks=6, features=64, vocabulary=512):
        rngs = plait.Rngs(0)
        self.embed = plait.Embed(vocabulary, features, rngs=rngs)
        self.blocks = [Block(features, rngs) for _ in range(blocks)]
        self.norm = plait.LayerNorm(features, rngs=rngs)
        self.tied = self.embed.embedding

    def __call__(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tied.value.T


def write_pages(folder: Path) -> None:
    """The pages that the pictures show."""
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        plait.explore(GPT(), jax.ShapeDtypeStruct((8, 128), jnp.int32), to=folder / "model.html")
        changed = GPT(blocks=7)
        noise = 0.05 * jax.random.normal(jax.random.key(1), (64, 256))
        changed.blocks[1].up.kernel[...] = 1.2 * changed.blocks[1].up.kernel.value + noise
        changed.blocks[3].norm1.scale[...] = changed.blocks[3].norm1.scale.value + noise[0, :64]
        changed.blocks[0].dropout.rate = 0.2
        plait.explore(GPT(), other=changed, to=folder / "pair.html")


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder))
        with chromium() as browser:
            for name, (page, fragment, scheme, window, part) in PICTURES.items():
                file = Path(folder) / f"{page}.html"
                options = {
                    "color_scheme": scheme,
                    "viewport": dict(zip(("width", "height"), window, strict=True)),
                    "device_scale_factor": 1 if window[0] > 1000 else 2,  # a narrow one is shown enlarged
                }
                with opened(browser, file, fragment=fragment, **options) as shown:
                    shown.wait_for_timeout(300)  # for the treemap, which is drawn once its size is known
                    clip = dict(zip(("x", "y", "width", "height"), part, strict=True))
                    shown.screenshot(path=IMAGES / f"{name}.png", clip=clip)


if __name__ == "__main__":
    main()
