"""Where the weights of a model are in the files of its family."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..convert import torch_layouts as torch_layouts  # registers its layouts
from ..convert.counterparts import Counterpart, counterparts
from ..convert.layouts import Piece
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import Rngs
from ..errors import ConversionError
from ..nn.attention import MultiHeadAttention
from ..util.paths import Path
from . import decoder_families, encoder_families
from .family import Family

FAMILIES: dict[str, Family] = {**decoder_families.FAMILIES, **encoder_families.FAMILIES}


def family_of(config: Mapping[str, Any], place: str) -> Family:
    """The family of a config.

    Raises:
        ConversionError: plait does not have it.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConversionError(
            "plait does not have this family of models",
            at=place,
            found=f"model_type: {name!r:.80}",
            expected=", ".join(sorted(FAMILIES)),
            do="write the model with plait's layers, and convert its weights with plait.convert.convert_checkpoint",
        )
    return FAMILIES[name]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable of a model with lists of blocks, and the array of the files that it is in.

    Args:
        path: of the variable.
        counterpart: the variable, and its name and layout in PyTorch's notation.
        theirs: the name of the array in the files.
        parts: PyTorch's names of all variables that the array holds, in order.
        piece: converts between the array and these.
    """

    path: Path
    counterpart: Counterpart
    theirs: str
    parts: tuple[str, ...]
    piece: Piece

    @property
    def name(self) -> str:
        """The name of the variable in PyTorch's notation."""
        return self.counterpart.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable."""
        return self.counterpart.variables[0].get_raw_value().shape

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """The shape of the variable in PyTorch's layout."""
        return self.counterpart.piece.their_shapes([self.shape])[0]

    def misfit(self, shape: tuple[int, ...], dtype: Any) -> tuple[str, str] | None:
        """What is wrong with an array of the files, and what would be right, if it does not fit."""
        if not jnp.issubdtype(dtype, jnp.floating):
            return f"dtype {dtype}", "floating-point numbers"
        try:
            self.part(np.broadcast_to(np.zeros((), np.int8), shape))
        except ValueError:  # also of NumPy, if the array cannot be split
            return f"shape {shape}", f"a shape for {self.shape}"
        return None

    def part(self, array: np.ndarray) -> np.ndarray:
        """What an array of the files has for the variable, a view if possible.

        Raises:
            ValueError: it has another shape.
        """
        found = self.piece.to_ours(array)[self.parts.index(self.name)]
        if found.shape != self.torch_shape:
            raise ValueError(f"{found.shape} is not {self.torch_shape}")
        return self.counterpart.piece.to_ours(found)[0]


def weights_of(family: Family, settings: Any, has_prefix: bool = True) -> tuple[list[Weight], Callable[[str], bool]]:
    """The weights of a family's model, and whether a name of a file is one that the model does not need.

    Args:
        has_prefix: whether names in the files have the prefix of the family.
    """
    listed = jax.eval_shape(lambda: family.make(settings, param_dtype=np.float32, as_list=True, rngs=Rngs(0)))
    prefix = "" if has_prefix else family.prefix
    pieces = family.names(settings)
    known = [(_pattern(ours), piece) for piece in pieces for ours in piece.ours]
    unused = [_pattern(name.removeprefix(prefix)) for piece in pieces if not piece.ours for name in piece.theirs]
    # Names below an attention say that its parts are stored one by one.
    below = {
        ".".join(map(str, (*p, "query"))) for p, n in iter_graph_nodes(listed) if isinstance(n, MultiHeadAttention)
    }
    found = []
    for counterpart in counterparts("torch", listed, below)[0]:
        (name,) = counterpart.names
        match, piece = next((m, piece) for pattern, piece in known if (m := pattern.fullmatch(name)) is not None)
        *layers, rest = match.groups()
        theirs, parts = _filled(piece.theirs[0], layers) + rest, [_filled(ours, layers) + rest for ours in piece.ours]
        found.append(Weight(counterpart.paths[0], counterpart, theirs.removeprefix(prefix), tuple(parts), piece))
    return found, lambda name: any(pattern.fullmatch(name) for pattern in unused)


def _pattern(name: str) -> re.Pattern[str]:
    """A pattern of a name and what follows it after a dot; its groups are the layers and the rest."""
    return re.compile(r"(\d+)".join(map(re.escape, name.split("*"))) + r"(\..+|)")


def _filled(name: str, layers: Iterable[str]) -> str:
    for layer in layers:
        name = name.replace("*", layer, 1)
    return name
