"""What became of every leaf of a conversion, on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Converted:
    """Variables that got their values.

    Args:
        variables: their paths in the model.
        collection: their collection, such as ``params``.
        names: the names in the checkpoint that the values came from.
        is_renamed: whether the names are others than those that the model would have given.
        note: a change of dtype, or empty.
    """

    variables: tuple[str, ...]
    collection: str
    names: tuple[str, ...]
    is_renamed: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Missing:
    """Variables for which the checkpoint has nothing.

    Args:
        variables: their paths in the model.
        collection: their collection.
        module: the path of their module, and its class.
        names: the names that were looked for, after renaming, and not found.
    """

    variables: tuple[str, ...]
    collection: str
    module: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Mismatched:
    """Values that were found and cannot be those of the variables.

    Args:
        variables: their paths in the model.
        collection: their collection.
        module: the path of their module, and its class.
        names: the names in the checkpoint.
        found: what is there.
        expected: what would fit.
    """

    variables: tuple[str, ...]
    collection: str
    module: str
    names: tuple[str, ...]
    found: str
    expected: str


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """What became of every variable of the model and of every leaf of the checkpoint.

    Args:
        converted: variables with their values, matched by name or renamed.
        missing: variables without values in the checkpoint.
        mismatched: variables whose values do not fit.
        unexpected: names in the checkpoint that no variable wants.
        dropped: names in the checkpoint that the map of names gives ``None``.
        ignored: names in the checkpoint that the layers have no use for, such as ``num_batches_tracked``.
        unused_rules: patterns of the map of names that no name matched.
    """

    converted: tuple[Converted, ...] = ()
    missing: tuple[Missing, ...] = ()
    mismatched: tuple[Mismatched, ...] = ()
    unexpected: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unused_rules: tuple[str, ...] = ()

    @property
    def matched(self) -> tuple[Converted, ...]:
        """What was converted under its own name."""
        return tuple(each for each in self.converted if not each.is_renamed)

    @property
    def renamed(self) -> tuple[Converted, ...]:
        """What was converted from another name."""
        return tuple(each for each in self.converted if each.is_renamed)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, unexpected or mismatched."""
        return not (self.missing or self.mismatched or self.unexpected)

    def __str__(self) -> str:
        rows = list(self._rows())
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = [self.summary()]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, row[3]]).rstrip())
        return "\n".join(lines)

    def summary(self) -> str:
        """One line: how many of each."""
        counts = {
            "matched": self.matched,
            "renamed": self.renamed,
            "missing": self.missing,
            "mismatched": self.mismatched,
            "unexpected": self.unexpected,
            "dropped": self.dropped,
            "ignored": self.ignored,
            "unused rules": self.unused_rules,
        }
        always = ("matched", "missing", "unexpected")
        return ", ".join(f"{len(each)} {what}" for what, each in counts.items() if each or what in always)

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """What happened, the variables, their collection, and the other side."""
        for each in self.converted:
            what = "renamed" if each.is_renamed else "matched"
            note = f"  ({each.note})" if each.note else ""
            yield what, ", ".join(each.variables), each.collection, f"<- {', '.join(each.names)}{note}"
        for each in self.mismatched:
            sides = f"<- {', '.join(each.names)}: {each.found}; expected {each.expected}"
            yield "mismatched", ", ".join(each.variables), each.collection, sides
        for each in self.missing:
            yield "missing", ", ".join(each.variables), each.collection, f"<- {', '.join(each.names)}?"
        for what in ("unexpected", "dropped", "ignored"):
            for name in getattr(self, what):
                yield what, "", "", f"   {name}"
        for rule in self.unused_rules:
            yield "unused rule", "", "", f"   {rule}"
