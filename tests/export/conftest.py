"""Exported files are run by standing processes, but for tests marked ``apart``. What errors say is compared in full."""

import os
import re
from pathlib import Path

import pytest

from plait.errors import PlaitError

ERRORS = Path(__file__).parents[1] / "data" / "export_errors.txt"
_VARYING = {  # between machines, and releases of other libraries
    r"[^\s'\"(\[]*pytest-of-[^\s'\",;:)\]]*": "<path>",
    r"\b\w*([Ee]rror|Exception|Exit)\b[:(](?s:.)*?(?=\n  (?:expected|do)  |\Z)": r"<\1>",
    r'File "[^"]+", line \d+': "File <place>",
    r"0x[0-9a-f]+": "<address>",
    r"'bytes': \d+": "'bytes': <size>",
    r"\b[0-9a-f]{8,}\.\.\.[0-9a-f]{8,}": "<digest>",
    r"\d+\.\d+\.\d+\S*": "<version>",
}


def comparable(error: PlaitError) -> str:
    """What it says, without what varies."""
    text = str(error).replace("\n\n", "\n")
    for pattern, word in _VARYING.items():
        text = re.sub(pattern, word, text)
    return text


@pytest.fixture(scope="session")
def known_errors() -> set[str]:
    return {*ERRORS.read_text().rstrip("\n").split("\n\n")}


@pytest.fixture(autouse=True)
def errors_say_what_they_are_known_to_say(request, monkeypatch, known_errors):
    """Each error of a fast test is in ``tests/data/export_errors.txt``, word for word.

    With PLAIT_KEEP_ERRORS=1, those that are not are added to it, to be read before they are committed.
    """
    made, init = [], PlaitError.__init__

    def noted(self, *arguments, **parts):
        init(self, *arguments, **parts)
        made.append(self)

    monkeypatch.setattr(PlaitError, "__init__", noted)
    yield
    if request.node.get_closest_marker("slow") is not None:
        return
    new = {comparable(error) for error in made} - known_errors
    if os.environ.get("PLAIT_KEEP_ERRORS") != "1":
        assert sorted(new) == [], "read it, and run the test again with PLAIT_KEEP_ERRORS=1"
    known_errors |= new
    with ERRORS.open("a") as file:
        file.writelines(f"{text}\n\n" for text in sorted(new))


@pytest.fixture(autouse=True)
def runners(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("apart") is None:
        request.getfixturevalue("standing_runners")
