import jax.numpy as jnp
from flax import nnx

metrics = nnx.MultiMetric(
    accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"), wf=nnx.metrics.Welford("w")
)


@nnx.jit
def evaluate(metrics, logits, labels):
    loss = -jnp.take_along_axis(nnx.log_softmax(logits), labels[:, None], axis=-1)
    metrics.update(logits=logits, labels=labels, loss=loss.mean(), w=logits[:, 0])


for step in range(3):
    logits = jnp.sin(jnp.arange(12.0) + step).reshape(4, 3)
    evaluate(metrics, logits, jnp.array([0, 1, 2, 0]))
found = metrics.compute()
print(round(float(found["accuracy"]), 5), round(float(found["loss"]), 5))
print(round(float(found["wf"].mean), 5), round(float(found["wf"].standard_deviation), 4))
metrics.reset()
evaluate(metrics, jnp.eye(3), jnp.arange(3))
print(float(metrics.compute()["accuracy"]), int(metrics.accuracy.count[...]))
