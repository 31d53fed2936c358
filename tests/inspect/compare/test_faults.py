"""Faults that a machine planted are named by their path; pairs without one say nothing.

Each fault is an operator of the table in ``faults.py`` at a place of one of six architectures. A few run always; all of
them with ``python -m benchmarks compare``, and in the long tests.
"""

import collections
import json
import pathlib
import subprocess
import sys

import pytest

from tests.inspect.compare.architectures import NAMES
from tests.inspect.compare.faults import OPERATORS, faults_of
from tests.inspect.compare.pairs import LIBRARIES, clean, planted
from tests.sampling import slow_but

pytestmark = pytest.mark.usefixtures("users_promotion")

ROOT = pathlib.Path(__file__).parents[3]
QUICK_PAIRS = ("decoder, torch, seed 1", "decoder, permuted, seed 2")
QUICK = ("encoder", "decoder")  # the others take seconds to compile


def sample():
    """One place for each operator that is in those architectures, beside plait and torch."""
    first = {}
    for case in planted():
        if case.fault.path[-1:] == ("key",):  # softmax takes the bias of a key away
            continue
        if case.fault.architecture in QUICK and case.library in ("plait", "torch"):
            first.setdefault(case.fault.operator.name, case)
    return list(first.values())


SAMPLE = sample()


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize("case", slow_but(SAMPLE[3::6], SAMPLE), ids=str)
def test_a_planted_fault_is_named(case):
    found, swapped = case.compare()
    assert case.is_right(found, swapped), found


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in planted() if case not in SAMPLE][::29], ids=str)
def test_a_planted_fault_is_named_in_any_architecture_and_library(case):
    found, swapped = case.compare()
    assert not case.shows(found) or case.is_right(found, swapped), found


@pytest.mark.oracle
@pytest.mark.parametrize("case", [case for case in clean() if case.architecture != "tagger"][::5], ids=str)
@pytest.mark.slow
def test_a_clean_pair_of_any_kind_says_nothing(case):
    assert case.compare().agrees


@pytest.mark.oracle
@pytest.mark.parametrize("case", [case for case in clean() if str(case) in QUICK_PAIRS], ids=str)
def test_a_clean_pair_says_nothing(case):
    assert case.compare().agrees


def test_every_operator_is_planted_somewhere():
    counts = collections.Counter(fault.operator.name for name in NAMES for fault in faults_of(name))
    assert counts.keys() == {operator.name for operator in OPERATORS}
    assert sum(counts.values()) > 400
    assert {case.library for case in planted()} == set(LIBRARIES)


def test_there_are_clean_pairs_of_each_kind():
    kinds = {case.how for case in clean()}
    assert kinds == {*LIBRARIES, "jit", "permuted", "bfloat16"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nineteen_of_twenty_are_named_and_there_is_no_false_alarm(tmp_path):
    file = tmp_path / "tables.json"
    command = [sys.executable, "-m", "benchmarks", "compare", f"--json={file}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    faults, pairs = json.loads(file.read_text())["tables"]
    (counted, right) = next((int(row[3]), int(row[4].split()[0])) for row in faults["rows"] if row[0] == "all")
    assert counted > 300
    assert right >= 0.95 * counted
    assert pairs["rows"] == [[str(len(clean())), "0"]]
