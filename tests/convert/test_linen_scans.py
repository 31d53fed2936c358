"""Layers that Linen scanned, as a ``Stack`` or a list of plait, and back. (rule ST13)"""

import functools

import flax.core
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import plait
from plait import bridge, convert
from plait.errors import ConversionError, GraphError
from tests.compare import assert_same
from tests.sampling import slow_but

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("users_promotion")]

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
DEPTH = 6


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        h = nn.BatchNorm(use_running_average=True, name="norm")(x)
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        return x + jnp.tanh(nn.Dense(4, kernel_init=init, name="linear")(h)), None


class LinenPair(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        x, _ = LinenBlock(name="first")(x)
        return LinenBlock(name="second")(x)


class LinenOuter(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return scanned(LinenBlock, 2)(name="inner")(x, None)


def scanned(block, length):
    return nn.scan(
        block,
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True},
        length=length,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


class LinenNet(nn.Module):
    block: type = LinenBlock
    length: int = DEPTH

    @nn.compact
    def __call__(self, x):
        x, _ = scanned(self.block, self.length)(name="blocks")(x, None)
        return nn.Dense(2, name="head")(x)


class Block(plait.Module):
    def __init__(self, rngs):
        self.norm = plait.BatchNorm(4, rngs=rngs, use_running_average=True)
        self.linear = plait.Linear(4, 4, rngs=rngs, kernel_metadata={"out_sharding": ("embed", "mlp")})

    def __call__(self, x):
        return x + jnp.tanh(self.linear(self.norm(x)))


class Second(Block):
    pass


class Outer(plait.Module):
    def __init__(self, rngs):
        self.inner = plait.Stack(Block, 2, rngs=rngs, axis="layers")

    def __call__(self, x):
        return self.inner(x)


class Net(plait.Module):
    def __init__(self, blocks):
        self.blocks = blocks
        self.head = plait.Linear(4, 2, rngs=plait.Rngs(1))

    def __call__(self, x):
        if isinstance(self.blocks, plait.Stack):
            return self.head(self.blocks(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stacked(make=Block, number=DEPTH):
    return Net(plait.Stack(make, number, rngs=plait.Rngs(0), axis="layers"))


def listed():
    return Net([Block(plait.Rngs(number)) for number in range(DEPTH)])


@functools.cache
def trained(**options):
    """Variables of Linen, and the output that they give."""
    theirs = LinenNet(**options)
    rng = np.random.default_rng(5)
    variables = jax.tree.map(
        lambda leaf: leaf + rng.uniform(0, 0.5, leaf.shape).astype(np.float32), theirs.init(jax.random.key(0), X)
    )
    return variables, theirs.apply(variables, X)


def to_orbax(variables, folder):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "orbax", variables)
    return folder / "orbax"


FORMS = {
    "msgpack": lambda variables, _: flax.serialization.to_bytes(variables),
    "variables": lambda variables, _: flax.core.freeze(variables),
    "orbax": to_orbax,
}


FORMS_READ = [(make, form) for make in (stacked, listed) for form in FORMS]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "form"), slow_but([(listed, "orbax")], FORMS_READ))
def test_a_checkpoint_of_scanned_layers_is_read_into_a_stack_and_into_a_list(make, form, tmp_path):
    variables, expected = trained()
    model = make()
    done = convert.convert_checkpoint(FORMS[form](variables, tmp_path), model, layout="linen", update=True)
    assert done.report.is_complete
    np.testing.assert_allclose(plait.jit(Net.__call__)(model, X), expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(
        model.blocks[3].linear.kernel[...], variables["params"]["blocks"]["linear"]["kernel"].value[3]
    )


@pytest.mark.slow
def test_an_abstract_stack_gets_values():
    variables, expected = trained()
    model = plait.eval_shape(stacked)
    convert.convert_checkpoint(variables, model, layout="linen", update=True)
    np.testing.assert_allclose(model(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_blocks_in_a_pattern_are_named_by_their_layers():
    variables, expected = trained(block=LinenPair, length=3)
    model = stacked([Block, Second])
    names = {"*.blocks.first": "*.blocks.0:6:2", "*.blocks.second": "*.blocks.1:6:2"}
    done = convert.convert_checkpoint(variables, model, layout="linen", names=names, update=True)
    assert not done.report.unused_rules
    np.testing.assert_allclose(model(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_scan_in_a_scan_is_a_stack_in_a_stack():
    variables, expected = trained(block=LinenOuter, length=3)
    model = stacked(Outer, 3)
    convert.convert_checkpoint(variables, model, layout="linen", update=True)
    np.testing.assert_allclose(model(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "says"), [
    (5, r"nothing under params\.blocks\.5\.linear\.kernel"),
    (7, r"params\.blocks\.linear\.kernel\[6\], which no variable"),
])  # fmt: skip
def test_another_depth_is_refused_by_the_layers_that_differ(length, says):
    variables, _ = trained(length=length)
    with pytest.raises(ConversionError, match=says):
        convert.convert_checkpoint(flax.core.meta.unbox(variables), stacked(), layout="linen")


@pytest.mark.slow
def test_layers_are_read_once_however_many_there_are(monkeypatch):
    reads = []
    whole = plait.checkpoint.StoredArray(
        (DEPTH, 4, 4), np.dtype("float32"), lambda: reads.append(1) or np.ones((DEPTH, 4, 4), "f4")
    )
    variables, _ = trained()
    variables = flax.core.meta.unbox(variables)
    variables["params"]["blocks"]["linear"]["kernel"] = whole
    convert.convert_checkpoint(variables, stacked(), layout="linen")
    assert len(reads) == 1


# The bridge -----------------------------------------------------------------------------------------------------------


def test_collections_of_a_stack_are_those_of_a_linen_scan_and_back():
    """B18a: the same tree, with the names of the axes in the boxes."""
    variables, expected = trained()
    model = bridge.from_collections(variables, plait.eval_shape(stacked))
    np.testing.assert_allclose(model(X), expected, atol=1e-5, rtol=1e-5)
    assert plait.variables(model)["blocks"]["0:6"]["linear"]["kernel"].out_sharding == ("layers", "embed", "mlp")
    ours = bridge.to_collections(model)
    unboxed = [flax.core.meta.unbox(each) for each in (ours, variables)]
    assert_same(unboxed[0], unboxed[1])
    assert ours["params"]["blocks"]["linear"]["kernel"].names == ("layers", "embed", "mlp")
    np.testing.assert_array_equal(LinenNet().apply(unboxed[0], X), expected)


def test_collections_that_lack_a_variable_are_named_as_in_linen():
    variables = flax.core.meta.unbox(trained()[0])
    del variables["params"]["blocks"]["linear"]["bias"]
    with pytest.raises(GraphError, match=r"at +collection 'params', blocks\.linear\.bias"):
        bridge.from_collections(variables, stacked())


def test_a_stack_inside_of_a_linen_model_has_the_names_of_a_scan():
    module = bridge.ToLinen(lambda rngs: stacked(), skip_rng=False)
    variables = module.init(jax.random.key(0), X)
    assert flax.core.meta.unbox(variables)["params"]["blocks"]["linear"]["kernel"].shape == (DEPTH, 4, 4)
    theirs, expected = trained()
    np.testing.assert_allclose(module.apply(theirs, X), expected, atol=1e-5, rtol=1e-5)
