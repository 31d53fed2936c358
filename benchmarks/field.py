"""Ten public complaints about the libraries of this field, as programs in Flax NNX, plait and plain JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import field_programs as programs
from .measure import QUICK, Effort, compare
from .table import Table, versions

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "field.md"
# The titles of the columns, and the modules with which the programs run.
LIBRARIES = {"Flax NNX": "flax.nnx", "Flax NNX, tree mode": "flax.nnx", "plait": "plait", "plain JAX": None}
INTRODUCTION = """\
<!-- Written by `python -m benchmarks field --write`: change benchmarks/field.py instead. -->

# Ten complaints, as programs

Public complaints about JAX's libraries, each asked again of a program that Flax NNX and plait both run, and of the same
in plain JAX ([the programs](../benchmarks/field_programs.py)). The sources only say where a question comes from. Run by
`python -m benchmarks field`, or one alone with what its table begins with, under {made_with},
on CPUs. Times are medians with quartiles; the rest is exact. An error is shown by its class, and by the path that its
text has.

plait gives what plain JAX gives, within a few bytes, or an error, and takes a little more host time. It is no better
than Flax where a step is donated, where branches or activations are made anew, in the arrays of a clone that are
written, or when the random state was not saved. Flax's tree mode, which has no shared objects, does as well in scans
that read, with captured models, memory and eager branches. A state in `jax.jit` is a pytree of variables, and takes
longer than the model in `plait.jit`.

"""


@dataclasses.dataclass(frozen=True)
class Complaint:
    """What is asked, and the programs that answer.

    Attributes:
        name: for ``--steps``.
        question: the title of its table.
        source: where it was made, and what is to be said of the answer.
        rows: what each value is that a program returns.
        objects: the program of Flax NNX and plait; it gets the module of one of them.
        plain: the program in plain JAX.
    """

    name: str
    question: str
    source: str
    rows: tuple[str, ...]
    objects: Callable[..., list[Any]]
    plain: Callable[..., list[Any]]


COMPLAINTS = (
    Complaint(
        "decode",
        "How long does the host take for a decoding step with 1,000 variables?",
        "tpu-inference, issue 2607. Relative to `jax.jit` on flat lists.",
        ("`jit`", "`cached_partial`", "its state in `jax.jit`", "its values, flat", "bytes that `jit` returns"),
        programs.decode_objects,
        programs.decode_plain,
    ),
    Complaint(
        "scan",
        "Does a scan return the parameters that it only reads?",
        "MaxText: 12.7 GiB of 671 billion parameters. Here six layers have 98,304 bytes.",
        (
            "bytes stacked by the forward scan of a gradient, with `remat`",
            "bytes that a jitted forward pass returns",
        ),
        programs.scan_objects,
        programs.scan_plain,
    ),
    Complaint(
        "captured",
        "Can the body of a scan use a model that it captures?",
        "Flax, issue 4871. A body that only reads should give 3.0.",
        ("reads it", "reads it in a `remat`", "writes a statistic"),
        programs.captured_objects,
        programs.captured_plain,
    ),
    Complaint(
        "memory",
        "How much memory does a training step need?",
        "Flax, issue 5116. Peak bytes of a compiled Adam step, by XLA.",
        ("donated", "not donated", "one of four layers trained, donated", "one of four layers trained, not donated"),
        programs.memory_objects,
        programs.memory_plain,
    ),
    Complaint(
        "cond",
        "Does an eager `cond` trace its branches again?",
        "Flax, issue 5512. Traces of one branch in five calls.",
        ("the same functions", "functions made anew in each call"),
        programs.cond_objects,
        programs.cond_plain,
    ),
    Complaint(
        "clone",
        "Does a clone survive the donation of its original?",
        "Flax, issue 5461. The step writes the kernel and not the bias.",
        ("deleted arrays of the clone", "with `arrays=True`", "passed beside its donated original"),
        programs.clone_objects,
        programs.clone_plain,
    ),
    Complaint(
        "retrace",
        "Are models of equal structure traced again?",
        "Flax, issue 5548. Traces for three objects, each made anew.",
        ("`Linear(4, 4)`", "`Optimizer(…, optax.adam(1e-3))`", "`functools.partial` as an activation"),
        programs.retrace_objects,
        programs.retrace_plain,
    ),
    Complaint(
        "intermediates",
        "Are intermediates lost in a scan?",
        "What `capture` returns of a value sown in three iterations. In plain JAX the body returns it.",
        ("stacked layers", "one layer, an axis for `Intermediate`", "one layer, axis `None`"),
        programs.intermediates_objects,
        programs.intermediates_plain,
    ),
    Complaint(
        "axes",
        "What if the stacked axis has two names?",
        "Axis names, in a scan, of kernels of two axes stacked as `layers`; in plain JAX those of their sharding.",
        ("the scan says `layers`", "it says nothing", "it says `blocks`"),
        programs.axes_objects,
        programs.axes_plain,
    ),
    Complaint(
        "resume",
        "Does a resumed run draw the same dropout masks?",
        "Losses equal, bit for bit, to those of a run without a break. Files of Orbax; in the last row plait's own.",
        ("all state saved", "all but the random state", "all restored from a file without it"),
        programs.resume_objects,
        programs.resume_plain,
    ),
)


def run(*, quick: bool = False, steps: Sequence[str] = (), write: bool = False) -> Iterator[Table]:
    """One table for each complaint; ``steps`` names some of them, ``write`` puts all into ``docs/field.md``."""
    tables = []
    for complaint in COMPLAINTS:
        if not steps or complaint.name in steps:
            tables.append(measured(complaint, quick))
            yield tables[-1]
    if write:
        PAGE.write_text(page(tables), encoding="utf-8")


def measured(complaint: Complaint, quick: bool) -> Table:
    columns = [answers(complaint, library, quick) for library in LIBRARIES]
    floor = columns[-1][0]
    table = Table(complaint.question, [f"`--steps={complaint.name}`", *LIBRARIES], remarks=[complaint.source])
    for i, row in enumerate(complaint.rows):
        table.rows.append([row, *(shown(column[i], floor, quick) for column in columns)])
    return table


def answers(complaint: Complaint, library: str, quick: bool = False) -> list[Any]:
    """What the program of one of ``LIBRARIES`` returns; empty cells if it is not installed."""
    sizes = (2 if quick else 125,) if complaint.name == "decode" else ()
    module = LIBRARIES[library]
    if module is None:
        return complaint.plain(*sizes)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return [""] * len(complaint.rows)
    nnx = importlib.import_module(module)
    with nnx.set_graph_mode(False) if library.endswith("tree mode") else contextlib.nullcontext():
        return complaint.objects(nnx, *sizes)


def shown(cell: Any, floor: Any, quick: bool) -> str:
    """The text of a cell; a loop is timed beside the floor, by turns."""
    if not callable(cell):
        return f"{cell:,}" if isinstance(cell, int) else cell
    timing = compare({"floor": floor, "cell": cell}, QUICK if quick else Effort(rounds=61))["cell"]
    low, _, high = timing.quartiles
    return f"{timing.ratio:.2f} ({low:.2f} to {high:.2f})"


def page(tables: list[Table]) -> str:
    """The page of the site."""
    found = versions()
    made_with = f"JAX {found['jax']}, Flax {found['flax']}, Python {found['python']}"
    return INTRODUCTION.format(made_with=made_with) + "\n".join(str(table).removeprefix("#") for table in tables)
