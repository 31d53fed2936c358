"""Model surgery: what is selected changes, and everything else is the same objects with the same arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import ArgumentError, GraphError
from tests.conformance.layers import LAYERS
from tests.nn.twins import some_input
from tests.strategies import Node, Pair


class Block(plait.Module):
    def __init__(self, *, rngs):
        self.attention = plait.Linear(4, 4, rngs=rngs)
        self.norm = plait.BatchNorm(4, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(self.attention(x)))


class Net(plait.Module):
    def __init__(self, seed=0):
        rngs = plait.Rngs(seed)
        self.embed = plait.Linear(4, 4, rngs=rngs)
        self.layers = [Block(rngs=rngs) for _ in range(3)]
        self.heads = (plait.Linear(4, 4, rngs=rngs), plait.Linear(4, 4, rngs=rngs))

    def __call__(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.heads[0](x) + self.heads[1](x)


class Scaled(plait.Module):
    """A wrapper, as LoRA is one."""

    def __init__(self, inner):
        self.inner, self.scale = inner, plait.Param(jnp.ones(()))

    def __call__(self, x):
        return self.inner(x) * self.scale[...]


def arrays(model):
    """The array of each variable, by path; streams by their counters."""
    return {path: v.get_raw_value() for path, v in plait.iter_graph(model) if isinstance(v, plait.Variable)}


def assert_same_but(before, after, *touched):
    """Everything is the same array, except below these paths, where everything is another one."""
    for path, array in before.items():
        if any(path[: len(prefix)] == prefix for prefix in touched):
            assert path not in after or after[path] is not array, path
        else:
            assert after[path] is array, path


def test_parts_by_pattern_by_filter_and_by_both():
    net = Net()
    assert plait.select(net, "layers[*].attention").paths == tuple(("layers", i, "attention") for i in range(3))
    assert plait.select(net, "layers[1:].norm").get() == {("layers", i, "norm"): net.layers[i].norm for i in (1, 2)}
    assert len(plait.select(net, plait.Linear)) == 6
    assert plait.select(net, "heads.**", plait.Linear).get()[("heads", 1)] is net.heads[1]
    assert plait.select(net, ["embed", "heads[0]"]).paths == (("embed",), ("heads", 0))
    assert plait.select(net, "**.rate").get()[("layers", 0, "drop", "rate")] == 0.5
    assert plait.select(net, "").get() == {(): net}
    assert plait.select(net, "**.kernel", lambda path, value: 2 in path).paths == (
        ("layers", 2, "attention", "kernel"),
    )


def test_a_selection_prints_its_parts():
    assert repr(plait.select(Net(), "layers[:2].norm")) == (
        "<Selection of 2>\nlayers[0].norm: a BatchNorm\nlayers[1].norm: a BatchNorm"
    )


def test_selecting_changes_nothing():
    net = Net()
    before, graphdef = arrays(net), plait.graphdef(net)
    plait.select(net, plait.Param)
    assert_same_but(before, arrays(net))
    assert plait.graphdef(net) is graphdef


def test_filters_that_exclude_each_other_are_counted_one_by_one():
    with pytest.raises(ArgumentError, match=r"'embed' alone matches 1, OfType\(BatchNorm\) alone matches 3"):
        plait.select(Net(), "embed", plait.BatchNorm)


def test_wrapping_keeps_the_parts_and_everything_else():
    net, x = Net(), some_input(2, 4)
    net.eval()
    expected, before = net(x), arrays(net)
    linears = plait.select(net, "layers.**", plait.Linear)
    wrapped = linears.replace(lambda path, layer: Scaled(layer))
    assert wrapped.paths == linears.paths
    assert all(type(layer.attention) is Scaled for layer in net.layers)
    assert type(net.embed) is plait.Linear
    after = {tuple(key for key in path if key != "inner"): array for path, array in arrays(net).items()}
    assert_same_but(before, after)
    np.testing.assert_array_equal(net(x), expected)


def test_parts_of_a_tuple_are_replaced_one_by_one():
    net = Net()
    old = net.heads
    plait.select(net, "heads[*]").replace(lambda path, layer: Scaled(layer))
    assert [head.inner for head in net.heads] == list(old)
    node = Node(pair=Pair(plait.Param(1.0), (plait.Param(2.0), 3)))
    plait.select(node, "pair.**", plait.Param).replace(lambda path, p: plait.BatchStat(p.get_value() + 1))
    plait.select(node, "pair.first[1]").set(4)
    assert type(node.pair) is Pair
    assert (node.pair.second.get_value(), node.pair.first[0].get_value(), node.pair.first[1]) == (2.0, 3.0, 4)


def test_a_value_that_is_refused_leaves_the_others_as_they_were():
    """Also a variable that stands before it."""
    model = (plait.Param(1.0), 3)
    with pytest.raises(GraphError, match="root is an immutable tuple"):
        plait.select(model, "[*]").map(lambda path, value: value + 1)
    assert model[0].get_value() == 1.0


def test_a_shared_part_is_replaced_everywhere_once():
    shared = plait.Linear(2, 2, rngs=plait.Rngs(0))
    model = Node(a=shared, b=[shared], c=plait.Dict(d=shared), e=plait.List([shared]))
    calls = []
    plait.select(model, plait.Linear).replace(lambda path, layer: calls.append(path) or Scaled(layer))
    assert calls == [("a",)]
    assert model.a is model.b[0] is model.c["d"] is model.e[0]
    assert model.a.inner is shared
    assert plait.select(model, "b[0]").get() == {("a",): model.a}


def test_nested_parts_are_all_replaced():
    model = Node(a=Node(b=Node(c=1)))
    plait.select(model, "*.**", Node).replace(lambda path, part: Node(inner=part))
    assert model.a.inner.b.inner.c == 1


def test_a_function_that_fails_replaces_nothing():
    net = Net()
    parts = list(net.layers)

    def fail(path, part):
        if path == ("layers", 2):
            raise RuntimeError("no")
        return

    with pytest.raises(RuntimeError, match="no"):
        plait.select(net, "layers[*]").replace(fail)
    assert net.layers == parts


def test_a_compiled_function_sees_what_was_replaced():
    net, x = Net(), some_input(2, 4)
    net.eval()
    step = plait.jit(lambda net, x: net(x))
    step(net, x)
    plait.select(net, "heads[1]").replace(lambda path, part: no_head)
    np.testing.assert_allclose(step(net, x), net(x), rtol=1e-6)
    plait.select(net, "**.rate").set(0.25)
    assert [layer.drop.rate for layer in net.layers] == [0.25] * 3


def no_head(x):
    return 0 * x


def test_values_are_set_in_the_variables_that_are_there():
    net = Net()
    before, kernels = arrays(net), plait.select(net, "layers[*].**.kernel")
    variables = list(kernels.get().values())
    kernels.set(0.5)
    assert list(kernels.get().values()) == variables
    assert_same_but(before, arrays(net), *kernels.paths)
    assert (net.layers[1].attention.kernel[...] == 0.5).all()
    assert net.layers[0].attention.kernel.dtype == jnp.float32
    kernels.map(lambda path, value: value * path[1])
    assert [float(layer.attention.kernel[0, 0]) for layer in net.layers] == [0, 0.5, 1]
    plait.select(net, "embed.bias").set(jnp.arange(4.0))
    assert net.embed.bias[...].tolist() == [0, 1, 2, 3]


def test_plain_arrays_are_set_in_their_places():
    model = Node(a=jnp.ones(2), b=[jnp.ones(2)])
    plait.select(model, jax.Array).set(3)
    assert model.a.tolist() == model.b[0].tolist() == [3, 3]


def test_none_is_a_value_that_can_be_set():
    model = Node(scale=None, bias=plait.Param(jnp.ones(2)))
    plait.select(model, "scale").set(2.0)
    assert model.scale == 2.0


@pytest.mark.slow
@pytest.mark.usefixtures("users_promotion")
def test_what_is_frozen_has_no_optimizer_state_and_does_not_move():
    net, x = Net(), some_input(8, 4)
    plait.select(net, "layers").freeze()
    optimizer = plait.Optimizer(net, optax.adamw(0.1), wrt=plait.trainable)
    kept = {path[-3:] for path in plait.select(optimizer, "**", plait.optimizer.OptVariable).paths}
    assert {path[:1] if path[0] == "heads" else path[1:2] for path in kept} == {("heads",), ("embed",)}

    @plait.jit
    def step(net, optimizer, x):
        optimizer.update(net, plait.grad(lambda net: (net(x) ** 2).sum())(net))

    params = {path: v for path, v in arrays(net).items() if path[-1] in ("kernel", "bias", "scale")}
    step(net, optimizer, x)
    after = arrays(net)
    for path, array in params.items():
        assert (after[path] is array) == (path[0] == "layers"), path


def test_gradients_skip_what_is_frozen():
    net, x = Net(), some_input(8, 4)
    plait.select(net, ["embed", "layers"]).freeze()
    grads = plait.grad(lambda net: (net(x) ** 2).sum(), argnums=plait.DiffState(0, plait.trainable))(net)
    assert list(grads) == ["heads"]


def test_unfreezing_gives_the_structure_back():
    net = Net()
    graphdef, before = plait.graphdef(net), arrays(net)
    parts = plait.select(net, "layers[:2]")
    parts.freeze().freeze()
    assert plait.graphdef(net) is not graphdef
    assert len(plait.variables(net, plait.trainable)["layers"]) == 1
    parts.unfreeze().unfreeze()
    assert plait.graphdef(net) is graphdef
    assert_same_but(before, arrays(net))


def test_freezing_survives_split_and_merge():
    net = Net()
    plait.select(net, "embed").freeze()
    assert plait.merge(*plait.split(net)).embed.kernel.frozen
    assert plait.clone(net).embed.kernel.frozen


def test_parts_share_one_object():
    net = Net()
    before = arrays(net)
    plait.select(net, "layers[1:].attention").share_with("layers[0].attention")
    assert net.layers[0].attention is net.layers[1].attention is net.layers[2].attention
    assert_same_but(before, arrays(net), ("layers", 1, "attention"), ("layers", 2, "attention"))
    plait.select(net, "heads[1].kernel").share_with(net.heads[0].kernel)
    assert net.heads[1].kernel is net.heads[0].kernel
    assert net.heads[1].bias is not net.heads[0].bias


def test_sharing_checks_shapes_first():
    model = Node(a=plait.Linear(2, 3, rngs=plait.Rngs(0)), b=plait.Linear(2, 4, rngs=plait.Rngs(0)))
    old = model.b
    with pytest.raises(ArgumentError, match=r"kernel \(2, 4\)"):
        plait.select(model, "b").share_with("a")
    assert model.b is old
    with pytest.raises(ArgumentError, match="matches 2"):
        plait.select(model, "b").share_with("*")


def test_values_are_copied_from_another_model():
    net, other = Net(0), Net(1)
    before = arrays(net)
    plait.select(net, "layers[1].attention").copy_from(other)
    after = arrays(net)
    assert_same_but(before, after, ("layers", 1, "attention"))
    mine, theirs = net.layers[1].attention.kernel, other.layers[1].attention.kernel
    np.testing.assert_array_equal(mine, theirs)
    assert mine.get_raw_value() is not theirs.get_raw_value()
    assert mine.unsafe_buffer_pointer() != theirs.unsafe_buffer_pointer()


def test_copies_keep_their_own_dtype():
    net, other = Net(0), Net(1)
    plait.select(net, "embed.kernel").map(lambda path, value: value.astype(jnp.bfloat16))
    plait.select(net, "embed.kernel").copy_from(other)
    np.testing.assert_array_equal(net.embed.kernel[...], other.embed.kernel.astype(jnp.bfloat16))


def test_copying_checks_every_variable_first():
    net, other = Net(), Net(1)
    other.layers[2].attention = plait.Linear(4, 5, rngs=plait.Rngs(0))
    before = arrays(net)
    with pytest.raises(ArgumentError, match=r"layers\[2\].attention.bias"):
        plait.select(net, "layers").copy_from(other)
    assert_same_but(before, arrays(net))
    del other.layers[2].attention
    with pytest.raises(ArgumentError, match=r"found +None"):
        plait.select(net, "layers").copy_from(other)


def test_modules_are_initialized_again():
    net, x = Net(), some_input(8, 4)
    net(x)
    before = arrays(net)
    plait.select(net, "layers[1]").reinitialize(plait.Rngs(5))
    after = arrays(net)
    stream = ("layers", 1, "drop", "rngs")
    for path, array in before.items():
        assert (after[path] is array) == (path[:2] != ("layers", 1) or path[:4] == stream), path
    assert (net.layers[1].norm.mean[...] == 0).all()
    assert not (net.layers[0].norm.mean[...] == 0).all()
    np.testing.assert_array_equal(net.layers[1].attention.kernel, plait.Linear(4, 4, rngs=plait.Rngs(5)).kernel)


def test_initializers_can_be_given():
    net = Net()
    plait.select(net, "heads").reinitialize(plait.Rngs(5), kernel_init=plait.initializers.ones_init())
    assert (net.heads[0].kernel[...] == 1).all()
    assert (net.heads[1].kernel[...] == 1).all()


# Their constructors take another layer, or these cases give them an initializer, and layers keep neither.
NOT_AGAIN = {"WeightNorm", "SpectralNorm", "LoRA", "LoRALinear"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in LAYERS if case.name not in NOT_AGAIN], ids=lambda case: case.name)
def test_every_layer_can_be_initialized_again(case):
    """Each parameter is drawn anew, from the distribution of the layer's own constructor."""
    layer, graphdef = case.make(plait.Rngs(0)), plait.graphdef(case.make(plait.Rngs(0)))
    fresh = case.make(plait.Rngs(1))
    plait.select(layer, plait.Variable, plait.trainable).set(7.0) if plait.state(layer, plait.Param) else None
    plait.select(layer, "").reinitialize(plait.Rngs(1))
    assert plait.graphdef(layer) is graphdef
    for mine, other in zip(
        *(jax.tree.leaves(plait.state(model, plait.Param)) for model in (layer, fresh)), strict=True
    ):
        assert not (mine == 7.0).any()
        np.testing.assert_allclose(mine.std(), other.std(), atol=0.5)
        assert bool((other == other.ravel()[0]).all()) == bool((mine == mine.ravel()[0]).all())


def test_cycles_are_walked_once():
    graph = Node(a=Node())
    graph.a.up = graph
    assert plait.select(graph, Node).paths == ((), ("a",))
    assert plait.select(graph, "a.up").get() == {(): graph}


def test_parts_can_be_changed_inside_jit():
    net, x = Net(), some_input(2, 4)
    net.eval()

    @plait.jit
    def step(net, x):
        plait.select(net, "embed.kernel").map(lambda path, value: value * 2)
        return net(x)

    before = arrays(net)
    step(net, x)
    step(net, x)  # the second call takes the fast path
    np.testing.assert_allclose(net.embed.kernel[...], 4 * before["embed", "kernel"])
    assert_same_but(before, arrays(net), ("embed", "kernel"))
