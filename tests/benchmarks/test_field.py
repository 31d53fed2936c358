"""The ten complaints: what holds of plait and JAX in any version, and that the page has what the programs give."""

import functools

import pytest

from benchmarks.field import COMPLAINTS, LIBRARIES, PAGE, answers, shown
from benchmarks.table import versions

EXACT = [complaint for complaint in COMPLAINTS if complaint.name not in ("decode", "memory")]
PAGE_VERSIONS = "JAX {jax}, Flax {flax}, Python {python}"


@functools.cache
def found(name, library="plait"):
    (complaint,) = (complaint for complaint in COMPLAINTS if complaint.name == name)
    return answers(complaint, library, quick=True)


def test_a_decoding_step_returns_the_caches_alone():
    assert found("decode")[-1] == found("decode", "plain JAX")[-1]


@pytest.mark.usefixtures("users_promotion")  # for Optax
def test_a_training_step_needs_the_memory_of_plain_jax():
    for ours, plain in zip(found("memory"), found("memory", "plain JAX"), strict=True):
        assert 0 <= ours - plain < 100  # a counter of steps


PAIRS = [
    pytest.param(
        each,
        library,
        id=f"{each.name}-{library}",
        marks=[pytest.mark.slow, pytest.mark.oracle] * (library != "plait" or each.name == "resume"),
    )
    for each in EXACT
    for library in LIBRARIES
]


@pytest.mark.parametrize(("complaint", "library"), PAIRS)
def test_the_page_has_what_the_programs_give(complaint, library):
    text = PAGE.read_text(encoding="utf-8")
    if library != "plait" and PAGE_VERSIONS.format(**versions()) not in " ".join(text.split()):
        pytest.skip("the page was made with other versions")
    table = text.partition(f"## {complaint.question}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    column = [line[1 + list(LIBRARIES).index(library)].strip() for line in lines[2:]]
    assert column == [shown(cell, None, quick=True) for cell in found(complaint.name, library)]
    assert [line[0].strip() for line in lines[2:]] == list(complaint.rows)
