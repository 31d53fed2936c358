"""Mistakes with metrics."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
)

from .rows import Row

TRAINING = """
from plait.training import *
make_iterator = lambda epoch: iter([1.0])
"""

ROWS = {
    "a mask of another length": Row("plait.metrics.Average().update(values=jnp.ones(3), mask=jnp.ones(2))", ShapeError,
        r"found +a mask of shape \(2,\)"),
    "early stopping in no direction": Row("EarlyStop('loss', patience=3, mode='minimize')", ArgumentError,
        ("at +EarlyStop", "found +mode='minimize', patience=3"), setup=TRAINING),
    "early stopping without patience": Row("EarlyStop('loss', patience=0)", ArgumentError,
        ("at +EarlyStop", "found +mode='min', patience=0"), setup=TRAINING),
    "neither classes nor a threshold": Row("plait.metrics.Precision()", ArgumentError,
        ("found +num_classes=None and threshold=None", r"Precision\(threshold=0\.5\) for two")),
    "classes and a threshold": Row("plait.metrics.F1(2, threshold=0.5)", ArgumentError,
        r"found +num_classes=2 and threshold=0\.5"),
    "half a class": Row("plait.metrics.F1(2.5)", ArgumentTypeError, r"found +2\.5 of type float"),
    "a threshold that is an integer": Row("plait.metrics.Accuracy(threshold=1)", ArgumentTypeError,
        "found +1 of type int"),
    "no such average": Row("plait.metrics.Recall(2, average='mean')", ArgumentError, "found +average='mean'"),
    "logits of other classes": Row(
        "plait.metrics.F1(4).update(logits=jnp.ones((2, 3)), labels=jnp.zeros(2, int))",
        ShapeError,
        setup=TRAINING,
        fix="F1(3)",
        cure="plait.metrics.$.update(logits=jnp.ones((2, 3)), labels=jnp.zeros(2, int))",
        text="""
            the logits do not match the number of classes
              at        an F1
              found     logits of shape (2, 3)
              expected  a last axis of 4 classes
              do        create the metric for them: F1(3)
        """,
    ),
    "labels in a column": Row("plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=labels)", ShapeError,
        setup="labels = jnp.ones((3, 1), int)",
        fix="labels[..., 0]",
        cure="plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=$)",
        text="""
            For multi-class classification, the shapes of logits and labels do not match
              at        an Accuracy with threshold=None
              found     logits of shape (3, 3) and labels of shape (3, 1)
              expected  logits with one more axis than labels, the classes
              do        remove the last axis of the labels: labels[..., 0]
        """,
    ),
    "labels that are names": Row(
        "plait.metrics.Accuracy().update(logits=jnp.eye(2), labels=labels)",
        ArgumentTypeError,
        setup="labels, classes = ['dog', 'cat'], ['cat', 'dog']",
        fix="jnp.array([classes.index(label) for label in labels])",
        cure="plait.metrics.Accuracy().update(logits=jnp.eye(2), labels=$)",
        text="""
            the labels of a metric must be numbers
              at        an Accuracy
              found     labels of type list
              expected  an array, a list or a number
              do        convert them; names of classes: jnp.array([classes.index(label) for label in labels])
        """,
    ),
    "labels of another size": Row(
        "plait.metrics.F1(3).update(logits=jnp.eye(3), labels=jnp.ones(2, int))",
        ShapeError,
        setup=TRAINING,
        fix="threshold=0.5",
        cure="plait.metrics.F1($).update(logits=jnp.ones(2), labels=jnp.ones(2, int))",
        text="""
            For multi-class classification, the shapes of logits and labels do not match
              at        an F1 with threshold=None
              found     logits of shape (3, 3) and labels of shape (2,)
              expected  logits with one more axis than labels, the classes
              do        F1 takes one logit per label with threshold=0.5, or one per class; one-hot: labels.argmax(-1)
        """,
    ),
    "labels of two classes with too few axes": Row(
        "plait.metrics.Accuracy(threshold=0.25).update(logits=jnp.eye(3), labels=jnp.ones(3, int))", ShapeError,
        (r"at +an Accuracy with threshold=0\.25", r"found +logits of shape \(3, 3\) and labels of shape \(3,\)")),
    "labels that are floats": Row("plait.metrics.Accuracy().update(logits=jnp.eye(3), labels=labels)", ShapeError,
        ("at +an Accuracy with threshold=None", "found +labels of dtype float32"), setup="labels = jnp.ones(3)"),
    "no values for a metric": Row("plait.metrics.Welford('loss').update(values=x, logits=x)", ArgumentTypeError,
        r"found +the keywords \['logits', 'values'\]"),
    "a mask for a number": Row("plait.metrics.Average('loss').update(loss=1.5, mask=jnp.array(True))", ArgumentError,
        r"found +loss=1\.5"),
    "a metric called reset": Row("plait.MultiMetric(reset=plait.metrics.Average())", ArgumentError,
        "found +the name 'reset'"),
}  # fmt: skip
