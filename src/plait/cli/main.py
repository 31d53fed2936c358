"""The command ``plait``.

Exit status: 0 for success; 2 for an invalid request (with the reason on standard error); 130 after Ctrl-C.
``plait launch`` returns the status of the first process that failed, or 128 plus the number of the signal that ended
it.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence

from ..errors import ArgumentError, PlaitError
from . import explore as cli_explore

_PLAIT = str(__package__).partition(".")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process) and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        _check_launch(arguments)
        options = _parser().parse_args(arguments)
        return options.run(options)
    except PlaitError as error:
        print(f"plait: {error}", file=sys.stderr)
    except OSError as error:
        print(f"plait: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("plait: interrupted", file=sys.stderr)
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plait", description="Neural networks for JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"plait {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    cli_explore.add_command(commands)
    _add_launch(commands.add_parser("launch", help="start several processes of one run", allow_abbrev=False))
    return parser


def _version() -> str:
    # Nothing inside plait imports plait; but it has been imported, since this file is part of it.
    return sys.modules[_PLAIT].__version__


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.usage = "plait launch --processes N [--devices N] [--port N] [--grace S] -- COMMAND ..."
    parser.description = (
        "Start several processes of one run on this machine. The program first calls "
        "plait.partitioning.connect_processes(), which connects them. Each line of output is prefixed with the number "
        "of its process. If one process fails, the others are terminated, and its exit status is that of the command. "
        "Ctrl-C and SIGTERM are forwarded to all as SIGTERM; another, after more than a second, kills them."
    )
    parser.add_argument("--processes", type=_whole(1), required=True, metavar="N", help="number of processes")
    parser.add_argument(
        "--devices", type=_whole(1), metavar="N", help="CPU devices of each process (default: those of the machine)"
    )
    parser.add_argument("--port", type=_whole(1, 65_535), metavar="N", help="port of process 0 (default: a free one)")
    parser.add_argument(
        "--grace",
        type=_whole(0),
        default=30,
        metavar="S",
        help="seconds for the processes to save and exit after Ctrl-C or SIGTERM (default: 30)",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the program, such as: python train.py")
    parser.set_defaults(run=_run_launch)


def _check_launch(arguments: Sequence[str]) -> None:
    """Raise if the command does not follow ``--``: its options would be parsed as those of ``plait launch``.

    Raises:
        ArgumentError: shows how to write it.
    """
    if arguments[:1] == ["launch"] and not {"--", "-h", "--help"} & {*arguments}:
        raise ArgumentError(
            "launch needs `--` before its COMMAND, such as: plait launch --processes 2 -- python train.py --steps 10"
        )


def _run_launch(options: argparse.Namespace) -> int:
    from . import launch

    return launch.run(launch.Options(options.command, options.processes, options.devices, options.port, options.grace))


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type for whole numbers within limits."""

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
