"""The module paths of Flax, as plait.as_flax gives them."""

import importlib
import inspect
import pkgutil

import pytest

import plait
from plait._public import PUBLIC
from plait.flax.compat.flax_paths import HOMES, SAME, FlaxModule, find


def test_every_module_of_flax_has_a_row():
    """Flax itself is the list."""
    nnx = importlib.import_module("flax.nnx")
    modules = {found.name.removeprefix("flax.nnx.") for found in pkgutil.walk_packages(nnx.__path__, "flax.nnx.")}
    assert {*HOMES} - {""} == modules


def test_every_second_name_is_one_in_flax():
    nnx = importlib.import_module("flax.nnx")
    for name, path in SAME.items():
        assert getattr(nnx, name) is importlib.import_module(f"flax.nnx.{path}")


@pytest.mark.parametrize("path", [path for path in HOMES if path])
def test_every_public_name_of_plait_is_where_flax_defines_it(path):
    """What Flax defines in a module and plait has at its root is found by the path of the module too."""
    theirs = importlib.import_module(f"flax.nnx.{path}")
    ours = FlaxModule("flax.nnx", path)
    for name, value in vars(theirs).items():
        is_defined_here = (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == theirs.__name__
        if is_defined_here and name in PUBLIC:
            assert callable(getattr(ours, name)), name


USED = [  # what published packages import
    "nn.dtypes.promote_dtype", "nn.dtypes.canonicalize_dtype", "module.first_from", "module.Module",
    "filterlib.Filter", "filterlib.Predicate", "filterlib.filters_to_predicates", "filterlib.PathParts",
    "nn.linear.default_kernel_init", "nn.linear.default_bias_init", "nn.linear.canonicalize_padding",
    "nn.linear.default_embed_init",
    "nn.normalization.BatchNorm", "nn.attention.dot_product_attention_weights", "nn.recurrent.flip_sequences",
    "nn.initializers.zeros_init", "transforms.autodiff.DiffState", "transforms.transforms.eval_shape",
    "traversals.flatten_mapping", "tracers.current_jax_trace", "tracers.TraceState", "pytreelib.PytreeState",
    "object.PytreeState", "reprlib.Representable", "extract.prefix", "statelib.State", "variablelib.Variable",
    "graphlib.is_node", "helpers.TrainState", "spmd.get_var_pspec", "metrics.MetricState", "optimizer.OptState",
    "training.metrics.Metric", "Initializer", "PureState", "display", "vars_as",
    "graph.Key", "graphlib.Key", "statelib.Key", "filterlib.Key",
    "rnglib.Key", "ids.uuid", "summary.tabulate",
]  # fmt: skip


@pytest.mark.parametrize("name", USED)
def test_names_that_packages_use_are_there_and_in_flax(name):
    path, _, name = name.rpartition(".")
    path = SAME.get(path, path)
    assert hasattr(importlib.import_module(f"flax.nnx.{path}".rstrip(".")), name)
    assert getattr(FlaxModule("flax.nnx", path), name) is not None


def test_filters_named_as_types_are_filters():
    assert find("flax.nnx", "filterlib", "Any") is plait.Any


@pytest.mark.parametrize("path", ["", "nn", "nn.linear", "module", "filterlib", "transforms.iteration"])
def test_an_unknown_name_is_an_attribute_error(path):
    with pytest.raises(AttributeError, match=r"flax\.nnx.*no_such_name"):
        _ = FlaxModule("flax.nnx", path).no_such_name


def test_a_module_lists_its_names():
    assert "first_from" in dir(FlaxModule("flax.nnx", "module"))
