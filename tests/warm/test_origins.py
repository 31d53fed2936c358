"""Where code comes from: environments that see the packages of another one. (rule W6)"""

import os
import subprocess
import sys
from pathlib import Path

import plait


def test_w6_packages_of_another_environment_are_packages(tmp_path):
    """As with ``python -m venv --system-site-packages``, ``pip install --user`` and ``.pth`` files."""
    site = tmp_path / "lib" / "site-packages"
    (site / "warm_library").mkdir(parents=True)
    (site / "warm_library" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "warm_own.py").write_text("")
    program = "from plait.warm.origins import origin_of; print(*map(origin_of, ('warm_library', 'warm_own')))"
    paths = os.pathsep.join(map(str, (Path(plait.__file__).parents[1], site, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.stdout.split() == ["Origin.PACKAGE", "Origin.USER"], done.stderr
