"""What type checkers know of options is what there is."""

import inspect

import pytest

import plait
from plait.nn.stacks.stack import StackOptions
from plait.transforms import signatures

OPTIONS = {
    plait.jit: signatures.JitOptions,
    plait.grad: signatures.GradOptions,
    plait.value_and_grad: signatures.GradOptions,
    plait.vmap: signatures.VmapOptions,
    plait.scan: signatures.ScanOptions,
    plait.remat: signatures.RematOptions,
    plait.Stack: StackOptions,
}


@pytest.mark.parametrize("function", OPTIONS, ids=lambda function: function.__name__)
def test_type_checkers_know_its_options(function):
    parameters = inspect.signature(function).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    known = OPTIONS[function].__required_keys__ | OPTIONS[function].__optional_keys__
    assert named - {"has_aux", "rngs"} == known
