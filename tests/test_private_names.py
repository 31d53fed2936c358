"""What happens when JAX moves one of the private names that plait uses: only the feature that needs it says so.

A name is moved as plait sees it, and not as JAX does: plait finds a copy of the module without it. One process imports
the libraries and is forked for each name, and once more with all of them moved that only one feature needs: whoever
trains and saves without any of them can do without each.
"""

import ast
import functools
import json
from pathlib import Path

import pytest

import plait.util.jax_versions
from tests.forked import run_python

SOURCE = Path(plait.util.jax_versions.__file__).read_text("utf-8")

PROGRAM = """
import importlib, json, os, sys, tempfile, types, warnings

import jax, jax.numpy as jnp, numpy as np, optax
import jaxlib.xla_client, orbax.checkpoint


def move(name, places):
    for place in places:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        sys.modules[place] = without(name, module)


def without(name, module):
    def found(wanted):
        if wanted == name and sys._getframe(1).f_globals["__name__"] != "plait.util.jax_versions":
            return getattr(module, name)
        raise AttributeError(wanted)

    copy = types.ModuleType(module.__name__)
    vars(copy).update(vars(module), __getattr__=found)
    vars(copy).pop(name, None)
    return copy


def train_and_save(plait, folder):
    model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.tanh, plait.Linear(3, 1, rngs=plait.Rngs(1)))
    optimizer = plait.Optimizer(model, optax.adam(0.1), wrt=plait.Param)

    @plait.jit
    def step(model, optimizer, x):
        loss, grads = plait.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, jnp.ones((4, 2)))) for _ in range(3)]
    assert losses[-1] < losses[0], losses
    before = np.asarray(model.layers[0].kernel[...])
    plait.checkpoint.save(folder + "/saved", {"model": model, "optimizer": optimizer})
    step(model, optimizer, jnp.ones((4, 2)))
    plait.checkpoint.restore(folder + "/saved", {"model": model, "optimizer": optimizer})
    assert np.array_equal(before, model.layers[0].kernel[...])


def cost(plait, folder):
    plait.cost(lambda x: x @ x, jnp.ones((2, 2)), compile=False)


def connect(plait, folder):
    plait.partitioning.connect_processes()


def join(plait, folder):
    plait.util.jax_versions.coordinator()


FEATURES = {"plait.cost": cost, "plait.partitioning.connect_processes": connect, "a run of several processes": join}


def outcome(names, feature):
    for name, places in names:
        move(name, places)
    try:
        import plait
    except ImportError as error:
        return f"import: {error}"
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings(record=True) as warned:
            try:
                FEATURES.get(feature, train_and_save)(plait, folder)
            except plait.errors.MissingDependencyError as error:
                return f"feature: {error}"
    return "\\n".join(f"feature: {each.message}" for each in warned) or "everything works"


for each in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(outcome(*each)).encode())
        os._exit(0)
    os.close(writing)
    print(os.read(reading, 65_536).decode() or json.dumps("it ended"), flush=True)
    os.wait()
"""


def private_names():
    """Each call of ``private``: the name, its places, the feature, and whether something else takes its place."""
    tree = ast.parse(SOURCE)
    constants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.Tuple)):
            for target in node.targets:
                constants[ast.unparse(target)] = ast.literal_eval(node.value)
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    spare = {id(call) for node in tries for call in _calls(node)}
    for call in _calls(tree):
        places = []
        for argument in call.args[1:]:
            is_many = isinstance(argument, ast.Starred)
            places += constants[ast.unparse(argument.value)] if is_many else [ast.literal_eval(argument)]
        (feature,) = (word.value for word in call.keywords if word.arg == "feature")
        feature = constants.get(ast.unparse(feature)) or ast.literal_eval(feature)
        has_spare = id(call) in spare or any(word.arg == "otherwise" for word in call.keywords)
        yield ast.literal_eval(call.args[0]), places, feature, has_spare


def _calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "private":
            yield node


NAMES = [*private_names()]


HEART = plait.util.jax_versions._VARIABLES


@functools.cache
def outcomes():
    """One for each name, and one for all that the heart can do without."""
    of_features = [(name, places) for name, places, feature, _ in NAMES if feature != HEART]
    given = [*(([(name, places)], feature) for name, places, feature, _ in NAMES), (of_features, "training")]
    lines = run_python("-c", PROGRAM, json.dumps(given), check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_the_names_are_found():
    names = {name for name, *_ in NAMES}
    assert {"ClusterEnv", "PRNGKeyArray"} <= names


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(NAMES)), ids=[name for name, *_ in NAMES])
def test_a_name_that_has_moved_breaks_only_what_needs_it(number):
    name, places, feature, has_spare = NAMES[number]
    found = outcomes()[number]
    if has_spare:
        assert found == "everything works"
    elif feature == HEART:
        assert found.startswith("import: ")
    else:
        assert found.startswith("feature: ")
        assert f"{feature} needs a private name of JAX" in found
    if not has_spare:
        assert f"without {name} in {places[0]}" in found


def test_training_and_saving_need_none_of_the_features_names():
    assert outcomes()[-1] == "everything works"


def test_the_tested_versions_are_those_of_the_locks():
    folder = Path(__file__).parents[1] / "requirements"
    for lock, version in zip(("dev.lock", "dev-newest.lock"), plait.util.jax_versions.TESTED_WITH, strict=True):
        assert f"\njax=={version} \\" in (folder / lock).read_text()
