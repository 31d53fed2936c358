"""Plait classes as Linen modules."""

import functools
import gc
import re
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

import plait
from plait import bridge, meta
from plait.errors import ArgumentError, ArgumentTypeError
from tests.flax.bridge.flaxes import plain, same_trees
from tests.sampling import slow_but

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
KEY = jax.random.key(0)


class Net(plait.Module):
    """Parameters with and without metadata, statistics, random state, a list, and something sown."""

    def __init__(self, sizes, *, scale=2.0, rngs):
        named = plait.with_partitioning(plait.initializers.lecun_normal(), (None, "model"))
        self.first = plait.Linear(*sizes, rngs=rngs, kernel_init=named)
        self.norm = plait.BatchNorm(sizes[1], rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)
        self.rest = [plait.Linear(sizes[1], sizes[1], rngs=rngs)]
        self.scale = scale

    def __call__(self, x, *, train=False):
        if not train:
            self.eval()
        x = self.norm(self.first(x))
        self.sow(plait.Intermediate, "hidden", x)
        return self.rest[0](self.drop(x)) * self.scale

    def doubled(self, x):
        return x * 2


def net(**kwargs):
    return bridge.to_linen(Net, (2, 3), **kwargs)


def streams(**seeds):
    return {name: jax.random.key(seed) for name, seed in seeds.items()}


def test_variables_stand_in_the_collections_of_their_classes():
    """B27, B29: boxes for metadata, no random state, integers as keys of lists; ``default`` may be missing."""
    variables = net().init(KEY, X)
    assert sorted(variables) == ["batch_stats", "params"]
    assert sorted(variables["params"]) == ["first", "norm", "rest"]
    box = variables["params"]["first"]["kernel"]
    assert isinstance(box, bridge.NNXMeta)
    assert nn.get_partition_spec(variables)["params"]["first"]["kernel"] == jax.sharding.PartitionSpec(None, "model")
    assert variables["params"]["rest"][0]["kernel"].shape == (3, 3)
    assert nn.unbox(variables)["params"]["first"]["kernel"].shape == (2, 3)


def test_the_initial_state_is_stored_before_the_call():
    """B29: statistics that the call would update, too."""
    _, variables = net().init_with_output(KEY, X, train=True)
    assert np.array_equal(variables["batch_stats"]["norm"]["mean"], np.zeros(3))


@pytest.mark.parametrize("when", ["in the constructor", "in the call"])
def test_init_stores_the_variables_that_its_call_used(when):
    """B23, B29: a Linen module inside that has variables keeps them; one that has none makes them."""

    class Wrapped(plait.Module):
        def __init__(self, rngs):
            self.dense = bridge.ToNNX(nn.Dense(3), rngs)
            if when == "in the constructor":
                self.dense.lazy_init(X)

        def __call__(self, x):
            return self.dense(x)

    module = bridge.to_linen(Wrapped)
    out, variables = module.init_with_output(KEY, X)
    assert sorted(variables["params"]["dense"]) == ["bias", "kernel"]
    same_trees(out, nn.Dense(3).apply({"params": meta.unbox(variables["params"]["dense"])}, X))
    same_trees(module.apply(variables, X), out)


def test_metadata_fn_says_what_is_stored():
    """B29: None stores bare values."""
    assert isinstance(net(metadata_fn=None).init(KEY, X)["params"]["first"]["kernel"], jax.Array)
    tagged = net(metadata_fn=lambda v: meta.Partitioned(v.get_value(), ("t",) * v.ndim)).init(KEY, X)
    assert tagged["params"]["first"]["bias"].names == ("t",)


@pytest.mark.slow
def test_apply_equals_the_plait_module_and_writes_what_is_mutable():
    """B30: outputs, statistics and gradients, to the last bit; boxes stay boxes."""
    module = net()
    variables = module.init(streams(params=0, dropout=1), X)
    twin = bridge.from_collections(variables, Net((2, 3), rngs=plait.Rngs(5)))

    def loss(params):
        out, updates = module.apply(
            {**variables, "params": params}, X, train=True, rngs=streams(dropout=2), mutable=["batch_stats"]
        )
        return (out**2).sum(), (out, updates)

    grads, (_, updates) = jax.grad(loss, has_aux=True)(variables["params"])
    assert isinstance(grads["first"]["kernel"], bridge.NNXMeta)

    def twin_loss(twin):
        key = LinenKey.draw(streams(dropout=2))
        twin.drop.rngs = plait.RngStream(plait.Rngs(dropout=key, default=0).dropout(), tag="dropout")
        return (plait.capture(twin)(X, train=True) ** 2).sum()

    twin_grads = plait.grad(twin_loss)(twin)
    same_trees(bridge.nnx_attrs_to_linen_vars(twin_grads)["params"], grads)
    same_trees(plait.to_pure_dict(plait.state(twin, plait.BatchStat)), updates["batch_stats"])


class LinenKey(nn.Module):
    """The key that a module at the top draws in Linen."""

    @nn.compact
    def __call__(self):
        return self.make_rng("dropout")

    @classmethod
    def draw(cls, rngs):
        return cls().apply({}, rngs=rngs)


def test_the_default_stream_is_seeded_0_in_apply():
    """B28: so that evaluation needs no streams."""
    seen = []

    class Draws(plait.Module):
        def __init__(self, rngs):
            self.key = rngs.default.key[...]
            self.names = sorted(rngs)

        def __call__(self):
            seen.append((jax.random.key_data(self.key).tolist(), self.names))

    module = bridge.to_linen(Draws)
    module.apply({})
    module.apply({}, rngs=streams(dropout=0))
    zero = jax.random.key_data(jax.random.key(0)).tolist()
    assert seen == [(zero, ["default"]), (zero, ["default", "dropout"])]


def test_skip_rng_is_for_classes_without_streams():
    """B28."""

    class Scale(plait.Module):
        def __init__(self, size):
            self.scale = plait.Param(jnp.ones(size))

        def __call__(self, x):
            return x * self.scale[None]

    module = bridge.to_linen(Scale, 2, skip_rng=True)
    assert np.array_equal(module.apply(module.init(KEY, X), X), X)


def test_the_shortcut_and_the_class_say_the_same():
    """B27."""
    short, full = net(scale=3.0, name="n"), bridge.ToLinen(Net, ((2, 3),), FrozenDict(scale=3.0), name="n")
    assert short == full
    assert hash(short) == hash(full)
    assert short.name == "n"
    assert bridge.wrappers.ToLinen is bridge.ToLinen


def test_a_class_of_linen_modules_takes_overrides():
    """B27."""
    Dense = bridge.to_linen_class(plait.Linear, metadata_fn=None, in_features=2, use_bias=False)
    module = Dense(out_features=3, name="head")
    assert (Dense.__name__, module.name, module.clone()) == ("Linear", "head", module)
    assert plain(jax.tree.map(jnp.shape, module.init(KEY, X))) == {"params": {"kernel": (2, 3)}}
    wide = Dense(out_features=4, use_bias=True)
    assert sorted(wide.init(KEY, X)["params"]) == ["bias", "kernel"]

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Dense(out_features=3)(x)

    assert list(Model().init(KEY, X)["params"]) == ["Linear_0"]


@pytest.mark.parametrize(
    ("name", "constructor", "sizes"),
    [("Linear", plait.Linear, (2, 3)), ("ToLinenPartial", functools.partial(plait.Linear, 2), (3,))],
    ids=["class", "partial"],
)
def test_a_class_of_linen_modules_is_named_after_what_it_wraps(name, constructor, sizes):
    """B27: the name is that of its variables in a Linen module; a partial has none, and gets that of the wrapper."""
    Layer = bridge.to_linen_class(constructor)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Layer(*sizes)(x)

    assert Layer.__name__ == name
    assert list(Model().init(KEY, X)["params"]) == [f"{name}_0"]
    assert isinstance(Layer.__module__, str)


def test_methods_are_chosen_by_name_or_callable():
    """B31: arguments are readable, and other methods callables."""
    module = net(scale=3.0)
    variables = module.init(KEY, X)
    for method in ("doubled", Net.doubled, lambda model, x: model.doubled(x)):
        assert np.array_equal(module.apply(variables, X, nnx_method=method), X * 2)
    assert module.scale == 3.0
    assert np.array_equal(module.bind(variables).doubled(X), X * 2)
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing
    factory = bridge.ToLinen(functools.partial(Net, (2, 3)))
    assert np.array_equal(factory.apply(factory.init(KEY, X), X, nnx_method="doubled"), X * 2)


@pytest.mark.parametrize("method", ["nothing", 3, "__doc__"])
def test_a_method_that_is_none_names_class_and_attribute(method):
    """Section 9."""
    with pytest.raises(ArgumentTypeError, match=rf"at +Net\.{method}"):
        net().init(KEY, X, nnx_method=method)


def test_a_parameter_that_is_missing_is_not_made_up():
    """B30: it names module path, collection and leaf; a missing statistic starts anew, as in Flax."""

    class Middle(nn.Module):
        @nn.compact
        def __call__(self, x):
            return bridge.to_linen(Net, (2, 3), name="net")(x)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Middle(name="middle")(x)

    variables = Outer().init(KEY, X)
    assert Outer().apply({"params": variables["params"]}, X).shape == (4, 3)
    stored = variables["params"]["middle"]["net"]
    for broken in ({}, {"params": {"middle": {"net": {**stored, "norm": {}}}}}):
        with pytest.raises(ArgumentError, match=r"at +middle/net, (first|norm)\.\w+\n(.|\n)*'params'"):
            Outer().apply(broken, X)


def test_unknown_paths_are_a_warning_that_lists_them():
    """B30."""
    module = net()
    variables = module.init(KEY, X)
    variables["params"]["first"]["extra"] = jnp.ones(2)
    variables["params"]["gone"] = {"kernel": jnp.ones(2)}
    with pytest.warns(UserWarning, match=r"unknown module paths(.|\n)*- first.extra(.|\n)*- gone.kernel"):
        _, updates = module.apply(variables, X, mutable=["params"])
    assert updates["params"]["gone"]["kernel"].shape == (2,)


class Odd(plait.Module):
    """Children of every form, for paths that lead nowhere."""

    def __init__(self, rngs):
        self.layers = plait.List([plait.Linear(2, 2, rngs=rngs)])
        self.parts = plait.Dict(a=plait.Linear(2, 2, rngs=rngs))
        self.plain = {"a": plait.Linear(2, 2, rngs=rngs)}
        self.sizes = (2, 3)
        self.scale = 2.0

    def __call__(self, x):
        return self.plain["a"](self.parts.a(self.layers[0](x))) * self.scale


LEADS_NOWHERE = {
    "beyond a list": (("layers", 1, "bias"), "layers[1].bias"),
    "a name in a list": (("layers", "norm", "bias"), "layers.norm.bias"),
    "a name that a module lacks": (("parts", "b", "bias"), "parts.b.bias"),
    "a name that a dict lacks": (("plain", "b", "bias"), "plain.b.bias"),
    "a number in a module": (("parts", "a", 0, "bias"), "parts.a[0].bias"),
    "below a number": (("scale", "bias"), "scale.bias"),
    "a name in a tuple": (("sizes", "w", "bias"), "sizes.w.bias"),
    "below a variable": (("parts", "a", "bias", "w", "deep"), "parts.a.bias.w.deep"),
}


@pytest.mark.parametrize("case", LEADS_NOWHERE)
def test_an_unknown_path_is_listed_wherever_it_ends(case):
    """B30: and the module computes what it did without it."""
    path, shown = LEADS_NOWHERE[case]
    module = bridge.to_linen(Odd)
    variables = module.init(KEY, X)
    expected = module.apply(variables, X)
    node = variables["others"] = {}
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = jnp.ones(2)
    with pytest.warns(UserWarning, match=rf"unknown module paths[^\n]*\n  - {re.escape(shown)}$"):
        out = module.apply(variables, X)
    same_trees(out, expected)


def test_a_list_of_mutable_collections_that_lacks_one_is_an_error():
    """B30: it names module path, collection and leaf; with mutable=False changes are dropped, as Flax does."""

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return bridge.to_linen(Net, (2, 3), name="net")(x, train=True)

    variables = Outer().init(KEY, X)
    run = functools.partial(Outer().apply, variables, X, rngs=streams(dropout=1))
    with pytest.raises(ArgumentError, match=r"'batch_stats' was changed\n +at +net, norm\.mean"):
        run(mutable=["intermediates"])
    assert run().shape == (4, 3)
    _, updates = run(mutable=["intermediates", "batch_stats"])
    assert sorted(updates) == ["batch_stats", "intermediates"]
    assert updates["intermediates"]["net"]["hidden"][0].shape == (4, 3)


def test_a_shared_module_is_made_once():
    """B29: the second call of init finds the variables."""

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = bridge.to_linen(plait.Linear, 2, 2)
            return layer(layer(x))

    variables = Twice().init(KEY, X)
    assert list(variables["params"]) == ["ToLinen_0"]
    kernel, bias = (variables["params"]["ToLinen_0"][name] for name in ("kernel", "bias"))
    layer = lambda x: x @ kernel + bias[None]
    np.testing.assert_allclose(Twice().apply(variables, X), layer(layer(X)), rtol=1e-6)


def test_one_seed_gives_both_sides_the_same_parameters():
    """Ask 18: an option, since Linen folds the path of a module into its keys."""
    variables = bridge.to_linen(plait.Linear, 2, 3, same_keys=True).init(KEY, X)
    same_trees(variables["params"], plait.to_pure_dict(plait.state(plait.Linear(2, 3, rngs=plait.Rngs(params=KEY)))))


def test_apply_runs_the_constructor_on_shapes_only():
    """Ask 18: nothing is allocated for parameters that are given, not even outside jit; random state is computed."""
    made = []

    def init(key, shape, dtype):
        made.append(isinstance(key, jax.core.Tracer))
        return jax.random.normal(key, shape, dtype)

    class Big(plait.Module):
        def __init__(self, rngs):
            self.layer = plait.Linear(2, 3, rngs=rngs, kernel_init=init)
            self.drop = plait.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(self.layer(x))

    module = bridge.to_linen(Big)
    variables = module.init(streams(params=0, dropout=1), X)
    assert made == [False]
    out = module.apply(variables, X, rngs=streams(dropout=1))
    assert all(made[1:])
    times = len(made)
    same_trees(module.apply(variables, X, rngs=streams(dropout=1)), out)
    assert len(made) == times + 1  # shapes again, and the compiled program of the random state
    eager = bridge.to_linen(Big, abstract_init=False)
    same_trees(eager.apply(variables, X, rngs=streams(dropout=1)), out)
    gc.collect()
    before = len(jax.live_arrays())
    kept = module.apply(variables, X, rngs=streams(dropout=1))
    gc.collect()
    assert len(jax.live_arrays()) - before <= 1
    del kept


def test_a_constructor_that_reads_values_is_run_on_values_on_demand():
    """abstract_init=False."""

    class Reads(plait.Module):
        def __init__(self, rngs):
            self.w = plait.Param(jnp.ones(2))
            self.sign = 1 if rngs.params.uniform() >= 0 else -1

        def __call__(self, x):
            return x * self.sign

    module = bridge.to_linen(Reads, abstract_init=False)
    assert np.array_equal(module.apply(module.init(KEY, X), X), X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        bridge.to_linen(Reads).apply(module.init(KEY, X), X)


@pytest.mark.parametrize("nested", [nn.jit, nn.remat], ids=["jit", "remat"])
def test_transforms_of_linen_take_it(nested):
    """B27, ask 18."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nested(bridge.ToLinen)(plait.Linear, (2, 3), name="layer")(x)

    variables = Model().init(KEY, X)
    expected = X @ variables["params"]["layer"]["kernel"] + variables["params"]["layer"]["bias"][None]
    np.testing.assert_allclose(Model().apply(variables, X), expected, rtol=1e-6)
    assert jax.grad(lambda v: Model().apply(v, X).sum())(variables)["params"]["layer"]["kernel"].shape == (2, 3)


def named_linear(size):
    init = plait.with_partitioning(plait.initializers.lecun_normal(), ("in", "out"))
    return bridge.to_linen(plait.Linear, size, size, kernel_init=init, name="layer")


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return named_linear(2)(x), None


@pytest.mark.parametrize("over", slow_but([nn.vmap], [nn.scan, nn.vmap]), ids=["scan", "vmap"])
def test_axis_names_follow_scan_and_vmap_of_linen(over):
    """B10, ask 18: names and rank agree, and the metadata inside the transform is that of one layer."""
    length = {"length": 3} if over is nn.scan else {"axis_size": 3, "in_axes": None}
    stack = over(
        Layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        metadata_params={nn.PARTITION_NAME: "layers"},
        **length,
    )()
    variables = stack.init(KEY, X, None)
    box = variables["params"]["layer"]["kernel"]
    assert box.value.shape == (3, 2, 2)
    assert box.metadata["out_sharding"] == ("layers", "in", "out")
    assert not np.array_equal(box.value[0], box.value[1])
    out = stack.apply(variables, X, None)[0]
    grads = jax.grad(lambda v: stack.apply(v, X, None)[0].sum())(variables)
    assert grads["params"]["layer"]["kernel"].metadata == box.metadata
    assert out.shape == ((4, 2) if over is nn.scan else (3, 4, 2))


def test_an_instance_in_the_place_of_the_class_is_refused():
    module = bridge.to_linen(plait.Linear(2, 3, rngs=plait.Rngs(0)), 2, 3)
    with pytest.raises(ArgumentTypeError, match=r"an instance of Linear(.|\n)*bridge\.to_linen\(Linear, \.\.\.\)"):
        module.init(jax.random.key(0), X)


def in_linen(make):
    """A Linen module that calls the module of ``make`` twice."""

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            module = make()
            return module(module(x) + 5)

    return Twice()


def in_scan(make):
    """A Linen module that scans over the module of ``make``."""

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return make()(x), None

    class Scan(nn.Module):
        @nn.compact
        def __call__(self, x):
            axes = {"params": 0, "batch_stats": 0}
            return nn.scan(Body, variable_axes=axes, split_rngs={"params": True}, length=3)()(x, None)[0]

    return Scan()


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("within", "layer"),
    [(in_linen, "BatchNorm"), (in_scan, "BatchNorm"), (in_scan, "Linear")],
    ids=["statistics, twice", "statistics in a scan", "parameters in a scan"],
)
def test_init_gives_what_flax_gives_when_the_module_runs_again(within, layer):
    """B28, B29: the first initial values, also in a scan, whose body Linen traces twice; and the same draws."""
    flax_nnx = pytest.importorskip("flax.nnx")
    sizes = (2,) if layer == "BatchNorm" else (2, 2)
    ours, theirs = (
        within(functools.partial(nnx.bridge.to_linen, getattr(nnx, layer), *sizes, metadata_fn=None, name="layer"))
        for nnx in (plait, flax_nnx)
    )
    out, variables = theirs.init_with_output(KEY, X)
    same_trees(ours.init(KEY, X), jax.tree.map(lambda x: x, meta.unbox(variables)))
    np.testing.assert_allclose(ours.init_with_output(KEY, X)[0], out, rtol=1e-6)


def test_a_second_call_in_init_keeps_the_parameters_of_the_first():
    """B28: where Flax stores those of the last call; the output is that of ``apply``."""
    make = functools.partial(bridge.to_linen, plait.Linear, 2, 2, metadata_fn=None, name="layer")

    class Once(nn.Module):
        @nn.compact
        def __call__(self, x):
            return make()(x)

    out, variables = in_linen(make).init_with_output(KEY, X)
    same_trees(variables, Once().init(KEY, X))
    np.testing.assert_allclose(in_linen(make).apply(variables, X), out, rtol=1e-6)


def test_a_second_call_in_init_keeps_the_initial_statistics():
    """B29: and stores what the first call made."""

    class Late(plait.Module):
        def __init__(self, rngs):
            self.norm = plait.BatchNorm(2, rngs=rngs)

        def __call__(self, x):
            self.sow(plait.Intermediate, "hidden", x.mean())
            if not hasattr(self, "late"):
                self.late = plait.BatchStat(jnp.zeros(()))
            self.late[...] += 1
            return self.norm(x)

    module = in_linen(lambda: bridge.to_linen(Late, name="late"))
    _, variables = module.init_with_output(KEY, X, mutable=True)
    assert np.array_equal(variables["batch_stats"]["late"]["norm"]["mean"], np.zeros(2))
    assert variables["batch_stats"]["late"]["late"] == 1
    assert len(variables["intermediates"]["late"]["hidden"]) == 2


def test_linen_sees_the_methods_of_the_plait_class_only():
    """B27: filters of ``capture_intermediates`` and interceptors get no helpers of the wrapper."""
    seen = []

    def intercept(call, args, kwargs, context):
        seen.append(context.method_name)
        return call(*args, **kwargs)

    module = net()
    variables = module.init(KEY, X)
    with nn.intercept_methods(intercept):
        module.apply(variables, X)
        module.init(KEY, X)
    assert set(seen) == {"__call__"}
    run = jax.jit(lambda v: module.apply(v, X, capture_intermediates=lambda *_: True, mutable=["intermediates"]))
    assert set(run(variables)[1]["intermediates"]) == {"__call__", "hidden"}


def test_variables_that_init_returned_are_not_unknown():
    """B30: perturbations, sown values, and variables that the call makes, whether it makes them anew or not."""

    class Makes(plait.Module):
        def __init__(self, rngs):
            self.layer = plait.Linear(2, 2, rngs=rngs)

        def __call__(self, x):
            if not hasattr(self, "late"):
                self.late = plait.BatchStat(jnp.zeros(()))
            self.last = plait.BatchStat(x.mean())
            out = self.perturb("noise", self.layer(x))
            self.sow(plait.Intermediate, "hidden", out)
            return out + self.late[...]

    module = bridge.to_linen(Makes)
    variables = module.init(KEY, X)
    assert sorted(variables) == ["batch_stats", "params", "perturbations"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, updates = module.apply(variables, X, mutable=["intermediates", "batch_stats"])
        module.apply({**variables, **updates}, X)
    misspelt = {**variables, "batch_stats": {**variables["batch_stats"], "lost": jnp.zeros(())}}
    with pytest.warns(UserWarning, match=r"unknown module paths[^\n]*\n  - lost$"):
        module.apply(misspelt, X)


def test_a_constructor_that_reads_values_is_told_the_option():
    """abstract_init=False, in a note of JAX's error."""

    class Reads(plait.Module):
        def __init__(self, rngs):
            self.rate = float(jnp.linspace(0, 0.5, 3)[1])

        def __call__(self, x):
            return x * self.rate

    module = bridge.to_linen(Reads)
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        module.apply(module.init(KEY, X), X)
    assert "abstract_init=False" in caught.value.__notes__[0]
