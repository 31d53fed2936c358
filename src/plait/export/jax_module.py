"""A JAX function and its parameters as a ``tf.Module``: the parameters are variables that the function reads.

Importing this file imports TensorFlow, since the class is made from ``tf.Module``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError
from ..util.dependencies import require
from .program.checks import check_equal, check_some, check_type, leaves_like
from .tensorflow.conversion import Conversion, resolve_conversion
from .tensorflow.functions import call_from_tensorflow
from .tensorflow.names import variable_names
from .tensorflow.readers import Reader, reader_of
from .tensorflow.size_variants import Variants, call_by_size, every_size
from .variable_trees import make_variables, resolve_placement, resolve_values

__all__ = ["ExportModelType", "JaxModule"]
__dir__ = __all__.copy

tf: Any = require("tensorflow", extra="tensorflow", purpose="to make a JaxModule")

ApplyFn = Callable[[Any, Any], Any]  # (parameters, input), where the input is a pytree


class ExportModelType(enum.Enum):
    """The model kinds of ``JaxModule``. Only ``TF_SAVEDMODEL`` is supported."""

    TF_SAVEDMODEL = "TF_SAVEDMODEL"
    ORBAX_MODEL = "ORBAX_MODEL"


@dataclasses.dataclass
class _Method:
    """One method and its arguments."""

    function: ApplyFn
    kwargs: dict[str, Any]
    conversion: Conversion
    variants: Variants | None  # if it has one program for each of a set of sizes
    jit_compile: bool
    in_tensorflow: Any = None
    jitted: Any = None


@dataclasses.dataclass
class _Inside:
    """An opaque holder: TensorFlow would wrap dictionaries and lists, and track their contents."""

    params: Any
    params_def: Any
    methods: dict[str, _Method]
    pspecs: Any
    consolidate: bool
    names: list[str]


class JaxModule(tf.Module):
    """A JAX function and its parameters as a ``tf.Module``, to be saved by ``ExportManager``.

    Names and arguments are those of Orbax Export. Each leaf of ``params`` becomes one variable, named by its key path;
    the methods read the variables when they are called, so new parameters need no new trace.

    Args:
        params: a pytree of arrays, such as a plait state or module.
        apply_fn: a function ``(params, x) -> outputs``, or a mapping from method keys to such functions. Then the
            arguments below marked "or a mapping" are mappings with the same keys.
        trainable: which parameters are trainable: ``None`` for none, one bool for all, or a pytree of bools.
        input_polymorphic_shape: the dynamic sizes of the input, as in ``"batch, 8, 8, 1"`` or ``"batch, ..."``; a
            pytree of these for an input that is a pytree. ``None`` means that all are fixed. (Or a mapping.)
        jax2tf_kwargs: ``polymorphic_constraints``, ``with_gradient``, ``native_serialization_platforms`` and
            ``native_serialization_disabled_checks``, as for ``jax2tf.convert``. (Or a mapping.)
        jit_compile: whether TensorFlow compiles each method with XLA. (Or a mapping.)
        name: name of the module.
        pspecs: a pytree of partition specs, to make DTensor variables on the mesh of the current context.
        allow_multi_axis_sharding_conslidation: whether a dimension that is sharded over several axes may be sharded
            over only the largest.
        allow_multi_axis_sharding_consolidation: the same.
        input_polymorphic_shape_symbol_values: the allowed sizes of each name in ``input_polymorphic_shape``:
            ``{"batch": (1, 8)}``. The method is then one program with fixed sizes for each combination, and an input of
            a different size raises. (Or a mapping.)
        export_version: only ``ExportModelType.TF_SAVEDMODEL``.
        jax2obm_kwargs: not supported.
        target: the reader of the SavedModel: ``"tensorflow==2.16"``, or a StableHLO version; by default the installed
            TensorFlow.

    Raises:
        ArgumentError: arguments contradict each other; names them.
        NotImplementedError: an argument belongs to a different export format.

    Example:
        >>> module = JaxModule({"w": w}, lambda p, x: x @ p["w"], input_polymorphic_shape="b, 2")  # doctest: +SKIP
        >>> module.methods[JaxModule.DEFAULT_METHOD_KEY](tf.ones((3, 2)))  # doctest: +SKIP
    """

    DEFAULT_METHOD_KEY = "jax_module_default_method"

    def __init__(
        self,
        params: Any,
        apply_fn: ApplyFn | Mapping[str, ApplyFn],
        trainable: Any = None,
        input_polymorphic_shape: Any = None,
        jax2tf_kwargs: Mapping[str, Any] | None = None,
        jit_compile: bool | Mapping[str, bool] = True,
        name: str | None = None,
        pspecs: Any = None,
        allow_multi_axis_sharding_conslidation: bool | None = None,
        *,
        allow_multi_axis_sharding_consolidation: bool | None = None,
        input_polymorphic_shape_symbol_values: Any = None,
        export_version: ExportModelType = ExportModelType.TF_SAVEDMODEL,
        jax2obm_kwargs: Any = None,
        target: str | None = None,
    ) -> None:
        _check_format(export_version, jax2obm_kwargs)
        consolidate = _resolve_consolidation(
            allow_multi_axis_sharding_conslidation, allow_multi_axis_sharding_consolidation
        )
        reader, params_def = reader_of(target), jax.tree_util.tree_structure(params)
        flags = _resolve_trainable(trainable, params_def)
        methods = {
            key: _resolve_method(*given, trainable=any(flags), reader=reader)
            for key, given in _by_method(
                apply_fn, input_polymorphic_shape, jax2tf_kwargs, jit_compile, input_polymorphic_shape_symbol_values
            ).items()
        }
        placement = resolve_placement(params, pspecs, consolidate=consolidate)
        values, names = resolve_values(params), variable_names(params)

        super().__init__(name=name)
        # The flat list is tracked, and keeps the variables' own names.
        self.tf_var_leaves = make_variables(values, names, flags, placement)
        self._inside = _Inside(params, params_def, methods, pspecs, consolidate, names)
        for method in methods.values():
            method.in_tensorflow = self._in_tensorflow(method)
            method.jitted = jax.jit(method.function)

    def _in_tensorflow(self, method: _Method) -> Any:
        variables, params_def, variants = list(self.tf_var_leaves), self._inside.params_def, method.variants

        def traced(conversion: Conversion) -> Any:
            def call(x: Any) -> Any:
                return call_from_tensorflow(method.function, variables, params_def, x, conversion)

            return tf.function(call, autograph=False, jit_compile=method.jit_compile)

        if variants is None:
            return traced(method.conversion)
        functions = [traced(dataclasses.replace(method.conversion, input_shape=None)) for _ in variants.sizes]
        # The choice between compiled programs is not compiled itself: that would compile all of them for one size.
        return tf.function(lambda x: call_by_size(x, functions, variants), autograph=False)

    @property
    def methods(self) -> Mapping[str, Any]:
        """The TensorFlow function of each method; it takes one pytree of tensors."""
        return self._of_each("in_tensorflow")

    @property
    def jax_methods(self) -> Mapping[str, Callable[[Any], Any]]:
        """The JAX function of each method, of one argument, with the current parameters."""
        params = self._inside.params
        return {key: functools.partial(method.jitted, params) for key, method in self._inside.methods.items()}

    def _of_each(self, field: str) -> dict[str, Any]:
        return {key: getattr(method, field) for key, method in self._inside.methods.items()}

    @property
    def with_gradient(self) -> bool:
        """Whether any parameter is trainable."""
        return any(method.conversion.with_gradient for method in self._inside.methods.values())

    @property
    def apply_fn_map(self) -> Mapping[str, ApplyFn]:
        """The apply functions by method key."""
        return self._of_each("function")

    @property
    def model_params(self) -> Any:
        """The current parameters, with the structure of ``params``."""
        return self._inside.params

    @property
    def model_param_names(self) -> Any:
        """The name of each parameter's variable, in the structure of the parameters."""
        return jax.tree_util.tree_unflatten(self._inside.params_def, self._inside.names)

    @property
    def jax2tf_kwargs_map(self) -> Mapping[str, Mapping[str, Any]]:
        """The options of the conversion by method key."""
        return self._of_each("kwargs")

    @property
    def input_polymorphic_shape_map(self) -> Mapping[str, Any]:
        """The symbolic shape of the input by method key."""
        return {key: method.conversion.input_shape for key, method in self._inside.methods.items()}

    @property
    def export_version(self) -> ExportModelType:
        """``ExportModelType.TF_SAVEDMODEL``."""
        return ExportModelType.TF_SAVEDMODEL

    def update_variables(self, params: Any) -> None:
        """Assign new values to all variables. Traced and bound functions use them.

        Raises:
            ArgumentError: structure, shapes or dtypes differ from the module's parameters; no variable changes.
        """
        inside = self._inside
        new_def = jax.tree_util.tree_structure(params)
        message = "the structure of the new parameters differs from the module's"
        check_equal(message, new_def, inside.params_def, "pass a tree like the params of JaxModule")
        values = resolve_values(params)
        message = "the shape or dtype of a new parameter differs from its variable"
        advice = "convert it first: array.astype(dtype).reshape(shape)"
        for name, variable, value in zip(inside.names, self.tf_var_leaves, values, strict=True):
            old = f"{variable.dtype.name}{list(variable.shape)}"
            check_equal(message, f"{np.dtype(value.dtype).name}{list(value.shape)}", old, advice, at=name)
        placement = resolve_placement(params, inside.pspecs, consolidate=inside.consolidate)
        tensors = [placement.tensor(index, value) for index, value in enumerate(values)]
        for variable, tensor in zip(self.tf_var_leaves, tensors, strict=True):
            variable.assign(tensor)
        inside.params = params


def _check_format(version: Any, jax2obm_kwargs: Any) -> None:
    if version is not ExportModelType.TF_SAVEDMODEL:
        raise NotImplementedError(f"export_version={version}: plait writes SavedModels only (TF_SAVEDMODEL)")
    if jax2obm_kwargs:
        raise NotImplementedError("jax2obm_kwargs does not apply to a SavedModel")


def _resolve_consolidation(old: bool | None, new: bool | None) -> bool:
    if old is not None and new is not None and old != new:
        raise ArgumentError(
            "the two spellings of one argument contradict each other",
            found=f"allow_multi_axis_sharding_conslidation={old}, allow_multi_axis_sharding_consolidation={new}",
            expected="one of the two",
            do="JaxModule(..., allow_multi_axis_sharding_consolidation=True)",
        )
    return bool(old or new)


def _by_method(apply_fn: Any, shapes: Any, kwargs: Any, jit_compile: Any, sizes: Any) -> dict[str, tuple]:
    """The function of each method, and its part of each other argument."""
    if isinstance(apply_fn, Mapping):
        check_some("apply_fn is an empty mapping", "apply_fn", apply_fn, "JaxModule(params, {'predict': predict}, ...)")
        kwargs, sizes = (dict.fromkeys(apply_fn) if each is None else each for each in (kwargs, sizes))
        jit_compile = dict.fromkeys(apply_fn, jit_compile) if isinstance(jit_compile, bool) else jit_compile
        for key, function in apply_fn.items():
            _check_function(function, f"apply_fn[{key!r}]")
        _check_keys("input_polymorphic_shape", shapes, apply_fn)
        _check_keys("jax2tf_kwargs", kwargs, apply_fn)
        _check_keys("jit_compile", jit_compile, apply_fn)
        _check_keys("input_polymorphic_shape_symbol_values", sizes, apply_fn)
        return {key: (apply_fn[key], shapes[key], kwargs[key], jit_compile[key], sizes[key]) for key in apply_fn}
    _check_function(apply_fn, "apply_fn")
    if isinstance(jit_compile, Mapping):
        raise ArgumentError(
            "jit_compile is a mapping, but apply_fn is one function",
            found=f"jit_compile with the keys {sorted(jit_compile)}",
            expected="a bool",
            do="JaxModule(..., jit_compile=True)",
        )
    return {JaxModule.DEFAULT_METHOD_KEY: (apply_fn, shapes, kwargs, jit_compile, sizes)}


def _check_function(function: Any, at: str) -> None:
    expected = "a function (params, x) -> outputs, or a mapping from method keys to such functions"
    advice = "JaxModule(params, lambda params, x: ...)"
    check_type("apply_fn is not a function", function, Callable, expected, advice, at=at)


def _resolve_method(
    function: ApplyFn, shape: Any, kwargs: Any, jit_compile: Any, sizes: Any, *, trainable: bool, reader: Reader
) -> _Method:
    conversion = resolve_conversion(kwargs, input_shape=shape, trainable=trainable, reader=reader)
    variants = None if sizes is None else every_size(shape, sizes)
    kwargs = {**(kwargs or {}), "with_gradient": trainable}
    return _Method(function, kwargs, conversion, variants, bool(jit_compile))


def _check_keys(argument: str, given: Any, apply_fns: Mapping[str, Any]) -> None:
    keys = sorted(given) if isinstance(given, Mapping) else None
    if keys is None or set(keys) != set(apply_fns):
        shown = "{" + ", ".join(f"{key!r}: ..." for key in apply_fns) + "}"
        raise ArgumentError(
            f"{argument} does not have the methods of apply_fn",
            found=f"{argument}={given!r}" if keys is None else f"{argument} with the keys {keys}",
            expected=f"a mapping with the keys {sorted(apply_fns)}",
            do=f"JaxModule(..., {argument}={shown})",
        )


def _resolve_trainable(trainable: Any, params_def: Any) -> list[bool]:
    """Whether each leaf is trainable."""
    if trainable is None or isinstance(trainable, (bool, np.bool_)):
        return [bool(trainable)] * params_def.num_leaves
    advice = "trainable=True, or jax.tree.map(lambda leaf: True, params)"
    return [bool(flag) for flag in leaves_like(params_def, "trainable", trainable, (bool, np.bool_), advice)]
