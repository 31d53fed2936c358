"""The transformer of the examples trains alike in every layout. (issue E; ask 15)"""

import jax
import pytest
import transformer
from jax.sharding import AxisType

import plait

CONFIG = transformer.Config(blocks=1)
STEPS = 50
LAYOUTS = [{"data": 8}, {"fsdp": 8}, {"model": 8}, {"data": 2, "fsdp": 2, "model": 2}]
MARKED_LAYOUTS = [pytest.param(sizes, marks=[pytest.mark.slow] * (len(sizes) < 3)) for sizes in LAYOUTS]

pytestmark = pytest.mark.usefixtures("users_promotion")


@pytest.fixture(scope="module")
def alone():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return transformer.train(CONFIG, STEPS)


@pytest.mark.slow
def test_it_learns(alone):
    assert alone[0] > 4
    assert alone[-1] < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "x".join(sizes))
def test_every_layout_has_the_losses_of_one_device(sizes, kind, alone):
    if kind is AxisType.Explicit and len(sizes) < 3:
        steps = 3  # the arithmetic is that of the other kind, which does all steps
    else:
        steps = STEPS
    with transformer.on_mesh(sizes, kind):
        losses = transformer.train(CONFIG, steps)
    assert max(abs(mine - its) for mine, its in zip(losses, alone, strict=False)) <= 1e-5
    assert len(losses) == steps


@pytest.mark.slow
@pytest.mark.parametrize("sizes", MARKED_LAYOUTS, ids=lambda sizes: "x".join(sizes))
def test_a_step_leaves_every_variable_where_it_was(sizes):
    """Parameters and the optimizer's averages keep their shardings, and each device holds its part only."""
    with transformer.on_mesh(sizes):
        run = transformer.make(CONFIG)
        before = values_of(run)
        shardings = {path: value.sharding for path, value in before.items()}
        batch = next(transformer.batches(CONFIG, 0))
        transformer.step(run["model"], run["optimizer"], batch)
        after = values_of(run)
        kernel = run["model"].blocks[0].up.kernel.get_raw_value()
    moved = [path for path, value in after.items() if not value.sharding.is_equivalent_to(shardings[path], value.ndim)]
    assert moved == []
    assert len(after) > 30
    parts = sizes.get("fsdp", 1) * sizes.get("model", 1)
    assert kernel.addressable_shards[0].data.size * parts == kernel.size


def values_of(run):
    return dict(plait.to_flat_state(plait.as_pure(plait.state(run))))


@pytest.mark.slow
def test_a_run_goes_on_in_another_layout_with_the_losses_of_an_unbroken_one(alone, tmp_path):
    for steps, sizes in ((4, {"data": 2, "fsdp": 2, "model": 2}), (8, {}), (12, {"model": 4})):
        with transformer.on_mesh(sizes):
            losses = transformer.train(CONFIG, steps, folder=tmp_path, every=4)
        assert len(losses) == 4
        assert max(abs(mine - its) for mine, its in zip(losses, alone[steps - 4 :], strict=False)) <= 1e-5


@pytest.mark.slow
def test_it_runs_from_the_command_line(capsys):
    transformer.main(["--mesh", "fsdp=2,model=4", "--steps", "2", "--explicit"])
    assert capsys.readouterr().out.count('"loss"') == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mesh", "data"], "--mesh: '' is not a positive integer"),
        (["--mesh", "data=x"], "--mesh: 'x' is not"),
        (["--mesh", "data=0"], "--mesh: '0' is not"),
        (["--mesh", "rows=2"], "'rows=2' must name data, fsdp or model"),
        (["--mesh", "data=2,data=2"], "each only once"),
        (["--mesh", "data=3,model=4"], "--mesh needs 12 devices, and there are 8"),
        (["--steps", "-1"], "--steps: '-1' is not"),
        (["--every", "0"], "--every: '0' is not"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        transformer.main(options)
    assert says in capsys.readouterr().err.splitlines()[-1]
