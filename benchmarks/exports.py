"""Exports: what a call of an exported model costs beside the jitted model, and what writing it takes.

All in one process, interleaved: the StableHLO bundle runs in JAX, the SavedModel in TensorFlow on the same cores. The
last table sets plait's SavedModel beside that of Orbax Export, where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plait

from .table import Table

BUDGET = 1.05
BATCHES = (1, 32, 256)


class Classifier(plait.Module):
    """Two convolutions and two layers for images of 28×28."""

    def __init__(self, width: int) -> None:
        rngs = plait.Rngs(0)
        self.conv1 = plait.Conv(1, width, (3, 3), rngs=rngs)
        self.conv2 = plait.Conv(width, width, (3, 3), rngs=rngs)
        self.hidden = plait.Linear(7 * 7 * width, 8 * width, rngs=rngs)
        self.head = plait.Linear(8 * width, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for conv in (self.conv1, self.conv2):
            x = plait.max_pool(plait.relu(conv(x)), (2, 2), (2, 2))
        return self.head(plait.relu(self.hidden(x.reshape(x.shape[0], -1))))


def run(*, quick: bool = False) -> Iterator[Table]:
    """Latency; then seconds and bytes of writing."""
    model = Classifier(4 if quick else 32)
    compiled = plait.jit(lambda model, x: model(x))
    with tempfile.TemporaryDirectory() as folder:
        written = _written(model, Path(folder))
        calls: dict[str, Callable[[Any], Any]] = {"jitted model": lambda x: compiled(model, x).block_until_ready()}
        loaded = plait.export.load(written["stablehlo"])
        calls["StableHLO"] = lambda x: loaded(x).block_until_ready()
        if "saved_model" in written:
            tf = importlib.import_module("tensorflow")
            kept = tf.saved_model.load(os.fspath(written["saved_model"]))
            signature = kept.signatures["serving_default"]
            calls["SavedModel"] = lambda x: signature(x=tf.constant(x))["y"].numpy()
            by_hand, add_one = _in_tensorflow(tf, model, folder)
            calls["SavedModel, written in TensorFlow"] = lambda x: by_hand(x=tf.constant(x))["y"].numpy()
            calls["SavedModel of x + 1"] = lambda x: add_one(x=tf.constant(x[:, :1, :1]))["y"].numpy()
        table = Table(
            "exports: time of a call relative to the jitted model (medians of interleaved rounds)",
            ["contender", *(f"batch {batch}" for batch in BATCHES), "ms at each"],
            remarks=[f"Budget: {BUDGET:.2f}."],
        )
        columns = [_latencies(calls, batch, 3 if quick else 200) for batch in BATCHES]
        for name in calls:
            ratios = [
                statistics.median(a / b for a, b in zip(c[name], c["jitted model"], strict=True)) for c in columns
            ]
            times = ", ".join(f"{statistics.median(column[name]):.3f}" for column in columns)
            table.rows.append([name, *ratios, times])
        yield table
        yield _writing(model)


def _in_tensorflow(tf: Any, model: Any, folder: str) -> tuple[Any, Any]:
    """The same network in TensorFlow's own operations, and the least that a signature can do; both saved and loaded."""
    layers = [model.conv1, model.conv2, model.hidden, model.head]
    pairs = [tuple(tf.Variable(np.asarray(v[...])) for v in (layer.kernel, layer.bias)) for layer in layers]

    def network(x: Any) -> dict[str, Any]:
        for kernel, bias in pairs[:2]:
            x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias), 2, 2, "VALID")
        (hidden, hidden_bias), (head, head_bias) = pairs[2:]
        x = tf.reshape(x, (-1, hidden.shape[0]))
        return {"y": tf.nn.relu(x @ hidden + hidden_bias) @ head + head_bias}

    found = []
    for name, function, shape in (
        ("by_hand", network, (None, 28, 28, 1)),
        ("add_one", lambda x: {"y": x + 1.0}, (None, 1, 1, 1)),
    ):
        module = tf.Module()
        module.pairs = pairs
        concrete = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape, name="x"))
        tf.saved_model.save(module, os.path.join(folder, name), signatures=concrete)
        loaded = tf.saved_model.load(os.path.join(folder, name))
        signature = loaded.signatures["serving_default"]
        signature.owner = loaded
        found.append(signature)
    return found[0], found[1]


def _written(model: Any, folder: Path) -> dict[str, Path]:
    formats = ["stablehlo"]
    if importlib.util.find_spec("tensorflow"):
        formats.append("saved_model")
    return plait.export.save(model, folder / "model", inputs=("batch", 28, 28, 1), formats=formats)


def _latencies(calls: dict[str, Callable[[Any], Any]], batch: int, rounds: int) -> dict[str, list[float]]:
    host = np.random.default_rng(0).normal(size=(batch, 28, 28, 1)).astype(np.float32)
    inputs = {name: host if name.startswith("SavedModel") else jnp.asarray(host) for name in calls}
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for name in order:
        calls[name](inputs[name])
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            start = time.perf_counter()
            calls[name](inputs[name])
            times[name].append((time.perf_counter() - start) * 1_000)
    return times


def _writing(model: Any) -> Table:
    table = Table(
        "exports: writing a SavedModel with a dynamic batch size", ["contender", "seconds", "MB", "MB of weights"]
    )
    graphdef, state = plait.split(model)
    params = plait.to_pure_dict(state)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e6

    def apply(params: Any, x: Any) -> Any:
        return plait.merge(graphdef, params)(x)

    def by_plait(path: str) -> None:
        plait.export.save(model, path, inputs=("batch", 28, 28, 1), formats=["saved_model"])

    def by_orbax(path: str) -> None:
        tf = importlib.import_module("tensorflow")
        export = importlib.import_module("orbax.export")
        module = export.JaxModule(params, apply, input_polymorphic_shape="b, ...")
        spec = [tf.TensorSpec((None, 28, 28, 1), tf.float32, name="x")]
        config = export.ServingConfig("serving_default", input_signature=spec, tf_postprocessor=lambda y: {"y": y})
        export.ExportManager(module, [config]).save(path)

    for name, write, package in (("plait", by_plait, "tensorflow"), ("Orbax Export", by_orbax, "orbax.export")):
        try:
            importlib.import_module(package)
        except ImportError:
            table.rows.append([name, "not installed", "-", weights])
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(os.path.join(folder, "warm"))
            start = time.perf_counter()
            write(os.path.join(folder, "model"))
            seconds = time.perf_counter() - start
            files = [file for file in Path(folder, "model").rglob("*") if file.is_file()]
            table.rows.append([name, seconds, sum(file.stat().st_size for file in files) / 1e6, weights])
    return table
