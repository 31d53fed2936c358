"""``ToNNX``: a Linen module as a plait module. ``lazy_init`` makes its variables, as attributes. (rules B21 to B26)"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from ....core.intermediates.sowing import RECORD
from ....core.nodes.module import Module
from ....core.nodes.pytree import RESERVED
from ....core.rngs import Rngs
from ....core.settings import defaults
from ....core.traces.guard import check_trace
from ....core.variables.variables import Variable, eager_sharding_hooks
from ....errors import ArgumentError, ArgumentTypeError
from ....util.notices import deprecated
from ....util.paths import Path, describe_path
from ....util.words import describe_type
from ..variables.collections import iter_leaves, linen_vars_to_nnx_attrs, nnx_attrs_to_linen_vars
from .lazy import Initialization, initialization_of, lazy_init
from .linen import current_linen_module, is_missing_variable, need_linen
from .rngs import linen_keys
from .scope import current_scope

OWN = ("to_nnx__module", "to_nnx__rngs", RECORD)


class ToNNX(Module):
    """A plait module around a Linen module.

    Linen modules make their variables when called with an input, so call ``lazy_init`` once. Afterwards the variables
    are attributes: a ``Variable`` for each variable of the module itself, nested dictionaries for its submodules.

    Args:
        module: a Linen module.
        rngs: ``Rngs``, which is forked for this module; a key or a seed, for the stream ``params``; or ``None``, if
            you pass them in each call.

    Raises:
        MissingDependencyError: flax is not installed.
        ArgumentTypeError: ``module`` is not a Linen module.

    Example:
        >>> import flax.linen as nn
        >>> x = jnp.ones((1, 32))
        >>> model = plait.bridge.ToNNX(nn.Dense(64), rngs=plait.Rngs(0)).lazy_init(x)
        >>> model.kernel.shape, model(x).shape
        ((32, 64), (1, 64))
    """

    def __init__(self, module: Any, rngs: Any = None) -> None:
        linen = need_linen("ToNNX")
        if not isinstance(module, linen.Module):
            raise ArgumentTypeError(
                "ToNNX wraps a Linen module",
                found=f"{module!r:.80} of type {type(module).__name__}",
                expected="an instance of a subclass of flax.linen.Module",
                do="ToNNX(nn.Dense(64), rngs=plait.Rngs(0)), with the instance and not the class",
            )
        self.to_nnx__module = module if module.parent is None else module.clone(parent=None)
        if isinstance(rngs, Rngs):
            self.to_nnx__rngs = rngs.fork()
        else:
            self.to_nnx__rngs = None if rngs is None else Rngs(linen_keys(rngs))

    def lazy_init(self, *args: Any, **kwargs: Any) -> ToNNX:
        """Make the variables by one call with these arguments; return the module itself."""
        return lazy_init(self, *args, **kwargs)

    def __call__(self, *args: Any, method: Any = None, mutable: Any = None, rngs: Any = None, **kwargs: Any) -> Any:
        """Call the Linen module.

        Args:
            method: the method to call, or its name; by default ``__call__``.
            mutable: the collections that may change, as in Linen; by default those of the enclosing module, if there is
                one, and otherwise none. Changes are written to the attributes.
            rngs: ``Rngs``, a key, or a mapping from names to keys; by default one key from each of the module's own
                streams.

        Returns:
            Only the output.
        """
        own = self.to_nnx__rngs if rngs is None else rngs
        run = initialization_of(self)
        if run is not None and not run.again and self._has_variables() and id(self) not in run.done:
            run = None
        scope = current_scope()
        if run is None and scope is not None and scope.initializing and not self._has_variables():
            run = Initialization(self)
        keys = linen_keys(own)
        if run is not None:
            return self._initialize(run, keys, args, kwargs, method)
        return self._apply(keys, args, kwargs, method, _mutable_around() if mutable is None else mutable)

    def _initialize(self, run: Initialization, keys: Any, args: Any, kwargs: Any, method: Any) -> Any:
        module = self.to_nnx__module
        out, variables = module.init_with_output(keys, *args, method=method, **kwargs)
        made = linen_vars_to_nnx_attrs(variables)
        _check_names(made, type(module))
        for _, variable in iter_leaves(made):
            _place(variable)
        if id(self) not in run.done:
            run.done[id(self)] = self
            self._set(made)
            return out
        # A shared module is called again: it keeps the variables of the first call, which determine the output.
        kept = self._attributes()
        self._set(_merged(made, kept))
        from flax.linen import DenyList

        every = DenyList("intermediates")
        return module.apply(self._collections(), *args, rngs=keys, method=method, mutable=every, **kwargs)[0]

    def _apply(self, keys: Any, args: Any, kwargs: Any, method: Any, mutable: Any) -> Any:
        module = self.to_nnx__module
        variables = self._collections()
        try:
            out = module.apply(variables, *args, rngs=keys, method=method, mutable=mutable, **kwargs)
        except Exception as error:
            if not variables and is_missing_variable(error):
                error.add_note(f"  do        call lazy_init first: this ToNNX of {_name(module)} has no variables yet")
            raise
        if mutable is False:
            return out
        out, updates = out
        self._write(updates)
        return out

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in OWN}

    def _has_variables(self) -> bool:
        return bool(self._attributes())

    def _collections(self) -> dict[str, Any]:
        return nnx_attrs_to_linen_vars(self._attributes())

    def _write(self, updates: Any) -> None:
        """Write updated collections to the attributes."""
        made = linen_vars_to_nnx_attrs(updates)
        _check_names(made, type(self.to_nnx__module))
        for path, variable in iter_leaves(made):
            _check_place(self._attributes(), path, variable)
        self._set(made)

    def _set(self, made: dict[str, Any]) -> None:
        """Set attributes; variables that exist stay the same objects, with new values."""
        for name, value in made.items():
            current = self.__dict__.get(name)
            written = _written(current, value)
            if written is not current:
                setattr(self, name, written)

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("to_nnx__module")
        if module is None or name.startswith("__"):
            raise AttributeError(name)
        if name in ("module", "rngs"):
            deprecated(f"ToNNX.{name}", since="0.1", instead=f"to_nnx__{name}", removed_in="2.0")
            return self.__dict__[f"to_nnx__{name}"]
        from flax.linen import Module as LinenModule

        function = inspect.getattr_static(type(module), name, None)
        if not inspect.isfunction(function) or hasattr(LinenModule, name):
            raise AttributeError(
                f"this ToNNX of {_name(module)} has neither a variable nor a method {name!r}; its variables are "
                f"{sorted(self._attributes())}"
            )
        return functools.partial(self.__call__, method=getattr(type(module), name))


def _place(variable: Variable[Any]) -> None:
    """Shard a new variable by its axis names, if there is a mesh, as a variable's constructor does. (rule V39)"""
    if defaults.eager_sharding and variable.get_metadata("out_sharding", None):
        for place in eager_sharding_hooks:
            variable.set_raw_value(place(variable, variable.get_raw_value()))


def _mutable_around() -> Any:
    """The mutable collections of the enclosing ``bridge.Module`` or Linen module. (rule B24)"""
    scope = current_scope()
    if scope is not None:
        return list(scope.mutable) if isinstance(scope.mutable, tuple) else scope.mutable
    around = current_linen_module()
    return around.scope.mutable if around is not None and around.scope is not None else False


def _written(current: Any, value: Any) -> Any:
    """An attribute after an update: existing variables with new values, or new variables."""
    if isinstance(current, Variable) and type(current) is type(value):
        check_trace(current._cell.trace, current, "update")
        current.update_from_state(value)
        return current
    if isinstance(current, Mapping) and isinstance(value, dict):
        merged = {**current, **{key: _written(current.get(key), each) for key, each in value.items()}}
        same = len(merged) == len(current) and all(merged[key] is current[key] for key in merged)
        return current if same else merged
    return value


def _merged(made: Any, kept: Any) -> Any:
    """``kept``, with missing entries from ``made``."""
    if isinstance(made, dict) and isinstance(kept, Mapping):
        return {**kept, **{key: _merged(value, kept[key]) if key in kept else value for key, value in made.items()}}
    return kept


def _check_names(attrs: dict[Any, Any], cls: type) -> None:
    """Raise if a name cannot be that of an attribute, before any is set."""
    for name, value in attrs.items():
        if isinstance(name, str) and name not in OWN and name not in RESERVED:
            continue
        _, leaf = next(iter_leaves(value))
        reserved = f"a name other than {sorted({*OWN, *RESERVED})}"
        raise ArgumentError(
            f"a variable of a Linen module has the name {name!r}, which an attribute of ToNNX cannot have",
            at=f"{cls.__name__}, {describe_path((name,))}",
            found=f"a {type(leaf).__name__} of that name",
            expected=reserved if isinstance(name, str) else "a string",
            do="rename the variable or submodule in the Linen module",
        )


def _check_place(attrs: Any, path: Path, variable: Variable[Any]) -> None:
    """Raise if an update of one collection has the path of another collection's variable."""
    present: Any = attrs
    above = False
    for key in path:
        above = isinstance(present, Variable)
        present = present if above or present is None else present.get(key)
    if above or (present is not None and type(present) is not type(variable)):
        raise ArgumentError(
            "a new variable has the path of another one, but an attribute holds only one variable",
            at=describe_path(path),
            found=f"a {type(variable).__name__}, where there is {describe_type(present)}",
            expected=f"a {type(present).__name__}, or another path",
            do="rename one of the two in the Linen module",
        )


def _name(module: Any) -> str:
    return type(module).__name__
