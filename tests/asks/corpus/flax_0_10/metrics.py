import jax
import jax.numpy as jnp
from flax import nnx


class EvalState(nnx.Module):
    def __init__(self):
        self.metrics = nnx.MultiMetric(
            accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"), wf=nnx.metrics.Welford("w")
        )


evaluation = EvalState()
graphdef, state = nnx.split(evaluation)


@jax.jit
def evaluate(state, logits, labels):
    evaluation = nnx.merge(graphdef, state)
    loss = -jnp.take_along_axis(nnx.log_softmax(logits), labels[:, None], axis=-1)
    evaluation.metrics.update(logits=logits, labels=labels, loss=loss.mean(), w=logits[:, 0])
    return nnx.split(evaluation)[1]


for step in range(3):
    logits = jnp.sin(jnp.arange(12.0) + step).reshape(4, 3)
    state = evaluate(state, logits, jnp.array([0, 1, 2, 0]))
nnx.update(evaluation, state)
found = evaluation.metrics.compute()
print(round(float(found["accuracy"]), 5), round(float(found["loss"]), 5))
print(round(float(found["wf"].mean), 5), round(float(found["wf"].standard_deviation), 4))
evaluation.metrics.reset()
state = evaluate(nnx.state(evaluation), jnp.eye(3), jnp.arange(3))
nnx.update(evaluation, state)
print(float(evaluation.metrics.compute()["accuracy"]), int(evaluation.metrics.accuracy.count.value))
