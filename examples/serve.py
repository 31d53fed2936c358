"""Train a classifier, export it as StableHLO, and answer requests over HTTP from the exported file.

    python examples/serve.py --port 8000
    curl -d '{"x": [[0, 0, 5, 13, ...]]}' http://127.0.0.1:8000

The server does not need the model's code: it reads the folder that ``plait.export.save`` wrote. It uses the data of
``digits.py``.
"""

from __future__ import annotations

import argparse
import http.server
import json
import threading
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, digits

import plait


class Classifier(plait.Module):
    """``(batch, 64)`` → logits ``(batch, 10)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.hidden = plait.Linear(64, width, rngs=rngs)
        self.out = plait.Linear(width, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(plait.relu(self.hidden(x)))


@plait.jit
def train_step(model: Classifier, optimizer: plait.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def train(epochs: int) -> Classifier:
    images, labels = digits()
    model = Classifier(64, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(3e-3), wrt=plait.Param)
    for epoch in range(epochs):
        for x, y in batches(images[:1440].reshape(-1, 64), labels[:1440], 48, epoch):
            train_step(model, optimizer, jnp.asarray(x), jnp.asarray(y))
    return model


def server(apply: Callable[..., Any], port: int) -> http.server.ThreadingHTTPServer:
    """A server that takes ``{"x": rows}`` and returns ``{"digits": [...]}``; port 0 means any free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                rows = np.asarray(body["x"], np.float32)
                if rows.ndim != 2 or rows.shape[1] != 64:
                    raise ValueError(f"x must be rows of 64 numbers, but has the shape {rows.shape}")
                status, answer = 200, {"digits": np.asarray(apply(rows)).argmax(-1).tolist()}
            except (KeyError, TypeError, ValueError) as error:
                status, answer = 400, {"error": str(error)}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)


def ask(address: str, rows: np.ndarray) -> list[int]:
    """A client's request."""
    body = json.dumps({"x": rows.tolist()}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as answer:
        return json.load(answer)["digits"]


def main(argv: Sequence[str] | None = None) -> float:
    """Train, export and serve. Without a port, query the server with unseen digits, and return the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("runs/serve"))
    parser.add_argument("--port", type=int, default=0, help="serve there until Ctrl-C")
    options = parser.parse_args(argv)

    model = train(options.epochs)
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    plait.export.save(model, options.folder, inputs=("batch", 64), formats=["stablehlo"], overwrite=True)
    with server(plait.export.load(options.folder), options.port) as serving:
        address = f"http://127.0.0.1:{serving.server_port}"
        print(f"serving {options.folder} at {address}")
        if options.port:
            serving.serve_forever()
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            images, labels = digits()
            answers = ask(address, images[1440:].reshape(-1, 64))
        finally:
            serving.shutdown()
            thread.join()
    right = float(np.mean(np.array(answers) == labels[1440:]))
    print(f"{right:.3f} of {len(answers)} answers are correct")
    return right


if __name__ == "__main__":
    main()
