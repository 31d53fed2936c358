"""A forked program does what one of a fresh process does."""

import subprocess
import sys

import pytest

from tests.environment import environment
from tests.forked import run_python
from tests.sampling import slow_but

PROGRAMS = {
    "says": "import sys; print(*sys.argv); print('aside', file=sys.stderr)",
    "fails": "print('so far'); 1 / 0",
    "ends": "import sys; sys.exit(3)",
    "complains": "import sys; sys.exit('no such file')",
    "dies": "import os; os.write(2, b'killed\\n'); os.kill(os.getpid(), 9)",
    "at the end": "import atexit; atexit.register(print, 'over')",
    "environment": "import os; print(os.environ['A_SETTING'], 'HOME' in os.environ)",
    "folder": "import os, sys; print(os.getcwd(), sys.path[0] in ('', os.getcwd()))",
    "modules": "import sys; print([n for n in sys.modules if n.split('.')[0] in ('plait', 'flax', 'rich', 'pytest')])",
    "main": "class A: pass\nimport pickle; print(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)",
    "numbers": "import jax.numpy as jnp; print(jnp.arange(3) * 2.5)",
}


def last(text):
    return text.strip().splitlines()[-1:]


@pytest.mark.sampled
@pytest.mark.parametrize("name", slow_but(lambda name: name != "numbers", PROGRAMS))
def test_a_program_ends_as_in_a_fresh_process(name, tmp_path):
    options = {"env": environment(A_SETTING="1"), "cwd": tmp_path}
    command = ["-c", PROGRAMS[name], "a", "b c"]
    fresh = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)
    found = run_python(*command, **options)
    assert (found.returncode, found.stdout, last(found.stderr)) == (fresh.returncode, fresh.stdout, last(fresh.stderr))


@pytest.mark.slow
def test_files_and_modules_run_from_where_they_are(tmp_path):
    (tmp_path / "beside.py").write_text("HERE = __file__")
    (tmp_path / "program.py").write_text("import sys, beside; print(__name__, beside.HERE, sys.argv[1:])")
    expected = f"__main__ {tmp_path / 'beside.py'} ['x']\n"
    assert run_python(str(tmp_path / "program.py"), "x").stdout == expected
    assert run_python("-m", "program", "x", cwd=tmp_path).stdout == expected


@pytest.mark.slow
def test_one_program_leaves_nothing_to_the_next():
    run_python("-c", "import sys, os, colorsys; os.environ['LEFT'] = '1'; sys.path.append('left')")
    look = "import sys, os; print('colorsys' in sys.modules, 'LEFT' in os.environ, 'left' in sys.path)"
    assert run_python("-c", look).stdout == "False False False\n"


@pytest.mark.slow
def test_a_failure_can_be_an_error():
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        run_python("-c", PROGRAMS["ends"], check=True)


def test_the_environment_of_jax_cannot_be_another():
    with pytest.raises(AssertionError, match="another environment"):
        run_python("-c", "", env=environment(JAX_ENABLE_X64="1"))


@pytest.mark.slow
def test_whoever_watches_hears_of_each_process():
    """Else `make mutate` would take it that such a test reaches nothing."""
    heard: list[str] | None = []
    sys.addaudithook(lambda event, _: None if heard is None else heard.append(event))
    try:
        for _ in range(2):
            run_python("-c", "")
        assert heard.count("os.fork") == 2
    finally:
        heard = None
