import jax
import jax.numpy as jnp
from flax import nnx


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("in", "out"))
        self.kernel = nnx.Param(init(rngs.params(), (4, 8)))
        self.bias = nnx.Param(jnp.zeros(8), sharding=("out",))

    def __call__(self, x):
        return x @ self.kernel + self.bias


mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
model = Layer(nnx.Rngs(0))
state = nnx.state(model)
print(state.kernel.get_metadata("sharding"), state.bias.get_metadata("sharding"))
specs = nnx.get_partition_spec(state)
print(specs.kernel.value == jax.sharding.PartitionSpec("in", "out"))
ruled = nnx.Param(jnp.zeros((4, 8)), sharding=("in", "out"), sharding_rules=(("in", None), ("out", "model")))
print(nnx.get_partition_spec(nnx.State({"kernel": ruled})).kernel.value)


@nnx.jit
def place():
    model = Layer(nnx.Rngs(0))
    for variable in (model.kernel, model.bias):
        variable.set_metadata(sharding_rules=(("in", None), ("out", "model")))
    state = nnx.state(model)
    with mesh:
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


print(float(place()(jnp.ones((2, 4))).sum()))


@nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
def create(key):
    return Layer(nnx.Rngs(params=key))


stack = create(jax.random.split(jax.random.key(0), 3))
print(stack.kernel.get_metadata("sharding"), stack.kernel.value.shape)
