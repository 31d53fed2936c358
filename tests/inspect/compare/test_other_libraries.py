"""Models of torch, Linen and Flax NNX: they are run as they are, and stay as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait

X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.up, self.norm, self.down = (
            plait.Linear(4, 6, rngs=rngs), plait.BatchNorm(6, rngs=rngs), plait.Linear(6, 2, rngs=rngs),
        )  # fmt: skip

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.norm(self.up(x)), approximate=False))


@pytest.mark.oracle
def test_torch():
    torch = pytest.importorskip("torch")

    class TorchNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.norm, self.fc2 = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)
            self.approximate = "none"

        def forward(self, x):
            x = self.norm(self.fc1(x)).mul_(1)  # in place: what was recorded may not change
            return self.fc2(torch.nn.functional.gelu(x, approximate=self.approximate))

    model, other = Net(), TorchNet()
    weights = {name.replace("up", "fc1").replace("down", "fc2"): torch.tensor(np.array(value))
               for name, value in plait.convert.to_torch(model).items()}  # fmt: skip
    other.load_state_dict(weights, strict=False)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    random_state = torch.random.get_rng_state()
    assert plait.compare(model, other, X).agrees  # with statistics of the batch, which torch writes to its buffers
    other.approximate = "tanh"
    found = plait.compare(model, other, X, tolerance=1e-5).departure
    assert found.path == ""
    other.fc1.weight.data = other.fc1.weight.data.flip(0)
    found = plait.compare(other, model, X, names={"up": "fc1", "down": "fc2"}).departure
    assert (found.path, found.b_path) == ("fc1", "up")
    del before["fc1.weight"]
    for name, value in before.items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in other.modules())


@pytest.mark.oracle
def test_channels_of_torch_are_moved_and_nothing_else():
    torch = pytest.importorskip("torch")

    class Image(plait.Module):
        def __init__(self):
            self.conv = plait.Conv(3, 4, (1, 1), rngs=plait.Rngs(0))

        def __call__(self, x):
            return self.conv(x)

    class TorchImage(torch.nn.Module):
        def __init__(self, order):
            super().__init__()
            self.conv, self.order = torch.nn.Conv2d(3, 4, 1), order

        def forward(self, x):
            return self.conv(x).permute(self.order)

    model, x = Image(), jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 3)), jnp.float32)
    first = x.transpose(0, 3, 1, 2)
    weights = {name: torch.tensor(np.array(value)) for name, value in plait.convert.to_torch(model).items()}
    for order, agrees, is_moved in (
        ((0, 1, 2, 3), True, True),
        ((0, 2, 3, 1), True, False),
        ((0, 1, 3, 2), False, True),
    ):
        other = TorchImage(order)
        other.load_state_dict(weights)
        for found in (
            plait.compare(model, other, x, b_inputs=(first,)),
            plait.compare(other, model, first, b_inputs=(x,)),
        ):
            assert (found.agrees, found.compared[-1].output.is_moved) == (agrees, is_moved)
            assert found.compared[0].output.is_agreement
            assert "with the channels of torch moved" in str(found) or not is_moved
    assert plait.compare(other, other, first).agrees


@pytest.mark.oracle
def test_torch_draws_the_same_random_numbers_in_each_run():
    """CM2: the state of its default generator is restored."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5))
    random_state = torch.random.get_rng_state()
    assert plait.compare(model, model, X).agrees
    assert torch.equal(random_state, torch.random.get_rng_state())


@pytest.mark.oracle
def test_a_class_of_torch_with_the_name_of_one_of_plait_may_take_its_arguments_in_another_order():
    torch = pytest.importorskip("torch")

    class Recurrent(plait.Module):
        def __init__(self):
            self.cell = plait.GRUCell(4, 6, rngs=plait.Rngs(0))

        def __call__(self, x):
            return self.cell(jnp.zeros((16, 6)), x)[0]

    class TorchRecurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRUCell(4, 6)

        def forward(self, x):
            return self.cell(x, torch.zeros(16, 6))

    found = plait.compare(Recurrent(), TorchRecurrent(), X).departure
    assert (found.path, found.kind, found.b_kind) == ("cell", "GRUCell", "GRUCell")
    assert found.inputs.largest == 0


@pytest.mark.slow
@pytest.mark.oracle
def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class FlaxNet(nnx.Module):
        __call__ = Net.__call__

        def __init__(self):
            rngs = nnx.Rngs(0)
            self.up, self.norm, self.down = (
                nnx.Linear(4, 6, rngs=rngs), nnx.BatchNorm(6, rngs=rngs), nnx.Linear(6, 2, rngs=rngs),
            )  # fmt: skip

    model, other = Net(), FlaxNet()
    methods = {cls: dict(vars(cls)) for cls in (FlaxNet, nnx.Linear, nnx.BatchNorm)}
    before = jax.tree.map(np.asarray, nnx.state(other))
    assert plait.compare(model, other, X).agrees
    other.norm.momentum = 0.5  # shows only in what is written
    assert plait.compare(model, other, X).agrees
    other.norm.epsilon = 0.1
    found = plait.compare(other, model, X).departure
    assert found.path == "norm"
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, nnx.state(other)))
    assert all(dict(vars(cls)) == found for cls, found in methods.items())


@pytest.mark.oracle
def test_linen():
    nn = pytest.importorskip("flax.linen")

    class LinenNet(nn.Module):
        epsilon: float = 1e-5

        @nn.compact
        def __call__(self, x):
            norm = nn.BatchNorm(use_running_average=False, epsilon=self.epsilon, name="norm")
            return nn.Dense(2, name="down")(nn.gelu(norm(nn.Dense(6, name="up")(x)), approximate=False))

    model = Net()
    state = plait.to_pure_dict(plait.state(model))
    norm = state.pop("norm")
    variables = {
        "params": {**state, "norm": {name: norm[name] for name in ("scale", "bias")}},
        "batch_stats": {"norm": {name: norm[name] for name in ("mean", "var")}},
    }
    before = jax.tree.map(np.asarray, variables)
    assert plait.compare(model, (LinenNet(), variables), X).agrees
    bound = LinenNet(epsilon=0.1).bind(variables)
    found = plait.compare(model, bound, X).departure
    assert (found.path, found.b_path) == ("norm", "norm")
    jax.tree.map(np.testing.assert_array_equal, before, variables)


@pytest.mark.oracle
def test_a_model_of_flax_with_a_transform_inside_is_compared_without_what_is_in_it():
    nn = pytest.importorskip("flax.linen")

    class Jitted(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2, name="down")(nn.jit(nn.Dense)(6, name="up")(x))

    model = Jitted()
    variables = model.init(jax.random.key(0), X)
    found = plait.compare((model, variables), (model, variables), X)
    assert found.agrees
    assert [each.path for each in found.compared] == ["down", ""]
