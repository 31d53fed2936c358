"""The command ``plait``.

Exit status: 0 for success, 1 for an export that gives other numbers than its model, 2 for a request that cannot be
fulfilled (with the reason on standard error, and nothing half-done), or for files that `migrate` could not handle, 130
for an interruption; of ``plait launch`` that of the first process that failed, or 128 and the number of the signal by
which it was asked to end.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import cli_export
from .errors import ArgumentError, PlaitError

MAX_SEED = 2**31 - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process) and return its exit status."""
    try:
        with _reliable_interrupts():
            arguments = list(sys.argv[1:] if arguments is None else arguments)
            _check_launch(arguments)
            options = _parser().parse_args(arguments)
            return options.run(options)
    except PlaitError as error:
        print(f"plait: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader went away, as in `plait demo digits | head`: there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"plait: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("plait: interrupted", file=sys.stderr)
        return 130
    return 2


@contextlib.contextmanager
def _reliable_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt the program wherever it is.

    Python ignores an exception that is raised in a callback of the garbage collector or of a weak reference, and both
    JAX and plait have such callbacks. It reports what it ignores; an interruption among these is repeated a little
    later.
    """
    before = sys.unraisablehook

    def report(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            before(ignored)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plait", description="Neural networks for JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"plait {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="train and look at a small model", allow_abbrev=False)
    demos = demo.add_subparsers(metavar="NAME", required=True)
    _add_digits(demos.add_parser("digits", help="handwritten digits, with figures and exports", allow_abbrev=False))
    _add_gpt(demos.add_parser("gpt", help="a transformer on the source of Python's library", allow_abbrev=False))
    _add_migrate(commands.add_parser("migrate", help="rewrite Flax NNX imports to plait", allow_abbrev=False))
    cli_export.add_commands(commands)
    _add_run(commands.add_parser("run", help="run a program written for Flax NNX with plait", allow_abbrev=False))
    _add_launch(commands.add_parser("launch", help="start several processes of one run", allow_abbrev=False))
    return parser


def _version() -> str:
    # Nothing inside plait imports plait; but it has been imported, since this file is part of it.
    return sys.modules[str(__package__)].__version__


def _add_digits(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a convolutional network on the handwritten digits of scikit-learn, with a checkpoint after each epoch; "
        "draw figures; export to TensorFlow, StableHLO, ONNX and LiteRT, and compare each export with the model."
    )
    parser.add_argument("--epochs", type=_whole(1), default=15, help="how long to train (default: %(default)s)")
    parser.add_argument("--batch-size", type=_whole(1), default=32, help="images in a step (default: %(default)s)")
    parser.add_argument("--seed", type=_whole(0, MAX_SEED), default=0, help="of all that is random (default: 0)")
    parser.add_argument(
        "--output", type=_folder, default=Path("runs/digits"), metavar="FOLDER",
        help="where results go; an earlier run there is replaced (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the folder")
    parser.add_argument("--no-export", dest="export", action="store_false", help="leave out the exports")
    parser.set_defaults(run=_run_digits)


def _run_digits(options: argparse.Namespace) -> int:
    from .demo import digits

    names = ("output", "epochs", "batch_size", "seed", "resume", "export")
    return digits.run(digits.Options(**{name: getattr(options, name) for name in names}))


def _add_gpt(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a transformer on the bytes of Python's standard library, with checkpoints; compare the bits that it "
        "needs for held-out files with those of n-gram models and of xz; draw the curve, and write a sample."
    )
    parser.add_argument(
        "--size", choices=("small", "medium", "large"), default="small",
        help="small: minutes on two cores; the others want a GPU (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--steps", type=_whole(1), metavar="N", help="how long to train (default: as the size says)")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; the parameters stay float32")
    parser.add_argument("--seed", type=_whole(0, MAX_SEED), default=0, help="of all that is random (default: 0)")
    parser.add_argument("--sample", type=_whole(1), default=600, metavar="N", help="bytes to write (default: 600)")
    parser.add_argument(
        "--output", type=_folder, default=Path("runs/gpt"), metavar="FOLDER",
        help="where results go; an earlier run there is replaced (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the folder")
    parser.set_defaults(run=_run_gpt)


def _run_gpt(options: argparse.Namespace) -> int:
    from .demo import gpt

    names = ("output", "size", "steps", "bf16", "seed", "resume", "sample")
    return gpt.run(gpt.Options(**{name: getattr(options, name) for name in names}))


def _add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Rewrite the imports of Flax NNX in Python programs to plait, and list what plait lacks or does otherwise. "
        "Without --write the changes are shown and nothing is written; everything but the imports stays as it is."
    )
    parser.add_argument("paths", nargs="+", type=_folder, metavar="PATH", help="a file, or a folder of Python files")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the files")
    what.add_argument("--check", action="store_true", help="only list what plait lacks or does otherwise")
    parser.set_defaults(run=_run_migrate)


def _run_migrate(options: argparse.Namespace) -> int:
    from .migrate.files import check, migrate

    return check(options.paths) if options.check else migrate(options.paths, write=options.write)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "plait run --as-flax [--report] PROGRAM ...  or  plait run --as-flax [--report] -m MODULE ..."
    parser.description = (
        "Run a program with plait in the place of flax.nnx, as `python -m plait.as_flax` does: the program and the "
        "libraries that it uses import flax.nnx and get plait. Nothing is edited."
    )
    parser.add_argument("--as-flax", action="store_true", required=True, help="let flax.nnx be plait")
    parser.add_argument("--report", action="store_true", help="say at the end what plait stood in for")
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments")
    program.add_argument("program", nargs="?", metavar="PROGRAM", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(run=_run_program)


def _run_program(options: argparse.Namespace) -> NoReturn:
    """Become the process that runs the program, so that its exit status, errors and signals are its own."""
    command = [sys.executable, "-m", f"{__package__}.as_flax", *["--report"] * options.report]
    program = ["-m", *options.module] if options.module is not None else [options.program]
    os.execv(sys.executable, [*command, *program, *options.arguments])


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.usage = "plait launch --processes N [--devices N] [--port N] [--grace S] -- COMMAND ..."
    parser.description = (
        "Start several processes of one run on this machine. Each finds the others by "
        "plait.partitioning.connect_processes(), which the program calls first. Lines of output have the number of "
        "their process before them. When one process fails, the others are ended, and its exit status is that of the "
        "command. Ctrl-C and SIGTERM are passed on to all as SIGTERM; a second one ends them at once."
    )
    parser.add_argument("--processes", type=_whole(1), required=True, metavar="N", help="how many processes")
    parser.add_argument(
        "--devices", type=_whole(1), metavar="N", help="CPU devices of each process (default: what the machine has)"
    )
    parser.add_argument("--port", type=_whole(1, 65_535), metavar="N", help="where process 0 listens (default: free)")
    parser.add_argument(
        "--grace",
        type=_whole(0),
        default=30,
        metavar="S",
        help="seconds that the processes have to save and end after Ctrl-C or SIGTERM (default: 30)",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the program, such as: python train.py")
    parser.set_defaults(run=_run_launch)


def _check_launch(arguments: Sequence[str]) -> None:
    """Refuse a command that does not stand behind ``--``: its options would be taken for those of ``plait launch``.

    Raises:
        ArgumentError: says how to write it.
    """
    if arguments[:1] == ["launch"] and not {"--", "-h", "--help"} & {*arguments}:
        raise ArgumentError(
            "launch takes its COMMAND behind `--`, such as: plait launch --processes 2 -- python train.py --steps 10"
        )


def _run_launch(options: argparse.Namespace) -> int:
    from . import launch

    return launch.run(launch.Options(options.command, options.processes, options.devices, options.port, options.grace))


def _folder(text: str) -> Path:
    """A path that is not empty: an empty one would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; name a folder, such as runs/digits")
    return Path(text)


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers within limits, for argparse."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least or (most is not None and number > most):
            limits = f"{least} or more" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return number

    return read


if __name__ == "__main__":
    sys.exit(main())
