"""How names are retired: one way to warn, a page that lists what is on its way out, and an end to it."""

import ast
import re
import warnings
from pathlib import Path

import pytest

import plait
from plait.util.notices import deprecated

SOURCE = Path(plait.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "stability.md"


def calls():
    """Place in the source → the arguments of a call of ``deprecated``, texts with a hole as patterns."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "deprecated(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "deprecated":
                arguments = {"what": node.args[0], **{each.arg: each.value for each in node.keywords}}
                place = f"{file.relative_to(SOURCE).as_posix()}, in {ast.unparse(node.args[0])}"
                found[place] = {name: as_pattern(value) for name, value in arguments.items()}
    return found


def as_pattern(text):
    """A text of the source as a regular expression: what an f-string fills in may be anything."""
    if isinstance(text, ast.Constant):
        return re.escape(text.value)
    assert isinstance(text, ast.JoinedStr), "the texts of deprecated() are written where it is called"
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in text.values)


def listed():
    """The rows of the page: old, since, removed in, instead."""
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [tuple(cell.replace("`", "") for cell in row) for row in rows]


def matches(call, row):
    patterns = (call["what"], call["since"], call["removed_in"], call["instead"])
    return all(re.fullmatch(pattern, cell) for pattern, cell in zip(patterns, row, strict=True))


CALLS = calls()


def numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_nothing_warns_of_a_deprecation_in_another_way():
    kinds = {"DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"}
    users = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if any(kind in (text := file.read_text(encoding="utf-8")) for kind in kinds)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id in kinds
    }
    assert users == {"util/notices.py"}


@pytest.mark.parametrize("place", CALLS)
def test_a_retired_name_is_on_the_page_of_stability(place):
    assert [row for row in listed() if matches(CALLS[place], row)]


def test_the_page_of_stability_lists_nothing_else():
    rows = listed()
    assert rows
    assert [row for row in rows if not any(matches(call, row) for call in CALLS.values())] == []


@pytest.mark.parametrize("place", CALLS)
def test_a_retired_name_is_gone_when_it_was_to_be(place):
    since, removed_in = (numbers(CALLS[place][name]) for name in ("since", "removed_in"))
    now = numbers(plait.__version__)
    assert since <= now < removed_in
    assert removed_in >= (since[0], since[1] + 2), "two minor versions at least"


def test_the_warning_names_the_users_line_and_what_to_write():
    with pytest.warns(DeprecationWarning, match=r"old\(\): deprecated since plait 0\.1, to be removed in 2\.0") as seen:
        deprecated("old()", since="0.1", instead="new()", removed_in="2.0")
    assert str(seen[0].message).endswith("\n  do        use new()")
    assert seen[0].filename == __file__


def test_the_line_is_the_users_however_deep_plait_is():
    """``iter_modules`` warns in a method made by a function, ``with_metadata`` below ``Param.__init__``."""
    model = plait.Linear(2, 2, rngs=plait.Rngs(0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        list(model.iter_modules())
        plait.Param(1.0, sharding=())
    assert [warning.filename for warning in seen] == [__file__, __file__]
