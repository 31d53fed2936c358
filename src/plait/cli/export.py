"""The commands for exported files: ``plait export``, ``plait inspect`` and ``plait validate``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, ExportError
from ..export.formats.table import FORMATS
from ..util.files import given_path, open_file


def add_commands(commands: Any) -> None:
    """Add the three commands to the parser."""
    export = commands.add_parser("export", help="export a model to one or several formats", allow_abbrev=False)
    export.description = (
        "Make a model by calling your function, and write it to a folder, once per format. The model is "
        "exported in evaluation mode."
    )
    export.add_argument("factory", metavar="MODULE:FUNCTION", help="function that returns the model, as my_model:make")
    export.add_argument("output", type=Path, metavar="FOLDER", help="the folder to create")
    export.add_argument(
        "--input", action="append", required=True, dest="inputs", metavar="NAME:DTYPE[SIZES]", type=input_spec,
        help="an input, such as x:float32[batch,28,28,1]; named sizes are dynamic; repeat for each input",
    )  # fmt: skip
    export.add_argument(
        "--formats", default="stablehlo", type=_formats, help=f"some of {', '.join(FORMATS)} (default: %(default)s)"
    )
    export.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a checkpoint to restore first")
    export.add_argument("--state", metavar="TYPES", help="variables that become inputs and outputs, such as Cache")
    export.add_argument("--frozen", metavar="TYPES", help="variables whose changes are discarded, such as BatchStat")
    export.add_argument("--platforms", default="cpu,cuda,tpu", type=_words, help="where it runs (default: %(default)s)")
    export.add_argument("--target", help="the SavedModel's reader, such as tensorflow==2.16 (default: installed one)")
    export.add_argument("--overwrite", action="store_true", help="replace existing exports in the folder")
    export.set_defaults(run=_export)

    inspect = commands.add_parser("inspect", help="describe an exported file", allow_abbrev=False)
    inspect.add_argument("path", type=Path, metavar="PATH")
    inspect.add_argument("--json", action="store_true", help="as JSON")
    inspect.set_defaults(run=_inspect)

    validate = commands.add_parser("validate", help="run exported files and compare them", allow_abbrev=False)
    validate.description = (
        "Run each export in a process with only the packages of its format, and compare its output with that of the "
        "StableHLO bundle in the same folder. Exit status 1 if one differs."
    )
    validate.add_argument("path", type=Path, metavar="PATH")
    validate.add_argument("--inputs", type=Path, metavar="FILE.npz", help="arrays by name (default: generated)")
    validate.add_argument("--signature", help="which function (default: the first)")
    validate.add_argument("--tolerance", type=float, help="maximum difference (default: by dtype)")
    validate.add_argument("--python", metavar="FILE", help="the interpreter that runs the exports (default: this one)")
    validate.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    validate.set_defaults(run=_validate)


def input_spec(text: str) -> Any:
    """An argparse type for inputs, such as ``x:float32[batch,28,28,1]``."""
    from ..export.program.input_spec import InputSpec

    head, bracket, sizes = text.partition("[")
    name, colon, dtype = head.partition(":")
    if not (colon and bracket and sizes.endswith("]")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an input; write it as x:float32[batch,28,28,1]")
    parts = [part.strip() for part in sizes[:-1].split(",") if part.strip()]
    try:
        return InputSpec(tuple(int(part) if part.isdecimal() else part for part in parts), np.dtype(dtype), name)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}".replace("\n", " ")) from error


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _formats(text: str) -> list[str]:
    wanted = _words(text)
    unknown = [name for name in wanted if name not in FORMATS]
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of formats; there are {', '.join(FORMATS)}")
    return wanted


def _export(options: argparse.Namespace) -> int:
    from ..core.objects.module import Module
    from ..export.saving import save

    model = _made(options.factory)
    if not isinstance(model, Module):
        raise ArgumentError(
            "the factory did not return a model",
            at=options.factory,
            found=type(model).__name__,
            expected="a plait.Module",
            do="return the model from the function",
        )
    if options.checkpoint is not None:
        from ..checkpoint.orbax import restore

        restore(options.checkpoint, model)
    model.eval()
    written = save(
        model, options.output, inputs=options.inputs, formats=options.formats, state=_types(options.state),
        frozen=_types(options.frozen), platforms=options.platforms, target=options.target, overwrite=options.overwrite,
    )  # fmt: skip
    for kind, place in written.items():
        print(f"{kind}: {place}")
    return 0


def _types(text: str | None) -> Any:
    """The variable types with these names: plait's types, and those that the model's code defined."""
    from ..core.objects.variables import Variable

    found, known = [], {"Variable": Variable}
    waiting = [Variable]
    while waiting:
        for each in waiting.pop().__subclasses__():
            known.setdefault(each.__name__, each)
            waiting.append(each)
    for name in _words(text or ""):
        if name not in known:
            raise ArgumentError(
                "there is no variable type of this name",
                found=name,
                expected=f"some of {', '.join(sorted(known))}",
                do="--state Cache --frozen BatchStat,RngState",
            )
        found.append(known[name])
    return tuple(found)


def _made(text: str) -> Any:
    """The result of the user's function ``MODULE:FUNCTION``; without a name, of ``make_model``.

    Raises:
        ArgumentError: there is no such module or function.
    """
    module, _, function = text.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), function or "make_model")
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: empty module name
        raise ArgumentError(
            "the model's factory cannot be found",
            at=text,
            found=str(error),
            expected="MODULE:FUNCTION, a function without arguments in an importable module",
            do="plait export my_model:make FOLDER --input 'x:float32[batch,8]'",
        ) from error
    else:
        return factory()  # its errors are the user's, with their tracebacks
    finally:
        sys.path.pop(0)


def _inspect(options: argparse.Namespace) -> int:
    from ..export.proof.describe import describe_exports, to_json

    found = describe_exports(options.path)
    if options.json:
        print(to_json(found))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # paths and names may have brackets
    for each in found:
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        print(f"{each.kind} {each.path}  {each.size:,} bytes  {versions}")
        for name, (inputs, outputs) in each.signatures.items():
            table = Table("", "name", "dtype", "shape", title=name, title_justify="left")
            for title, tensors in (("input", inputs), ("output", outputs)):
                for tensor in tensors:
                    table.add_row(title, tensor.name, tensor.dtype, _shape(tensor.shape))
            console.print(table)
        if each.weights:
            table = Table("name", "dtype", "shape", title=f"{len(each.weights)} weights", title_justify="left")
            for tensor in each.weights:
                table.add_row(tensor.name, tensor.dtype, _shape(tensor.shape))
            console.print(table)
    return 0


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _validate(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..export.proof.prove import prove

    inputs = _read_arrays(options.inputs) if options.inputs is not None else None
    reports, times = prove(
        options.path, inputs=inputs, signature=options.signature, tolerance=options.tolerance, python=options.python
    )
    table = Table("format", "passed", "largest difference", "mean difference", "ms", "ms of the model, jitted")
    for report in reports:
        shown = [", ".join(f"{one:.3f}" for one in values) for values in (report.milliseconds, times)]
        passed = "yes" if report.passed else "NO"
        table.add_row(
            report.kind, passed, f"{report.max_abs_difference:.3g}", f"{report.mean_abs_difference:.3g}", *shown
        )
    Console().print(table)
    for report in reports:
        print(f"{report.kind}: {report.detail}")
    if options.json is not None:
        content = {"reports": [report.to_dict() for report in reports], "model_milliseconds": times}
        given_path(options.json).write_text(json.dumps(content, indent=2) + "\n")
    return 0 if all(report.passed for report in reports) else 1


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, in its order."""
    try:
        with open_file(given_path(path)) as content, np.load(content, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # NumPy and zipfile raise errors of many kinds
        raise ExportError(
            "the inputs cannot be read",
            at=str(path),
            found=str(error),
            expected="a file that np.savez wrote",
            do="np.savez('data.npz', x=x)",
        ) from error
