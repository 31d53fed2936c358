"""Mistakes with stacks of layers, whose layers are stored as one array."""

from plait.errors import (
    ArgumentError,
    FilterError,
    GraphError,
    ShapeError,
    SharingError,
)

from .rows import Row

STACK = """
class Block(plait.Module):
    def __init__(self, *, rngs):
        self.linear = plait.Linear(2, 2, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.linear(x))

def make():
    return plait.Dict(blocks=plait.Stack(lambda rngs: Block(rngs=rngs), 4, rngs=plait.Rngs(0)))

model = make()
"""

ROWS = {
    "a changed attribute of one layer": Row("model.blocks[0].drop.rate = 0.1", GraphError,
        "a changed attribute, or a value that sow stores as one, of one layer", setup=STACK),
    "a layer beside its model": Row("plait.jit(lambda model, block: block.linear(x))(model, model.blocks[1])",
        SharingError,
        (r"model\.blocks\[1\]\.drop\.rngs\.count and block\.",
        r"at +model\.blocks\[1\]\.drop\.rngs\.count and block\.drop\.rngs\.count \(t"),
        setup=STACK),
    "two views of one layer": Row(
        "plait.jit(lambda one, other: one.linear(other.linear(x)))(model.blocks[1], model.blocks[1])", SharingError,
        (r"at +one\.drop\.rngs\.count and other\.drop", "found +two views of one layer"), setup=STACK),
    "a view that a model stores": Row("model.last = model.blocks[3]; plait.state(model)", SharingError,
        (r"at +blocks\[3\]\.drop\.rngs\.count and last\.drop", "found +a stack and a view of one of its layers"),
        setup=STACK),
    "a view that a model stores before its stack": Row("model.a = model.blocks[3]; list(plait.iter_modules(model))",
        SharingError,
        (r"at +blocks\[3\]\.drop\.rngs\.count and a\.drop", "found +a stack and a view of one of its layers"),
        setup=STACK),
    "an attribute of one layer that a program sets": Row("plait.jit(change)(model.blocks[0])", GraphError,
        (r"at +block\.drop", "found +a change that would set the attribute 'rate' of a Dropout of one layer"),
        setup=STACK + "def change(block):\n    block.drop.rate = 0.1"),
    "a cache that a block makes later": Row("plait.jit(lambda stack, x: stack(x))(stack, x)", ShapeError,
        ("no axis of layers", "seen", r"at +a Stack\[0:4\]\.seen", r"found +an array of shape \(\)"),
        setup=STACK + ("stack = model.blocks\n"
        "def prepare():\n"
        "    for _, module in plait.iter_modules(stack):\n"
        "        if isinstance(module, Block):\n"
        "            module.seen = plait.Cache(jnp.zeros(()))\n"
        "prepare()")),
    "a layer of a cache that a block makes later": Row("stack[0].seen.value", ShapeError,
        ("no axis of layers", r"found +an array of shape \(\)"), setup=STACK + ("stack = model.blocks\n"
        "for _, module in plait.iter_modules(stack):\n"
        "        module.seen = plait.Cache(jnp.zeros(()))")),
    "other metadata of one layer": Row("model.blocks[0].linear.kernel.set_metadata(note=1)", GraphError,
        "new metadata of a variable of one layer", setup=STACK),
    "one layer of another shape": Row("model.blocks[0].linear.bias.value = jnp.zeros(3)", ShapeError, r"float32\(3,\)",
        setup=STACK),
    "one layer of another kind": Row("model.blocks[0].linear.bias.value = {'a': jnp.zeros(2)}", ShapeError,
        ("of a different type", "found +a dict"), setup=STACK),
    "a value for one layer of a shape": Row("model.blocks[0].linear.bias.value = jnp.zeros(2)", GraphError,
        "found +a value for one layer, when the others only have a shape of one layer",
        setup=STACK + "model = plait.eval_shape(make)"),
    "a filter that tells layers apart": Row("plait.state(model, plait.PathContains(0))", FilterError,
        (r"at +blocks\[0:4\]\.drop\.rngs\.count",
        r"found +PathContains\(0\) matches blocks\[0\]\.drop\.rngs\.count, but not blocks\[1\]\.d"),
        setup=STACK),
    "layers with different settings": Row(
        "plait.select(model, 'blocks[*].drop.rate').map(lambda path, rate: path[1] / 10)", ArgumentError,
        (r"at +blocks\[0\]\.drop\.rate and blocks\[1\]\.drop\.rate", r"found +0\.0 and 0\.1"), setup=STACK),
    "blocks of a stack that share a variable": Row("plait.Stack([one, other])", SharingError,
        (r"blocks\[0\]\.linear\.bias and blocks\[1\]\.linear\.bias",
        r"at +blocks\[0\]\.linear\.bias and blocks\[1\]\.linear\.bias"),
        setup=STACK + "one = Block(rngs=rngs); other = Block(rngs=rngs); other.linear = one.linear"),
    "blocks of a stack that differ": Row(
        "plait.Stack([plait.Linear(2, 2, rngs=rngs), plait.Linear(2, 3, rngs=rngs)])", ArgumentError,
        (r"at +blocks\[0\] and blocks\[1\]", "found +out_features: 2 -> 3")),
    "blocks of a stack whose arrays differ": Row(
        "plait.Stack([plait.Dict(a=plait.Param(jnp.ones(2))), plait.Dict(a=plait.Param(jnp.ones(3)))])", ArgumentError,
        (r"float32\(2,\) and float32\(3,\)", r"at +blocks\[0\]\.a and blocks\[1\]\.a")),
}  # fmt: skip
