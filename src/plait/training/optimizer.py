"""Optimizer: a gradient transformation with its state, applied to a model's variables in place.

The transformation is any object with ``init(params)`` and ``update(grads, state, params, **extra)``, such as Optax's.
Its arguments are always ``State``s of raw arrays with the paths of the model. Its own state is stored in variables:
arrays under a path of the model become ``OptVariable`` with that variable's metadata, all others ``OptArray``. So
transforms carry it, checkpoints save it, and it is sharded, like any model state.
"""

# Rules O1 to O3.

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..core.functional.split import graphdef, state
from ..core.functional.update import update as write_state
from ..core.graph.locate import describe_place
from ..core.graph.traversal import own_leaves, variables
from ..core.graph.untrained import warn_of_untrained
from ..core.nodes.nodes import Kind, jax_to_nnx_path, kind_of
from ..core.nodes.pytree import Pytree, copied_buffers
from ..core.states.graph_state import GraphState
from ..core.states.pure_dicts import plain_value
from ..core.states.state import FlatState, State, from_flat_state, to_flat_state, tracked
from ..core.traces.guard import check_trace
from ..core.variables.filters import All
from ..core.variables.variable_kinds import OptArray, OptState, OptVariable, Param
from ..core.variables.variables import Variable, eager_sharding_hooks
from ..errors import ArgumentTypeError, OptimizerAttributeError, OptimizerError
from ..typing import FilterLiteral
from ..util.jax_versions import ArrayImpl
from ..util.notices import warn_nothing_selected
from ..util.paths import Path, describe_path
from ..util.sentinels import NOTHING
from ..util.words import describe_filter, describe_type, first_few
from . import groups
from .groups import at, check_transformation as check_transformation, resolve_tx, trained
from .layerwise_updates import nested

__all__ = [
    "ModelAndOptimizer",
    "OptArray",
    "OptState",
    "OptVariable",
    "Optimizer",
    "to_opt_state",
]
__dir__ = __all__.copy

M = TypeVar("M")


# Optax stores hyperparameters in closures, and transforms cannot return tracers in closures from a traced function.
_LEAKED = (
    "plait: the optimizer's transformation may hold a tracer that has leaked from its trace\n"
    "  found     a transformation made inside jit or vmap, such as optax.adam(learning_rate) of an argument\n"
    "  expected  changing hyperparameters in the optimizer's state\n"
    "  do        optax.inject_hyperparams(optax.adam)(learning_rate=learning_rate), which stores it in opt_state"
)


class GradientTransformation(Protocol):
    """The interface of a gradient transformation: Optax's two functions."""

    @property
    def init(self) -> Any:
        """``init(params) -> state``."""

    @property
    def update(self) -> Any:
        """``update(grads, state, params, **extra) -> (updates, state)``."""


Transformations = GradientTransformation | Sequence[Any] | Mapping[Any, Any]


class Optimizer(Pytree, Generic[M]):
    """Apply a gradient transformation to the variables of a model, and to its array attributes.

    The optimizer does not store the model; pass it to each update. Type checkers see the model's type,
    ``Optimizer[Net]``.

    Variables:
        step: ``OptState``, ``()``, uint32; the number of updates so far.
        opt_state: the transformation's state, with its arrays in ``OptVariable``s (which mirror a variable of the model
            and have its metadata, but ``optimizer_sharding`` as their ``out_sharding``) and ``OptArray``s.

    Args:
        model: a module, or a container of modules and variables.
        tx: a gradient transformation, such as Optax's. Or a mapping from filters to these, for parameter groups: the
            first filter that matches a parameter counts, strings are path patterns as in ``plait.select``, and ``None``
            freezes a group. Or a list of either, applied one after the other.
        wrt: which variables of the model to update. A filter that matches an array attribute updates that too. The
            attribute ``wrt`` leaves frozen groups out, so ``plait.DiffState(0, optimizer.wrt)`` computes no gradients
            for them.
        per_layer: whether each layer of a ``Stack`` is a parameter of its own, as in a list, for transformations that
            look at ranks, shapes or norms; otherwise a stacked array is one parameter. One that combines parameters,
            such as ``optax.clip_by_global_norm``, always gets stacked arrays, and so does a chain with one in it. So
            pass such a chain as a list: ``[optax.clip_by_global_norm(1.0), optax.contrib.muon(1e-3)]``.

    Raises:
        ArgumentTypeError: ``wrt`` is missing, or ``tx`` is not a gradient transformation.
        OptimizerError: a variable is in no group.

    Warns:
        NothingSelectedWarning: ``wrt`` selects no variable of the model.

    Example:
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.sgd(0.5), wrt=plait.Param)
        >>> grads = plait.grad(lambda model: model(jnp.ones((1, 2))).sum())(model)
        >>> _ = optimizer.update(model, grads)
        >>> model.bias[...].tolist(), int(optimizer.step[...])
        ([-0.5], 1)

        Groups, after a clip of all gradients together:

        >>> groups = {"**.bias": optax.adamw(1e-3, weight_decay=0.0), ...: optax.adamw(1e-3, weight_decay=0.1)}
        >>> optimizer = plait.Optimizer(model, [optax.clip_by_global_norm(1.0), groups], wrt=plait.Param)
        >>> _ = optimizer.update(model, grads)
    """

    def __init__(
        self,
        model: M,
        tx: Transformations,
        *,
        wrt: FilterLiteral = NOTHING,
        per_layer: bool = True,
        graph: bool | None = None,
    ) -> None:
        if wrt is NOTHING:
            raise ArgumentTypeError(
                f"Missing required argument `wrt`: {type(self).__name__} does not know what to update; wrt is missing",
                found="no wrt",
                expected="a filter that selects variables of the model",
                do="for example Optimizer(model, tx, wrt=plait.Param); plait.ModelAndOptimizer(model, tx) stores the "
                "model, and updates its Params",
            )
        self.step = OptState(jnp.zeros((), jnp.uint32))
        self.tx: Any = resolve_tx(tx, type(self).__name__)
        not_frozen = trained(self.tx)
        self.wrt = wrt if not_frozen is None else All(wrt, not_frozen)
        selected = _selected(model, self.wrt)
        if not selected:
            kinds = [type(leaf) if _is_variable(leaf) else None for leaf in _selected(model, ...).values()]
            warn_nothing_selected(
                type(self).__name__,
                wrt,
                kinds,
                at=describe_place(model),
                so="so no update will change the model",
                do="select variables that the model has, such as wrt=plait.Param",
            )
        warn_of_untrained(type(self).__name__, model, graphdef(model, graph=True))
        values = {path: plain_value(leaf) for path, leaf in selected.items()}
        ways = tuple(groups.ways_of(self.tx, selected, values)) if per_layer else ()
        if set(ways) - {"whole"}:
            self.ways = ways
        try:
            opt_state = groups.init(self.tx, selected, values, self._ways())
        except ValueError as error:
            if "structure" in str(error):
                raise _other_structure(selected, wrt) from error
            raise
        step, opt_state = _beside(values, (self.step.get_raw_value(), _unshared(opt_state, values)))
        self.step.set_raw_value(step)
        self.opt_state = to_opt_state(opt_state, selected)

    def update(self, model: Any, grads: Any = NOTHING, **kwargs: Any) -> Any:
        """Take one step: change the selected variables of ``model`` and this optimizer's own state in place.

        Args:
            model: the model that the optimizer was created for, or one with the same structure.
            grads: the gradients, from ``plait.grad``: a ``State``, a nested mapping or a module. Gradients of variables
                that ``wrt`` does not match are ignored.
            **kwargs: extra arguments of the transformation, such as ``value=loss``. It gets variables and states as
                arrays. A line search needs ``value=loss, grad=grads, value_fn=lambda params: ...``, where ``params``
                is a ``State`` of arrays for ``plait.merge(graphdef, params)``.

        Returns:
            The updates that were added to the variables: a ``State`` of arrays.

        Raises:
            ArgumentTypeError: ``grads`` is missing.
            OptimizerError: the gradients are the model itself, or were swapped with it, or do not have the paths and
                shapes of the variables; nothing changes.
        """
        if grads is NOTHING:
            raise ArgumentTypeError(
                f"{type(self).__name__}.update was called without grads",
                found="one argument",
                expected="update(model, grads)",
                do="pass both: optimizer.update(model, grads); plait.ModelAndOptimizer(model, tx) stores the model and "
                "takes update(grads)",
            )
        selected = _selected(model, self.wrt)
        _check_order(model, grads, selected)
        values = {path: plain_value(leaf) for path, leaf in selected.items()}
        extra = {name: _raw_extra(value, values) for name, value in kwargs.items()}
        gradients = _matching_gradients(model, values, grads, self.wrt)
        old, structure = jax.tree.flatten(self.opt_state, is_leaf=_is_variable)
        raw_state = structure.unflatten([plain_value(leaf) for leaf in old])

        try:
            updates, new_state = groups.update(self.tx, selected, gradients, raw_state, values, extra, self._ways())
        except jax.errors.UnexpectedTracerError as error:
            error.add_note(_LEAKED)
            raise
        except (ValueError, TypeError) as error:
            self._explain_other_model(selected, error)
            raise
        new_values = {path: at(updates, path) for path in values}
        new_values = {path: _added(value, new_values[path]) for path, value in values.items()}
        step = plain_value(self.step) + jnp.uint32(1)

        # Everything is computed and checked before the first write, so an error changes nothing.
        self._check_writable(selected)
        arrays = {}
        for path, leaf in selected.items():
            if _is_variable(leaf):
                leaf.set_raw_value(_kept_in_place(leaf, new_values[path]))
            else:
                arrays[path] = new_values[path]
        if arrays:
            write_state(model, from_flat_state(arrays))
        self._write_state(old, structure, new_state, selected)
        self.step.set_raw_value(step)
        return updates

    def _ways(self) -> Iterator[str]:
        return iter(self.ways) if "ways" in self.__dict__ else itertools.repeat("whole")

    def _explain_other_model(self, selected: Mapping[Path, Any], error: Exception) -> None:
        """Raise if the model's variables have changed since the optimizer was created.

        Raises:
            OptimizerError: names the variables that do not match the optimizer's state.
        """
        mirrored = _mirrored_shapes(self.opt_state)
        # The path of a moment ends in that of its variable: (0, "mu", "layers", 0, "kernel").
        ends = {path: {path[start:] for start in range(len(path))} for path in mirrored}
        known: dict[Path, list[Any]] = {}
        for path, shape in mirrored.items():
            for end in ends[path] & selected.keys():
                known.setdefault(end, []).append(shape)
        new = [path for path, leaf in selected.items() if mirrored and path not in known and _is_variable(leaf)]
        gone = [path for path in mirrored if not ends[path] & selected.keys()]
        changed = [path for path in known if _is_of_another_shape(plain_value(selected[path]), known[path])]
        if new or gone or changed:
            counts = {"new": len(new), "with a different shape": len(changed), "that the model lacks": len(gone)}
            raise OptimizerError(
                "the variables of the model do not match the optimizer's state",
                at=_listed([*new, *changed, *gone]),
                found=", ".join(f"{count} {what}" for what, count in counts.items() if count)
                + f", and {len(selected) - len(new) - len(changed)} that match",
                expected="the variables that the model had when the optimizer was created",
                do="create the optimizer after the model is complete: "
                f"plait.Optimizer(model, tx, wrt={describe_filter(self.wrt)})",
            ) from error

    def _check_writable(self, selected: Mapping[Path, Any]) -> None:
        own = [leaf for leaf in jax.tree.leaves(self.opt_state, is_leaf=_is_variable) if _is_variable(leaf)]
        for variable in (self.step, *own, *filter(_is_variable, selected.values())):
            check_trace(variable._cell.trace, variable, "update the value of")

    def _write_state(self, old: list[Any], structure: Any, new: Any, selected: Mapping[Path, Any]) -> None:
        try:
            leaves = structure.flatten_up_to(new)
        except (ValueError, TypeError):  # the structure of the transformation's state has changed
            self.opt_state = to_opt_state(new, selected)
            return
        if all(map(_is_variable, old)):
            for variable, value in zip(old, leaves, strict=True):
                variable.set_raw_value(value)
        else:
            self.opt_state = to_opt_state(new, selected)

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise OptimizerAttributeError(
                f"{type(self).__name__} has no attribute 'model': it does not store the model",
                found="an access to .model",
                expected="the model as the first argument of update(model, grads)",
                do="keep your own reference to the model, or use plait.ModelAndOptimizer(model, tx), which has .model",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _other_structure(selected: Mapping[Path, Any], wrt: FilterLiteral) -> OptimizerError:
    """The error for a tree in a transformation, such as a mask, that does not have the structure of the parameters."""
    return OptimizerError(
        "a tree that the transformation was made with does not have the structure of the parameters",
        at=_listed(list(selected)),
        found="a tree of another structure, such as a mask made of variables",
        expected="a function of the parameters, or a State of plain values by the paths of the parameters",
        do="optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)); or make it from "
        f"plait.pure(plait.state(model, {describe_filter(wrt)}))",
    )


def _mirrored_shapes(opt_state: Any) -> dict[Path, Any]:
    """The shapes of the state's variables that mirror the model's, by path."""
    return {
        jax_to_nnx_path(path): jnp.shape(plain_value(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(opt_state, is_leaf=_is_variable)[0]
        if isinstance(leaf, OptVariable)
    }


def _is_of_another_shape(value: Any, moments: list[Any]) -> bool:
    """Whether a value and its moments differ in shape. Factored moments have fewer axes, and are not compared."""
    shape = jnp.shape(value)
    return shape not in moments and all(len(moment) == len(shape) for moment in moments)


class ModelAndOptimizer(Optimizer[M]):
    """An ``Optimizer`` that stores the model it updates.

    Variables:
        model: the model. step, opt_state: as in ``Optimizer``.

    Args:
        model: a module, or a container of modules and variables.
        tx: a gradient transformation, such as Optax's.
        wrt: which variables of the model to update.

    Example:
        >>> trainer = plait.ModelAndOptimizer(plait.Linear(2, 1, rngs=plait.Rngs(0)), optax.sgd(0.5))
        >>> grads = plait.grad(lambda model: model(jnp.ones((1, 2))).sum())(trainer.model)
        >>> _ = trainer.update(grads)
        >>> trainer.model.bias[...].tolist()
        [-0.5]
    """

    model: M

    def __init__(self, model: M, tx: Transformations, *, wrt: FilterLiteral = Param, per_layer: bool = True) -> None:
        super().__init__(model, tx, wrt=wrt, per_layer=per_layer)
        self.model = model

    def update(self, grads: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step; see ``Optimizer.update``.

        Args:
            grads: the gradients of the model.
            **kwargs: extra arguments of the transformation.
        """
        return super().update(self.model, grads, **kwargs)


def _check_order(model: Any, grads: Any, selected: Mapping[Path, Any]) -> None:
    """Raise if the model and its gradients are swapped, or if the model is passed as gradients.

    Raises:
        OptimizerError: names the type of both arguments.
    """
    swapped = isinstance(model, (State, FlatState)) and isinstance(grads, Pytree)
    if not swapped:
        own = {id(leaf) for leaf in selected.values()}
        given = variables(grads, graph=True) if isinstance(grads, Pytree) else grads
        if not any(id(leaf) in own for leaf in jax.tree.leaves(given, is_leaf=_is_variable)):
            return
    raise OptimizerError(
        "update was given the gradients and the model in the wrong order"
        if swapped
        else "update was given the model instead of gradients",
        at=_listed(list(selected)),
        found=f"update({describe_type(model)}, {describe_type(grads)})",
        expected="the model first, then a State of gradients with the same paths: update(model, grads)",
        do="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
    )


def _beside(values: Mapping[Path, Any], tree: Any) -> Any:
    """The tree with its counts on the mesh of the values, where a step leaves them: so it is compiled once."""
    meshes = {
        value.sharding.mesh
        for value in jax.tree.leaves(list(values.values()))
        if type(value) is ArrayImpl and isinstance(value.sharding, NamedSharding)
    }
    if len(meshes) != 1:
        return tree
    whole = NamedSharding(meshes.pop(), PartitionSpec())

    def placed(leaf: Any) -> Any:
        return jax.device_put(leaf, whole) if type(leaf) is ArrayImpl and not leaf.committed else leaf

    return jax.tree.map(placed, tree)


def _unshared(tree: Any, values: Mapping[Path, Any]) -> Any:
    """The tree with copies of the arrays that it shares with the model or holds twice: a step may donate each."""
    met = {id(leaf) for leaf in jax.tree.leaves(list(values.values()))}

    def own(leaf: Any) -> Any:
        if id(leaf) in met:
            return copied_buffers(leaf)
        if isinstance(leaf, jax.Array):
            met.add(id(leaf))
        return leaf

    return jax.tree.map(own, tree)


def to_opt_state(tree: Any, selected: Mapping[Path, Any] | None = None) -> Any:
    """A transformation's state with each array in a variable.

    Args:
        tree: the result of ``init`` or ``update``.
        selected: the updated variables, by path. Arrays of a ``State`` at such a path become ``OptVariable``s.
    """
    mirrored = {path: leaf for path, leaf in (selected or {}).items() if _is_variable(leaf)}

    def wrapped(node: Any) -> Any:
        if not isinstance(node, State):
            return _opt_array(node)
        pairs = [(path, _opt_leaf(leaf, mirrored.get(path))) for path, leaf in to_flat_state(node)]
        return tracked(from_flat_state(FlatState(pairs, sort=False)))

    return jax.tree.map(wrapped, tree, is_leaf=lambda node: isinstance(node, State))


def _opt_leaf(leaf: Any, mirrored: Variable[Any] | None) -> Any:
    if not jax.tree.leaves(leaf):  # a leaf that the transformation skips, such as optax.MaskedNode
        return leaf
    return jax.tree.map(_opt_array, leaf) if mirrored is None else _mirror(leaf, mirrored)


def _opt_array(leaf: Any) -> OptArray[Any]:
    return OptArray(leaf)


def _mirror(value: Any, variable: Variable[Any]) -> OptVariable[Any]:
    """An optimizer variable with the metadata of a model's variable, sharded accordingly."""
    metadata = {**variable.get_metadata(), "ref": False}
    if "optimizer_sharding" in metadata:
        metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    elif "out_sharding" in metadata and jnp.ndim(value) != jnp.ndim(plain_value(variable)):
        metadata["out_sharding"] = None  # a factored or summed value, whose axes are not those of the variable
    mirror = OptVariable.from_metadata(value, metadata)
    mirror.set_raw_value(_placed(mirror, value))
    return mirror  # type: ignore[return-value]


def _placed(variable: Variable[Any], value: Any) -> Any:
    """The value sharded by the variable's metadata, if there is a mesh."""
    metadata = variable.get_metadata()
    if metadata["eager_sharding"] and metadata.get("out_sharding"):
        for place in eager_sharding_hooks:
            value = place(variable, value)
    return value


def _kept_in_place(variable: Variable[Any], value: Any) -> Any:
    """The new value of a variable, with its own sharding; otherwise it would get the sharding of its moments."""
    return _placed(variable, value) if variable.get_metadata().get("optimizer_sharding") else value


def _is_variable(node: Any) -> bool:
    return isinstance(node, Variable)


def _raw_extra(extra: Any, values: Mapping[Path, Any]) -> Any:
    """An extra argument of a transformation: gradients in the structure of the parameters; other variables as raw
    values."""
    if isinstance(extra, Pytree):
        extra = state(extra, graph=True)
    if not isinstance(extra, (State, FlatState, Variable)):
        return extra
    found = _gradients_by_path(extra)
    return nested({path: found[path] for path in (values if values.keys() <= found.keys() else found)})


def _selected(model: Any, wrt: FilterLiteral) -> dict[Path, Any]:
    """The model's own variables and arrays that ``wrt`` matches, by path: ``()`` for a variable as the root."""
    return own_leaves(model, wrt, "Optimizer", lambda leaf: _is_variable(leaf) or kind_of(leaf) is Kind.ARRAY)


def _added(value: Any, update: Any) -> Any:
    """A parameter with its update added, in the parameter's dtype; the update ``None`` changes nothing."""
    if update is None:
        return value

    def add(p: Any, u: Any) -> Any:
        if u.dtype == p.dtype:
            return (p + u).astype(p.dtype)  # no longer of a weak type, as from Optax
        with jax.numpy_dtype_promotion("standard"):
            return (p + u).astype(p.dtype)

    return jax.tree.map(add, value, update)


def _matching_gradients(model: Any, values: Mapping[Path, Any], grads: Any, wrt: FilterLiteral) -> dict[Path, Any]:
    """The gradients by path, raw, one for each selected variable.

    Raises:
        OptimizerError: gradients are missing, unexpected, or have different shapes; names the paths.
    """
    found = _gradients_by_path(grads)
    missing = [path for path in values if path not in found]
    extra = [path for path in found if path not in values]
    if extra:  # gradients of variables that wrt does not match are ignored
        known = _selected(model, ...)
        extra = [path for path in extra if path not in known]
    if missing or extra:
        parts = [f"no gradient for {_listed(missing)}"] * bool(missing)
        parts += [f"a gradient for {_listed(extra)}, which the model does not have"] * bool(extra)
        raise OptimizerError(
            "the paths of the gradients and of the updated variables differ",
            at=_listed([*missing, *extra]),
            found="; ".join(parts),
            expected=f"one gradient for each of the {len(values)} variables that wrt={describe_filter(wrt)} selects",
            do="differentiate with respect to the same variables: "
            f"grads = plait.grad(loss, argnums=plait.DiffState(0, {describe_filter(wrt)}))(model, x)",
        )
    misfits = [path for path, value in values.items() if _shapes(value) != _shapes(found[path])]
    if misfits:
        first = misfits[0]
        raise OptimizerError(
            "a gradient does not have the shape of its variable",
            at=_listed(misfits),
            found=f"a gradient of shape {_shown(found[first])} at {describe_path(first)}",
            expected=f"shape {_shown(values[first])}",
            do="differentiate the same model that is updated; sum or average gradients over added axes first",
        )
    return {path: found[path] for path in values}


def _gradients_by_path(grads: Any) -> dict[Path, Any]:
    """Raw gradients, from any form."""
    if isinstance(grads, Variable) or kind_of(grads) is Kind.ARRAY:
        flat: Any = [((), grads)]
    elif isinstance(grads, FlatState):
        flat = grads
    else:
        grads = grads.state if isinstance(grads, GraphState) else grads
        flat = to_flat_state(grads if isinstance(grads, State) else state(grads, graph=True))
    return {path: plain_value(leaf) for path, leaf in flat}


def _shapes(value: Any) -> Any:
    if hasattr(value, "shape"):
        return value.shape
    leaves, structure = jax.tree.flatten(value)
    return structure, [jnp.shape(leaf) for leaf in leaves]


def _shown(value: Any) -> Any:
    shapes = _shapes(value)
    return shapes if not shapes or not isinstance(shapes[0], jax.tree_util.PyTreeDef) else shapes[1]


def _listed(paths: list[Path]) -> str:
    return first_few([*map(describe_path, paths)])
