"""The interface of the command ``plait`` as text: every command, argument, default and help text.

``tests/data/command_line.txt`` is the interface that users have. After a change: ``python -m tests.command_line``.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from plait.cli import main as cli

FILE = Path(__file__).parent / "data" / "command_line.txt"


def interface() -> str:
    return "\n".join(_of_parser(cli._parser(), "")) + "\n"


def _of_parser(parser: argparse.ArgumentParser, text: str) -> Iterator[str]:
    yield f"{parser.prog}: {text}".removesuffix(": ") + ("; abbreviated options" if parser.allow_abbrev else "")
    yield from filter(None, (parser.usage, parser.description))
    groups = parser._mutually_exclusive_groups
    commands = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        parts = [" ".join(filter(None, (", ".join(action.option_strings), action.metavar or "")))]
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands += [(parser, texts[name]) for name, parser in action.choices.items()]
        else:
            told = ("nargs", "const", "default", "choices")
            parts += [f"{name} {_shown(value)}" for name in told if (value := getattr(action, name)) not in (None, [])]
        parts += ["required"] * action.required
        for number, group in enumerate(groups, 1):
            if action in group._group_actions:
                parts.append(f"at most one of group {number}" if not group.required else f"one of group {number}")
        yield f"  {'; '.join(parts)}" + (f": {action.help % vars(action)}" if action.help else "")
    for command, text in commands:
        yield ""
        yield from _of_parser(command, text)


def _shown(value: object) -> str:
    return value.as_posix() if isinstance(value, Path) else str(value)


if __name__ == "__main__":
    FILE.write_text(interface(), encoding="utf-8")
