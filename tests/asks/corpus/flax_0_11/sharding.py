import jax
import jax.numpy as jnp
from flax import nnx

if hasattr(nnx, "use_eager_sharding"):
    nnx.use_eager_sharding(False)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), sharding=("in", "out"))
        self.kernel = nnx.Param(init(rngs.params(), (4, 8)))
        self.bias = nnx.Param(jnp.zeros(8), sharding=("out",))

    def __call__(self, x):
        return x @ self.kernel.value + self.bias.value


mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
model = Layer(nnx.Rngs(0))
print(model.kernel.sharding_names, model.bias.sharding_names)
specs = nnx.get_partition_spec(nnx.state(model))
print(specs["kernel"].value == jax.sharding.PartitionSpec("in", "out"))
with nnx.logical_axis_rules([("in", None), ("out", "model")]):
    print(nnx.get_partition_spec(nnx.state(model)).kernel.value)


@nnx.jit
def place():
    model = Layer(nnx.Rngs(0))
    with nnx.logical_axis_rules([("in", None), ("out", "model")]), mesh:
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


print(float(place()(jnp.ones((2, 4))).sum()))


@nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
def create(key):
    return Layer(nnx.Rngs(params=key))


stack = create(jax.random.split(jax.random.key(0), 3))
print(stack.kernel.sharding_names, stack.kernel.value.shape)
