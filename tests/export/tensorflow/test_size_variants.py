"""A method for a finite set of sizes: which program runs, what is refused, and that all share the variables."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

tf = pytest.importorskip("tensorflow")

from plait.export import ExportManager, JaxModule, ServingConfig  # noqa: E402
from plait.export.tensorflow.size_variants import every_size, fitting  # noqa: E402

pytestmark = pytest.mark.oracle


def by_rows(params, x):
    """What cannot be traced with free sizes: Python decides by a size."""
    return {"y": x @ params["w"] * (10 if x.shape[0] > 2 else 1)}


def module(**arguments):
    shape = {"input_polymorphic_shape": "b, n", "input_polymorphic_shape_symbol_values": {"b": (1, 2, 4), "n": [2]}}
    return JaxModule({"w": jnp.ones((2, 3))}, by_rows, **{**shape, **arguments})


@pytest.mark.slow
def test_e41_the_program_of_the_size_runs(tmp_path):
    """E41: in the saved model, with its gradient, and with new parameters."""
    made = module(trainable=True)
    manager = ExportManager(made, [ServingConfig("serve", [tf.TensorSpec((None, 2), name="x")])])
    made.update_variables({"w": 2 * jnp.ones((2, 3))})
    manager.save(tmp_path / "model")
    loaded = manager.load(tmp_path / "model")
    for rows, value in ((1, 4), (2, 4), (4, 40)):
        x = tf.ones((rows, 2))
        served = loaded.signatures["serve"](x=x)["y"]
        assert served.numpy().tolist() == [[value] * 3] * rows
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(loaded(x)["y"])
        assert tape.gradient(y, x).numpy().tolist() == [[1.5 * value] * 2] * rows
        assert made.jax_methods[made.DEFAULT_METHOD_KEY](np.ones((rows, 2)))["y"].tolist() == served.numpy().tolist()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not among input_polymorphic_shape_symbol_values"):
        loaded.signatures["serve"](x=tf.ones((3, 2)))


def test_e41_sizes_that_are_known_need_no_choice():
    """E41: one program where the size is fixed, and an error at once for another."""
    made = module()
    method = made.methods[made.DEFAULT_METHOD_KEY]
    concrete = method.get_concrete_function(tf.TensorSpec((4, 2)))
    assert not any(node.type in ("Case", "StatelessCase") for node in concrete.graph.get_operations())
    assert concrete.structured_outputs["y"].shape == (4, 3)
    for shape in ((3, 2), (4, 3), (None, 3)):
        with pytest.raises(ValueError, match=r"not among input_polymorphic_shape_symbol_values\n +found +\("):
            method.get_concrete_function(tf.TensorSpec(shape))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_e41_a_choice_is_made_where_a_size_is_free(jit_compile):
    """E41: with and without XLA; sizes that cannot be are left out."""
    made = module(jit_compile=jit_compile, input_polymorphic_shape_symbol_values={"b": (1, 4), "n": (2, 3)})
    concrete = made.methods[made.DEFAULT_METHOD_KEY].get_concrete_function(tf.TensorSpec((None, 2)))
    (choice,) = [node for node in concrete.graph.get_operations() if node.type in ("Case", "StatelessCase")]
    assert len(choice.get_attr("branches")) == 2
    assert concrete(tf.ones((4, 2)))["y"].numpy().tolist() == [[20.0] * 3] * 4


def test_e41_methods_have_sizes_of_their_own():
    """E41, E6: by method key; ``None`` leaves a method as it is."""
    made = JaxModule(
        {"w": jnp.ones((2, 3))},
        {"some": by_rows, "any": lambda p, x: x["a"] @ p["w"]},
        input_polymorphic_shape={"some": "b, ...", "any": {"a": "b, 2"}},
        input_polymorphic_shape_symbol_values={"some": {"b": (2, 4)}, "any": None},
    )
    assert made.methods["any"]({"a": tf.ones((3, 2))}).shape == (3, 3)
    assert made.methods["some"](tf.ones((4, 2)))["y"].numpy().max() == 20
    with pytest.raises(ValueError, match="keys"):
        JaxModule(
            {}, {"f": by_rows}, input_polymorphic_shape={"f": "b"}, input_polymorphic_shape_symbol_values={"g": {}}
        )


@pytest.mark.parametrize(
    ("shape", "values", "message"),
    [
        (None, {"b": (1,)}, "expected +names in input_polymorphic_shape"),
        ("2, 2", {}, "expected +names in input_polymorphic_shape"),
        ("b, n", {"b": (1,)}, "values for 'b', 'n'"),
        ("b", {"b": (1,), "n": (2,)}, "values for 'b'"),
        ("b", [1], "values for 'b'"),
        ("b", {"b": ()}, r"at +input_polymorphic_shape_symbol_values\['b'\]"),
        ("b", {"b": 3}, "whole numbers"),
        ("b", {"b": (1, 1)}, "different"),
        ("b", {"b": (-1,)}, "whole numbers"),
        ("b", {"b": (True,)}, "whole numbers"),
        ("floordiv(b, 2)", {"b": (4,)}, "quotient"),
    ],
)
def test_e41_values_that_are_no_sizes_are_refused(shape, values, message):
    """E41."""
    with pytest.raises(ValueError, match=message):
        every_size(shape, values)


def test_e41_a_size_without_values_is_refused():
    """E41."""
    variants = every_size("b, ...", {"b": (1, 2)})
    with pytest.raises(ValueError, match="neither fixed nor symbolic"):
        fitting(tf.TensorSpec((None, None)), variants)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_e41_an_input_fits_exactly_the_combination_of_its_sizes(batches, lengths, rows, columns):
    """E41: sizes that follow from others included."""
    variants = every_size(("b, n", "max(2*b + n, 3), min(b, 5)"), {"b": batches, "n": lengths})
    last = (max(2 * rows + columns, 3), min(rows, 5))
    x = (tf.TensorSpec((rows, columns)), tf.TensorSpec(last))
    if rows in batches and columns in lengths:
        ((index, shapes),) = fitting(x, variants).items()
        assert variants.sizes[index] == {"b": rows, "n": columns}
        assert shapes == [(rows, columns), last]
    else:
        with pytest.raises(ValueError, match="not among"):
            fitting(x, variants)
