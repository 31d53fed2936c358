"""TrainState: the state of a functional training step, as one immutable pytree.

Use it for steps written with ``jax.jit`` or ``jax.lax.scan``, which pass all state explicitly. Steps that change
objects in place use ``Optimizer`` instead. (rule O9)
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from typing_extensions import dataclass_transform

from ..core.graph.graphdef import GraphDef
from ..core.states.proxy_caller import apply
from ..core.states.state import State, to_flat_state
from ..errors import OptimizerAttributeError, OptimizerError
from ..util.paths import Path, describe_path
from .optimizer import GradientTransformation, check_transformation

M = TypeVar("M")


_STATIC = {"static": True}


def _is_static(field: dataclasses.Field[Any]) -> bool:
    # The second condition is the convention of Flax's dataclasses.
    return bool(field.metadata.get("static")) or not field.metadata.get("pytree_node", True)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
class _FrozenPytree:
    """Makes every subclass a frozen dataclass, and a pytree of its fields without ``static`` metadata."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        jax.tree_util.register_dataclass(
            cls,
            data_fields=[field.name for field in fields if not _is_static(field)],
            meta_fields=[field.name for field in fields if _is_static(field)],
        )


class TrainState(_FrozenPytree, Generic[M]):
    """A split model with its optimizer's state; each step returns a new one.

    Subclasses add annotated fields for other states, such as batch statistics and random streams; a field with
    ``dataclasses.field(metadata={"static": True})`` is static.

    Attributes:
        graphdef: the structure of the model; static.
        params: the state to train.
        opt_state: the state of the gradient transformation.
        step: ``()``, int32; the number of updates so far.
        tx: a gradient transformation, such as Optax's; static.

    Example:
        >>> graphdef, params = plait.split(plait.Linear(2, 1, rngs=plait.Rngs(0)))
        >>> state = plait.TrainState.create(graphdef, params=params, tx=optax.sgd(0.5))
        >>> @jax.jit
        ... def train_step(state, x):
        ...     def loss(params):
        ...         y, _ = state.apply(params)(x)
        ...         return y.sum()
        ...     return state.apply_gradients(jax.grad(loss)(state.params))
        >>> state = train_step(state, jnp.ones((1, 2)))
        >>> int(state.step), state.params["bias"][...].tolist()
        (1, [-0.5])
    """

    graphdef: GraphDef = dataclasses.field(metadata=_STATIC)
    params: State
    opt_state: Any
    step: jax.Array
    tx: GradientTransformation = dataclasses.field(metadata=_STATIC)

    @classmethod
    def create(
        cls, graphdef: GraphDef, *, params: State, tx: GradientTransformation, step: int = 0, **extra: Any
    ) -> Self:
        """A state at the beginning of training.

        Args:
            graphdef: as ``plait.split`` returns it.
            params: the state to train.
            tx: a gradient transformation, such as Optax's.
            step: the number of updates so far.
            **extra: the fields that a subclass adds.

        Raises:
            ArgumentTypeError: ``tx`` is not a gradient transformation.
        """
        check_transformation(tx, cls.__name__)
        extra = {"opt_state": tx.init(params), "step": jnp.asarray(step, jnp.int32), **extra}
        return cls(graphdef=graphdef, params=params, tx=tx, **extra)

    def apply(self, state: State | str, *states: State | str) -> Any:
        """The model with these states, ready to be called.

        Args:
            state, *states: states that together make up the model, or the names of fields that hold them:
                ``state.apply("params", "rest")``.

        Returns:
            ``proxy(*args, **kwargs)`` returns ``(out, (graphdef, state))``, and ``proxy.name`` selects a method first.

        Raises:
            OptimizerAttributeError: there is no field with a name.
        """
        parts = [self._field(each) if isinstance(each, str) else each for each in (state, *states)]
        return apply(self.graphdef, *parts)

    def apply_gradients(self, grads: Any, **changes: Any) -> Self:
        """The state after one update.

        Args:
            grads: the gradients of ``params``, with its structure.
            **changes: other fields to replace, such as the statistics that the forward pass returned.

        Raises:
            OptimizerError: the gradients do not have the paths of ``params``; the message names the paths.
        """
        _check_paths(self.params, grads)
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)  # type: ignore[arg-type]
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **changes)

    def replace(self, **changes: Any) -> Self:
        """A copy with new values in these fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def _field(self, name: str) -> Any:
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        if name not in names:
            raise OptimizerAttributeError(
                f"{type(self).__name__} has no field {name!r}",
                found=f"the fields {names}",
                expected="the name of a field that holds a State",
                do=f"declare it in a subclass of TrainState ({name}: plait.State), and pass it to create({name}=...)",
            )
        return getattr(self, name)


def _check_paths(params: Any, grads: Any) -> None:
    """Raise for gradients with another structure.

    Raises:
        OptimizerError: names the paths that differ.
    """
    if jax.tree.structure(params) == jax.tree.structure(grads):
        return
    expected, found = _paths(params), _paths(grads)
    missing = [path for path in expected if path not in found]
    extra = [path for path in found if path not in expected]
    parts = [f"no gradient for {_listed(missing)}"] * bool(missing)
    parts += [f"a gradient for {_listed(extra)}, which params does not have"] * bool(extra)
    raise OptimizerError(
        "the gradients do not have the structure of the parameters",
        at=_listed([*missing, *extra] or expected),
        found="; ".join(parts) or "the same paths, but leaves of different types or metadata",
        expected=f"a State with the {len(expected)} paths of params",
        do="differentiate with respect to params: jax.grad(loss)(state.params)",
    )


def _paths(state: Any) -> list[Path]:
    return [path for path, _ in to_flat_state(state)]


def _listed(paths: list[Path]) -> str:
    return ", ".join(map(describe_path, paths))
