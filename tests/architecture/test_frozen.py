"""Dataclasses are frozen, but for those whose fields change while they are filled."""

import ast
from pathlib import Path

import plait

CHANGING = {
    "generation/continuation.py": 1,
    "flax/bridge/module/running.py": 1,
    "flax/bridge/wrappers/init_apply.py": 1,
    "inspect/compare/plait_runs.py": 1,
    "core/nodes/jax_flattening.py": 1,
    "core/variables/variable_metadata.py": 1,
    "inspect/explore/outline.py": 2,
    "export/jax_module.py": 2,
    "export/serving_config.py": 1,
    "export/utils.py": 1,
    "inspect/tabulate.py": 1,
    "inspect/module_repr.py": 1,
    "training/loop/callbacks.py": 1,
    "transforms/call/arguments.py": 1,
    "transforms/jit/compiled.py": 1,
}


def test_dataclasses_are_frozen_unless_they_are_filled_step_by_step():
    root = Path(plait.__file__).parent
    found = {}
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "@dataclass" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            decorators = node.decorator_list if isinstance(node, ast.ClassDef) else []
            if any(is_changing(each) for each in decorators):
                name = file.relative_to(root).as_posix()
                found[name] = found.get(name, 0) + 1
    assert found == CHANGING


def is_changing(decorator):
    """Whether a decorator makes a dataclass that is not frozen."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
    return ast.unparse(call.func) in ("dataclasses.dataclass", "dataclass") and options.get("frozen") != "True"
