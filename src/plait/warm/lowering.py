"""Whether code that is not JAX's may run while a program is lowered, so that it has to be recorded. (rule W3)

A rule that is not JAX's has to be registered with JAX. As long as all rules are JAX's own, lowering runs nothing that
its version does not determine, and is not recorded.
"""

from __future__ import annotations

import functools
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from .._compat import lowering_rules
from .codes import content_of
from .origins import Origin, origin_of


def is_lowered_by_others() -> bool:
    """Whether a rule of the user's or of an installed package is registered with JAX, for any primitive or type."""
    return not all(map(_is_of_jax, lowering_rules()))


def _is_of_jax(rule: Any) -> bool:
    """Whether a function is JAX's, with all that it holds: JAX makes rules from functions that it is given."""
    left, seen = [rule], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            if origin_of(each.__globals__.get("__name__")) is not Origin.VERSION:
                return False
            left += [*map(content_of, each.__closure__ or ()), *(each.__defaults__ or ())]
        elif isinstance(each, functools.partial):
            left += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, MethodType):
            left += [each.__func__, each.__self__]
        elif isinstance(each, (tuple, list)):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        elif callable(each):
            named = each if isinstance(each, (type, BuiltinFunctionType)) else type(each)
            if named.__module__ is not None and origin_of(named.__module__) is not Origin.VERSION:
                return False
            if named is not each:
                left += [*getattr(each, "__dict__", {}).values(), getattr(each, "__wrapped__", None)]
    return True
