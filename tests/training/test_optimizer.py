import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.core.variables.variable_kinds import OptArray, OptState, OptVariable
from plait.errors import OptimizerAttributeError, OptimizerError
from plait.training.optimizer import ModelAndOptimizer, Optimizer
from tests.nn.twins import flax_nnx, pure, some_input
from tests.sampling import slow_but


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def two_groups(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)


TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw with clipping": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
    "schedule": lambda: optax.adam(optax.cosine_decay_schedule(1e-2, 10)),
    "masked": lambda: optax.masked(optax.adam(1e-2), matrices),
    "groups": lambda: optax.multi_transform({"matrix": optax.adam(1e-2), "vector": optax.sgd(0.1)}, two_groups),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "accumulation": lambda: optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(1e-2),
}

STEPS = 3
pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax needs JAX's own promotion


def build(lib):
    rngs = lib.Rngs(0)
    return lib.Sequential(
        lib.BatchNorm(3, rngs=rngs), lib.Linear(3, 4, rngs=rngs), jnp.tanh, lib.Linear(4, 2, rngs=rngs)
    )


def loss(model, x):
    return ((model(x) - x[:, :2]) ** 2).mean()


def train(lib, make_optimizer, tx, steps=STEPS):
    """A few steps of a library's own grad and optimizer; the states of both after each."""
    model = build(lib)
    optimizer = make_optimizer(model, tx, wrt=lib.Param)
    gradient = lib.jit(lib.grad(loss))
    states = []
    for seed in range(steps):
        optimizer.update(model, gradient(model, some_input(8, 3, seed=seed)))
        states.append((pure(lib.state(model), lib), lib.state(optimizer)))
    return states


@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(["sgd", "adam"], TRANSFORMATIONS))
def test_trajectories_and_states_are_flax_s(name):
    nnx = flax_nnx()
    mine = train(plait, Optimizer, TRANSFORMATIONS[name]())
    other = train(nnx, nnx.Optimizer, TRANSFORMATIONS[name]())
    for (ours, _), (theirs, _) in zip(mine, other, strict=True):
        for path in theirs:
            np.testing.assert_allclose(ours[path], theirs[path], rtol=1e-4, atol=1e-5, err_msg=path)
    ours, theirs = dict(plait.to_flat_state(mine[-1][1])), dict(nnx.to_flat_state(other[-1][1]))
    # Flax makes variables without arrays where a transformation leaves parameters out; plait makes none.
    theirs = {path: leaf for path, leaf in theirs.items() if jax.tree.leaves(leaf.get_raw_value())}
    assert [(p, type(v).__name__) for p, v in ours.items()] == [(p, type(v).__name__) for p, v in theirs.items()]
    for path in ours:
        np.testing.assert_allclose(ours[path][...], theirs[path][...], rtol=1e-3, atol=1e-5, err_msg=str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adamw with clipping", "groups", "schedule free"])
def test_trajectories_are_those_of_plain_optax(name):
    tx, model, reference = TRANSFORMATIONS[name](), build(plait), build(plait)
    optimizer = Optimizer(model, tx, wrt=plait.Param)
    params = plait.to_pure_dict(plait.state(reference, plait.Param))
    state = tx.init(params)
    for seed in range(STEPS):
        grads = plait.grad(loss)(model, some_input(8, 3, seed=seed))
        updates, state = tx.update(plait.to_pure_dict(grads), state, params)
        params = optax.apply_updates(params, updates)
        given = optimizer.update(model, grads)
        for mine, other in zip(jax.tree.leaves(given), jax.tree.leaves(updates), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-8)
    for mine, other in zip(jax.tree.leaves(plait.state(model, plait.Param)), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-8)
    assert int(optimizer.step[...]) == STEPS


@plait.jit
def compiled_step(model, optimizer, x):
    value, grads = plait.value_and_grad(loss)(model, x)
    optimizer.update(model, grads)
    return value


@pytest.mark.parametrize("name", slow_but(["adam"], ["adam", "groups", "accumulation"]))
def test_jit_agrees_with_eager(name):
    eager, compiled = build(plait), build(plait)
    eager_optimizer = Optimizer(eager, TRANSFORMATIONS[name](), wrt=plait.Param)
    compiled_optimizer = Optimizer(compiled, TRANSFORMATIONS[name](), wrt=plait.Param)
    for seed in range(STEPS):
        x = some_input(8, 3, seed=seed)
        eager_optimizer.update(eager, plait.grad(loss)(eager, x))
        compiled_step(compiled, compiled_optimizer, x)
    for mine, other in ((compiled, eager), (compiled_optimizer, eager_optimizer)):
        for a, b in zip(jax.tree.leaves(plait.state(mine)), jax.tree.leaves(plait.state(other)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_new_transformation_of_the_same_content_is_not_compiled_again():
    traces = []

    @plait.jit
    def step(model, optimizer, x):
        traces.append(None)
        optimizer.update(model, plait.grad(loss)(model, x))

    for _ in range(3):
        model = build(plait)
        step(model, Optimizer(model, optax.adam(1e-2), wrt=plait.Param), some_input(8, 3))
    assert len(traces) == 1


def test_an_update_changes_no_structure():
    model = build(plait)
    optimizer = Optimizer(model, optax.adam(1e-2), wrt=plait.Param)
    before = plait.graphdef((model, optimizer))
    optimizer.update(model, plait.grad(loss)(model, some_input(8, 3)))
    assert plait.graphdef((model, optimizer)) is before


def test_written_buffers_can_be_donated():
    model = build(plait)
    optimizer = Optimizer(model, optax.contrib.schedule_free_adamw(1e-2), wrt=plait.Param)

    @plait.jit(donate=...)
    def step(model, optimizer, x):
        optimizer.update(model, plait.grad(loss)(model, x))

    for _ in range(2):
        step(model, optimizer, some_input(8, 3))
    assert int(optimizer.step[...]) == 2


@given(st.sampled_from(["kernel", "bias"]), st.booleans())
@settings(max_examples=4)
def test_only_what_wrt_selects_changes(part, module_gradients):
    """Gradients of the rest are ignored, and may come as a module."""
    model = build(plait)
    before = pure(plait.state(model, plait.Param))
    optimizer = Optimizer(model, optax.sgd(0.1), wrt=plait.PathContains(part))
    grads = plait.grad(loss)(model, some_input(8, 3))
    if module_gradients:
        grads = plait.merge(plait.graphdef(model), grads, plait.state(model, plait.BatchStat))
    updates = optimizer.update(model, grads)
    after = pure(plait.state(model, plait.Param))
    changed = {path for path in after if not (after[path] == before[path]).all()}
    assert changed
    assert all(path.endswith(part) for path in changed)
    assert all(path[-1] == part for path, _ in plait.to_flat_state(updates))


def test_extra_arguments_reach_the_transformation():
    seen = {}

    def update(grads, state, params=None, **extra):
        seen.update(extra)
        return grads, state

    model = build(plait)
    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    Optimizer(model, tx, wrt=plait.Param).update(model, plait.state(model, plait.Param), value=3.0)
    assert seen == {"value": 3.0}


def test_a_transformation_sees_raw_arrays_with_the_model_s_paths():
    seen = []

    def init(params):
        seen.append(params)
        return {"copy": params, "count": jnp.zeros(())}

    model = build(plait)
    optimizer = Optimizer(model, optax.GradientTransformation(init, lambda g, s, p: (g, s)), wrt=plait.Param)
    assert isinstance(seen[0], plait.State)
    assert all(isinstance(leaf, jax.Array) for _, leaf in plait.to_flat_state(seen[0]))
    assert type(optimizer.opt_state["copy"]["layers"][1]["kernel"]) is OptVariable
    assert type(optimizer.opt_state["count"]) is OptArray


def test_a_mirror_has_the_metadata_of_its_variable():
    layer = plait.Linear(2, 3, kernel_metadata={"note": 1, "optimizer_sharding": (None, None)}, rngs=plait.Rngs(0))
    mirror = Optimizer(layer, optax.adam(0.1), wrt=plait.Param).opt_state[0].mu["kernel"]
    assert (mirror.note, mirror.out_sharding, mirror.has_metadata("optimizer_sharding")) == (1, (None, None), False)


def test_tied_variables_are_updated_once():
    shared = plait.Param(jnp.ones(2))
    model = plait.Dict(a=plait.Dict(w=shared), b=plait.Dict(w=shared))
    optimizer = Optimizer(model, optax.sgd(1.0), wrt=plait.Param)
    optimizer.update(model, plait.grad(lambda m: (m.a.w * m.b.w).sum())(model))
    assert shared[...].tolist() == [-1.0, -1.0]


def test_a_single_variable_is_a_model_too():
    variable = plait.Param(jnp.ones(2))
    optimizer = Optimizer(variable, optax.sgd(0.5), wrt=plait.Param)
    optimizer.update(variable, plait.grad(lambda v: (v**2).sum())(variable))
    assert variable[...].tolist() == [0.0, 0.0]


def test_half_precision_parameters_keep_their_dtype():
    model = plait.Linear(2, 2, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    optimizer = Optimizer(model, optax.sgd(0.5), wrt=plait.Param)
    optimizer.update(model, jax.tree.map(lambda p: jnp.ones(p.shape, jnp.float32), plait.state(model, plait.Param)))
    assert model.bias.value.dtype == jnp.bfloat16
    assert model.bias[...].tolist() == [-0.5, -0.5]


class Watched(plait.Param):
    def get_value(self, **_):
        raise AssertionError("read through the hook")

    def set_value(self, value, **_):
        raise AssertionError("written through the hook")


def test_hooks_of_variables_do_not_run():
    model = plait.Dict(w=Watched(jnp.ones(2)))
    grads = plait.State({"w": jnp.ones(2)})
    Optimizer(model, optax.adam(0.1), wrt=plait.Param).update(model, grads)
    assert model.w.get_raw_value()[0] < 1


@pytest.fixture
def trained():
    model = build(plait)
    optimizer = Optimizer(model, optax.adam(1e-2), wrt=plait.Param)
    grads = plait.grad(loss)(model, some_input(8, 3))
    optimizer.update(model, grads)
    return model, optimizer, grads


def test_an_error_in_the_transformation_changes_nothing(trained):
    model, optimizer, grads = trained
    before = plait.clone((model, optimizer))

    class Broken(Exception):
        pass

    def fail(*_args, **_kwargs):
        raise Broken("no step today")

    optimizer.tx = optax.GradientTransformation(lambda params: None, fail)
    with pytest.raises(Broken, match="no step today"):
        optimizer.update(model, grads)
    np.testing.assert_array_equal(optimizer.step[...], before[1].step[...])
    np.testing.assert_array_equal(model.layers[1].kernel, before[0].layers[1].kernel)


def test_the_model_is_not_kept(trained):
    with pytest.raises(OptimizerAttributeError, match=r"'model'[\s\S]*ModelAndOptimizer"):
        trained[1].model
    assert not hasattr(trained[1], "anything")


def test_model_and_optimizer_keeps_the_model():
    model = build(plait)
    trainer = ModelAndOptimizer(model, optax.sgd(0.1))
    before = model.layers[1].kernel[...]
    updates = trainer.update(plait.grad(loss)(trainer.model, some_input(8, 3)))
    np.testing.assert_allclose(model.layers[1].kernel, before + updates["layers"][1]["kernel"], rtol=1e-6)
    assert trainer.model is model


def test_kinds_of_the_state_are_opt_states():
    assert issubclass(OptArray, OptState)
    assert issubclass(OptVariable, OptState)
    assert not issubclass(OptVariable, plait.Param)


def a_layer_more(model):
    model.layers.append(plait.Linear(2, 2, rngs=plait.Rngs(0)))


def a_layer_less(model):
    model.layers[1] = plait.relu


def other_sizes(model):
    model.layers[0] = plait.Linear(4, 5, rngs=plait.Rngs(0))
    model.layers[1] = plait.Linear(5, 2, rngs=plait.Rngs(0))


def a_layer_wrapped(model):
    model.layers[1] = plait.Sequential(model.layers[1])


@pytest.mark.parametrize(("change", "found"), [
    (a_layer_more, r"layers\[2\]\.bias, layers\[2\]\.kernel\n +found +2 new, and 4 that match"),
    (a_layer_less, r"\[0\]\.mu\.layers\[1\]\.bias, .*\n +found +4 that the model lacks, and 2 that match"),
    (other_sizes, r"layers\[0\]\.bias, .*\n +found +3 with a different shape, and 1 that match"),
    (a_layer_wrapped, r"layers\[1\]\.layers\[0\]\.bias, .*\n +found +2 new, 4 that the model lacks, and 2 that match"),
])  # fmt: skip
@pytest.mark.parametrize("way", slow_but([plait.jit], [lambda f: f, plait.jit]), ids=["eager", "jit"])
def test_a_model_that_was_changed_after_its_optimizer_is_told_apart(way, change, found):
    model = plait.Sequential(plait.Linear(4, 3, rngs=plait.Rngs(0)), plait.Linear(3, 2, rngs=plait.Rngs(1)))
    optimizer = Optimizer(model, optax.adam(0.1), wrt=plait.Param)
    change(model)
    before = pure(plait.state((model, optimizer)))
    grads = plait.grad(lambda model: model(jnp.ones((1, 4))).sum())(model)
    with pytest.raises(OptimizerError, match=found):
        way(lambda model, optimizer, grads: optimizer.update(model, grads))(model, optimizer, grads)
    jax.tree.map(np.testing.assert_array_equal, pure(plait.state((model, optimizer))), before)


LINE_SEARCHES = {
    "lbfgs": lambda: optax.lbfgs(),
    "lbfgs with backtracking": lambda: optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(15)),
    "backtracking": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)),
    "backtracking that keeps gradients": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10, store_grad=True)
    ),
    "zoom": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(10)),
}


def searched(nnx, name, jit, as_module=False):
    x = some_input(16, 2)
    y = x @ jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, LINE_SEARCHES[name](), wrt=nnx.Param)

    def loss(model):
        return ((model(x) - y) ** 2).mean()

    def step(model, optimizer):
        value, grads = nnx.value_and_grad(loss)(model)
        graphdef, _ = nnx.split(model)
        grad = nnx.merge(graphdef, grads) if as_module else grads
        optimizer.update(model, grads, grad=grad, value=value, value_fn=lambda s: loss(nnx.merge(graphdef, s)))
        return value

    run = nnx.jit(step) if jit else step
    return [float(run(model, optimizer)) for _ in range(3)] + [float(loss(model))]


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(["zoom"], LINE_SEARCHES))
@pytest.mark.parametrize("jit", slow_but([True], [False, True]))
def test_a_line_search_finds_what_it_finds_in_flax(name, jit):
    losses = searched(plait, name, jit)
    assert losses == searched(flax_nnx(), name, jit)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_line_search_takes_gradients_in_the_form_of_the_model():
    assert searched(plait, "lbfgs", True, as_module=True) == searched(plait, "lbfgs", True)


@pytest.mark.slow
def test_a_line_search_over_some_of_the_variables():
    """The gradients of the others are left out of ``grad`` too."""
    model, x = plait.Linear(2, 3, rngs=plait.Rngs(0)), some_input(16, 2)
    only_kernel = plait.PathContains("kernel")
    optimizer = plait.Optimizer(model, optax.lbfgs(), wrt=only_kernel)

    def loss(model):
        return ((model(x) - 1) ** 2).mean()

    def search_loss(graphdef, others, params):
        return loss(plait.merge(graphdef, params, others))

    before, bias = float(loss(model)), model.bias[...]
    for _ in range(3):
        value, grads = plait.value_and_grad(loss)(model)
        graphdef, rest = plait.split(model)
        others = plait.filter_state(rest, plait.Not(only_kernel))
        search = {"grad": grads, "value": value, "value_fn": functools.partial(search_loss, graphdef, others)}
        optimizer.update(model, grads, **search)
    assert float(loss(model)) < before
    np.testing.assert_array_equal(model.bias, bias)


def with_arrays(nnx):
    class Net(nnx.Module):
        def __init__(self):
            self.w = jnp.array([1.0, 2.0])
            self.inner = nnx.Dict(w=jnp.array([3.0]), p=nnx.Param(jnp.array([4.0])))

        def __call__(self):
            return (self.w**2).sum() + (self.inner.w * self.inner.p[...]).sum()

    return Net()


SELECTIONS = {"by name": lambda path, x: path[-1] == "w", "one of them": lambda path, x: path == ("w",), "all": ...}


@pytest.mark.oracle
@pytest.mark.parametrize("wrt", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("name", slow_but(["adam"], ["sgd", "adam", "adamw with clipping"]))
@pytest.mark.parametrize("jit", slow_but([True], [False, True]))
def test_array_attributes_are_updated_as_flax_does(wrt, name, jit):
    results = []
    for nnx in (plait, flax_nnx()):
        model = with_arrays(nnx)
        optimizer = nnx.Optimizer(model, TRANSFORMATIONS[name](), wrt=wrt)

        def step(model, optimizer, nnx=nnx):
            grads = nnx.grad(lambda model: model(), argnums=nnx.DiffState(0, wrt))(model)
            optimizer.update(model, grads)

        run = nnx.jit(step) if jit else step
        for _ in range(STEPS):
            run(model, optimizer)
        kinds = [type(leaf).__name__ for leaf in jax.tree.leaves(optimizer.opt_state, is_leaf=is_opt_variable)]
        results.append(([model.w, model.inner.w, model.inner.p[...]], kinds))
    for ours, theirs in zip(*(arrays for arrays, _ in results), strict=True):
        assert isinstance(ours, jax.Array)
        np.testing.assert_array_equal(ours, theirs)
    assert results[0][1] == results[1][1]


def is_opt_variable(node):
    return type(node).__name__.startswith("Opt")


def test_an_error_leaves_array_attributes_alone():
    model = with_arrays(plait)
    optimizer = plait.Optimizer(model, optax.adam(0.1), wrt=...)
    with pytest.raises(OptimizerError, match=r"no gradient for inner\.p; a gradient for b, "):
        optimizer.update(model, plait.State({"w": jnp.ones(2), "inner": {"w": jnp.ones(1)}, "b": jnp.ones(1)}))
    assert model.w.tolist() == [1.0, 2.0]


def test_an_optimizer_has_the_type_of_its_model():
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    tx = optax.adam(1e-2)
    optimizer = plait.Optimizer[plait.Linear](model, tx, wrt=plait.Param)
    both: plait.ModelAndOptimizer[plait.Linear] = plait.ModelAndOptimizer(model, tx)
    plain = plait.Optimizer(model, tx, wrt=plait.Param)
    assert plait.graphdef(optimizer) == plait.graphdef(plain)
    assert set(vars(optimizer)) == set(vars(plain))
    assert both.model.in_features == 2


def test_a_traced_learning_rate_is_told_about_inject_hyperparams():
    model, x = plait.Linear(2, 3, rngs=plait.Rngs(0)), some_input(4, 2)

    @plait.jit(static_argnums=2)
    def make(model, rate, kind):
        return plait.Optimizer(model, kind(rate), wrt=plait.Param)

    def step(optimizer):
        optimizer.update(model, plait.grad(lambda model: (model(x) ** 2).mean())(model))

    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        step(make(model, 0.1, optax.adam))
    advice = "optax.inject_hyperparams(optax.adam)(learning_rate=learning_rate)"
    assert any(advice in note for note in caught.value.__notes__)
    injected = optax.inject_hyperparams(optax.adam)
    step(make(model, 0.1, lambda learning_rate: injected(learning_rate=learning_rate)))


def test_factored_moments_have_no_layout_of_their_own_on_a_mesh():
    """Their axes are not those of the variable: its names would shard others, or be too many."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    metadata = {"out_sharding": ("data", "model")}
    with jax.set_mesh(mesh):
        model = plait.Linear(128, 256, rngs=plait.Rngs(0), kernel_metadata=metadata)
        optimizer = plait.Optimizer(model, optax.adafactor(0.1), wrt=plait.Param)
    leaves = [leaf for _, leaf in plait.iter_graph(optimizer.opt_state)]
    moments = [leaf for leaf in leaves if isinstance(leaf, OptVariable)]
    layouts = {leaf.get_value().shape: leaf.get_metadata().get("out_sharding") for leaf in moments}
    assert {layouts[(128,)], layouts[(256,)]} == {None}


def test_factored_moments_have_the_metadata_of_their_variable():
    """Also of one without names of axes: nothing is added."""
    model = plait.Dict(w=plait.Param(jnp.ones((4, 4)), note=1))
    optimizer = plait.Optimizer(model, optax.adafactor(0.1), wrt=plait.Param)
    mirrors = jax.tree.leaves(optimizer.opt_state, is_leaf=lambda leaf: isinstance(leaf, plait.OptVariable))
    found = [mirror.get_metadata() for mirror in mirrors if isinstance(mirror, plait.OptVariable)]
    assert found
    assert all(metadata["note"] == 1 and "out_sharding" not in metadata for metadata in found)


def test_a_parameter_of_a_weak_type_has_a_strong_one_after_a_step():
    """As from ``optax.apply_updates``: the second step of a jitted function has the types of all later ones."""
    model = plait.Dict(w=plait.Param(jnp.full((2,), 0.5)))
    assert model["w"][...].weak_type
    optimizer = Optimizer(model, optax.sgd(0.1), wrt=plait.Param)
    optimizer.update(model, plait.grad(lambda model: (model["w"] * 2.0).sum())(model))
    assert not model["w"][...].weak_type


def test_an_array_that_a_transformation_returns_twice_is_two_buffers():
    """O2: so that a step may donate both."""
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.lbfgs(0.1, linesearch=None), wrt=plait.Param)

    @plait.jit(donate=True)
    def step(model, optimizer):
        grads = plait.grad(lambda model: (model(jnp.ones((3, 2))) ** 2).mean())(model)
        optimizer.update(model, grads)

    step(model, optimizer)
    step(model, optimizer)
    assert int(optimizer.step[...]) == 2


@pytest.mark.parametrize("run", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_the_state_of_an_optimizer_may_be_references(run):
    """O1."""
    model = plait.Linear(3, 2, rngs=plait.Rngs(0))
    expected = plait.clone(model)
    with plait.var_defaults(ref=True):
        optimizer = Optimizer(model, optax.adam(0.1), wrt=plait.Param)
    grads = jax.tree.map(jnp.ones_like, plait.state(model))
    run(lambda optimizer, model, grads: optimizer.update(model, grads) and None)(optimizer, model, grads)
    Optimizer(expected, optax.adam(0.1), wrt=plait.Param).update(expected, grads)
    np.testing.assert_allclose(model.kernel[...], expected.kernel[...], rtol=1e-6)
    assert optimizer.step[...] == 1
