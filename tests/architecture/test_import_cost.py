"""``import plait`` loads the heart and nothing of what is only needed later."""

import json
import subprocess
import sys

import pytest

from tests.architecture.rooms import OWNERS

ALWAYS_THERE = {"jax", "jaxlib", "numpy", "typing_extensions"}
PROGRAM = """
import json, sys
import plait
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("plait."))))
"""


def test_import_plait_loads_no_library_that_is_used_later():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    packages, modules = map(json.loads, result.stdout.splitlines())
    late = set(OWNERS) - ALWAYS_THERE
    assert late & set(packages) == set()
    assert {name.split(".")[1] for name in modules if name.count(".") > 1} == {
        *("core", "util"),
        "flax",  # methods and attributes of variables, states and modules that Flax had
        "inspect",  # which gives modules their short texts
        "partitioning",  # where a variable with a sharding is placed
    }
    assert len(modules) < 100


METHODS = """
import json
import jax
import plait
CLASSES = "Module Variable State GraphDef Rngs RngStream List Dict".split()
before = {name: sorted(dir(getattr(plait, name))) for name in CLASSES}
for name in dir(plait):
    getattr(plait, name)
import plait.inspect.observe.capture, plait.nn.stacks.stack, plait.edit.views, plait.training.loop.fit
print(json.dumps([[name, sorted(set(dir(getattr(plait, name))) - set(before[name]))] for name in CLASSES]))
"""


@pytest.mark.slow
def test_no_method_comes_only_with_what_is_loaded_later():
    """A feature that gives a class methods is loaded at once, or puts something there that loads it."""
    result = subprocess.run([sys.executable, "-c", METHODS], capture_output=True, text=True, check=True)
    assert {name: found for name, found in json.loads(result.stdout.splitlines()[-1]) if found} == {}
