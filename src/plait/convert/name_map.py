"""A name map: rules that rename the leaves of a checkpoint.

A rule is a pattern and its replacement: ``{"transformer.h.*.attn": "blocks.*.attn"}``. Patterns match at the beginning
of a dotted name, up to a dot or its end; the rest of the name is kept. ``*`` matches anything without a dot, ``**`` any
number of components; their matches replace the wildcards of the replacement, in order. The first matching rule
applies. ``None`` drops a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError
from ..util.words import describe_type

Names = Mapping[str, str | None] | Callable[[str], str | None] | None

_WILDCARD = re.compile(r"\*\*|\*")


class NameMap:
    """A function from names to names (or ``None``), which records unused rules.

    Raises:
        ArgumentError: a replacement does not have the wildcards of its pattern.
        ArgumentTypeError: the rules are neither a mapping of strings nor a function.
    """

    def __init__(self, names: Names) -> None:
        self.unused: list[str] = []
        self._call = names if callable(names) and not isinstance(names, Mapping) else None
        self._rules: list[tuple[str, re.Pattern[str], str | None]] = []
        if self._call is not None or names is None:
            return
        if not isinstance(names, Mapping):
            raise ArgumentTypeError(
                "names must be a mapping or a function",
                found=describe_type(names),
                expected="{'old.*.name': 'new.*.name'}, or a function from a name to a name",
                do="names={'encoder.layer': 'layers'}",
            )
        for pattern, target in names.items():
            _check_rule(pattern, target)
            self._rules.append((pattern, _compiled(pattern), target))
            self.unused.append(pattern)

    def __call__(self, name: str) -> str | None:
        """The new name; ``None`` if it is dropped; the same if no rule matches."""
        if self._call is not None:
            return _checked(self._call(name), name)
        for pattern, matcher, target in self._rules:
            found = matcher.match(name)
            if found is not None:
                if pattern in self.unused:
                    self.unused.remove(pattern)
                return None if target is None else _filled(target, found, name)
        return name


def _checked(renamed: Any, name: str) -> str | None:
    if renamed is None or isinstance(renamed, str):
        return renamed
    raise ArgumentTypeError(
        "the function passed as names did not return a name",
        at=name,
        found=describe_type(renamed),
        expected="a name, or None to drop it",
        do="return unchanged names as they are: names=lambda name: name.removeprefix('model.')",
    )


def _check_rule(pattern: object, target: object) -> None:
    if not isinstance(pattern, str) or not (target is None or isinstance(target, str)):
        raise ArgumentTypeError(
            "a name rule takes strings",
            found=f"{pattern!r}: {target!r}",
            expected="a pattern, and its replacement or None",
            do="names={'encoder.layer': 'layers', 'head': None}",
        )
    if target is not None and _WILDCARD.findall(pattern) != _WILDCARD.findall(target):
        raise ArgumentError(
            "a name rule needs the same wildcards on both sides",
            found=f"{pattern!r}: {target!r}",
            expected="as many * and ** in the replacement as in the pattern, in the same order",
            do="if patterns are not enough, use a function: names=lambda name: ...",
        )


def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that matches whole components from the beginning."""
    parts = []
    for step in pattern.split(".") if pattern else []:
        if step == "**":
            parts.append(r"(?:(.+?)(?:\.|$))??")
            continue
        parts.append("([^.]*)".join(map(re.escape, step.split("*"))) + r"(?:\.|$)")
    return re.compile("".join(parts))


def _filled(target: str, found: re.Match[str], name: str) -> str:
    stood_for = iter(found.groups())
    replaced = _WILDCARD.sub(lambda _: next(stood_for) or "", target)
    steps = [*replaced.split("."), *name[found.end() :].split(".")]
    return ".".join(step for step in steps if step)
