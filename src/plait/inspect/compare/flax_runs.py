"""Runs Flax models, NNX and Linen, and records their calls. Arrays inside transforms are not recorded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import MethodType
from typing import Any

import numpy as np

from ...core.module_calls.method_observers import MethodCall, observed_methods
from ...util.paths import Path
from .calls import Recorder, Run, numpy_of, owner_of


def is_flax_nnx(model: Any) -> bool:
    return "flax" in sys.modules and _of_class(owner_of(model), "flax.nnx.module", "Module")


def is_linen(model: Any) -> bool:
    """Whether this is a Linen module bound to variables, or a tuple of a module and its variables."""
    module = model[0] if isinstance(model, tuple) and len(model) == 2 else model
    return "flax" in sys.modules and _of_class(module, "flax.linen.module", "Module")


def _of_class(value: Any, module: str, name: str) -> bool:
    return any((cls.__module__, cls.__name__) == (module, name) for cls in type(value).__mro__)


def run_flax_nnx(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    """Run a copy of the model."""
    from flax import nnx

    root = nnx.clone(owner_of(model))
    call: Any = getattr(root, model.__name__) if isinstance(model, MethodType) else root
    places: dict[int, list[Path]] = {}
    modules = {}
    for path, node in ((tuple(path), node) for path, node in nnx.iter_modules(root)):
        places.setdefault(id(node), []).append(path)
        modules[id(node)] = node
    recorder = Recorder(functools.partial(_value_of, nnx))

    def observe(module: Any, method: str, run: MethodCall) -> Any:
        paths = tuple(places.get(id(module), ()))
        if not paths or not paths[0]:
            return run()
        method = "" if method == "__call__" else method
        return recorder.around(run, paths, method, module, run.args, run.kwargs)

    common = frozenset({*nnx.Module.__mro__, *nnx.List.__mro__, *nnx.Dict.__mro__})
    with observed_methods(modules.values(), observe, except_of=common):
        recorder.around(lambda: call(*args, **kwargs), ((),), "", root, args, kwargs)

    return recorder.run("flax.nnx")


def _value_of(nnx: Any, leaf: Any) -> np.ndarray | None:
    return numpy_of(leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf)


def run_linen(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    """Run a Linen module with its variables, which do not change."""
    from flax import linen

    module, variables = model if isinstance(model, tuple) else model.unbind()
    variables = linen.meta.unbox(variables)
    recorder = Recorder(numpy_of)

    def intercept(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        path, method = tuple(context.module.path), context.method_name
        if not path or method == "setup" or (method.startswith("_") and method != "__call__"):
            return run(*args, **kwargs)
        method = "" if method == "__call__" else method
        return recorder.around(lambda: run(*args, **kwargs), (path,), method, context.module, args, kwargs)

    written = [name for name in variables if name != "params"]

    def apply() -> Any:
        with linen.intercept_methods(intercept):
            output = module.apply(variables, *args, mutable=written or False, **kwargs)
        return output[0] if written else output

    recorder.around(apply, ((),), "", module, args, kwargs)

    return recorder.run("linen")
