"""flax-metrics: classification, ranking and regression, one update at a time and as one metric."""

import flax_metrics as fm
import jax
import jax.numpy as jnp
from flax import nnx
from results import hand_over

key = jax.random.key(0)
logits = jax.random.normal(key, (3, 8))
labels = jax.random.bernoulli(jax.random.key(1), shape=(3, 8)).astype(int)
mask = jax.random.bernoulli(jax.random.key(2), 0.7, (3, 8))

results = {}
for metric in (fm.Accuracy(threshold=0.0), fm.Precision(), fm.Recall(), fm.F1Score(), fm.LogProb()):
    metric.update(logits=logits[0], labels=labels[0])
    metric.update(logits=logits[1], labels=labels[1], mask=mask[1])
    results[type(metric).__name__] = metric.compute()
for metric in (fm.MeanSquaredError(), fm.RootMeanSquaredError(), fm.MeanAbsoluteError()):
    metric.update(target=logits[0], prediction=logits[1])
    results[type(metric).__name__] = metric.compute()
for metric in (fm.NDCG(), fm.MeanReciprocalRank(), fm.MeanAveragePrecision(), fm.PrecisionAtK(2), fm.RecallAtK(2)):
    metric.update(scores=logits, labels=labels)
    results[type(metric).__name__] = metric.compute()
together = nnx.MultiMetric(loss=fm.Average(), spread=fm.Welford(), ranking=fm.NDCG())
assert isinstance(together.loss, nnx.metrics.Metric)


@nnx.jit
def update(metrics, values):
    metrics.update(values=values, scores=logits, labels=labels)


update(together, logits)
update(together, logits + 1)
for name, value in together.compute().items():
    for part, number in enumerate(jax.tree.leaves(value)):
        results[f"{name}_{part}"] = number
together.reset()
results["reset"] = jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(nnx.state(together))])
hand_over(**results)
