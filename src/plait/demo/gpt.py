"""``plait demo gpt``: a transformer trained on the source of Python's standard library, against compressors.

It is a training run as you would write it: ``fit`` with checkpoints, a schedule, an exponential moving average of the
weights, a held-out text, and at the end a table, a figure and a sample. The model is in ``byte_gpt.py``.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.keep import Keep
from ..core.functional.split import state
from ..core.objects.rngs import Rngs
from ..core.objects.variable_kinds import Param
from ..errors import MissingDependencyError, UnrolledLoopWarning
from ..ground.whole_writes import write_whole
from ..training.batches import Batches
from ..training.ema import EMA
from ..training.loggers import JsonLines
from ..training.loop import fit
from ..training.optimizer import Optimizer
from ..training.run import FitResult
from .byte_gpt import HISTORY, SIZES, ByteGPT, bits_per_byte, train_step, written
from .compression import ngram_bits, xz_bits
from .corpus import Corpus, load_corpus, windows
from .figures import BITS, save_bits
from .runs import CHECKPOINTS, METRICS, OPTIONS, check_own, not_writable, other_options, stored_options
from .table import print_table

SAMPLE = "sample.txt"
WARM_UP = 50  # steps
EMA_DECAY = 0.95
GLANCE = 1 << 15  # bytes of the held-out text that are used for evaluation during training
PROMPT = b"def read_lines(path):\n    "


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of ``plait demo gpt``."""

    output: Path = Path("runs/gpt")
    size: str = "small"
    steps: int | None = None  # None means the number for the size
    bf16: bool = False
    seed: int = 0
    resume: bool = False
    sample: int = 600  # bytes

    @property
    def all_steps(self) -> int:
        return SIZES[self.size].steps if self.steps is None else self.steps


class Learner:
    """All objects that training changes, made from the options alone."""

    def __init__(self, options: Options) -> None:
        size = SIZES[options.size]
        rate = optax.warmup_cosine_decay_schedule(
            0.0, size.learning_rate, WARM_UP, max(options.all_steps, WARM_UP + 1), size.learning_rate / 20
        )
        rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.99, weight_decay=0.01))
        self.model = ByteGPT(size, jnp.bfloat16 if options.bf16 else jnp.float32, rngs=Rngs(options.seed))
        self.optimizer = Optimizer(self.model, rule, wrt=Param)
        self.ema = EMA(self.model, EMA_DECAY, only=Param)

    def objects(self) -> dict[str, Any]:
        """The contents of a checkpoint."""
        return {"model": self.model, "optimizer": self.optimizer, "ema": self.ema}

    def averaged(self) -> ByteGPT:
        """The model with its averaged weights."""
        return self.ema.apply_to(self.model)


def run(options: Options, corpus: Corpus | None = None) -> int:
    """Train, evaluate, compare, plot and sample. Returns the exit status, which names the signal if one ended the run.

    Raises:
        ArgumentError: an option has an invalid value, or the output folder is that of another run.
        CheckpointError: the run cannot resume from its checkpoints.
    """
    corpus = load_corpus() if corpus is None else corpus
    learner = Learner(options)
    _prepare(options)
    begin = time.perf_counter()
    warnings.filterwarnings("ignore", category=UnrolledLoopWarning)  # the loop over blocks is intended
    fitted = _train(learner, corpus, options)
    seconds = time.perf_counter() - begin
    if fitted.reason != "steps":
        print(f"\nplait: {fitted.reason} after step {fitted.step}; resume with: {_command(options)}", file=sys.stderr)
        return fitted.exit_status

    size = SIZES[options.size]
    model = learner.averaged()
    bits = bits_per_byte(model, corpus.held_out)
    others = {
        "bigram model": ngram_bits(corpus.train, corpus.held_out, 2),
        "5-gram model": ngram_bits(corpus.train, corpus.held_out, 5),
        "xz -9": xz_bits(corpus.held_out),
    }
    sample = written(model, PROMPT, count=options.sample, seed=options.seed)
    write_whole(options.output / SAMPLE, sample)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state(model, Param)))
    read = fitted.step * size.batch * size.length
    print_table(
        "plait demo gpt",
        [
            ("text", f"{len(corpus.train):,} bytes of {corpus.files[0]} files; held out: {len(corpus.held_out):,}"),
            ("model", f"{parameters:,} parameters, {size.blocks} blocks of width {size.width}"),
            ("training", f"{fitted.step:,} steps, {read:,} bytes, {seconds:.0f} s in this process"),
            *((name, f"{value:.3f} bits per held-out byte") for name, value in others.items()),
            ("plait", f"{bits:.3f} bits per held-out byte"),
            ("figure", _draw(options.output, bits, others)),
            ("sample", f"{options.output / SAMPLE}: {_first_lines(sample)}"),
        ],
    )
    return 0


def _prepare(options: Options) -> None:
    """Prepare the folder: an earlier run in it is replaced, or resumed if it has the same options.

    Raises:
        ArgumentError: it has files under the names of a run's that no run wrote, or it is not writable.
        CheckpointError: it is to be resumed, but has other options.
    """
    kept = {"size": options.size, "steps": options.all_steps, "bf16": options.bf16, "seed": options.seed}
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        check_own(options.output, kept, (METRICS, SAMPLE, BITS, CHECKPOINTS))
        before = stored_options(options.output)
        if options.resume and before not in (None, kept):
            raise other_options(options.output, before, kept)
        if not options.resume:
            for name in (METRICS, SAMPLE, BITS):
                (options.output / name).unlink(missing_ok=True)
            shutil.rmtree(options.output / CHECKPOINTS, ignore_errors=True)
        write_whole(options.output / OPTIONS, json.dumps(kept).encode())
    except OSError as error:
        raise not_writable(options.output, error) from error


def _train(learner: Learner, corpus: Corpus, options: Options) -> FitResult:
    size = SIZES[options.size]

    def one_pass(epoch: int) -> Any:
        seed = options.seed * 1_000 + epoch
        return windows(corpus.train, batch=size.batch, length=size.length, history=HISTORY, seed=seed)

    def evaluate() -> dict[str, float]:
        return {"bits": bits_per_byte(learner.averaged(), corpus.held_out[:GLANCE])}

    def step(model: ByteGPT, optimizer: Optimizer, ema: EMA, text: Any) -> dict[str, jax.Array]:
        return {"bits": train_step(model, optimizer, ema, text)}

    with Checkpoints(options.output / CHECKPOINTS, keep=Keep(last=2)) as checkpoints:
        return fit(
            step,
            learner.objects(),
            Batches(one_pass),
            steps=options.all_steps,
            checkpoints=checkpoints,
            save_every=200,
            evaluate=evaluate,
            evaluate_every=100,
            log_every=20,
            loggers=[JsonLines(options.output / METRICS)],
        )


def _draw(folder: Path, bits: float, others: dict[str, float]) -> str:
    rows = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    try:
        save_bits(folder / BITS, rows, {**others, "plait": bits})
    except MissingDependencyError as error:
        return f"skipped; to enable it: {error.parts['do']}"
    return str(folder / BITS)


def _first_lines(sample: bytes) -> str:
    lines = [line for line in sample.decode("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(line.strip() for line in lines[:3])


def _command(options: Options) -> str:
    words = ["plait", "demo", "gpt", "--resume", "--output", str(options.output), "--size", options.size]
    words += [] if options.steps is None else ["--steps", str(options.steps)]
    return shlex.join([*words, "--seed", str(options.seed), *["--bf16"] * options.bf16])
