"""The state from before an evaluation, which may put averages into the objects and move their iterators, and fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ..checkpoint.positions import has_position
from ..core.functional.split import state
from ..core.functional.update import update
from ..core.objects.cells import is_gone
from ..core.objects.state import State
from ..core.objects.variable_kinds import Param
from ..core.objects.variables import Variable
from ..ground.paths import describe_path
from ..surgery.pop import pop
from .positions import KeptPosition, positions_of


class BeforeEvaluation:
    """The variables and positions of the objects of ``fit``, as they are now."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        positioned = {name: each for name, each in objects.items() if has_position(each)}
        self._positions = {name: KeptPosition(positions_of(each)()) for name, each in positioned.items()}
        self._variables: State = state(objects)

    @property
    def objects(self) -> dict[str, Any]:
        """What is saved in their place."""
        return {**self._variables, **self._positions}

    @property
    def is_donated(self) -> bool:
        """Whether an array was donated since."""
        return _is_donated(self._variables)

    def donated_parameters(self) -> list[str]:
        """The paths of the parameters whose arrays were donated since."""
        parameters = state(self._variables, Param).flat_state()
        return [describe_path(path) for path, leaf in parameters if _is_donated(leaf)]

    def put_back(self, objects: Mapping[str, Any]) -> None:
        """Go back to it. Arrays that were donated, usually counts, are those that were made of them."""
        kept = state(
            self._variables, lambda _, leaf: isinstance(leaf, Variable) and not _is_donated(leaf.get_raw_value())
        )
        paths = {path for path, _ in self._variables.flat_state()}
        pop(objects, lambda path, _: path not in paths)  # what was added, which the objects of the next start lack
        update(objects, kept)
        for name, position in self._positions.items():
            objects[name].set_state(position.get_state())


def _is_donated(values: Any) -> bool:
    return any(map(is_gone, jax.tree.leaves(values)))
