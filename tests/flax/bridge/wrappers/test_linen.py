"""Flax is optional: what needs it says so, and nothing else loads it."""

import textwrap

import pytest

from tests.forked import run_python

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flax":
            raise ModuleNotFoundError("No module named 'flax'", name="flax")

sys.meta_path.insert(0, Block())
"""


def run(code):
    done = run_python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_the_bridge_does_not_import_flax():
    """B1: nor does anything of it that needs no flax.linen."""
    out = run(
        """
        import sys
        import plait, plait.bridge
        from plait.bridge import variables, wrappers, Module, ToNNX, to_linen, lazy_init, functional
        plait.bridge.to_collections(plait.Linear(2, 3, rngs=plait.Rngs(0)))
        print([name for name in sys.modules if name.split(".")[0] == "flax"])
        """
    )
    assert out.strip() == "[]"


@pytest.mark.slow
def test_without_flax_the_parts_that_need_it_say_so_and_the_others_work():
    """B1, B2: ImportErrors that name flax, the extra and the used name."""
    out = run(
        BLOCKED
        + textwrap.dedent("""
        import jax.numpy as jnp
        import plait
        from plait import bridge, meta
        from plait.bridge import variables as bv

        x = jnp.ones((1, 2))
        variables = {"params": {"w": meta.Partitioned(x, (None, "a"))}}
        assert bv.nnx_attrs_to_linen_vars(bv.linen_vars_to_nnx_attrs(variables)) == variables

        class Net(bridge.Module):
            @bridge.compact
            def __call__(self, x):
                x = bridge.nnx_in_bridge_mdl(lambda rngs: plait.Linear(2, 3, rngs=rngs))(x)
                return x * self.param("scale", plait.initializers.ones, (1, 3))

        assert Net().apply(Net().init(0, x), x).shape == (1, 3)
        assert bridge.functional(plait.Linear)(2, 3).init(rngs=plait.Rngs(0))
        assert bridge.lazy_init(plait.Linear(2, 3, rngs=plait.Rngs(0)), x)
        assert plait.Param(bridge.with_partitioning(plait.initializers.ones, ("a",))(None, (2,), jnp.float32)).shape

        class Uses(bridge.Module):
            @bridge.compact
            def __call__(self):
                bridge.linen_in_bridge_mdl(None)

        uses = {
            "ToNNX": lambda: bridge.ToNNX(None),
            "ToLinen": lambda: bridge.ToLinen,
            "to_linen": lambda: bridge.to_linen(plait.Linear, 2, 3),
            "to_linen_class": lambda: bridge.wrappers.to_linen_class(plait.Linear),
            "ToNNX ": lambda: Uses().init(0),
            "partitioning.remat": lambda: bridge.partitioning.remat(object),
            "partitioning.scan_with_axes": lambda: bridge.partitioning.scan_with_axes(object),
            "partitioning.vmap_with_axes": lambda: bridge.partitioning.vmap_with_axes(object),
        }
        for name, use in uses.items():
            try:
                use()
            except ImportError as error:
                text = str(error)
                assert "flax" in text and "plait[linen]" in text and f"plait.bridge.{name.strip()} " in text, text
            else:
                raise AssertionError(name)
        print("done")
        """)
    )
    assert out.strip() == "done"


@pytest.mark.slow
def test_boxes_meet_whichever_library_comes_first():
    """B3: flax loaded after the bridge, and after boxes were looked at."""
    out = run(
        """
        import jax.numpy as jnp, plait
        from plait import bridge, meta
        assert not meta.is_axis_metadata(3)
        box = meta.Partitioned(jnp.ones(2), ("a",))
        import flax.linen as nn
        foreign = nn.Partitioned(jnp.ones(2), ("a",))
        assert meta.is_axis_metadata(foreign)
        assert meta.unbox({"w": foreign})["w"].shape == (2,)
        assert type(bridge.to_linen_var(bridge.to_nnx_var("params", foreign))) is nn.Partitioned
        assert nn.unbox({"w": box})["w"].shape == (2,)
        assert issubclass(nn.Partitioned, meta.AxisMetadata) and issubclass(meta.Partitioned, nn.meta.AxisMetadata)
        print("done")
        """
    )
    assert out.strip() == "done"


def test_the_names_of_the_bridge_are_the_ones_it_lists():
    import plait
    from plait import bridge

    for name in bridge.__all__:
        assert getattr(bridge, name) is not None
    assert set(bridge.__all__) <= set(dir(bridge))
    assert bridge.initializers is plait.initializers
    for module in ("variables", "wrappers"):
        for name in getattr(bridge, module).__dict__:
            if name in bridge.__all__ and name != "Module":
                assert getattr(getattr(bridge, module), name) is getattr(bridge, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bridge.no_such_name
