"""Generation: sequences that a model continues token by token, sampled, streamed, or found by beam search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .beams import Beams as Beams, beam_search as beam_search
    from .continuation import Generated as Generated, generate as generate, stream as stream

_NAMES = {
    "beams": "Beams beam_search",
    "continuation": "Generated generate stream",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
