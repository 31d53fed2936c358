"""Lowering is recorded if, and only if, a rule that is not JAX's is registered. (rule W3)"""

import functools

import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

from plait._compat import lowering_rules
from plait.warm.lowering import is_lowered_by_others


def users(context, x):
    return [x]


class Callable:
    def __call__(self, context, x):
        return [x]


RULES = {
    "a function": users,
    "a function that JAX wraps": mlir.lower_fun(lambda x: x * 2, multiple_results=False),
    "an argument of a partial": functools.partial(mlir.lower_fun, users),
    "an object": Callable(),
    "a method": Callable().__call__,
}


def test_all_rules_of_jax_are_recognized():
    assert len([*lowering_rules()]) > 200
    assert not is_lowered_by_others()


@pytest.mark.parametrize("platform", [None, "cpu"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_not_of_jax_is_found(name, platform):
    primitive = Primitive("mine")
    mlir.register_lowering(primitive, RULES[name], platform=platform)
    assert is_lowered_by_others()
    forget(primitive)
    assert not is_lowered_by_others()


def forget(primitive):
    """JAX has no way to take a rule back."""
    from jax._src.interpreters import mlir as tables

    tables._lowerings.pop(primitive, None)
    for rules in tables._platform_specific_lowerings.values():
        rules.pop(primitive, None)
