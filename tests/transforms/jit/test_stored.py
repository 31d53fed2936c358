"""``jit(cache=folder)``: a program that outlives the process is never a stale one. (rules W1 to W9)"""

import random
import sys

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ProgramCacheError, ProgramCacheWarning

from . import warm_programs
from .warm_programs import BASE, CHOICES


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    for name in warm_programs.NAMES:
        sys.modules.pop(name, None)


def counts(step):
    return step.jitted_fn.programs.counts


def both(tmp_path, choice):
    """What a choice gives with and without a cache, each in freshly loaded modules; and the counts."""
    plain, _ = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice)
    found, step = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice, cache=tmp_path / "kept")
    return plain, found, counts(step)


def test_w1_the_same_program_is_loaded(tmp_path):
    plain, found, first = both(tmp_path, BASE)
    again, loaded, second = both(tmp_path, BASE)
    assert plain == found == again == loaded
    assert first == {"loaded": 0, "stored": 1, "not stored": 0}
    assert second == {"loaded": 1, "stored": 0, "not stored": 0}


@pytest.mark.parametrize("name", [name for name in CHOICES])
def test_w3_each_kind_of_edit_is_a_miss(tmp_path, name):
    both(tmp_path, BASE)
    plain, found, after = both(tmp_path, {**BASE, name: CHOICES[name][1]})
    assert plain == found
    assert after["stored"] == (name != "weak"), "the edit was not seen"
