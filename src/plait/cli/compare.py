"""The command ``plait compare``: two implementations of one model, and the first module whose output departs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .export import input_spec, made, read_arrays

_EXAMPLE = "plait compare my_model:make original:make --input 'x:float32[2,8]'"


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("compare", help="find where two implementations depart", allow_abbrev=False)
    parser.description = (
        "Create two models by calling your functions, run both on the same inputs, and report the first module whose "
        "inputs agree and whose output does not, with both values. Each function returns a plait or flax.nnx model, a "
        "torch module, or a Linen module with its variables; plait, flax.nnx and torch models run in evaluation mode. "
        "Exit status 1 if the models depart."
    )
    parser.add_argument("a", metavar="A", help="function that returns the first model, as my_model:make")
    parser.add_argument("b", metavar="B", help="function that returns the second model")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--input", action="append", dest="specs", metavar="NAME:DTYPE[SIZES]", type=input_spec,
        help="a random input, such as x:float32[2,28,28,1] (integers: 0 and 1); repeat for each input",
    )  # fmt: skip
    given.add_argument("--inputs", type=Path, metavar="FILE.npz", help="the inputs, in the order of the file")
    parser.add_argument("--b-inputs", type=Path, metavar="FILE.npz", help="inputs of B, if they differ")
    parser.add_argument(
        "--name", action="append", dest="names", default=[], metavar="THEIRS=OURS", type=_rule,
        help="a name in B and its name in A, such as 'transformer.h.*=blocks.*'; repeat for more",
    )  # fmt: skip
    parser.add_argument("--tolerance", type=float, help="relative to the largest value (default: by dtype)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")
    parser.add_argument("--all", action="store_true", help="also list every module that was compared")
    parser.set_defaults(run=_run)


def _rule(text: str) -> tuple[str, str]:
    theirs, equals, ours = text.partition("=")
    if not (theirs and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rule; write it as 'transformer.h.*=blocks.*'")
    return theirs, ours


def _run(options: argparse.Namespace) -> int:
    from ..inspect.compare.comparison import compare

    asked = {"what": "the model's factory", "default": "make_model", "do": _EXAMPLE}
    a, b = (_evaluating(made(factory, **asked)) for factory in (options.a, options.b))
    inputs = _random(options) if options.inputs is None else tuple(read_arrays(options.inputs).values())
    b_inputs = None if options.b_inputs is None else tuple(read_arrays(options.b_inputs).values())
    names = dict(options.names) or None
    found = compare(a, b, *inputs, names=names, b_inputs=b_inputs, tolerance=options.tolerance)
    print(found)
    for row in found.compared if options.all else ():
        mark = " " if row.output.is_agreement else "*"
        print(f"{mark} {row.path or '(the model)'}  {row.b_path or '(the model)'}  {row.output}")
    return 0 if found.agrees else 1


def _evaluating(model: Any) -> Any:
    """The model in evaluation mode, if it has one."""
    switch = getattr(model, "eval", None)
    if callable(switch):
        switch()
    return model


def _random(options: argparse.Namespace) -> tuple[np.ndarray, ...]:
    from ..export.program.input_spec import has_free_sizes
    from ..export.proof.prove import random_array

    if has_free_sizes(options.specs):
        raise ArgumentError(
            "the inputs of compare need concrete sizes",
            at=", ".join(spec.name for spec in options.specs if has_free_sizes([spec])),
            found=", ".join(str(list(spec.shape)) for spec in options.specs if has_free_sizes([spec])),
            expected="numbers, since the models run on arrays",
            do=_EXAMPLE,
        )
    draw = np.random.default_rng(options.seed)
    return tuple(random_array(draw, spec.shape, spec.dtype) for spec in options.specs)
