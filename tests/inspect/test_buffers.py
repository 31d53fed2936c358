"""Places in a compiled program's memory."""

import jax
import jax.numpy as jnp
from hypothesis import given, strategies as st

from plait._compat import buffers_of
from plait.inspect.buffers import _largest_values, temporary_bytes

VALUES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 3)), max_size=6)


@given(VALUES)
def test_each_byte_belongs_to_the_largest_value_that_is_put_there(values):
    size = 12
    expected: dict[int, int] = {}
    for byte in range(size):
        covering = [each for each in values if each[1] <= byte < each[1] + each[0]]
        owner = max(covering)[2] if covering else -1
        expected[owner] = expected.get(owner, 0) + 1
    assert _largest_values(size, values) == expected


def test_the_bytes_of_all_instructions_are_those_that_xla_reserves():
    def f(x):
        return jnp.sort(x @ x, axis=0) @ jnp.cumsum(x, axis=1)

    compiled = jax.jit(f).lower(jnp.ones((16, 16))).compile()
    buffers = buffers_of(compiled)
    assert buffers is not None
    found = temporary_bytes(*buffers)
    assert sum(found.values()) == compiled.memory_analysis().temp_size_in_bytes > 0
    assert all(f"%{name} = " in compiled.as_text() for name in found if name)
    assert any(found[name] >= 16 * 16 * 4 for name in found if name)
