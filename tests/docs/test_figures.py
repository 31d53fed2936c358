"""A figure on a page has the command that gives it, in its section or above the first one, or a reason here."""

import itertools
import re

import pytest

from benchmarks.__main__ import NAMES
from tests.docs.examples import FENCE, ROOT

CONTRIBUTORS = {"design.md", "tour.md", "tiny.md", "releasing.md"}
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.name not in CONTRIBUTORS]
TIME, SIZE = "µs|ms|s|seconds?|minutes?|hours?", "[kKMGT]i?B|gigabytes?|Gbit|bytes"
UNIT = rf"(?:{TIME}|{SIZE}|percent|times|of the (?:CPU )?time)\b|%|×|· 10"
FIGURE = re.compile(rf"(?<![\w.`/-])\d[\d,.]*[ -]?(?:{UNIT})(?! \d)|\b\d(?:\.\d+)?e-\d+|10⁻[⁰-⁹]|half a gigabyte")
COMMAND = re.compile(
    r"python -m benchmarks \w+|`make [a-z-]+|python examples/\w+\.py|tests/[\w/]+\.py|\bREADME\.md#?\w*"
)
# Page and figure → why no command gives it.
GIVEN = {
    ("how-do-i.md", "64 times"): "a number of blocks",
    ("warm-start.md", "10 GiB"): "a default, in plait.warm.folder",
}


def sections(text):
    """(start, end) of each section below a heading of the second level; the first is what is above all of them."""
    starts = [0, *(match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)), len(text)]
    return list(itertools.pairwise(starts))


def figures_without_command(text):
    """(line, figure) for each figure in the prose of a page that has no command near it."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    prose = re.sub(r"`[^`\n]+`", blank, FENCE.sub(blank, text))
    found = []
    (_, head), *_ = sections(prose)
    for match in FIGURE.finditer(prose):
        start, end = next((a, b) for a, b in sections(prose) if a <= match.start() < b)
        if not COMMAND.search(text, start, end) and not COMMAND.search(text, 0, head):
            found.append((prose.count("\n", 0, match.start()) + 1, match[0]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_figure_has_its_command(page):
    given = {figure for name, figure in GIVEN if name == page.name}
    found = figures_without_command(page.read_text(encoding="utf-8"))
    assert [each for each in found if each[1] not in given] == []
    assert {figure for _, figure in found} == given, "a reason that no figure needs"


def test_a_figure_without_a_command_is_found():
    text = "# A\n\n## B\n\nIt takes 3 ms, or 2 · 10⁻⁶.\n\n## C\n\n`make bench` says 5 µs; images of 8 × 8 pixels.\n"
    assert figures_without_command(text) == [(5, "3 ms"), (5, "2 · 10")]
    assert figures_without_command("`python -m benchmarks warm`\n" + text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_of_a_page_exists(page):
    text = page.read_text(encoding="utf-8")
    assert {
        name for names in re.findall(r"python -m benchmarks ((?:[a-z_]+ ?)+)", text) for name in names.split()
    } <= set(NAMES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    files = re.findall(r"\b(?:python |\(\.\./|`)((?:tests|examples|benchmarks|docs)/[\w/]+\.py)", text)
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_limits_that_pages_state_are_those_of_the_source():
    from plait.warm import folder

    assert folder.DEFAULT_LIMIT == 10 * 2**30
