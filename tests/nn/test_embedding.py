import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ShapeError
from tests.nn.twins import (
    HALF_TOLERANCE,
    TOLERANCE,
    Encoder,
    assert_twins_agree,
    compare,
    some_input,
    twins,
    users_promotion,
)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "x", [pytest.param(np.array([0, 6, 2], np.int8), marks=pytest.mark.slow), np.array([[1, 1], [-1, 9]])]
)
@pytest.mark.parametrize(
    ("rows", "options"), [(1, {}), (7, {}), (7, {"dtype": "bfloat16"}), (7, {"param_dtype": "float16"})]
)
def test_rows_are_flax_s(rows, x, options):
    assert_twins_agree("Embed", (rows, 3), options, jnp.asarray(x), HALF_TOLERANCE if options else TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_attend_is_flax_s(dtype):
    ours, theirs = twins("Embed", 5, 3, dtype=dtype)
    query = some_input(2, 4, 3)
    with users_promotion():
        expected = theirs.attend(query)
    y = ours.attend(query)
    assert y.dtype == expected.dtype
    compare(y, expected, HALF_TOLERANCE if dtype else TOLERANCE, "logits")


@pytest.mark.parametrize("rows", [1, 4])
def test_a_single_index_gives_a_single_row(rows):
    embed = plait.Embed(rows, 3, rngs=plait.Rngs(0))
    np.testing.assert_array_equal(embed(jnp.array(0)), embed.embedding[0])


def test_the_dtype_is_that_in_which_the_table_is_made():
    """As in Flax: it stays when the table is stored in another one later."""
    embed = plait.Embed(3, 4, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    assert embed.dtype == jnp.bfloat16
    embed.embedding.value = embed.embedding.value.astype(jnp.float32)
    assert embed(jnp.array([0])).dtype == jnp.bfloat16
    assert embed.attend(jnp.ones((1, 4))).dtype == jnp.bfloat16


def test_a_row_that_is_not_there_is_nan():
    assert bool(jnp.isnan(plait.Embed(5, 3, rngs=plait.Rngs(0))(jnp.array(5))).all())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bool_])
def test_other_inputs_than_integers_are_refused(dtype):
    model = Encoder(plait.Embed(5, 3, rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"at +encoder\.layers\[3\].*\s+found .*(float32|bool)\s+expected +an integer"):
        model(jnp.ones(2, dtype))


def test_a_query_of_another_length_names_both():
    embed = plait.Embed(5, 3, rngs=plait.Rngs(0))
    with pytest.raises(ShapeError, match=r"found .*\(2, 4\)\s+expected .*features=3"):
        embed.attend(jnp.ones((2, 4)))
