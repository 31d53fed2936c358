"""Mistakes with stacks of layers, whose layers are stored as one array."""

from plait.errors import ArgumentError, FilterError, GraphError, ShapeError, SharingError, UnrolledLoopWarning

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
AS_LIST = "plait.as_list(model)"
LOOP = """
from plait.observing import unrolled_loops
unrolled_loops._said.clear()

class Net(plait.Module):
    def __init__(self):
        self.blocks = [plait.Linear(2, 2, rngs=rngs) for _ in range(8)]

    def __call__(self, x):
        if isinstance(self.blocks, plait.Stack):
            return self.blocks(x)
        for block in self.blocks:
            x = block(x)
        return x

model = Net()
"""

SOWING = """
class Sowing(plait.Linear):
    def __call__(self, x):
        self.sow(plait.Intermediate, 'most', x.max(), reduce_fn=jnp.maximum, init_fn=lambda: -jnp.inf)
        return x

stack = plait.Stack([Sowing(2, 2, rngs=rngs) for _ in range(3)])
def alone_and_together(stack, x):
    return stack(stack[1](x))
"""

ROWS = {
    "a layer that sowed alone, and again with the others": Row(
        "plait.capture(alone_and_together, plait.Intermediate)(stack, x)",
        ArgumentError,
        (r"at +stack\[1\]\.most", "cannot combine"),
        setup=SOWING,
        fix="for block in stack: x = block(x)",
        cure="def run(stack, x):\n    x = stack[1](x)\n    $\n    return x\n"
        "plait.capture(run, plait.Intermediate)(stack, x)",
    ),
    "a changed attribute of one layer": Row(
        "model.blocks[0].drop.rate = 0.1",
        GraphError,
        "a changed attribute, or a value that sow stores as one, of one layer",
        cure="model = $; model.blocks[0].drop.rate = 0.1",
        fix=AS_LIST,
        setup=STACK,
    ),
    "a layer beside its model": Row(
        "plait.jit(lambda model, block: block.linear(x))(model, model.blocks[1])",
        SharingError,
        r"model\.blocks\[1\]\.drop\.rngs\.count and block\.",
        setup=STACK,
        fix="plait.clone(model.blocks[1])",
        cure="plait.jit(lambda model, block: block.linear(x))(model, $)",
    ),
    "two views of one layer": Row(
        "plait.jit(lambda one, other: one.linear(other.linear(x)))(model.blocks[1], model.blocks[1])",
        SharingError,
        r"at +one\.drop\.rngs\.count and other\.drop",
        setup=STACK,
        fix="block = model.blocks[1]",
        cure="$\nplait.jit(lambda one, other: one.linear(other.linear(x)))(block, block)",
    ),
    "a view that a model stores": Row(
        "model.last = model.blocks[3]; plait.state(model)",
        SharingError,
        r"at +blocks\[3\]\.drop\.rngs\.count and last\.drop",
        setup=STACK,
        fix="plait.clone(model.blocks[1])",
        cure="model.last = $; plait.state(model)",
    ),
    "a view that a model stores before its stack": Row(
        "model.a = model.blocks[3]; list(plait.iter_modules(model))",
        SharingError,
        r"at +blocks\[3\]\.drop\.rngs\.count and a\.drop",
        setup=STACK,
        fix="plait.clone(model.blocks[1])",
        cure="model.a = $; list(plait.iter_modules(model))",
    ),
    "an attribute of one layer that a program sets": Row(
        "plait.jit(change)(model.blocks[0])",
        GraphError,
        "set the attribute 'rate' of a Dropout of one layer",
        setup=STACK + "def change(block):\n    block.drop.rate = 0.1\n",
        fix=AS_LIST,
        cure="plait.jit(change)($.blocks[0])",
    ),
    "a cache that a block makes later": Row(
        "plait.jit(lambda stack, x: stack(x))(stack, x)",
        ShapeError,
        (r"no axis of layers", r"seen"),
        setup=STACK
        + """
stack = model.blocks
def prepare():
    for _, module in plait.iter_modules(stack):
        if isinstance(module, Block):
            module.seen = plait.Cache(jnp.zeros(()))
prepare()
""",
        fix="create it in the constructor of the block",
        cure="model = make(); model.blocks(x)  # $",
    ),
    "a layer of a cache that a block makes later": Row(
        "stack[0].seen.value",
        ShapeError,
        "no axis of layers",
        setup=STACK
        + """
stack = model.blocks
for _, module in plait.iter_modules(stack):
    if isinstance(module, Block):
        module.seen = plait.Cache(jnp.zeros(()))
""",
        fix="create it in the constructor of the block",
        cure="model = make(); model.blocks[0](x)  # $",
    ),
    "other metadata of one layer": Row(
        "model.blocks[0].linear.kernel.set_metadata(note=1)",
        GraphError,
        "new metadata of a variable of one layer",
        cure="model = $; model.blocks[0].linear.kernel.set_metadata(note=1)",
        fix=AS_LIST,
        setup=STACK,
    ),
    "one layer of another shape": Row(
        "model.blocks[0].linear.bias.value = jnp.zeros(3)",
        ShapeError,
        r"float32\(3,\)",
        cure="model = $; model.blocks[0].linear.bias.value = jnp.zeros(3)",
        fix=AS_LIST,
        setup=STACK,
    ),
    "one layer of another kind": Row(
        "model.blocks[0].linear.bias.value = {'a': jnp.zeros(2)}",
        ShapeError,
        "of a different type",
        cure="model = $; model.blocks[0].linear.bias.value = {'a': jnp.zeros(2)}",
        fix=AS_LIST,
        setup=STACK,
    ),
    "a value for one layer of a shape": Row(
        "model.blocks[0].linear.bias.value = jnp.zeros(2)",
        GraphError,
        "a value for one layer, when the others only have a shape",
        cure="model = make(); $; model.blocks[0].linear.bias.value = jnp.zeros(2)",
        fix=AS_LIST,
        setup=STACK + "model = plait.eval_shape(make)\n",
    ),
    "a filter that tells layers apart": Row(
        "plait.state(model, plait.PathContains(0))",
        FilterError,
        (r"matches blocks\[0\]", r"not blocks\[1\]"),
        cure="plait.state($, plait.PathContains(0))",
        fix=AS_LIST,
        setup=STACK,
    ),
    "layers with different settings": Row(
        "plait.select(model, 'blocks[*].drop.rate').map(lambda path, rate: path[1] / 10)",
        ArgumentError,
        r"at +blocks\[0\]\.drop\.rate and blocks\[1\]\.drop\.rate",
        cure="model = $; plait.select(model, 'blocks[*].drop.rate').map(lambda path, rate: path[1] / 10)",
        fix=AS_LIST,
        setup=STACK,
    ),
    "blocks of a stack that share a variable": Row(
        "plait.Stack([one, other])",
        SharingError,
        r"blocks\[0\]\.linear\.bias and blocks\[1\]\.linear\.bias",
        "plait.Stack([one, plait.clone(one)])",
        setup=STACK + "one = Block(rngs=rngs); other = Block(rngs=rngs); other.linear = one.linear\n",
    ),
    "blocks of a stack that differ": Row(
        "plait.Stack([plait.Linear(2, 2, rngs=rngs), plait.Linear(2, 3, rngs=rngs)])",
        ArgumentError,
        "out_features",
        "plait.Stack([plait.Linear(2, 2, rngs=rngs), plait.Linear(2, 2, rngs=rngs)])",
    ),
    "blocks of a stack whose arrays differ": Row(
        "plait.Stack([plait.Dict(a=plait.Param(jnp.ones(2))), plait.Dict(a=plait.Param(jnp.ones(3)))])",
        ArgumentError,
        r"float32\(2,\) and float32\(3,\)",
        "plait.Stack([plait.Dict(a=plait.Param(jnp.ones(2))), plait.Dict(a=plait.Param(jnp.ones(2)))])",
    ),
    "a loop over equal blocks": Row(
        "plait.jit(lambda model, x: model(x))(model, x)",
        UnrolledLoopWarning,
        (r"at +blocks \(8 of Linear\)", "about 1/8", r"instead of the loop: x = self\.blocks\(x\)"),
        cure="assert jnp.allclose($(x), model(x))",
        fix="plait.as_stack(model, 'blocks')",
        setup=LOOP,
    ),
}
