"""What counts as a box of Linen does so from the start, whatever was imported first. (rule B3)"""

import itertools

import pytest

from tests.forked import run_python
from tests.sampling import slow_but

IMPORT_FLAX = "from flax import linen as nn; import flax"
# How to make an object of each public class that is a box, and the class of Linen that it is one of.
BOXES = {
    "bridge.NNXMeta": ("bridge.NNXMeta(plait.BatchStat, x, {})", "flax.core.meta.AxisMetadata"),
    "meta.Partitioned": ("plait.meta.Partitioned(x, ('a',))", "nn.Partitioned"),
    "meta.LogicallyPartitioned": ("plait.meta.LogicallyPartitioned(x, ('a',))", "nn.LogicallyPartitioned"),
    "what a variable becomes": ("bridge.to_linen_var(plait.Param(x, note=1))", "flax.core.meta.AxisMetadata"),
    "what bridge.with_partitioning becomes": (
        "(V := type('V', (bridge.Module,), {'__call__': lambda self, x: x * self.param('w', bridge.with_partitioning("
        "plait.initializers.ones, ('a',)), (2,))})) and V().init(0, x)['params']['w']", "nn.Partitioned",
    ),
}  # fmt: skip
ALL = "all in one process"
SETUP = "import jax, jax.numpy as jnp, plait; from plait import bridge; x = jnp.ones(2)"


def run(*lines):
    program = "\n".join(lines)
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("order", "name"),
    slow_but(
        [("the object first", ALL)],
        itertools.product(["Flax first", "plait first", "the object first"], [ALL, *BOXES]),
    ),
)
def test_a_box_is_one_of_linen_s_in_a_fresh_process(order, name):
    boxes = list(BOXES.values()) if name == ALL else [BOXES[name]]
    steps = {"flax": IMPORT_FLAX, "plait": SETUP, "box": f"boxes = [{', '.join(make for make, _ in boxes)}]"}
    orders = {"Flax first": "flax plait box", "plait first": "plait flax box", "the object first": "plait box flax"}
    checks = [line for place, (_, kind) in enumerate(boxes) for line in (f"box = boxes[{place}]", *checks_of(kind))]
    run(*(steps[step] for step in orders[order].split()), *checks)


def checks_of(kind):
    return (
        f"assert isinstance(box, {kind}), type(box).__mro__",
        "assert isinstance(box, flax.core.meta.AxisMetadata)",
        "assert isinstance(box, plait.meta.AxisMetadata)",
        "assert nn.meta.unbox({'w': box})['w'] is box.unbox()",
        "assert not isinstance(x, flax.core.meta.AxisMetadata)",
        "assert not isinstance(bridge.NNXMeta(plait.Param, x, {}), nn.Partitioned)",
        "assert not isinstance(plait.meta.Partitioned(x, ('a',)), nn.LogicallyPartitioned)",
        "import copy, pickle; assert type(pickle.loads(pickle.dumps(box))) is type(copy.copy(box)) is type(box)",
    )


@pytest.mark.parametrize("order", slow_but(["plait first"], ["Flax first", "plait first"]))
def test_a_box_of_linen_is_one_of_ours_in_a_fresh_process(order):
    steps = [IMPORT_FLAX, SETUP] if order == "Flax first" else [SETUP, IMPORT_FLAX]
    run(
        *steps,
        "box = nn.Partitioned(x, ('a',))",
        "assert isinstance(box, plait.meta.AxisMetadata)",
        "assert plait.meta.unbox({'w': box})['w'] is x",
    )
