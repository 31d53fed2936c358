import jax
import jax.numpy as jnp
from flax import nnx

nnx.use_eager_sharding(False)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_metadata(nnx.initializers.lecun_normal(), out_sharding=("in", "out"))
        self.kernel = nnx.Param(init(rngs.params(), (4, 8)))
        self.bias = nnx.Param(jnp.zeros(8), out_sharding=("out",))

    def __call__(self, x):
        return x @ self.kernel[...] + self.bias[...]


mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
model = Layer(nnx.Rngs(0))
print(model.kernel.out_sharding, model.bias.out_sharding)
specs = nnx.get_partition_spec(nnx.state(model))
print(specs["kernel"].get_value() == jax.sharding.PartitionSpec("in", "out"))
with nnx.logical_axis_rules([("in", None), ("out", "model")]):
    print(nnx.get_partition_spec(nnx.state(model))["kernel"].get_value())


@nnx.jit
def place():
    model = Layer(nnx.Rngs(0))
    with nnx.logical_axis_rules([("in", None), ("out", "model")]), mesh:
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


print(float(place()(jnp.ones((2, 4))).sum()))
stack = nnx.vmap(lambda key: Layer(nnx.Rngs(params=key)), transform_metadata={nnx.PARTITION_NAME: "layers"})(
    jax.random.split(jax.random.key(0), 3)
)
print(stack.kernel.out_sharding, stack.kernel.shape)
