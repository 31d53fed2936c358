"""Mistakes with metrics."""

from plait.errors import ArgumentError, ArgumentTypeError, ShapeError

from .rows import Row

TRAINING = """
from plait.training import *
make_iterator = lambda epoch: iter([1.0])
"""

ROWS = {
    "a mask of another length": Row(
        "plait.metrics.Average().update(values=jnp.ones(3), mask=jnp.ones(2))",
        ShapeError,
        fix="jnp.ones((3,), bool)",
        cure="plait.metrics.Average().update(values=jnp.ones(3), mask=$)",
        setup=TRAINING,
        text="""
            the mask of a metric does not fit its values
              found     a mask of shape (2,)
              expected  a shape that broadcasts to that of the values, (3,)
              do        pass one entry for each value: jnp.ones((3,), bool)
        """,
    ),
    "early stopping in no direction": Row(
        "EarlyStop('loss', patience=3, mode='minimize')",
        ArgumentError,
        fix="EarlyStop('eval/loss', patience=3, mode='min')",
        setup=TRAINING,
        text="""
            early stopping needs a direction and some patience
              at        EarlyStop
              found     mode='minimize', patience=3
              expected  mode 'min' or 'max', and a patience of 1 or more
              do        EarlyStop('eval/loss', patience=3, mode='min')
        """,
    ),
    "early stopping without patience": Row(
        "EarlyStop('loss', patience=0)",
        ArgumentError,
        fix="EarlyStop('eval/loss', patience=3, mode='min')",
        setup=TRAINING,
        text="""
            early stopping needs a direction and some patience
              at        EarlyStop
              found     mode='min', patience=0
              expected  mode 'min' or 'max', and a patience of 1 or more
              do        EarlyStop('eval/loss', patience=3, mode='min')
        """,
    ),
    "neither classes nor a threshold": Row(
        "plait.metrics.Precision()",
        ArgumentError,
        fix="Precision(threshold=0.5)",
        cure="plait.metrics.$",
        setup=TRAINING,
        text="""
            Precision takes either num_classes or threshold
              found     num_classes=None and threshold=None
              expected  exactly one of the two
              do        for example Precision(10), or Precision(threshold=0.5) for two classes
        """,
    ),
    "classes and a threshold": Row(
        "plait.metrics.F1(2, threshold=0.5)",
        ArgumentError,
        fix="F1(10)",
        cure="plait.metrics.$",
        setup=TRAINING,
        text="""
            F1 takes either num_classes or threshold
              found     num_classes=2 and threshold=0.5
              expected  exactly one of the two
              do        for example F1(10), or F1(threshold=0.5) for two classes
        """,
    ),
    "half a class": Row(
        "plait.metrics.F1(2.5)",
        ArgumentTypeError,
        fix="F1(10)",
        cure="plait.metrics.$",
        setup=TRAINING,
        text="""
            the number of classes of an F1 must be an integer
              found     2.5 of type float
              expected  an int
              do        for example F1(10)
        """,
    ),
    "a threshold that is an integer": Row(
        "plait.metrics.Accuracy(threshold=1)",
        ArgumentTypeError,
        fix="Accuracy(threshold=0.5)",
        cure="plait.metrics.$",
        setup=TRAINING,
        text="""
            the threshold of an Accuracy must be a float
              found     1 of type int
              expected  a float for two classes, or None
              do        for example Accuracy(threshold=0.5)
        """,
    ),
    "no such average": Row(
        "plait.metrics.Recall(2, average='mean')",
        ArgumentError,
        cure="plait.metrics.Recall(2)",
        setup=TRAINING,
        text="""
            Recall does not have this kind of average
              found     average='mean'
              expected  'macro', 'micro', 'weighted', None
              do        omit it for the mean over classes
        """,
    ),
    "logits of other classes": Row(
        "plait.metrics.F1(4).update(logits=jnp.ones((2, 3)), labels=jnp.zeros(2, int))",
        ShapeError,
        fix="F1(3)",
        cure="plait.metrics.$.update(logits=jnp.ones((2, 3)), labels=jnp.zeros(2, int))",
        setup=TRAINING,
        text="""
            the logits do not match the number of classes
              at        an F1
              found     logits of shape (2, 3)
              expected  a last axis of 4 classes
              do        create the metric for them: F1(3)
        """,
    ),
    "labels with too many axes": Row(
        "plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=jnp.ones((3, 1), int))",
        ShapeError,
        fix="threshold=0.5",
        cure="plait.metrics.Accuracy($).update(logits=jnp.ones((3, 1)), labels=jnp.ones((3, 1), int))",
        setup=TRAINING,
        text="""
            For multi-class classification, the shapes of logits and labels do not match
              at        an Accuracy with threshold=None
              found     logits of shape (3, 3) and labels of shape (3, 1)
              expected  logits with one more axis than labels, the classes
              do        Accuracy takes one logit per label with threshold=0.5, and one per class without a threshold
        """,
    ),
    "labels of another size": Row(
        "plait.metrics.F1(3).update(logits=jnp.eye(3), labels=jnp.ones(2, int))",
        ShapeError,
        fix="threshold=0.5",
        cure="plait.metrics.F1($).update(logits=jnp.ones(2), labels=jnp.ones(2, int))",
        setup=TRAINING,
        text="""
            For multi-class classification, the shapes of logits and labels do not match
              at        an F1 with threshold=None
              found     logits of shape (3, 3) and labels of shape (2,)
              expected  logits with one more axis than labels, the classes
              do        F1 takes one logit per label with threshold=0.5, and one per class without a threshold
        """,
    ),
    "labels of two classes with too few axes": Row(
        "plait.metrics.Accuracy(threshold=0.25).update(logits=jnp.eye(3), labels=jnp.ones(3, int))",
        ShapeError,
        fix="threshold=0.5",
        cure="plait.metrics.Accuracy($).update(logits=jnp.ones(3), labels=jnp.ones(3, int))",
        setup=TRAINING,
        text="""
            For binary classification, the shapes of logits and labels do not match
              at        an Accuracy with threshold=0.25
              found     logits of shape (3, 3) and labels of shape (3,)
              expected  equal shapes
              do        Accuracy takes one logit per label with threshold=0.5, and one per class without a threshold
        """,
    ),
    "labels that are floats": Row(
        "plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=labels)",
        ShapeError,
        fix="labels.astype(jnp.int32)",
        cure="plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=$)",
        setup=TRAINING + "labels = jnp.ones(3)",
        text="""
            labels must be integers
              at        an Accuracy with threshold=None
              found     labels of dtype float32
              expected  an integer dtype
              do        convert them: labels.astype(jnp.int32)
        """,
    ),
    "no values for a metric": Row(
        "plait.metrics.Welford('loss').update(values=x, logits=x)",
        ArgumentTypeError,
        fix="argname=",
        cure="plait.metrics.Welford($'values').update(values=x)",
        setup=TRAINING,
        text="""
            Expected keyword argument 'loss': Welford.update was called without values
              found     the keywords ['logits', 'values']
              expected  the keyword 'loss'
              do        call update(loss=...), or pass the name that you use as argname= to the metric
        """,
    ),
    "a mask for a number": Row(
        "plait.metrics.Average('loss').update(loss=1.5, mask=jnp.array(True))",
        ArgumentError,
        fix="loss=jnp.asarray([1.5])",
        cure="plait.metrics.Average('loss').update($, mask=jnp.array(True))",
        setup=TRAINING,
        text="""
            Average.update was given a mask for a single number
              found     loss=1.5
              expected  an array of values, which the mask selects from
              do        pass an array: loss=jnp.asarray([1.5])
        """,
    ),
    "a metric called reset": Row(
        "plait.MultiMetric(reset=plait.metrics.Average())",
        ArgumentError,
        fix="MultiMetric(reset_metric=...)",
        cure="plait.MultiMetric(reset_metric=plait.metrics.Average())",
        setup=TRAINING,
        text="""
            a metric cannot have the name of a method of MultiMetric
              found     the name 'reset'
              expected  any other name
              do        for example MultiMetric(reset_metric=...)
        """,
    ),
}
