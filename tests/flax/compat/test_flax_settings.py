"""Settings of Flax outside of flax.nnx: a program prints the same with Flax and under plait.as_flax. (rule X34)"""

import pytest

from tests.environment import environment
from tests.forked import run_python

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

START = """
import os, threading, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
import flax, flax.linen as nn
from flax import nnx

class Shared(nnx.Module):
    def __init__(self):
        self.a = self.b = nnx.Param(jnp.ones(8))
    def sown(self):
        return self.sow(nnx.Intermediate, "h", 1.0), jnp.shape(self.perturb("e", jnp.ones(2))), hasattr(self, "h")

def show(what, f):
    try:
        print(what, f())
    except ValueError:
        print(what, "ValueError")

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def spec(names=("data",), **metadata):
    with jax.set_mesh(mesh):
        return nnx.Param(jnp.ones((8,) * len(names)), out_sharding=names, **metadata)[...].sharding.spec
"""

FLAGS = """
def add(m):
    m.c = nnx.Param(jnp.zeros(1))

def everything():
    show("split", lambda: len(nnx.split(Shared())[1]))
    show("sow", lambda: Shared().sown())
    show("jit", lambda: (m := nnx.Dict(a=nnx.Param(jnp.ones(1))), nnx.jit(add)(m), hasattr(m, "c"))[2])
    show("spec", spec)
    show("values", lambda: [each.current_value() for each in SETTINGS] + [nnx.using_eager_sharding()])

SETTINGS = nnx.set_graph_mode, nnx.set_graph_updates, nnx.use_eager_sharding
everything()
for name in ("nnx_graph_mode", "nnx_graph_updates", "nnx_sow_capture_noop", "flax_always_shard_variable"):
    if hasattr(flax.config, name):
        print(name, getattr(flax.config, name))
        flax.config.update(name, not getattr(flax.config, name))
        everything()
        thread = threading.Thread(target=everything)
        thread.start()
        thread.join()
        flax.config.update(name, not getattr(flax.config, name))
with flax.config.temp_flip_flag("always_shard_variable", False):
    everything()
with nnx.set_graph_mode(False), nnx.set_graph_updates(False), nnx.use_eager_sharding(False):
    everything()
everything()
"""

RULES = """
rules = [("embed", "data"), ["mlp", ["model"]], ("layers", None), ("twice", None), ("twice", "model")]
with nn.logical_axis_rules(rules):
    show("names", lambda: spec(("embed", "mlp")))
    show("the last rule counts", lambda: spec(("twice", "layers")))
    show("own rules", lambda: spec(("embed", "own"), sharding_rules=[("own", "model")]))
    show("contradicting", lambda: spec(("embed", None), sharding_rules=[("embed", "model")]))
    show("unknown", lambda: spec(("embed", "unknown")))
    show("boxes", lambda: nn.logical_to_mesh_axes(("embed", "mlp", "twice")))
    with flax.core.spmd.logical_axis_rules([("embed", "model")]):
        show("inner", lambda: spec(("embed", None)))
    show("outer", lambda: spec(("embed", None)))
flax.core.spmd.set_logical_axis_rules([("set", "data")])
show("set", lambda: (spec(("set", None)), nn.get_logical_axis_rules()[0]))
"""

PROGRAMS = {
    "flags": (FLAGS, {}),
    "flags of the environment": (FLAGS, {"NNX_GRAPH_MODE": "0", "NNX_SOW_CAPTURE_NOOP": "1"}),
    "others": (FLAGS, {"NNX_GRAPH_UPDATES": "false", "FLAX_ALWAYS_SHARD_VARIABLE": "0"}),
    "axis rules": (RULES, {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_x34_it_prints_the_same(name, tmp_path):
    program, variables = PROGRAMS[name]
    (tmp_path / "program.py").write_text(START + program)
    outputs = []
    for start in ((), ("-m", "plait.as_flax")):
        done = run_python(*start, "program.py", cwd=tmp_path, env=environment(**variables))
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[1] == outputs[0]
    assert "P('data'" in outputs[0]
