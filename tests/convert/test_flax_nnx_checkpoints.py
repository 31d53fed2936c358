"""Checkpoints that Flax NNX wrote with Orbax, in another process, open in plait, and Flax opens those of plait.

Rules FC1 to FC6.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

import plait
from plait.convert import convert_checkpoint

ROOT = Path(__file__).resolve().parents[2]
OF_FLAX_0_10 = ROOT / "tests" / "data" / "flax-0.10.4"

# The same source defines the network in both libraries, as in a program that changed its import.
NET = """
import sys
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint
from LIBRARY import nnx

class Net(nnx.Module):
    def __init__(self, seed, rngs):
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.table = nnx.Dict({"a.b": nnx.Param(jnp.ones(2, jnp.bfloat16)), "calls": nnx.Variable(jnp.array(0))})
        self.epoch = nnx.Variable(seed)
        self.head = self.layers[1]

    def __call__(self, x):
        self.table["calls"][...] += 1
        return self.drop(self.norm(self.head(nnx.relu(self.layers[0](x)))))

def trained(seed, steps):
    net = Net(seed, nnx.Rngs(seed))
    optimizer = nnx.Optimizer(net, optax.sgd(0.01, momentum=0.9), wrt=nnx.Param)
    x = jnp.arange(8.0).reshape(4, 2)
    for _ in range(steps):
        optimizer.update(net, nnx.grad(lambda net: (net(x) ** 2).sum())(net))
    return net, optimizer

def loss_after(net, optimizer, x=jnp.arange(8.0).reshape(4, 2)):
    "Two more steps, which depend on all values, those of streams and moments too."
    for _ in range(2):
        loss, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).sum())(net)
        optimizer.update(net, grads)
    return float(loss)
"""
WRITER = """
net, optimizer = trained(0, 3)
folder, state = sys.argv[1], nnx.state(net)
both = {"model": state, "optimizer": nnx.state(optimizer)}

def data_of_keys(leaf):
    return jax.random.key_data(leaf) if "key<" in str(getattr(leaf, "dtype", "")) else leaf

trees = {
    "state": state,
    "pure": nnx.to_pure_dict(state),
    "both": both,
    "pure_both": {name: nnx.to_pure_dict(value) for name, value in both.items()},
    "key_data": jax.tree.map(data_of_keys, state),
    "params": nnx.state(net, nnx.Param),
}
for name, tree in trees.items():
    for checkpointer in (orbax.checkpoint.StandardCheckpointer(), orbax.checkpoint.PyTreeCheckpointer()):
        with checkpointer:
            checkpointer.save(f"{folder}/{name}-{type(checkpointer).__name__}", tree)
args, options = orbax.checkpoint.args, orbax.checkpoint.CheckpointManagerOptions
managers = {
    "manager": (args.StandardSave(state), options(), {}),
    "pytrees": (args.PyTreeSave(state), options(), {}),
    "prefixes": (args.StandardSave(state), options(step_prefix="ckpt", step_format_fixed_length=6), {}),
    "best": (args.StandardSave(state), options(best_fn=lambda metrics: metrics["loss"]), {"metrics": {"loss": 1.0}}),
    "json": (args.Composite(state=args.StandardSave(state), about=args.JsonSave({"epoch": 3})), options(), {}),
    "items": (
        args.Composite(
            model=args.StandardSave(state),
            optimizer=args.PyTreeSave(nnx.state(optimizer)),
            about=args.JsonSave({"epoch": 3}),
        ),
        options(),
        {},
    ),
}
for name, (saved, chosen, metrics) in managers.items():
    about = {"run": name}  # of the manager itself
    with orbax.checkpoint.CheckpointManager(f"{folder}/{name}", options=chosen, metadata=about) as manager:
        for step in (9, 10):
            manager.save(step, args=saved, **metrics)
print(loss_after(net, optimizer))
"""
READER = """
import json
folder, losses = sys.argv[1], {}

def restored(name, target):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(f"{folder}/{name}", target)

def abstract():
    return nnx.eval_shape(lambda: trained(1, 0))

net, optimizer = trained(1, 0)
nnx.update((net, optimizer), restored("state", nnx.state(abstract())))
losses["state"] = loss_after(net, optimizer)
net, optimizer = trained(1, 0)
pure = restored("pure", nnx.to_pure_dict(nnx.state(abstract())))
states = nnx.state((net, optimizer))
nnx.replace_by_pure_dict(states, pure)
nnx.update((net, optimizer), states)
losses["pure"] = loss_after(net, optimizer)
print(json.dumps(losses))
"""


def run(code, *arguments):
    flax = NET.replace("LIBRARY", "flax") + code
    done = subprocess.run([sys.executable, "-c", flax, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def ours():
    names = {"nnx": plait}
    exec(NET.replace("from LIBRARY import nnx", ""), names)
    return names


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of checkpoints that Flax wrote after three steps, and its loss two steps later."""
    pytest.importorskip("flax")
    folder = tmp_path_factory.mktemp("flax")
    return folder, run(WRITER, folder)


CHECKPOINTERS = ["StandardCheckpointer", "PyTreeCheckpointer"]
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


@pytest.mark.slow
@pytest.mark.parametrize("checkpointer", CHECKPOINTERS)
@pytest.mark.parametrize("form", ["both", "pure_both"])
def test_training_goes_on_as_in_flax(written, form, checkpointer):
    folder, expected = written
    model, optimizer = ours()["trained"](1, 1)
    both = {"model": model, "optimizer": optimizer}
    done = convert_checkpoint(folder / f"{form}-{checkpointer}", both, layout="nnx", update=True)
    assert done.report.is_complete
    assert not done.report.renamed
    assert ours()["loss_after"](model, optimizer) == expected


@pytest.mark.slow
@pytest.mark.parametrize("checkpointer", CHECKPOINTERS)
@pytest.mark.parametrize("form", ["state", "pure", "key_data"])
def test_all_variables_are_read_statistics_and_streams_included(written, form, checkpointer):
    folder, _ = written
    same, _ = ours()["trained"](0, 3)  # the same seed gives the same values in both libraries
    model, _ = ours()["trained"](1, 0)
    convert_checkpoint(folder / f"{form}-{checkpointer}", model, layout="nnx", update=True)
    found, expected = (plait.to_flat_state(plait.state(each)) for each in (model, same))
    assert [path for path, _ in found] == [path for path, _ in expected]
    for (path, leaf), (_, other) in zip(found, expected, strict=True):
        values = [plait.to_pure_dict(plait.State({0: each}))[0] for each in (leaf, other)]
        if isinstance(leaf, plait.RngKey):
            values = [jax.random.key_data(value) for value in values]
        assert np.array_equal(*values), path
    assert model.head is model.layers[1]


@pytest.mark.slow
def test_streams_that_were_not_saved_are_kept(written):
    folder, _ = written
    model, _ = ours()["trained"](1, 0)
    key = jax.random.key_data(model.drop.rngs.key[...])
    names = {"norm.mean", "norm.var", "table.calls", "epoch"}
    with pytest.raises(plait.errors.ConversionError) as caught:
        convert_checkpoint(folder / "params-StandardCheckpointer", model, layout="nnx")
    assert {name for each in caught.value.report.missing for name in each.names} == names  # and no stream
    done = convert_checkpoint(folder / "params-StandardCheckpointer", model, layout="nnx", strict=False, update=True)
    assert len(done.report.matched) == 7
    assert np.array_equal(jax.random.key_data(model.drop.rngs.key[...]), key)


@pytest.mark.slow
def test_restore_names_the_call(written):
    folder, _ = written
    model, _ = ours()["trained"](1, 0)
    calls = {
        "state-StandardCheckpointer": "state-StandardCheckpointer",
        "manager": "manager/10",
        "manager/9": "manager/9",
    }
    for place, step in calls.items():
        model, _ = ours()["trained"](1, 0)
        with pytest.raises(plait.errors.CheckpointError, match="another program wrote this checkpoint") as caught:
            plait.checkpoint.restore(folder / place, model)
        call = re.search(r"plait\.convert\.convert_checkpoint\(.*?\)", str(caught.value))
        assert call is not None
        assert str(folder / step) in call[0]
        eval(call[0], {"plait": plait, "model": model})
        assert int(model.table["calls"][...]) == 3


NEWEST = dict.fromkeys(("manager", "pytrees", "best", "json"), "10") | {"prefixes": "ckpt_000010"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEWEST)
def test_a_step_of_a_manager_is_read_whatever_else_lies_in_it(written, kind):
    """FC1"""
    model, _ = ours()["trained"](1, 0)
    done = convert_checkpoint(written[0] / kind / NEWEST[kind], model, layout="nnx", update=True)
    assert not done.report.unexpected
    assert int(model.table["calls"][...]) == 3


@pytest.mark.slow
def test_the_items_of_a_step_are_read_by_their_names(written):
    """FC1: training goes on as in Flax."""
    folder, expected = written
    model, optimizer = ours()["trained"](1, 0)
    objects = {"model": model, "optimizer": optimizer}
    assert not convert_checkpoint(folder / "items" / "10", objects, layout="nnx", update=True).report.unexpected
    assert ours()["loss_after"](model, optimizer) == pytest.approx(expected, rel=1e-6)
    model, _ = ours()["trained"](1, 0)
    convert_checkpoint(folder / "items" / "10" / "model", model, layout="nnx", update=True)
    assert int(model.table["calls"][...]) == 3


@pytest.mark.slow
def test_the_folder_of_a_manager_is_an_error_that_names_its_newest_step(written):
    """FC6"""
    unfinished = written[0] / "prefixes" / "ckpt_000011.orbax-checkpoint-tmp-7"
    shutil.copytree(written[0] / "prefixes" / "ckpt_000010", unfinished, dirs_exist_ok=True)
    model, _ = ours()["trained"](1, 0)
    with pytest.raises(plait.errors.CheckpointError, match=r"ckpt_000009, ckpt_000010\n(?s:.*)prefixes/ckpt_000010'"):
        convert_checkpoint(written[0] / "prefixes", model, layout="nnx")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*NEWEST, "items"])
def test_a_run_does_not_begin_again_in_a_folder_of_a_manager(written, kind):
    """FC6: neither with Checkpoints nor with fit, which wrote its own checkpoints beside those it did not read."""
    model, optimizer = ours()["trained"](1, 0)
    objects = {"model": model, "optimizer": optimizer}
    newest = written[0] / kind / NEWEST.get(kind, "10")
    with plait.checkpoint.Checkpoints(written[0] / kind) as checkpoints:
        with pytest.raises(plait.errors.CheckpointError, match=re.escape(f"convert_checkpoint({str(newest)!r}")):
            checkpoints.restore(objects)
        with pytest.raises(plait.errors.CheckpointError, match="a folder of its own"):
            plait.training.fit(lambda *_: None, objects, [0], steps=1, checkpoints=checkpoints, show=False)
        assert checkpoints.all() == []


@pytest.mark.slow
def test_flax_opens_what_plait_wrote(tmp_path):
    pytest.importorskip("flax")
    model, optimizer = ours()["trained"](0, 3)
    state = plait.state((model, optimizer))
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.save(tmp_path / "pure", plait.to_pure_dict(state))
    expected = ours()["loss_after"](model, optimizer)
    assert run(READER, tmp_path) == {"state": expected, "pure": expected}


class Net(plait.Module):
    def __init__(self, rngs):
        self.layers = [plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 3, rngs=rngs)]
        self.norm = plait.BatchNorm(3, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)


def of_flax_0_10(number, shape):
    return (number + np.arange(np.prod(shape)).reshape(shape) / 8 - 0.5).tolist()


def test_a_state_of_flax_0_10_is_read():
    optimizer = plait.ModelAndOptimizer(Net(plait.Rngs(7)), optax.sgd(0.5, momentum=0.5))
    names = {"model.**.rngs": None}  # one tree of streams for the whole model, in those days
    done = convert_checkpoint(OF_FLAX_0_10 / "state", optimizer, layout="nnx", names=names, update=True)
    assert len(done.report.dropped) == 2
    assert not done.report.renamed
    model = optimizer.model
    assert model.layers[0].bias[...].tolist() == of_flax_0_10(0, (3,))
    assert model.layers[1].kernel[...].tolist() == of_flax_0_10(3, (3, 3))
    assert model.norm.mean[...].tolist() == [1.0, 2.0, 3.0]
    assert optimizer.opt_state[0].trace["layers"][1]["kernel"][...].tolist() == np.ones((3, 3)).tolist()
    assert int(optimizer.step[...]) == 1


def test_a_pure_dict_of_flax_0_10_is_read():
    model = Net(plait.Rngs(7))
    with pytest.raises(plait.errors.ConversionError, match=r"drop\.rngs\.default\.key of the checkpoint"):
        convert_checkpoint(OF_FLAX_0_10 / "pure", model, layout="nnx")
    convert_checkpoint(OF_FLAX_0_10 / "pure", model, layout="nnx", names={"drop.rngs": None}, update=True)
    assert model.layers[0].kernel[...].tolist() == of_flax_0_10(1, (2, 3))
    assert model.norm.mean[...].tolist() == [1.0, 2.0, 3.0]


class Block(plait.Module):
    def __init__(self, rngs):
        self.linear = plait.Linear(3, 3, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.linear(x))


class Deep(plait.Module):
    def __init__(self, blocks):
        self.blocks = blocks


def stacked(seed):
    return plait.vmap(Block, in_axes=0, axis_size=4)(plait.Rngs(seed).split(4))


def saved(path, node):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, plait.state(node))
    return path


@pytest.mark.slow
def test_layers_that_flax_stacked_or_listed_are_read_into_lists_and_stacks(tmp_path):
    rows = {
        "list": lambda seed: Deep([Block(plait.Rngs(seed + i)) for i in range(4)]),
        "stack": lambda seed: Deep(plait.Stack([Block(plait.Rngs(seed + i)) for i in range(4)])),
        "vmap": lambda seed: Deep(stacked(seed)),
    }
    written = {name: rows[name](0) for name in ("list", "vmap")}
    kernels = {
        "list": jnp.stack([block.linear.kernel[...] for block in written["list"].blocks]),
        "vmap": written["vmap"].blocks.linear.kernel[...],
    }
    for source, model in written.items():
        path = saved(tmp_path / source, model)
        for target in ("list", "stack", source):
            other = rows[target](10)
            convert_checkpoint(path, other, layout="nnx", update=True)
            blocks = other.blocks
            found = (
                blocks.linear.kernel[...]
                if target == "vmap"
                else jnp.stack([block.linear.kernel[...] for block in blocks])
            )
            assert np.array_equal(found, kernels[source]), (source, target)


class Training:
    """Three steps of Adam on a list or a stack of blocks, without draws, so that both compute alike."""

    def __init__(self, seed, steps, stack):
        blocks = [plait.Linear(3, 3, rngs=plait.Rngs(seed + i)) for i in range(4)]
        self.model = plait.Dict(blocks=plait.Stack(blocks) if stack else plait.List(blocks))
        self.optimizer = plait.Optimizer(self.model, optax.adam(0.1), wrt=plait.Param)
        self.objects = {"model": self.model, "optimizer": self.optimizer}
        for _ in range(steps):
            self.step()

    def step(self):
        def loss_of(model):
            x = jnp.ones((2, 3))
            for block in model.blocks:
                x = plait.tanh(block(x))
            return (x**2).sum()

        self.optimizer.update(self.model, plait.grad(loss_of)(self.model))
        return np.stack([block.kernel[...] for block in self.model.blocks])


@pytest.mark.slow
@pytest.mark.usefixtures("users_promotion")
@pytest.mark.parametrize("form", ["state", "pure"])
def test_the_moments_of_a_list_are_those_of_a_stack(form):
    """Rule FC5: training goes on with a stack in place of the list."""
    of_list, of_stack = Training(0, 3, stack=False), Training(10, 1, stack=True)
    tree = plait.to_pure_dict(plait.state(of_list.objects))
    if form == "state":  # as Orbax stores it
        tree = jax.tree.map(lambda leaf: {"value": leaf}, tree)
    done = convert_checkpoint(tree, of_stack.objects, layout="nnx", update=True)
    assert done.report.is_complete
    np.testing.assert_allclose(of_stack.step(), of_list.step(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lost", ["0", "3"])
def test_moments_of_a_layer_that_are_missing_are_an_error(lost):
    tree = plait.to_pure_dict(plait.state(Training(0, 0, stack=False).objects))
    moments = tree["optimizer"]["opt_state"][0]["mu"]["blocks"]
    del moments[int(lost)]["kernel"]
    with pytest.raises(plait.errors.ConversionError, match=r"nothing under optimizer.opt_state.0.mu.blocks.0:4.kernel"):
        convert_checkpoint(tree, Training(0, 0, stack=True).objects, layout="nnx")


def test_restore_of_a_tree_of_orbax_names_the_call_and_of_a_folder_of_checkpoints_does_not(tmp_path):
    saved(tmp_path / "orbax" / "7" / "default", Block(plait.Rngs(3)))
    plait.checkpoint.save(tmp_path / "ours" / "step-7", Block(plait.Rngs(3)))
    for place, said in {"orbax": "steps of a CheckpointManager: 7", "orbax/7": "a tree of arrays"}.items():
        with pytest.raises(plait.errors.CheckpointError, match=rf"{said}(?s:.*)orbax/7', model, layout='nnx'"):
            plait.checkpoint.restore(tmp_path / place, Block(plait.Rngs(0)))
    with pytest.raises(plait.errors.CheckpointError, match=r"checkpoint\.latest\(folder\)"):
        plait.checkpoint.restore(tmp_path / "ours", Block(plait.Rngs(0)))


def test_an_abstract_model_gets_all_values(tmp_path):
    path = saved(tmp_path / "state", Block(plait.Rngs(3)))
    abstract = plait.eval_shape(lambda: Block(plait.Rngs(0)))
    convert_checkpoint(path, abstract, layout="nnx", update=True)
    x = jnp.ones((5, 3))
    assert np.array_equal(abstract(x), Block(plait.Rngs(3))(x))


def test_some_streams_without_others_are_an_error(tmp_path):
    state = plait.to_pure_dict(plait.state(Block(plait.Rngs(3))))
    del state["drop"]["rngs"]["count"]
    with pytest.raises(plait.errors.ConversionError, match=r"nothing under drop\.rngs\.count"):
        convert_checkpoint(state, Block(plait.Rngs(0)), layout="nnx")


def test_keys_of_another_algorithm_are_an_error(tmp_path):
    path = saved(tmp_path / "state", Block(plait.Rngs(jax.random.key(0, impl="rbg"))))
    with pytest.raises(plait.errors.ConversionError, match=r"key\.value of shape \(4,\)"):
        convert_checkpoint(path, Block(plait.Rngs(0)), layout="nnx")
