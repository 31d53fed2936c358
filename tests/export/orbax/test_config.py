"""Settings by call, by environment variable and by context, beside those of ``orbax.export``."""

import importlib
import threading

import pytest

from plait.export import config
from tests.environment import environment
from tests.forked import run_python

NAME = "obx_export_tf_preprocess_only"


def behaviour(config):
    """What can be seen of the settings of a module."""
    settings, seen = config.config, []

    def look():
        seen.append((settings.obx_export_tf_preprocess_only, settings.read(NAME)))

    try:
        look()
        with config.obx_export_tf_preprocess_only(True):
            look()
            with config.obx_export_tf_preprocess_only(False):
                look()
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
        settings.update(NAME, True)
        look()
        with config.obx_export_tf_preprocess_only(False):
            look()
        look()
    finally:
        settings.update(NAME, False)
    for wrong in (lambda: settings.read("other"), lambda: settings.update("other", True)):
        with pytest.raises(AttributeError, match="other"):
            wrong()
    return seen


def test_e40_a_setting_holds_where_it_was_set():
    """E40: the context, the whole process, other threads."""
    expected = [(0, 0), (1, 0), (0, 0), (0, 0), (1, 1), (0, 1), (1, 1)]
    assert behaviour(config) == [(bool(here), bool(everywhere)) for here, everywhere in expected]


def test_e40_a_context_ends_with_an_error():
    """E40."""
    with pytest.raises(KeyError), config.obx_export_tf_preprocess_only(True):
        raise KeyError
    assert config.config.obx_export_tf_preprocess_only is False


def by_environment(module, value):
    script = f"from {module} import config; print('value:', config.config.{NAME})"
    done = run_python("-c", script, env=environment(**{NAME.upper(): value}))
    lines = done.stdout.split("value: ")
    return lines[1].strip() if len(lines) == 2 else done.stderr.strip().splitlines()


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("Yes", "True"), ("off", "False"), ("N", "False")])
def test_e40_the_environment_sets_it(value, expected, monkeypatch):
    """E40."""
    monkeypatch.setenv("A_SETTING", value)
    assert str(config.bool_env("A_SETTING", expected == "False")) == expected
    monkeypatch.delenv("A_SETTING")
    assert config.bool_env("A_SETTING", True) is True


@pytest.mark.slow
def test_e40_a_value_that_is_neither_yes_nor_no_is_refused():
    """E40, in a process of its own."""
    assert by_environment("plait.export", "on") == "True"
    assert any("OBX_EXPORT_TF_PREPROCESS_ONLY='maybe'" in line for line in by_environment("plait.export", "maybe"))


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_e40_settings_behave_like_those_of_orbax():
    """E40."""
    pytest.importorskip("orbax.export")
    assert behaviour(importlib.import_module("orbax.export.config")) == behaviour(config)
    assert by_environment("orbax.export", "on") == "True"
    assert any("ValueError" in line for line in by_environment("orbax.export", "maybe"))


@pytest.mark.parametrize("name", ["BatchOptions", "Jax2ObmOptions", "SchedulerConfig"])
def test_e31_options_of_orbax_models_say_what_they_belong_to(name):
    """E31."""
    from plait.export import obm_configs

    with pytest.raises(NotImplementedError) as refused:
        getattr(obm_configs, name)
    assert str(refused.value) == (
        f"obm_configs.{name} is an option of export_version=ORBAX_MODEL; plait writes SavedModels (TF_SAVEDMODEL). "
        "Batching of a SavedModel is set where it is served: --batching_parameters_file of TensorFlow Serving"
    )
    with pytest.raises(AttributeError, match="Other"):
        obm_configs.Other
