"""metrax: its metrics for nnx, updated inside jit."""

import jax
import metrax.nnx as mx
from flax import nnx
from results import hand_over

x = jax.random.uniform(jax.random.key(0), (16,))
y = jax.random.uniform(jax.random.key(1), (16,))
labels = (y > 0.5).astype(int)
regression = nnx.MultiMetric(mse=mx.MSE(), rmse=mx.RMSE(), mae=mx.MAE(), r2=mx.RSQUARED())
classification = nnx.MultiMetric(precision=mx.Precision(), recall=mx.Recall(), auc=mx.AUCROC())
average = mx.Average()


@nnx.jit
def update(regression, classification, average):
    regression.update(predictions=x, labels=y)
    classification.update(predictions=x, labels=labels)
    average.update(values=x)


update(regression, classification, average)
update(regression, classification, average)
results = {**regression.compute(), **classification.compute(), "average": average.compute()}
average.reset()
average.update(values=x[:1])
hand_over(after_reset=average.compute(), **results)
