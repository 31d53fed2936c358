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


def test_a_scan_returns_what_it_returns_in_plain_jax():
    assert found("scan") == found("scan", "plain JAX")


def test_a_captured_model_is_read_and_not_written():
    assert found("captured") == ["3.0", "3.0", "TraceContextError, names `net.calls`"]


@pytest.mark.usefixtures("users_promotion")  # for Optax
def test_a_training_step_needs_the_memory_of_plain_jax():
    for ours, plain in zip(found("memory"), found("memory", "plain JAX"), strict=True):
        assert 0 <= ours - plain < 100  # a counter of steps


def test_an_eager_cond_traces_functions_once():
    assert found("cond") == found("cond", "plain JAX") == [1, 5]


def test_a_clone_keeps_what_the_donated_step_only_reads():
    assert found("clone") == ["1 of 2", "0 of 2", "ArgumentError, names `net.kernel`"]


def test_equal_optimizers_are_traced_once_and_partials_are_not():
    assert found("retrace") == [1, 1, 3]


def test_no_intermediate_is_lost_in_silence():
    assert found("intermediates") == ["3 of 3", "3 of 3", "ArgumentTypeError, names `block.hidden`"]


def test_axis_names_follow_the_axes_without_being_told():
    assert found("axes") == ["(None, 'mlp')"] * 2 + ["AxisNameMismatchError, names `block.kernel`"]


@pytest.mark.slow
def test_a_run_resumes_with_its_random_state_and_not_without():
    assert found("resume") == ["2 of 2", "0 of 2", "CheckpointError, names `rngs.key`"]


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("complaint", EXACT, ids=lambda complaint: complaint.name)
def test_the_page_has_what_the_programs_give(complaint, library):
    text = PAGE.read_text(encoding="utf-8")
    if library != "plait" and PAGE_VERSIONS.format(**versions()) not in " ".join(text.split()):
        pytest.skip("the page was made with other versions")
    table = text.partition(f"## {complaint.question}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    column = [line[1 + list(LIBRARIES).index(library)].strip() for line in lines[2:]]
    assert column == [shown(cell, None, quick=True) for cell in found(complaint.name, library)]
    assert [line[0].strip() for line in lines[2:]] == list(complaint.rows)
