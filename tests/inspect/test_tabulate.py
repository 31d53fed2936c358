"""A model as a table."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import plait
from plait.errors import ArgumentError
from plait.inspect.tabulate import describe_value, table_rows
from tests.forked import run_python

WIDE = {"width": 240}


def make(nnx, blocks=3):
    """The same model on modules of plait, or of Flax."""

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(8, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x, train=True):
            return nnx.relu(self.dropout(self.norm(self.linear(x), use_running_average=not train)))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(blocks)])
            self.head = nnx.Linear(8, 2, rngs=rngs)
            self.tied = self.head

        def __call__(self, x, train=True):
            for block in self.blocks:
                x = block(x, train=train)
            return self.head(x)

        def features(self, x):
            return self.blocks[0](x)

    return Net(nnx.Rngs(0, dropout=1))


def rows_of(text):
    """The cells of the first line of each row, by path."""
    found = {}
    for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
        cells = [cell.strip() for cell in line.strip("│┃┏┗┡├").split("│")]
        if len(cells) > 2:
            found.setdefault(cells[0], cells)
    return found


X = jnp.ones((4, 8))


@pytest.mark.slow
@pytest.mark.oracle
def test_counts_and_shapes_are_those_of_flax():
    """D7."""
    from flax import nnx as flax_nnx

    theirs = re.sub(r"\x1b\[[\d;]*m", "", flax_nnx.tabulate(make(flax_nnx), X, console_kwargs=WIDE))
    rows = {tuple(map(str, row.path)): row for row in table_rows(make(plait), (X,), {}, "__call__", False, False)}
    found = rows_of(theirs)
    header = [cell.strip() for cell in re.split("[│┃]", theirs.splitlines()[2])[1:-1]]
    for path, row in rows.items():
        if "/".join(path) not in found:
            assert row.type is plait.Dropout
            assert path[1] != "0"
            continue
        cells = dict(zip(header, found["/".join(path)], strict=False))
        assert cells["type"] == row.type.__name__
        assert cells["outputs"] == describe_value(row.outputs)
        assert cells["inputs"] == row.inputs_repr.splitlines()[0] or "- " in cells["inputs"]
    assert len(rows) == 1 + 3 * 4 + 1
    counts = dict(zip(header, found[""], strict=False))
    for kind, (count, _) in rows[()].sizes.items():
        assert counts[kind].startswith(f"{count:,} ")


def test_it_takes_what_flax_takes():
    """D7."""
    model = make(plait)
    text = plait.tabulate(
        model,
        X,
        depth=1,
        method="features",
        row_filter=lambda row: not issubclass(row.type, plait.BatchNorm),
        table_kwargs={"title": "Mine"},
        column_kwargs={"justify": "right"},
        console_kwargs={**WIDE, "force_terminal": True, "no_color": False},
        compute_flops=True,
        compute_vjp_flops=True,
    )
    assert "Mine" in text
    assert "\x1b[" in text
    assert "VJP FLOPs" in text
    assert set(rows_of(text)) >= {"", "head"}
    assert "blocks" not in text
    assert "train: False" in plait.tabulate(model, X, train=False, console_kwargs=WIDE)


def test_equal_blocks_are_folded_and_shared_modules_shown_once():
    found = rows_of(plait.tabulate(make(plait), X, console_kwargs=WIDE))
    assert found["blocks[0…2]"][1] == "3 × Block"
    assert found["blocks[0…2].linear"][1] == "Linear"
    assert "tied" not in found
    assert "also at tied" in plait.tabulate(make(plait), X, console_kwargs=WIDE)


def test_a_module_costs_what_all_below_it_cost():
    """D7, D11."""
    model = make(plait)
    rows = {row.path: row for row in table_rows(model, (X,), {}, "__call__", True, True)}
    whole = plait.cost(model, X, compile=False)
    assert (rows[()].flops, rows[()].activation_bytes) == (whole.flops, whole.written)
    block = rows["blocks", 0]
    assert block.flops > sum(rows["blocks", 0, name].flops for name in ("linear", "norm", "dropout"))
    assert rows["head",].flops == 4 * 2 * (2 * 8 + 1)
    assert (rows["head",].vjp_flops or 0) >= 2 * 2 * 4 * 8 * 2  # for the kernel and for the input
    assert rows[()].vjp_flops == pytest.approx(sum(
        rows[path].vjp_flops for path in rows if len(path) == 2 or path == ("head",)
    ), rel=0.1)  # fmt: skip


def test_nothing_changes_and_calls_are_counted():
    class Twice(plait.Module):
        def __init__(self):
            self.norm, self.spare = plait.BatchNorm(8, rngs=plait.Rngs(0)), plait.Linear(8, 1, rngs=plait.Rngs(0))

        def __call__(self, x):
            return self.norm(self.norm(x))

    model = Twice()
    before = np.asarray(model.norm.mean.value)
    text = plait.tabulate(model, X, console_kwargs=WIDE)
    assert "BatchNorm (2 calls)" in text
    assert rows_of(text)["spare"][2:4] == ["", ""]
    np.testing.assert_array_equal(model.norm.mean.value, before)


def test_modules_inside_of_transforms_have_rows_of_their_own():
    class Net(plait.Module):
        def __init__(self):
            self.parts = [plait.Linear(8, 8, rngs=plait.Rngs(i)) for i in range(3)]
            self.last = plait.Linear(8, 4, rngs=plait.Rngs(3))

        def __call__(self, x):
            for part in self.parts:
                x = plait.remat(lambda part, x: part(x))(part, x)
            return plait.vmap(lambda part, x: part(x), in_axes=(None, 0))(self.last, x)

    found = {row.path: row for row in table_rows(Net(), (X,), {}, "__call__", True, False)}
    assert [found["parts", i].inputs_repr for i in range(3)] == ["float32[4,8]"] * 3
    assert found["last",].inputs_repr == "float32[8]"
    assert found["parts", 2].flops == found["parts", 0].flops == 4 * 8 * 17


def test_calls_of_modules_that_a_transform_got_by_other_names():
    class Net(plait.Module):
        def __init__(self):
            self.a, self.b = plait.Linear(8, 8, rngs=plait.Rngs(0)), plait.Linear(8, 8, rngs=plait.Rngs(1))

        def __call__(self, x):
            return plait.remat(lambda b, a, x: b(b(x)))(self.a, self.b, x)

    found = {row.path: row for row in table_rows(Net(), (X,), {}, "__call__", True, False)}
    assert (found["a",].calls, found["b",].calls) == (2, 0)
    assert (found["a",].flops, found["b",].flops) == (2 * 4 * 8 * 17, 0)


def test_shapes_and_specs_without_arrays():
    metadata = {"out_sharding": (None, "model")}
    model = plait.eval_shape(lambda: plait.Linear(1000, 2**20, rngs=plait.Rngs(0), kernel_metadata=metadata))
    text = plait.tabulate(model, jax.ShapeDtypeStruct((2, 1000), jnp.float32), console_kwargs=WIDE)
    assert "1,049,624,576 (3.9 GiB)" in text
    assert f"kernel: {PartitionSpec(None, 'model')!s}" in text
    assert "sharding" not in plait.tabulate(make(plait), X, console_kwargs=WIDE)


def test_without_inputs_there_are_sizes_alone():
    text = plait.tabulate([make(plait), {"b": plait.Param(jnp.ones(3))}], console_kwargs=WIDE)
    assert "FLOPs" not in text
    assert "inputs" not in text
    assert "[0].head" in text


def test_inputs_for_something_without_the_method_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)no method 'encode'.*found +a Net"):
        plait.tabulate(make(plait), X, method="encode")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (X, "float32[4,8]"),
        ([X, (1, None)], "[float32[4,8], (1, None)]"),
        ({"x": X}, "{x: float32[4,8]}"),
        (plait.Rngs(0), "Rngs"),
        ("y" * 60, "'" + "y" * 36 + "..."),
    ],
)
def test_values_are_short(value, text):
    assert describe_value(value) == text


@pytest.mark.slow
def test_rich_is_loaded_by_the_call_alone():
    loaded = "assert ('rich' in sys.modules) is"
    code = f"import sys, plait; plait.tabulate; {loaded} False; plait.tabulate({{}}); {loaded} True"
    run_python("-c", code, check=True)


@pytest.mark.slow
def test_a_model_of_a_billion_parameters_fits_on_a_screen():
    class Block(plait.Module):
        def __init__(self, rngs):
            self.norm = plait.LayerNorm(2048, rngs=rngs)
            self.attention = plait.MultiHeadAttention(num_heads=16, in_features=2048, decode=False, rngs=rngs)
            self.up, self.down = plait.Linear(2048, 8192, rngs=rngs), plait.Linear(8192, 2048, rngs=rngs)

        def __call__(self, x):
            return x + self.down(jax.nn.gelu(self.up(self.attention(self.norm(x)))))

    model = plait.eval_shape(lambda: plait.List([Block(plait.Rngs(0)) for _ in range(20)]))
    net = plait.Sequential(*model)
    x = jax.ShapeDtypeStruct((8, 1024, 2048), jnp.float32)
    text = plait.tabulate(net, x, console_kwargs=WIDE)
    assert "Total Parameters: 1,007" in text
    assert len(text.splitlines()) < 50
