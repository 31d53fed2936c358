"""Linen modules as plait modules."""

import copy
import gc
import pickle

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError, ArgumentTypeError
from tests.flax.bridge.flaxes import Block, plain, same_trees

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


class Clash(nn.Module):
    """The same name in two collections."""

    @nn.compact
    def __call__(self, x):
        self.variable("counter", "w", lambda: 1)
        return x * self.param("w", nn.initializers.ones, x.shape)


class Taken(nn.Module):
    """A submodule, or one below it, whose name is given."""

    taken: str
    deep: bool = False

    @nn.compact
    def __call__(self, x):
        return Taken("inner", name=self.taken)(x) if self.deep else nn.Dense(2, name=self.taken)(x)


class Numbered(nn.Module):
    """A variable under a number, as ``ToLinen`` stores those of a list."""

    @nn.compact
    def __call__(self, x):
        self.put_variable("params", 0, x)
        return x


class Late(nn.Module):
    """A variable that only a second method makes."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="dense")(x)

    @nn.compact
    def remember(self, x):
        last = self.variable("memory", "last", lambda: jnp.zeros_like(x))
        last.value = last.value + x
        return last.value


def block():
    return bridge.ToNNX(Block(), rngs=plait.Rngs(0, dropout=1)).lazy_init(X)


def variables_of(model):
    attrs = {name: value for name, value in vars(model).items() if not name.startswith("to_nnx__")}
    return bridge.nnx_attrs_to_linen_vars(attrs)


def test_the_streams_are_the_modules_own():
    """B21: a fork of Rngs, params for a key, or none; the names of Flax still read both, with a warning."""
    rngs = plait.Rngs(0)
    model = bridge.ToNNX(nn.Dense(3), rngs)
    assert model.to_nnx__rngs is not rngs
    assert int(rngs.default.count[...]) == 1
    assert list(bridge.ToNNX(nn.Dense(3), jax.random.key(0)).to_nnx__rngs) == ["params"]
    assert bridge.ToNNX(nn.Dense(3)).to_nnx__rngs is None
    with pytest.warns(DeprecationWarning, match="to_nnx__module"):
        assert model.module is model.to_nnx__module
    with pytest.warns(DeprecationWarning, match="to_nnx__rngs"):
        assert model.rngs is model.to_nnx__rngs
    with pytest.raises(ArgumentTypeError, match=r"Linen module(.|\n)*type type"):
        bridge.ToNNX(nn.Dense)


def test_each_call_draws_one_key_from_every_stream():
    """B22: default is called params where there is none of that name."""
    seen = []

    class Reader(nn.Module):
        @nn.compact
        def __call__(self, x):
            seen.append({name: bool(self.has_rng(name)) for name in ("params", "dropout", "default")})
            return x

    model = bridge.ToNNX(Reader(), plait.Rngs(0, dropout=1))
    model(X)
    model(X, rngs=jax.random.key(0))
    model(X, rngs=plait.Rngs(params=0, default=1))
    model(X, rngs={"dropout": 0})
    assert [list(each.values()) for each in seen] == [
        [True, True, False],
        [True, False, False],
        [True, False, True],
        [False, True, False],
    ]
    assert int(model.to_nnx__rngs.dropout.count[...]) == 1


def test_initialization_makes_typed_attributes():
    """B23: variables of the module itself are variables, those of its submodules nested dictionaries."""
    model = block()
    assert type(model.calls).__name__ == "counter"
    assert {name: type(leaf) for name, leaf in model.BatchNorm_0.items()} == {
        "scale": plait.Param,
        "bias": plait.Param,
        "mean": plait.BatchStat,
        "var": plait.BatchStat,
    }
    variable = model.Dense_0["kernel"]
    first = variable[...]
    model.lazy_init(X)
    assert model.Dense_0["kernel"] is variable
    assert not np.array_equal(model.Dense_0["kernel"][...], first)


def test_one_key_gives_both_sides_the_same_parameters():
    """B22, B23: ask 18."""
    model = bridge.ToNNX(Block()).lazy_init(X, rngs=jax.random.key(3))
    same_trees(variables_of(model), plain(Block().init(jax.random.key(3), X)))


def test_what_is_mutable_is_written_back_and_only_the_output_returned():
    """B24: variables stay the same objects, new ones appear, and the rest is as before."""
    model = block()
    before = plain(variables_of(model))
    mean = model.BatchNorm_0["mean"]
    expected, updates = Block().apply(before, X, True, rngs={"dropout": jax.random.key(5)}, mutable=["batch_stats"])
    out = model(X, True, rngs={"dropout": jax.random.key(5)}, mutable=["batch_stats"])
    same_trees(out, expected)
    assert model.BatchNorm_0["mean"] is mean
    same_trees(variables_of(model), {**before, **plain(updates)})
    model(X, mutable=["intermediates", "counter"])
    assert type(model.hidden) is plait.Intermediate
    assert int(model.calls[...]) == 1
    assert model(X, mutable=[]).shape == (4, 3)


def test_an_update_leaves_the_structure_as_it_was():
    """B24: what a program holds stays a part of the model, and a compiled step is not traced again."""
    model, traces = block(), []
    norm, mean = model.BatchNorm_0, model.BatchNorm_0["mean"]

    @plait.jit
    def predict(model):
        traces.append(1)
        return model(X)

    predict(model)
    before = mean[...]
    for seed in (5, 6):
        model(X, True, rngs={"dropout": seed}, mutable=["batch_stats", "counter"])
        np.testing.assert_allclose(predict(model), model(X), rtol=1e-5, atol=1e-6)  # one is compiled as a whole
    assert model.BatchNorm_0 is norm
    assert norm["mean"] is mean
    assert not np.array_equal(mean[...], before)
    assert len(traces) == 1


def test_a_late_variable_of_a_submodule_stands_beside_those_it_has():
    """B24."""

    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            if self.is_mutable_collection("memory") and not self.is_initializing():
                self.variable("memory", "last", lambda: x)
            return nn.Dense(2, name="dense")(x)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Inner(name="inner")(x)

    model = bridge.ToNNX(Outer(), plait.Rngs(0)).lazy_init(X)
    kernel = model.inner["dense"]["kernel"]
    model(X, mutable=["memory"])
    assert sorted(model.inner) == ["dense", "last"]
    assert np.array_equal(model.inner["last"][...], X)
    assert model.inner["dense"]["kernel"] is kernel


def test_late_variables_appear():
    """B24, ask 18: a method that makes a collection adds it to the attributes."""
    model = bridge.ToNNX(Late(), plait.Rngs(0)).lazy_init(X)
    assert not hasattr(model, "last")
    for times in (1, 2):
        assert np.array_equal(model.remember(X, mutable=["memory"]), X * times)
    assert type(model.last).__name__ == "memory"
    assert np.array_equal(model.last[...], X * 2)


def test_methods_of_the_linen_class_are_methods():
    """B25: lazy_init takes them, too."""
    model = block()
    assert np.array_equal(model.doubled(X), X * 2)
    assert np.array_equal(model(X, method="doubled"), X * 2)
    made = bridge.ToNNX(Late(), plait.Rngs(0))
    method = made.remember
    assert bridge.lazy_init(method, X) is method
    assert made.last.shape == X.shape
    with pytest.raises(AttributeError, match=r"ToNNX of Late.*'nothing'.*\['last'\]"):
        _ = made.nothing
    with pytest.raises(AttributeError, match="init"):
        _ = made.init


def test_plaits_functions_work_on_it():
    """B26: state by kind, split and merge, clone, jit, grad, copies and pickles."""
    model = block()
    params = plait.state(model, plait.Param)
    assert sorted(params) == ["BatchNorm_0", "Dense_0"]
    graphdef, state = plait.split(model)
    same_trees(plait.merge(graphdef, state)(X), model(X))
    for copied in (plait.clone(model), copy.deepcopy(model)):
        same_trees(copied(X), model(X))
    norm = bridge.ToNNX(nn.LayerNorm(scale_init=nn.initializers.ones), plait.Rngs(0)).lazy_init(X)
    same_trees(pickle.loads(pickle.dumps(norm))(X), norm(X))

    @plait.jit
    def step(model):
        return plait.value_and_grad(lambda model: (model(X, True, mutable=["batch_stats"]) ** 2).sum())(model)

    expected = plait.clone(model)
    loss, grads = step(model)
    eager_loss = (expected(X, True, mutable=["batch_stats"]) ** 2).sum()
    np.testing.assert_allclose(loss, eager_loss, rtol=1e-6)
    assert jax.tree.structure(plait.pure(grads)) == jax.tree.structure(plait.pure(params))
    assert not np.array_equal(model.BatchNorm_0["var"][...], np.ones(3))


def test_it_is_a_submodule_like_any_other():
    """B26: initialized with the whole model, shared, and called twice in that run."""

    class Model(plait.Module):
        def __init__(self, rngs):
            self.embed = plait.Linear(2, 2, rngs=rngs)
            self.block = bridge.ToNNX(nn.Dense(2), rngs)
            self.again = self.block
            self.many = [bridge.ToNNX(Block(2), rngs), bridge.ToNNX(nn.Dense(1), rngs)]

        def __call__(self, x):
            x = self.again(self.block(self.embed(x)))
            return self.many[1](self.many[0](x))

    model = bridge.lazy_init(Model(plait.Rngs(0, dropout=1)), X)
    assert model.block is model.again
    assert len(jax.tree.leaves(plait.state(model, plait.Param))) == 2 + 2 + 4 + 2
    assert model(X).shape == (4, 1)


def test_a_shared_module_keeps_what_its_first_call_made():
    """B23: one run makes each variable once; its second call runs on them."""
    outs = []

    class Twice(plait.Module):
        def __init__(self):
            self.dense = bridge.ToNNX(nn.Dense(2), plait.Rngs(0))

        def __call__(self, x):
            outs.append((self.dense(x), self.dense.kernel[...], self.dense(x), self.dense.kernel[...]))

    bridge.lazy_init(Twice(), X)
    first, kernel, second, kernel_after = outs[0]
    same_trees(first, second)
    same_trees(kernel, kernel_after)


def test_vmap_makes_and_runs_a_stack_whose_names_follow():
    """B26, M33: the axis gets its name inside Linen's boxes, and loses it inside the call."""
    seen = []

    class Named(nn.Module):
        @nn.compact
        def __call__(self, x):
            init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
            kernel = self.param("kernel", init, (2, 3), unbox=False)
            seen.append(kernel.names)
            return x @ kernel.unbox()

    stacked = {plait.PARTITION_NAME: "layers"}

    @plait.vmap(in_axes=(0, None), out_axes=0, transform_metadata=stacked)
    def make(rngs, x):
        return bridge.ToNNX(Named(), rngs).lazy_init(x)

    model = make(plait.Rngs(0).split(3), X)
    assert model.kernel.shape == (3, 2, 3)
    assert model.kernel.out_sharding == ("layers", "in", "out")
    run = plait.vmap(lambda model, x: model(x), in_axes=(0, None), transform_metadata=stacked)
    assert run(model, X).shape == (3, 4, 3)
    assert set(seen) == {("in", "out")}
    box = variables_of(model)["params"]["kernel"]
    assert (type(box), box.names) == (nn.Partitioned, ("layers", "in", "out"))


def test_scan_runs_over_a_stack():
    """B26: as a loop over the layers does."""
    make = plait.vmap(lambda rngs: bridge.ToNNX(nn.Dense(2), rngs).lazy_init(X), in_axes=0)
    model = make(plait.Rngs(0).split(3))

    @plait.scan(in_axes=(0, plait.Carry), out_axes=plait.Carry)
    def run(layer, x):
        return layer(x)

    expected = jnp.asarray(X)
    for index in range(3):
        expected = expected @ model.kernel[index] + model.bias[index][None]
    np.testing.assert_allclose(run(model, jnp.asarray(X)), expected, rtol=1e-5)


def test_a_call_before_the_variables_exist_is_linens_error_with_advice():
    """Section 9."""
    with pytest.raises(flax.errors.ScopeCollectionNotFound, match=r'"kernel" from collection "params"') as caught:
        bridge.ToNNX(nn.Dense(3), plait.Rngs(0))(X)
    assert "lazy_init first: this ToNNX of Dense" in "".join(caught.value.__notes__)
    model = bridge.ToNNX(nn.Dense(3), plait.Rngs(0)).lazy_init(X)
    del model.bias  # lazy_init has been called
    with pytest.raises(flax.errors.ScopeParamNotFoundError, match='"bias"') as caught:
        model(X)
    assert "lazy_init" not in "".join(getattr(caught.value, "__notes__", ()))


def test_an_immutable_collection_is_linens_error_and_changes_nothing():
    """Section 9: a wrong list of mutable collections; it names module path, collection and leaf."""
    model = block()
    before = variables_of(model)
    with pytest.raises(flax.errors.ModifyScopeVariableError, match=r'"mean" in "/BatchNorm_0".*"batch_stats"'):
        model(X, True, mutable=["counter"])
    same_trees(variables_of(model), before)


def test_missing_streams_are_linens_error():
    with pytest.raises(flax.errors.InvalidRngError, match='"params"'):
        bridge.ToNNX(nn.Dense(3)).lazy_init(X)
    model = bridge.ToNNX(nn.Dropout(0.5, deterministic=False))
    with pytest.raises(flax.errors.InvalidRngError, match='"dropout"'):
        model(X, rngs=None)


NAMES = {
    "of two collections": (Clash, r"at +w\n(.|\n)*'counter'"),
    "of an attribute of ToNNX": (
        lambda: Taken("to_nnx__rngs"),
        r"at +Taken, to_nnx__rngs\n +found +a Param (.|\n)*other than \['_",
    ),
    "of an attribute of modules": (
        lambda: Taken("_pytree__info"),
        r"at +Taken, _pytree__info\n +found +a Param (.|\n)*'_pytree__info'",
    ),
    "above another name": (lambda: Taken("_pytree__info", deep=True), r"at +Taken, _pytree__info\n +found +a Param "),
    "a number": (Numbered, r"at +Numbered, \[0\]\n +found +a Param (.|\n)*expected +a string\n"),
}


@pytest.mark.parametrize(("module", "named"), NAMES.values(), ids=NAMES)
def test_names_that_collide_leave_no_half_converted_model(module, named):
    """B16: attribute and collection names."""
    model = bridge.ToNNX(module(), plait.Rngs(0))
    with pytest.raises(ArgumentError, match=named):
        model.lazy_init(X)
    assert sorted(vars(model)) == ["to_nnx__module", "to_nnx__rngs"]


def test_names_of_plaits_own_methods_are_free_to_linen():
    """A submodule called ``module`` or ``rngs`` is an attribute like any other."""

    class Wrapper(nn.Module):
        def setup(self):
            self.module = nn.Dense(2)
            self.rngs = nn.Dense(2)

        def __call__(self, x):
            return self.rngs(self.module(x))

    model = bridge.ToNNX(Wrapper(), plait.Rngs(0)).lazy_init(X)
    assert sorted(model.module) == sorted(model.rngs) == ["bias", "kernel"]
    assert model(X).shape == (4, 2)


def test_a_call_under_jit_leaves_no_array_behind():
    """Ask 18: beside what the call returns, nothing stays allocated."""
    model = block()
    run = plait.jit(lambda model: model(X))
    run(model)
    gc.collect()
    before = len(jax.live_arrays())
    out = run(model)
    gc.collect()
    # The counters of the two streams were replaced, not added.
    assert len(jax.live_arrays()) == before + 1
    del out


def sharded_dense(*names):
    init = nn.with_logical_partitioning(nn.initializers.ones, names)
    return bridge.ToNNX(nn.Dense(8, kernel_init=init), plait.Rngs(0))


@pytest.mark.slow
def test_new_variables_lie_where_their_names_say():
    """B23, V39: on the mesh that is known, under the rules in force; a name that nobody knows leaves nothing behind."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    assert sharded_dense(None, "embed").lazy_init(X).kernel.out_sharding == (None, "embed")
    with jax.set_mesh(mesh):
        with plait.logical_axis_rules([("embed", "data")]):
            kernel = sharded_dense(None, "embed").lazy_init(X).kernel
        assert kernel.get_value().sharding.spec == jax.sharding.PartitionSpec(None, "data")
        model = sharded_dense(None, "embed")
        with pytest.raises(ArgumentError, match=r"'embed'"):
            model.lazy_init(X)
        assert sorted(vars(model)) == ["to_nnx__module", "to_nnx__rngs"]
        with plait.use_eager_sharding(False):
            assert sharded_dense(None, "embed").lazy_init(X).kernel.shape == (2, 8)


@pytest.mark.parametrize("value", [1, {"below": 1}])
def test_a_late_variable_does_not_displace_another_one(value):
    """B16: as in initialization, one path holds one variable; nothing is changed."""

    class LateClash(nn.Module):
        value: object

        @nn.compact
        def __call__(self, x):
            if self.is_mutable_collection("counter") and not self.is_initializing():
                self.variable("counter", "w", lambda: self.value)
            return x * self.param("w", nn.initializers.ones, x.shape)

    model = bridge.ToNNX(LateClash(value), plait.Rngs(0)).lazy_init(X)
    with pytest.raises(ArgumentError, match=r"at +w(\.below)?\n +found +a counter, where there is a Param"):
        model(X, mutable=["counter"])
    assert type(model.w) is plait.Param


def test_a_captured_model_is_not_written_from_another_trace():
    """V42: a closure of jax.jit; the model stays as it was."""
    model = block()
    before = variables_of(model)
    with pytest.raises(plait.errors.TraceContextError):
        jax.jit(lambda x: model(x, True, rngs={"dropout": 0}, mutable=["batch_stats"]))(X)
    same_trees(variables_of(model), before)


def test_advice_about_lazy_init_is_given_only_where_it_helps():
    model = bridge.ToNNX(nn.Dropout(0.5, deterministic=False))
    with pytest.raises(flax.errors.InvalidRngError) as caught:
        model(X)
    assert "lazy_init" not in "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("way", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_outputs_and_gradients_of_a_wrapped_module_can_be_captured(way):
    """D1, D2, D3: what `capture` keeps in a module is no variable of Linen's."""
    model = plait.Sequential(block(), plait.Linear(block()(X).shape[-1], 1, rngs=plait.Rngs(0)))
    expected, hidden = model(X), model.layers[0](X)
    look = plait.capture(lambda model, x: model(x), plait.Intermediate, method_outputs=plait.Intermediate)
    out, seen = way(look)(model, X)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    np.testing.assert_allclose(seen["layers"][0]["__call__"][0], hidden, rtol=1e-6)
    loss = plait.capture_gradients(lambda model, x: model(x).sum())
    value, gradients = way(loss)(model, X)
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-6)
    kernel = jnp.broadcast_to(model.layers[1].kernel[:, 0], hidden.shape)
    np.testing.assert_allclose(gradients["layers"][0]["__call__"][...], kernel, rtol=1e-6)
    assert plait.capture(model.layers[0], plait.Intermediate)(X)[1] == plait.State({})
