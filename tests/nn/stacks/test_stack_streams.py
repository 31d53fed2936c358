"""The random streams of a stack: split, forked and restored as those of the same layers in a list."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait as nnx
from plait.errors import StreamError
from plait.util.paths import iter_layer_paths

X = jnp.ones(4)
AXES = nnx.StateAxes({nnx.RngState: 0, ...: None})


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


class Nested(nnx.Module):
    def __init__(self, rngs, kind):
        self.blocks = kind([Block(rngs) for _ in range(2)])

    def __call__(self, x):
        return run(self, x)


def run(net, x):
    if isinstance(net.blocks, nnx.Stack):
        return net.blocks(x)
    for block in net.blocks:
        x = block(x)
    return x


def flat_net(kind):
    return Nested(nnx.Rngs(0, dropout=1), kind)


def nested_net(kind):
    rngs = nnx.Rngs(0, dropout=1)
    return nnx.Dict(blocks=kind([Nested(rngs, kind) for _ in range(3)]))


NETS = {"flat": flat_net, "nested": nested_net}


def by_layer(net):
    """The keys and counts by their paths in a list; the axes of layers come last."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(net, nnx.RngState)):
        for layer, index in iter_layer_paths(path):
            value = variable[...][(..., *index)]
            found[layer] = np.asarray(jax.random.key_data(value) if path[-1] == "key" else value)
    return found


CHANGES = {
    "split": lambda net: nnx.split_rngs(net, splits=2),
    "split twice": lambda net: nnx.split_rngs(net, splits=(2, 3)),
    "squeeze": lambda net: nnx.split_rngs(net, splits=1, squeeze=True),
    "fork": nnx.fork_rngs,
    "fork and split": lambda net: nnx.fork_rngs(net, split={"dropout": 2}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_layer_has_the_keys_that_it_has_in_a_list(make, change):
    """R6, ST2: the axes of layers come after those of the split."""
    listed, stacked = make(nnx.List), make(nnx.Stack)
    for _ in range(2):
        backups = change(listed), change(stacked)
        jax.tree.map(np.testing.assert_array_equal, by_layer(stacked), by_layer(listed))
        for backup in backups:
            nnx.restore_rngs(backup)
        jax.tree.map(np.testing.assert_array_equal, by_layer(stacked), by_layer(listed))


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
@pytest.mark.parametrize(
    "transformed", [nnx.vmap, lambda f, **kwargs: nnx.jit(nnx.vmap(f, **kwargs))], ids=["vmap", "jit"]
)
def test_masks_of_a_mapped_stack_are_those_of_a_list(make, transformed):
    """R6: vmap over split streams, the usual idiom."""
    outputs = []
    for net in (make(nnx.List), make(nnx.Stack)):
        mapped = nnx.split_rngs(splits=3)(transformed(run, in_axes=(AXES, None)))
        outputs.append([mapped(net, X), mapped(net, X), run(net, X)])
    for listed, stacked in zip(*outputs, strict=True):
        np.testing.assert_allclose(stacked, listed, rtol=1e-6)
    assert not bool((outputs[1][0][0] == outputs[1][0][1]).all())


COPIES = {
    "split": {"split": 3},
    "broadcast": {"broadcast": {"dropout": 3}},
}


@pytest.mark.parametrize("rules", COPIES.values(), ids=COPIES)
def test_copies_with_other_streams(rules):
    """R7: with_rngs leaves the stack as it was, but for the draw."""
    outputs, counts = [], []
    for net in (flat_net(nnx.List), flat_net(nnx.Stack)):
        outputs.append(nnx.vmap(run, in_axes=(AXES, None))(nnx.with_rngs(net, **rules), X))
        outputs.append(run(nnx.with_rngs(net, fork=...), X))
        counts.append(by_layer(net))
    np.testing.assert_allclose(outputs[2], outputs[0], rtol=1e-6)
    np.testing.assert_allclose(outputs[3], outputs[1], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, counts[1], counts[0])


def test_streams_that_are_split_already_are_refused():
    """R6."""
    net = flat_net(nnx.Stack)
    nnx.split_rngs(net, splits=2)
    with pytest.raises(StreamError, match=r"at +blocks\[0:2\]\.dropout(.|\n)*shape \(2, 2\)(.|\n)*of shape \(2,\)"):
        nnx.fork_rngs(net)
