"""The report of a conversion: the outcome for every leaf of the model and of the checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Converted:
    """Variables that were converted.

    Args:
        variables: their paths in the model.
        collection: their collection, such as ``params``.
        names: the names of their values in the checkpoint.
        is_renamed: whether these names differ from the ones that the model expects.
        note: a change of dtype, or empty.
    """

    variables: tuple[str, ...]
    collection: str
    names: tuple[str, ...]
    is_renamed: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Missing:
    """Variables without values in the checkpoint.

    Args:
        variables: their paths in the model.
        collection: their collection.
        module: the path of their module, and its class.
        names: the names that were looked up, after renaming, and not found.
    """

    variables: tuple[str, ...]
    collection: str
    module: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Mismatched:
    """Variables whose values were found, but do not match.

    Args:
        variables: their paths in the model.
        collection: their collection.
        module: the path of their module, and its class.
        names: the names in the checkpoint.
        found: the shape or dtype in the checkpoint.
        expected: the shape or dtype that would match.
    """

    variables: tuple[str, ...]
    collection: str
    module: str
    names: tuple[str, ...]
    found: str
    expected: str


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """The outcome for every variable of the model and every leaf of the checkpoint.

    Args:
        converted: variables with their values, matched by name or renamed.
        missing: variables without values in the checkpoint.
        mismatched: variables whose values do not match.
        unexpected: names in the checkpoint that no variable uses.
        dropped: names in the checkpoint that ``names`` maps to ``None``.
        ignored: names in the checkpoint that the layers do not need, such as ``num_batches_tracked``.
        unused_rules: patterns of ``names`` that matched no name.
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
        """Variables converted under their own names."""
        return tuple(each for each in self.converted if not each.is_renamed)

    @property
    def renamed(self) -> tuple[Converted, ...]:
        """Variables converted from other names."""
        return tuple(each for each in self.converted if each.is_renamed)

    @property
    def is_complete(self) -> bool:
        """Whether no leaf is missing, unexpected or mismatched."""
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
        """One line with the number of each outcome."""
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
        """Outcome, variables, their collection, and names in the checkpoint."""
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
