"""The final table of a run: with borders on a terminal, aligned text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print rows of a name and a text."""
    if sys.stdout.isatty():
        _print_drawn(title, rows)
        return
    width = max((len(name) for name, _ in rows), default=0)
    print(title)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}")


def _print_drawn(title: str, rows: Sequence[tuple[str, str]]) -> None:
    import rich.box
    import rich.console
    import rich.table
    import rich.text

    table = rich.table.Table(title=title, title_justify="left", box=rich.box.ROUNDED, show_header=False)
    for name, text in rows:
        table.add_row(rich.text.Text(name, style="bold"), rich.text.Text(text))
    rich.console.Console().print(table)
