"""Published packages, unmodified, with plait in the place of flax.nnx: the same numbers as with Flax.

The nox session ``downstream`` makes the environment that they live in and names its Python in ``PLAIT_DOWNSTREAM``.
"""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import plait
from tests.environment import environment

PYTHON = os.environ.get("PLAIT_DOWNSTREAM", "")
PROGRAMS = Path(__file__).with_name("programs")
KERAS = {"KERAS_BACKEND": "jax", "KERAS_NNX_ENABLED": "true"}

pytestmark = pytest.mark.skipif(not PYTHON, reason="the nox session downstream runs these")


def numbers_of(name: str, *start: str, file: Path) -> dict[str, np.ndarray]:
    """What a program computes in a process of its own."""
    done = subprocess.run(
        [PYTHON, *start, str(PROGRAMS / f"use_{name}.py"), str(file)],
        cwd=file.parent, env=environment(**KERAS), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    with np.load(file) as stored:
        return dict(stored)


@pytest.mark.parametrize("name", sorted(path.stem.removeprefix("use_") for path in PROGRAMS.glob("use_*.py")))
def test_a_package_gives_the_numbers_that_it_gives_with_flax(name, tmp_path):
    with_flax = numbers_of(name, file=tmp_path / "flax.npz")
    with_plait = numbers_of(name, "-m", "plait.as_flax", file=tmp_path / "plait.npz")
    assert with_plait.keys() == with_flax.keys()
    for key, expected in with_flax.items():
        np.testing.assert_allclose(with_plait[key], expected, rtol=1e-5, atol=1e-6, err_msg=key)
    if "restored" in with_plait:
        after = next(
            with_plait[key]
            for key in ("after", "logits", "predicted", "plain", "params", "trained")
            if key in with_plait
        )
        np.testing.assert_array_equal(with_plait["restored"], after)


def test_flax_itself_is_the_release_that_plait_stands_in_for():
    script = "from importlib.metadata import version; print(version('flax'))"
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version("flax")


def test_all_programs_of_the_page_on_the_ecosystem_run():
    script = "from tests.docs.examples import ROOT, run_page; print(run_page(ROOT / 'docs' / 'ecosystem.md')[1])"
    root = Path(plait.__file__).parents[2]
    command = [PYTHON, "-c", script]
    done = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_tests_that_nnx_ppo_brings_along_pass(tmp_path):
    """Those that need no physics engine."""
    script = "import nnx_ppo.networks as found; print(*found.__path__)"
    folder = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [PYTHON, "-m", "plait.as_flax", "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", folder],
        cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
