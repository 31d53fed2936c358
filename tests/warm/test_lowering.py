"""Lowering is recorded if, and only if, a rule that is not JAX's is registered. (rule W3)"""

import functools

import pytest
from jax._src.interpreters import mlir as tables
from jax.extend.core import Primitive
from jax.interpreters import mlir

from plait.warm import lowering
from plait.warm.lowering import is_lowered_by_others
from tests.forked import run_python


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


PROGRAM = """
import plait.warm
from plait._compat import lowering_rules
from plait.warm.lowering import is_lowered_by_others
print(len([*lowering_rules()]), is_lowered_by_others())
"""


def test_all_rules_of_jax_are_recognized():
    """In a process where nobody else has registered one."""
    number, by_others = run_python("-c", PROGRAM, check=True).stdout.split()
    assert int(number) > 200
    assert by_others == "False"


@pytest.fixture
def no_rules_of_others(monkeypatch):
    """Other tests of this process load packages that register some."""
    for table in (tables._lowerings, *tables._platform_specific_lowerings.values()):
        for primitive, rule in [*table.items()]:
            if not lowering._is_of_jax(getattr(rule, "rule", rule)):
                monkeypatch.delitem(table, primitive)


@pytest.mark.usefixtures("no_rules_of_others")
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
    tables._lowerings.pop(primitive, None)
    for rules in tables._platform_specific_lowerings.values():
        rules.pop(primitive, None)
