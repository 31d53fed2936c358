"""Memory stays as it is over very many calls; the nox session ``faults`` makes 20 times more of them."""

import json
import subprocess
import sys

import pytest

from tests.environment import environment
from tests.faults.test_killed import KILLS, ROOT

pytestmark = pytest.mark.slow
DISPATCHES, MODELS = (200_000, 10_000) if KILLS >= 100 else (10_000, 250)
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.steady", str(DISPATCHES), str(MODELS)],
        cwd=ROOT,
        # As users run it: each check makes thousands of objects.
        env=environment(JAX_NUMPY_DTYPE_PROMOTION="standard", PLAIT_CHECK_DISPATCH="0"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)  # `pytest -s` shows the figures
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", ["dispatches", "models"])
def test_nothing_grows(found, part):
    """U34: neither with the calls of a jitted step nor with the models that were made, jitted and dropped."""
    measured = found[part]
    assert len(set(measured["arrays"])) == 1, measured
    assert measured["objects"][-1] - measured["objects"][1] < 100, measured
    # A leak grows until the end; what the allocator takes for itself does not.
    _, start, *_, before, end = measured["bytes"]
    assert end - start < 2 * MEBIBYTE or end - before < MEBIBYTE / 16, measured
