"""How a model is cut, as a table and as a picture. (ask 15)"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import plait
from plait.inspect import sharding_report
from tests.forked import run_python


class Net(plait.Module):
    def __init__(self, rngs):
        init = plait.initializers.lecun_normal()
        self.up = plait.Linear(512, 1024, kernel_metadata={"out_sharding": ("embed", "mlp")}, rngs=rngs)
        self.table = plait.Param(init(rngs.params(), (1024, 512), jnp.float32), out_sharding=("vocab", "embed"))
        self.layers = [plait.Dict(scale=plait.BatchStat(jnp.ones(8, jnp.bfloat16)))]
        self.rngs = rngs.fork()


RULES = [("embed", None), ("mlp", "model"), ("vocab", None)]


def mesh():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def by_path(report):
    return {row.path: row for row in report.variables}


@pytest.mark.slow
def test_every_variable_has_its_names_spec_and_bytes():
    with plait.logical_axis_rules(RULES):
        rows = by_path(sharding_report(Net(plait.Rngs(0)), mesh()))
    kernel, scale, table = rows["up.kernel"], rows["layers[0].scale"], rows["table"]
    assert (kernel.names, kernel.spec, kernel.shape, kernel.dtype) == (
        ("embed", "mlp"), P(None, "model"), (512, 1024), "float32",
    )  # fmt: skip
    assert (kernel.bytes, kernel.bytes_per_device) == (2 << 20, 1 << 19)
    assert (scale.kind, scale.names, scale.spec, scale.bytes_per_device) == ("BatchStat", None, P(), 16)
    assert [path for path, row in rows.items() if row.large_and_whole] == ["table"]
    assert table.bytes_per_device == table.bytes
    assert rows["rngs.default.key"].bytes == 8  # a key of threefry


@pytest.mark.slow
def test_totals_are_those_of_the_arrays_on_a_device():
    with jax.set_mesh(mesh()), plait.logical_axis_rules(RULES):
        model = plait.partitioning.create_sharded(lambda: Net(plait.Rngs(0)))
        report = sharding_report(model)
        abstract = sharding_report(plait.get_abstract_model(lambda: Net(plait.Rngs(0)), mesh())[1])
    held = {
        name: variable.get_raw_value().addressable_shards[0].data.nbytes
        for name, variable in {"up.kernel": model.up.kernel, "table": model.table, "up.bias": model.up.bias}.items()
    }
    assert {name: by_path(report)[name].bytes_per_device for name in held} == held
    assert report.bytes_per_device == abstract.bytes_per_device
    assert report.mesh == {"data": 2, "model": 4}


def test_an_array_that_lies_elsewhere_is_shown_as_it_lies():
    array = jax.device_put(jnp.ones((8, 4)), jax.sharding.NamedSharding(mesh(), P("data")))
    report = sharding_report({"v": plait.Param(array, out_sharding=(None, "model"), eager_sharding=False)}, mesh())
    assert report.variables[0].spec == P("data")
    assert report.variables[0].bytes_per_device == 64


@pytest.mark.slow
def test_without_a_mesh_everything_is_whole_and_nothing_is_remarked():
    report = sharding_report(Net(plait.Rngs(0)))
    assert report.bytes == report.bytes_per_device
    assert not any(row.large_and_whole for row in report.variables)
    assert "on no mesh" in str(report)


def test_the_table():
    with plait.logical_axis_rules(RULES):
        text = str(sharding_report(Net(plait.Rngs(0)), mesh()))
    kernel = next(line for line in text.splitlines() if "up.kernel" in line)
    assert [cell.strip() for cell in kernel.strip("│").split("│")] == [
        "up.kernel", "Param", "float32[512, 1024]", "embed, mlp", "P(None, 'model')", "2.0 MiB", "512.0 KiB", "",
    ]  # fmt: skip
    assert "large, not sharded" in next(line for line in text.splitlines() if "table" in line)
    assert "1 large variables, 2.0 MiB in all, are replicated on every device" in text
    assert "on the mesh data=2, model=4" in text


@pytest.mark.slow
def test_rich_is_loaded_for_the_table_only():
    program = "import plait, sys; plait.inspect.sharding_report(plait.Dict()); sys.exit('rich' in sys.modules)"
    assert run_python("-c", program).returncode == 0


def test_without_a_mesh_in_force_it_is_that_of_the_arrays():
    mesh = jax.make_mesh((8,), ("model",))
    v = plait.Param(jnp.ones((16, 4)), out_sharding=("model", None), mesh=mesh)
    report = plait.inspect.sharding_report({"v": v})
    assert report.mesh == {"model": 8}
    assert "on the mesh model=8" in str(report)
