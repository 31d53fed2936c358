"""On what a program depends besides function and arguments. (rule W2)"""

import decimal
import locale
import sys
import time

import jax
import numpy as np
import pytest

import plait
from plait._compat import jax_settings
from plait.warm.descriptions import Describer
from plait.warm.environment import _NO_MATTER, environment

# Settings, each for the length of a block.
SETTINGS = {
    "logical axis rules": lambda: plait.logical_axis_rules([("embed", "x")]),
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((8,), ("x",))),
    "another mesh": lambda: jax.set_mesh(jax.make_mesh((4, 2), ("x", "y"))),
    "precision of products": lambda: jax.default_matmul_precision("float32"),
    "promotion": lambda: jax.numpy_dtype_promotion("standard"),
    "random keys": lambda: jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
    "checks for NaN": lambda: jax.debug_nans(True),
}


def test_each_setting_makes_another_environment():
    """W2: and after its block, it is as before."""
    found = {"none": environment(None, Describer())}
    for name, setting in SETTINGS.items():
        with setting():
            found[name] = environment(None, Describer())
        assert environment(None, Describer()) == found["none"]
    same = [(a, b) for a in found for b in found if a < b and found[a] == found[b]]
    assert same == []


def test_the_devices_are_those_of_the_backend(monkeypatch):
    """W2: a program for the CPU does not depend on what other devices there are."""
    devices = {None: jax.devices()[:2], "cpu": jax.devices()}
    monkeypatch.setattr(jax, "devices", lambda backend=None: devices[backend])
    asked, default = environment("cpu", Describer()), environment(None, Describer())
    assert {name for name in asked if asked[name] != default[name]} == {"devices"}


@pytest.mark.parametrize("name", ["XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"])
def test_variables_of_the_compiler_make_another_environment(name, monkeypatch):
    before = environment(None, Describer())
    monkeypatch.setenv(name, "--other")
    assert environment(None, Describer()) != before


@pytest.mark.parametrize("start", _NO_MATTER)
def test_settings_that_do_not_change_programs_are_left_out(start):
    """W2: and each of them is a setting of JAX."""
    names = [name for name in jax_settings() if name.startswith(start)]
    assert names
    assert not {*names} & environment(None, Describer()).keys()


def test_the_versions_of_what_compiles_are_part_of_it():
    """W2."""
    found = environment(None, Describer())
    assert found["plait"] == plait.__version__
    assert (found["jax"], found["numpy"]) == (jax.__version__, np.__version__)
    assert found["jaxlib"]
    assert sys.version in found["python"]
    assert found["flags of python"] == f"{sys.flags.optimize} {sys.flags.dev_mode}"


def test_earlier_arithmetic_is_not_part_of_it():
    """W2: a decimal context collects flags."""
    with decimal.localcontext():
        before = environment(None, Describer())
        assert decimal.Decimal(1) / 3
        assert environment(None, Describer()) == before
        decimal.getcontext().prec += 1
        assert environment(None, Describer()) != before


def test_the_locale_is_part_of_it():
    """W2: numbers and texts may be read by its rules."""
    before, now = environment(None, Describer()), locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C")
        found = environment(None, Describer())
        assert {name for name in found if found[name] != before[name]} == ({"locale"} if now != "C" else set())
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        assert environment(None, Describer())["locale"] != found["locale"]
    finally:
        locale.setlocale(locale.LC_CTYPE, now)
    assert environment(None, Describer()) == before


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of a process is fixed here")
def test_the_time_zone_is_part_of_it(monkeypatch):
    """W2."""
    before = environment(None, Describer())
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-5")
        time.tzset()
        found = environment(None, Describer())
    time.tzset()
    assert {name for name in found if found[name] != before[name]} == {"time zone"}
    assert environment(None, Describer()) == before
