"""Serving a published decoder: a batch at once, and requests that arrive at random, beside ``transformers`` in PyTorch.

Both read the same folder, a small Llama with random weights, and give the same greedy tokens. PyTorch and
``transformers`` are looked for in the interpreter that ``PLAIT_TORCH_PYTHON`` names, which runs a process of its own;
the two take turns, so neither computes while the other is timed.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from .table import Table

VOCABULARY, WIDTH, BLOCKS = 512, 128, 4
BATCH, PROMPT, NEW = 4, 16, 128
OTHER = """
import json, sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
torch.set_num_threads(2)
folder, vocabulary, width, blocks = sys.argv[1], *map(int, sys.argv[2:])
config = LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=blocks,
    num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None,
    pad_token_id=0, initializer_range=0.2)
model = LlamaForCausalLM(config).eval()
model.save_pretrained(folder)
print(json.dumps("saved"), flush=True)
class First:
    def __init__(self):
        self.calls = []
    def put(self, tokens):
        self.calls.append(time.perf_counter())
    def end(self):
        pass
for line in sys.stdin:
    prompts, count = json.loads(line)
    first, started = First() if len(prompts) == 1 else None, time.perf_counter()
    tokens = torch.tensor(prompts)
    with torch.no_grad():
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count,
            min_new_tokens=count, do_sample=False, streamer=first)
    ended = time.perf_counter()
    begun = first.calls[1] - started if first else 0.0
    print(json.dumps([out[:, tokens.shape[1]:].tolist(), begun, ended - started]), flush=True)
"""

# prompts, how many new tokens → the tokens, seconds to the first one, seconds
Serve = Callable[[list[list[int]], int], tuple[list[list[int]], float, float]]


def run(*, quick: bool = False) -> Iterator[Table]:
    """A table for a batch, and one for requests."""
    python = os.environ.get("PLAIT_TORCH_PYTHON")
    table = Table("serving", ["what", "plait", "transformers", "plait / transformers"])
    if python is None:
        table.remarks.append("PLAIT_TORCH_PYTHON names no interpreter with torch and transformers: left out.")
        yield table
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", OTHER, folder, *map(str, (VOCABULARY, WIDTH, BLOCKS))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

            def told() -> Any:
                assert process.stdout is not None
                return json.loads(process.stdout.readline())

            def other(prompts: list[list[int]], count: int) -> Any:
                assert process.stdin is not None
                print(json.dumps([prompts, count]), file=process.stdin, flush=True)
                return told()

            told()
            yield from _tables(_plait(folder), other, quick)
            assert process.stdin is not None
            process.stdin.close()


def _plait(folder: str) -> Serve:
    import numpy as np

    import plait

    model = plait.models.load(folder)

    def serve(prompts: list[list[int]], count: int) -> Any:
        started, first, steps = time.perf_counter(), 0.0, []
        if len(prompts) > 1:
            tokens = np.asarray(plait.generate(model, np.asarray(prompts), count).tokens).tolist()
        else:
            for step in plait.generation.stream(model, np.asarray(prompts), count, steps=8):
                first = first or time.perf_counter() - started
                steps.append(step)
            tokens = [[int(token) for step in steps for token in step[0]]]
        return tokens, first, time.perf_counter() - started

    return serve


def _tables(plait: Serve, other: Serve, quick: bool) -> Iterator[Table]:
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(1, VOCABULARY) for _ in range(length)]

    prompts, turns = [prompt(PROMPT) for _ in range(BATCH)], 2 if quick else 7
    same = plait(prompts, NEW)[0] == other(prompts, NEW)[0]
    pairs = [(plait(prompts, NEW)[2], other(prompts, NEW)[2]) for _ in range(turns)]
    table = Table(f"a batch of {BATCH}, {NEW} new tokens each", ["what", "plait", "transformers", "ratio"])
    rates = [[BATCH * NEW / seconds for seconds in each] for each in zip(*pairs, strict=True)]
    ratio = statistics.median(a / b for a, b in zip(*rates, strict=True))
    table.rows.append(["tokens per second", *map(statistics.median, rates), ratio])
    table.remarks.append("The tokens are the same." if same else "The tokens differ.")
    yield table

    requests, at = [], 0.0
    for _ in range(4 if quick else 60):
        at += draw.expovariate(1 / 0.15)
        requests.append((at, prompt(draw.randrange(8, 65)), draw.randrange(16, 65)))
    title = f"{len(requests)} requests, one after another, that arrive at random: every 0.15 s"
    table = Table(title, ["what", "plait", "transformers", "ratio"])
    for serve in (plait, other):  # compiles, and fills caches
        for _, tokens, count in requests:
            serve([tokens], count)
    found = [_served(serve, requests) for serve in (plait, other)]
    for number, what in enumerate(
        ("s until the first token, median", "s until the first, of ten the slowest", "tokens per second")
    ):
        a, b = (each[number] for each in found)
        table.rows.append([what, a, b, a / b])
    yield table


def _served(serve: Serve, requests: list[tuple[float, list[int], int]]) -> tuple[float, float, float]:
    """Each request waits until it has arrived and those before are done. Time is added up, not slept."""
    now, waits, count = 0.0, [], 0
    for arrived, tokens, new in requests:
        now = max(now, arrived)
        _, first, seconds = serve([tokens], new)
        waits.append(now + first - arrived)
        now, count = now + seconds, count + new
    return statistics.median(waits), sorted(waits)[int(0.9 * len(waits))], count / now
